"""Ditto: each client trains a model of its own next to the global one, and pulled towards it.

Li, Hu, Beirami and Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", 2021, Algorithm 1:
client i trains the global model w from the server as in any algorithm, sends its change, and then, with w as received,

    v_i  <-  v_i - lr (g(v_i) + strength (v_i - w))        in each step of its personal training.

Attackers reach v_i through w only, as far as `strength` pulls.

Where it differs from the paper: v_i begins as the first model that the client trains on, which is the initial model for
clients that take part in the first round; until then a client uses the global model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from typing_extensions import override

from phalanx.core import Correction, Served, Vector
from phalanx.data import Dataset
from phalanx.fields import NonNegativeFloat
from phalanx.rng import stream
from phalanx.training.local import CorrectableTrainer, LocalTask, LocalTrainer, LocalTraining
from phalanx.training.sgd import SERVER, LocalSGD
from phalanx.training.task import Task
from phalanx.training.vector import FlatModule


@dataclass(frozen=True)
class Ditto(LocalTraining):
    """A local training of the global model, and of a personal one.  Each client is served its personal model.

    Args:
        training: the training of the global model.
        own: the training of the personal model; null: the same. Its minibatches are drawn by another stream.
        strength: lambda of the penalty lambda/2 |v - w|^2, at least 0; 0: clients train alone.
    """

    personalizes: ClassVar[bool] = True
    remembers: ClassVar[bool] = True

    training: LocalSGD = LocalSGD()
    own: LocalSGD | None = None
    strength: NonNegativeFloat = 0.1

    @override
    @property
    @override
    def base(self) -> LocalTraining:
        return self.training

    @override
    def learning_rate(self, version: int) -> float:
        return self.training.learning_rate(version)

    @override
    def trainer(self, model: FlatModule, task: Task, seed: int) -> LocalTrainer:
        own = (self.own or self.training).trainer(model, task, stream(seed, "personal"))
        trainer = self.training.trainer(model, task, seed)
        assert isinstance(trainer, CorrectableTrainer)
        assert isinstance(own, CorrectableTrainer)
        return DittoTrainer(trainer, own, self.strength)

    @override
    def fine_tuning(self, epochs: int) -> LocalTraining:
        """See `LocalTraining`: of the personal model, without the penalty."""
        return (self.own or self.training).fine_tuning(epochs)


class DittoTrainer(CorrectableTrainer):
    """A trainer of global and personal models.

    Args:
        trainer: of the global model.
        own: of the personal ones.
        strength: lambda.
    """

    def __init__(self, trainer: CorrectableTrainer, own: CorrectableTrainer, strength: float) -> None:
        super().__init__(trainer.model, trainer.task)
        self.trainer, self.own, self.strength = trainer, own, strength
        self._models = dict[int, Vector]()  # personal ones, by client

    @property
    @override
    def base(self) -> LocalTrainer:
        return self.trainer

    @override
    def reach(self, held: int, version: int) -> float:
        """See `CorrectableTrainer`: of the global model."""
        return self.trainer.reach(held, version)

    @override
    def train(self, task: LocalTask, data: Dataset) -> float:
        """See `CorrectableTrainer`: the loss is that of the global model."""
        loss = self.trainer.train(task, data)
        if task.client != SERVER:
            w, v = task.start, self.served(task.client, task.start)
            pull = Correction(self.strength * (v - w), self.strength)  # g + pull + strength (u - v), at each step u
            change = torch.empty_like(v)
            self.own.train(task._replace(start=v, row=change, correction=pull), data)
            self._models[task.client] = v + change
        return loss

    @override
    def served(self, client: int, vector: Vector) -> Served:
        """See `LocalTrainer`: the personal model, once the client has trained."""
        return self._models.get(client, vector)

    @override
    def snapshot(self) -> Mapping[int, Any]:
        """See `LocalTrainer`: tensors are replaced, never changed."""
        return dict(self._models)

    @override
    def restore(self, snapshot: Mapping[int, Any], /) -> None:
        self._models = dict(snapshot)
