"""Phalanx: federated learning among clients that cannot be trusted."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from phalanx.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from phalanx.aggregators import Aggregator
    from phalanx.core import Algorithm, InfeasibleError, Local, StalledError, Until, Updates, Verdict
    from phalanx.engine.connection import Arrivals, Reply, Transport
    from phalanx.engine.guard import Guard
    from phalanx.engine.loop import run
    from phalanx.engine.observer import Progress, StopRunError
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
    "StopRunError",
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
    "Arrivals": "phalanx.engine.connection",
    "Guard": "phalanx.engine.guard",
    "LocalSGD": "phalanx.training.sgd",
    "Progress": "phalanx.engine.observer",
    "Record": "phalanx.runs.record",
    "Reply": "phalanx.engine.connection",
    "Run": "phalanx.runs.plan",
    "StopRunError": "phalanx.engine.observer",
    "Study": "phalanx.experiments.study",
    "Transport": "phalanx.engine.connection",
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
