"""The engines of local training by SGD: the trainers among which `LocalSGD.engine` chooses.

Their results differ by rounding, so that the engine is a part of the run and of its identity.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from phalanx.training.local import LocalTrainer

Engine = Literal["loop", "compiled"]
DEFAULT: Engine = "loop"  # where none is named, and no rule chooses
TRAINERS: dict[Engine, tuple[str, str]] = {  # the module and the class of each
    "loop": ("phalanx.training.sgd", "Trainer"),
    "compiled": ("phalanx.training.compiled.trainer", "CompiledTrainer"),
}


def trainer_of(engine: Engine) -> "Callable[..., LocalTrainer]":
    """Return the class of an engine's trainers, which takes a model, a `LocalSGD`, a seed and a task."""
    module, name = TRAINERS[engine]
    found: Callable[..., LocalTrainer] = getattr(import_module(module), name)
    return found
