"""Local training: what a client does between a download and its upload.

`LocalTraining` is the configuration, and makes a `LocalTrainer` for a model.  Simulations, workers on a cluster and
Flower's clients all train by that, so that a subclass of your own works in all of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from phalanx.core import Vector
from phalanx.data import Dataset
from phalanx.training.task import Task
from phalanx.training.vector import FlatModule


class LocalTrainer(ABC):
    """A trainer that trains one model after the other in the same memory.

    Args:
        model: the module, bound to its vector.
        task: the task that is trained.
    """

    def __init__(self, model: FlatModule, task: Task) -> None:
        self.model, self.task = model, task

    @abstractmethod
    def train(self, start: Vector, data: Dataset, *, client: int, turn: int, version: int, out: Vector) -> float:
        """Train from `start`, and write the change of the parameters to `out`.

        Args:
            start: (d,), the initial parameters.
            data: data of the client, on the device of the model.
            client: id of the client, which names the random streams.
            turn: number of earlier tasks of the client, which names the random streams.
            version: version of the downloaded model, for a schedule of the learning rate.
            out: (d,), receives trained minus initial parameters.

        Returns:
            Mean loss over the minibatches of the first epoch, per label; NaN if there are no examples.
        """

    def snapshot(self) -> Mapping[int, Any]:
        """Return what each client remembers from turn to turn, of values that `phalanx.runs.packing` takes.

        Later training must not change it.
        """
        return {}

    def restore(self, snapshot: Mapping[int, Any], /) -> None:
        """Go on from what `snapshot` returned."""
        return None


class LocalTraining(ABC):
    """The settings of local training.  A subclass is a frozen dataclass."""

    default_of: ClassVar[type | None] = None  # fields of this type do not name the class; see `phalanx.runs.canonical`

    @property
    def remembers(self) -> bool:
        """Whether clients remember something of their training from turn to turn."""
        return False

    @abstractmethod
    def learning_rate(self, version: int) -> float:
        """Return the learning rate for a model of this version."""

    @abstractmethod
    def trainer(self, model: FlatModule, task: Task, seed: int) -> LocalTrainer:
        """Return a trainer for the model.

        Args:
            model: the module, bound to its vector.
            task: the task that is trained.
            seed: seed of the run.
        """

    @abstractmethod
    def fine_tuning(self, epochs: int) -> "LocalTraining":
        """Return the same training for so many epochs, which remembers nothing: `Evaluation.local_epochs`."""
