"""All classes of the library and of the papers that can occur in a run."""

import importlib
import inspect
import pkgutil
import typing

import papers
import phalanx
from phalanx import Run
from phalanx.algorithms.wrapper import Wrapper
from phalanx.runs.canonical import configurable

# They need extras or other libraries, and hold no part of a run.
OPTIONAL = ("phalanx.flower", "phalanx.ray", "phalanx.experiments.ray_runs", "phalanx.conformance.")


def classes():
    """Each of them, by its name."""
    for package in (phalanx, papers):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(OPTIONAL):
                importlib.import_module(module.name)
    found, waiting = set(), {Run}
    while waiting:
        kind = waiting.pop()
        found.add(kind)
        hints = typing.get_type_hints(kind) if hasattr(kind, "__dataclass_fields__") and configurable(kind) else {}
        named = {part for hint in hints.values() for part in parts(hint)} | set(type.__subclasses__(kind))
        waiting |= {k for k in named - found if k.__module__.partition(".")[0] in ("phalanx", "papers")}
    return sorted((k for k in found if is_value(k)), key=lambda k: f"{k.__module__}.{k.__qualname__}")


def is_value(kind):
    """Whether a run can hold an instance, so that it needs a name."""
    is_base = inspect.isabstract(kind) or kind is Wrapper
    return "__dataclass_fields__" in vars(kind) and kind.__dataclass_params__.frozen and not is_base


def parts(hint):
    """The classes in a type, such as both of a union."""
    if inspect.isclass(hint) and typing.get_origin(hint) is None:
        yield hint
    for part in typing.get_args(hint):
        yield from parts(part)
