"""Local training: what a client does between a download and its upload.

`LocalTraining` is the configuration, and makes a `LocalTrainer` for a model.  Simulations, workers on a cluster and
Flower's clients all train by that, so that a subclass of your own works in all of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from phalanx.core import Algorithm, Correction, Download, InfeasibleError, Local, Pace, Served, Vector
from phalanx.data import Dataset
from phalanx.fields import CheckedFields
from phalanx.training.task import Task
from phalanx.training.vector import FlatModule


class LocalTask(NamedTuple):
    """One training task of one client."""

    client: int
    turn: int  # number of its earlier tasks
    version: int  # of the model that it was sent
    start: Vector  # parameters from which it trains; shared storage where equal
    row: Vector  # receives trained minus start
    correction: Correction | None = None  # of each gradient; only a `CorrectableTrainer` is given one


class LocalTrainer(ABC):
    """A trainer that trains one model after the other in the same memory.

    Args:
        model: the module, bound to its vector.
        task: the task that is trained.
    """

    def __init__(self, model: FlatModule, task: Task) -> None:
        self.model, self.task = model, task

    @abstractmethod
    def train(self, task: LocalTask, data: Dataset) -> float:
        """Train from `task.start`, and write the change of the parameters to `task.row`.

        Args:
            task: whose client and turn name the random streams, and whose version sets the rate of a schedule.
            data: data of the client, on the device of the model.

        Returns:
            Mean loss over the minibatches of the first epoch, per label; NaN if there are no examples.
        """

    def try_out(self, few: Dataset) -> None:
        """Raise `InfeasibleError` if the model cannot be trained in this way, tried out on a few examples."""
        return None

    @property
    def base(self) -> "LocalTrainer":
        """The trainer that makes the update: this one, if it has no other within."""
        return self

    def served(self, client: int, vector: Vector) -> Served:
        """Return the parameters that a client uses if it is served a model: its own ones where it has any."""
        return vector

    def snapshot(self) -> Mapping[int, Any]:
        """Return what each client remembers from turn to turn, of values that `phalanx.runs.packing` takes.

        Later training must not change it.
        """
        return {}

    def restore(self, snapshot: Mapping[int, Any], /) -> None:
        """Go on from what `snapshot` returned."""
        return None


class CorrectableTrainer(LocalTrainer):
    """A trainer by gradient descent, whose `train` adds the correction of a task to each gradient."""

    @abstractmethod
    def reach(self, held: int, version: int) -> float:
        """Return the number of steps of a task on so many examples, times the learning rate."""


def check_correctable(algorithm: Algorithm, trainer: LocalTrainer) -> None:
    """Raise `InfeasibleError` if an algorithm corrects gradients, and the trainer or the model has none to correct."""
    if not algorithm.traits.corrects:
        return
    if not isinstance(trainer, CorrectableTrainer):
        raise InfeasibleError(
            f"{algorithm.title} corrects the gradients of local training, which {type(trainer).__name__} does not "
            "support. Set training to LocalSGD, or choose another algorithm."
        )
    if trainer.model.size != trainer.model.trainable:
        raise InfeasibleError(
            f"{algorithm.title} corrects gradients, and averaged buffers have none. Set buffers to freeze, or choose a "
            "model without buffers."
        )


def correction_of(
    algorithm: Algorithm, trainer: LocalTrainer, local: Local | None, download: Download, *, held: int, version: int
) -> Correction | None:
    """Return how an algorithm corrects a task of a client with so many examples; None if it does not."""
    if not algorithm.traits.corrects or not isinstance(trainer, CorrectableTrainer):
        return None
    reach = trainer.reach(held, version)
    return algorithm.correction(local, download, reach) if reach else None


class LocalTraining(CheckedFields, ABC):
    """The settings of local training.  A subclass is a frozen dataclass."""

    default_of: ClassVar[type | None] = None  # fields of this type do not name the class; see `phalanx.runs.canonical`

    personalizes: ClassVar[bool] = False  # whether `LocalTrainer.served` depends on the client

    hides: ClassVar[bool] = False  # whether updates hide single examples, so that nothing else may reveal them

    @property
    def remembers(self) -> bool:
        """Whether clients remember something of their training from turn to turn."""
        return False

    @property
    def base(self) -> "LocalTraining":
        """The training that makes the update: this one, if it is not around another."""
        return self

    @property
    def pace(self) -> Pace | None:
        """What sets the number of steps of a client; None if nothing that an algorithm could count on does."""
        return None

    @property
    def computed_by(self) -> str:
        """The name of what computes the update: the engine of `LocalSGD`, or else a class."""
        return type(self).__name__ if self.base is self else self.base.computed_by

    def personal(self, names: Sequence[str]) -> Collection[str]:
        """Return, of the names of a model's trainable parameters, those that stay at the client; see `FlatModule`.

        Raises:
            ValueError: the model has no such parameters.
        """
        return ()

    def check(self, algorithm: Algorithm) -> None:
        """Raise `InfeasibleError` if clients of the algorithm cannot train in this way."""
        counted, own = algorithm.traits.pace, self.base.pace
        if counted not in (None, own):
            raise InfeasibleError(
                f"{algorithm.title} divides updates by the steps of {counted}, and clients train by "
                f"{own or type(self.base).__name__}. Set its training to that of the run, which must be LocalSGD."
            )

    def secretly(self) -> "LocalTraining":
        """Return the same training with noise, if it has any, that nobody can compute."""
        return self

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
