"""FedPer: some layers of the model are shared, the others stay at the client.

Arivazhagan, Aggarwal, Singh and Choudhary, "Federated Learning with Personalization Layers", 2019, Algorithms 1 and 2:
client i trains the shared parameters W_B and its own W_i together, sends the change of W_B, and keeps W_i.

    (W_B, W_i)  <-  SGD from (W_B of the server, W_i of its last turn)

Only W_B is in the vector: rules, attackers and clustering see nothing else.

Where it differs from the paper: clients need not take part in every round, and the server combines updates by any
algorithm.  All W_i have the same initial values, those of the model.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, NamedTuple

import torch
from typing_extensions import override

from phalanx.core import Algorithm, InfeasibleError, Served, Vector
from phalanx.data import Dataset
from phalanx.training.local import LocalTask, LocalTrainer, LocalTraining
from phalanx.training.sgd import LocalSGD
from phalanx.training.task import Task
from phalanx.training.vector import FlatModule


@dataclass(frozen=True)
class FedPer(LocalTraining):
    """A local training of a model of which only some parameters are shared.  Each client is served its own model.

    Args:
        shared: patterns of the names of parameters that are shared, with * for any text: ["features.*"].
        training: the training of all parameters.
    """

    personalizes: ClassVar[bool] = True
    remembers: ClassVar[bool] = True

    shared: tuple[str, ...]
    training: LocalTraining = LocalSGD()

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.training.personalizes:
            raise ValueError(f"FedPer goes around a training without personal models, got {self.training}.")

    @property
    @override
    def base(self) -> LocalTraining:
        return self.training

    @override
    def personal(self, names: Sequence[str]) -> Collection[str]:
        own = {name for name in names if not any(fnmatchcase(name, pattern) for pattern in self.shared)}
        if len(own) in (0, len(names)):
            raise ValueError(
                f"shared is {list(self.shared)}, so that {'no' if own else 'every'} parameter is shared. "
                f"Choose some of: {', '.join(names)}."
            )
        return own

    @override
    def check(self, algorithm: Algorithm) -> None:
        super().check(algorithm)
        traits = algorithm.traits
        if traits.needs_reference or traits.exact_losses:
            why = "trains a model at the server" if traits.needs_reference else "compares losses of shared models"
            raise InfeasibleError(
                f"{algorithm.title} {why}, and with FedPer a model is complete at a client only. Choose an algorithm "
                "that needs updates alone, such as FedAvg, or another training."
            )

    @override
    def learning_rate(self, version: int) -> float:
        return self.training.learning_rate(version)

    @override
    def secretly(self) -> LocalTraining:
        return replace(self, training=self.training.secretly())

    @override
    def trainer(self, model: FlatModule, task: Task, seed: int) -> LocalTrainer:
        return FedPerTrainer(self.training.trainer(model, task, seed))

    @override
    def fine_tuning(self, epochs: int) -> LocalTraining:
        """See `LocalTraining`: of all parameters."""
        return self.training.fine_tuning(epochs)


class Kept(NamedTuple):
    """The memory of a client, kept from turn to turn."""

    own: Served  # parameters that are not sent
    memory: Any = None  # of the training within


class FedPerTrainer(LocalTrainer):
    """A trainer of complete models, which sends the change of the shared parameters.

    Args:
        trainer: of the model, which knows the personal parameters.
    """

    def __init__(self, trainer: LocalTrainer) -> None:
        super().__init__(trainer.model, trainer.task)
        self.trainer = trainer
        self._own = dict[int, Served]()  # personal parameters, by client

    @override
    def try_out(self, few: Dataset) -> None:
        self.trainer.try_out(few)

    @override
    def train(self, task: LocalTask, data: Dataset) -> float:
        start = self.served(task.client, task.start)
        row = torch.empty_like(start)
        loss = self.trainer.train(task._replace(start=start, row=row), data)
        task.row.copy_(row[: self.model.size])
        self._own[task.client] = (start + row)[self.model.size :].clone()
        return loss

    @override
    def served(self, client: int, vector: Vector) -> Served:
        """See `LocalTrainer`: with the client's own parameters."""
        return self.model.whole(vector, self._own.get(client))

    @override
    def snapshot(self) -> Mapping[int, Any]:
        """See `LocalTrainer`: tensors are replaced, never changed."""
        inner = self.trainer.snapshot()
        return {client: Kept(own, inner.get(client)) for client, own in self._own.items()}

    @override
    def restore(self, snapshot: Mapping[int, Any], /) -> None:
        self._own = {client: kept.own for client, kept in snapshot.items()}
        self.trainer.restore({i: kept.memory for i, kept in snapshot.items() if kept.memory is not None})
