"""Phalanx: federated learning among clients that cannot be trusted."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from phalanx.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from phalanx.aggregators import Aggregator
    from phalanx.core import (
        Algorithm,
        Arrivals,
        InfeasibleError,
        Local,
        Progress,
        Reply,
        StalledError,
        Stop,
        Transport,
        Until,
        Updates,
        Verdict,
    )
    from phalanx.engine.guard import Guard
    from phalanx.engine.loop import run
    from phalanx.experiments.study import Study
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
    "Stop",
    "Study",
    "Transport",
    "Until",
    "Updates",
    "Verdict",
    "run",
    "simulate",
]

HOMES = {  # the modules of the names above that are not in `phalanx.core`: torch is imported with the first of them
    "Aggregator": "phalanx.aggregators",
    "Guard": "phalanx.engine.guard",
    "LocalSGD": "phalanx.training.sgd",
    "Record": "phalanx.runs.record",
    "Run": "phalanx.runs.plan",
    "Study": "phalanx.experiments.study",
    "run": "phalanx.engine.loop",
    "simulate": "phalanx.runs.session",
}


def __getattr__(name: str) -> Any:
    """Return a public name, or a module of this package, and import it for that if need be."""
    if name in __all__:
        value = getattr(import_module(HOMES.get(name, "phalanx.core")), name)
    elif not name.startswith("_") and find_spec(f"phalanx.{name}"):
        value = import_module(f"phalanx.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
