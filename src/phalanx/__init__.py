"""Phalanx: federated learning among clients that cannot be trusted."""

from phalanx.aggregators import Aggregator
from phalanx.core import (
    Algorithm,
    Arrivals,
    InfeasibleError,
    Local,
    Progress,
    Reply,
    StalledError,
    Transport,
    Until,
    Updates,
    Verdict,
)
from phalanx.engine.guard import Guard
from phalanx.engine.loop import run
from phalanx.runs.history import Record
from phalanx.runs.plan import Run
from phalanx.runs.session import simulate
from phalanx.training.sgd import LocalSGD
from phalanx.version import VERSION

__version__ = VERSION

__all__ = [
    "Aggregator",
    "Algorithm",
    "Arrivals",
    "Guard",
    "InfeasibleError",
    "Local",
    "LocalSGD",
    "Progress",
    "Record",
    "Reply",
    "Run",
    "StalledError",
    "Transport",
    "Until",
    "Updates",
    "Verdict",
    "run",
    "simulate",
]
