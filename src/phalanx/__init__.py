"""Phalanx: federated learning among clients that cannot be trusted."""

__version__ = "0.1.0"

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
from phalanx.runs.plan import Run
from phalanx.runs.record import Record
from phalanx.runs.session import simulate
from phalanx.training.sgd import LocalSGD

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
