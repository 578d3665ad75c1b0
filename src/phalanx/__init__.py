"""Phalanx: federated learning among clients that cannot be trusted."""

__version__ = "0.1.0"

from phalanx.aggregators import Aggregator
from phalanx.core import (
    Algorithm,
    Arrivals,
    Infeasible,
    Local,
    Progress,
    Reply,
    Stalled,
    Transport,
    Until,
    Updates,
    Verdict,
)
from phalanx.engine import run
from phalanx.guard import Guard
from phalanx.history import Record
from phalanx.runs import Run, simulate
from phalanx.training import LocalSGD

__all__ = [
    "Aggregator",
    "Algorithm",
    "Arrivals",
    "Guard",
    "Infeasible",
    "Local",
    "LocalSGD",
    "Progress",
    "Record",
    "Reply",
    "Run",
    "Stalled",
    "Transport",
    "Until",
    "Updates",
    "Verdict",
    "run",
    "simulate",
]
