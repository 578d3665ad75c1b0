"""The classes that the library exports, of the kinds that have a contract: the subjects of suites of properties."""

import inspect
import pkgutil
import re
from functools import cache, partial
from importlib import import_module
from types import ModuleType

from torch import nn

import phalanx
from phalanx import aggregators, algorithms, attacks
from phalanx.aggregators import Median
from phalanx.algorithms import FedAvg
from phalanx.attacks import LabelShift, ReportSize
from phalanx.contracts.rules import EXCEPTIONS
from phalanx.contracts.subject import KINDS, made_for

NOISE = {"clip": 1.0, "noise_multiplier": 0.1}
SETTINGS = {  # of classes that need some
    "Steps": {"steps": (aggregators.NearestNeighborMixing(1), aggregators.AdaptiveClip(1))},
    "Together": {"first": LabelShift(), "second": ReportSize()},
    "IFCA": {"k": 2},
    "BenignClusters": {"threshold": 0.2},
    "ByzantineCFL": {"threshold": 0.2},
    "CentrallyPrivate": {**NOISE, "count_noise": 0.5},
    "Private": NOISE,
    "Quorum": {"algorithm": FedAvg(aggregate=Median()), "k": 3},
    "DirichletMultinomialSizes": {"mu": 3.0, "sigma": 0.0, "draws": 6},
    "GivenModule": {"module": nn.Linear(64, 10)},
    "LoRA": {"layers": ("1", "3"), "rank": 2},
    "PartlyTrained": {"trained": ("3.*",)},
    "TorchModule": {"path": "torch.nn.Linear", "arguments": {"in_features": 64, "out_features": 10}},
}


@cache
def subjects():
    """All classes of the kinds that have a contract, as the packages of the library export them, each once."""
    rooms = [import_module(room.name) for room in pkgutil.iter_modules(phalanx.__path__, "phalanx.") if room.ispkg]
    exported = (getattr(package, name) for package in rooms for name in getattr(package, "__all__", ()))
    kinds = (kind for kind in exported if isinstance(kind, type) and issubclass(kind, (*KINDS,)))
    return tuple(dict.fromkeys(kind for kind in kinds if not is_base(kind)))


def unexported() -> dict[ModuleType, list[type]]:
    """Rules, attacks and algorithms in a file of their package that it does not export, by package.

    Those that derive from no base, that others derive from, or whose name begins with "_" are not meant.
    """
    found = dict[ModuleType, list[type]]()
    for package in (aggregators, attacks, algorithms):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for name, kind in vars(import_module(module.name)).items():
                own = isinstance(kind, type) and kind.__module__ == module.name and issubclass(kind, (*KINDS,))
                if own and not is_base(kind) and name[0] != "_" and name not in package.__all__:
                    found.setdefault(package, []).append(kind)
    return found


def is_base(kind):
    """Whether a class is one that others derive from."""
    return inspect.isabstract(kind) or kind in KINDS


def excepted(kind):
    """The properties that the docstring of a class excepts."""
    said = " ".join(re.findall(r"Not\s+equivariant\s+to([\w\s]+)", kind.__doc__ or ""))
    return tuple(name for name in EXCEPTIONS if re.search(rf"\b{name}\b", said))


def lacking(base, known):
    """The classes of a kind that are none of these, and what makes each for m clients of which f are Byzantine."""
    for kind in subjects():
        if issubclass(kind, base) and kind not in known:
            yield kind, partial(made_for, kind, SETTINGS.get(kind.__name__, {}))
