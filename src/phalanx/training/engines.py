"""The engines of local training by SGD: the trainers among which `LocalSGD.engine` chooses.

Their results differ by rounding, so that the engine is a part of the run and of its identity.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from phalanx.training.local import LocalTrainer

Engine = Literal["loop", "compiled"]
TRAINERS: dict[Engine, tuple[str, str]] = {  # the module and the class of each
    "loop": ("phalanx.training.sgd", "Trainer"),
    "compiled": ("phalanx.training.compiled.trainer", "CompiledTrainer"),
}


def trainer_of(engine: Engine) -> "type[LocalTrainer]":
    """Return the class of an engine's trainers, which take a model, a `LocalSGD`, a seed and a task."""
    module, name = TRAINERS[engine]
    found: Any = getattr(import_module(module), name)
    return found
