"""Attacks by local training: the attackers train in place of what an honest client would do, on poisoned data.

Which data is for another attack: `Together(Backdoor(), Neurotoxin())`.  An attacker begins with the training of honest
clients, draws minibatches as they do, and changes the loss, the gradient or the model after a step.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Int
from msgspec import Meta
from torch import Tensor
from typing_extensions import override

from phalanx.attacks.attack import Attack, Knowledge, Update, each
from phalanx.core import InfeasibleError, Vector
from phalanx.data import Dataset
from phalanx.fields import FiniteFloat, PositiveFloat, PositiveInt
from phalanx.training.local import LocalTask, LocalTrainer
from phalanx.training.sgd import Added, LocalSGD, Trainer


class AttackTask(NamedTuple):
    """One training task of an attacker."""

    task: LocalTask  # that of an honest client
    data: Dataset  # its poisoned data
    previous: Vector | None = None  # the previous download; None at the first one


class Training(Attack, ABC, hooks=("check_trainer", "train")):
    """An attack by local training."""

    def check_trainer(self, honest: LocalTrainer) -> None:
        """Raise InfeasibleError if `train` cannot take the place of this trainer."""

    @abstractmethod
    def train(self, job: AttackTask, honest: LocalTrainer) -> float:
        """Train, write the change to `job.task.row`, and return the loss as the trainer of honest clients does."""


def check_trainer(attack: Attack, honest: LocalTrainer) -> None:
    """Raise InfeasibleError if an attack cannot train in place of this trainer."""
    for one in each(attack, Training):
        one.check_trainer(honest)


def train(attack: Attack, job: AttackTask, honest: LocalTrainer) -> float:
    """Train by an attack, the last one if it is made of several with their own training, or else as honest clients."""
    own = each(attack, Training)
    return own[-1].train(job, honest) if own else honest.train(job.task, job.data)


@dataclass(frozen=True)
class OwnTraining(Training, ABC, hooks=("trainer",)):
    """The common part of attacks that change training by `LocalSGD`.

    Args:
        epochs: number of passes over the attacker's data; null: as honest clients.
        lr: learning rate; null: as honest clients.
    """

    epochs: PositiveInt | None = None
    lr: PositiveFloat | None = None

    @abstractmethod
    def trainer(self, honest: Trainer, recipe: LocalSGD, job: AttackTask) -> LocalTrainer:
        """Return the trainer for one task.

        Args:
            honest: the trainer of honest clients: its model, its task and its seed.
            recipe: the training of honest clients with the attacker's epochs, and with its learning rate as a number.
            job: the task.
        """

    @override
    def check_trainer(self, honest: LocalTrainer) -> None:
        if not isinstance(honest, Trainer):
            raise InfeasibleError(
                f"{type(self).__name__} changes training by LocalSGD with the engine loop, and clients train "
                "otherwise. Set training to LocalSGD and its engine to loop, or choose an attack on data or updates."
            )

    @override
    def train(self, job: AttackTask, honest: LocalTrainer) -> float:
        self.check_trainer(honest)
        assert isinstance(honest, Trainer)
        lr = self.lr or honest.recipe.learning_rate(job.task.version)
        recipe = replace(honest.recipe, lr=lr)
        if self.epochs is not None:
            recipe = replace(recipe, epochs=self.epochs, steps=None)
        return self.trainer(honest, recipe, job).train(job.task, job.data)


@dataclass(frozen=True)
class ConstrainAndScale(OwnTraining):
    """Trains with a penalty on the distance from the global model, and sends the update times a factor.

    Bagdasaryan, Veit, Hua, Estrin and Shmatikov, "How To Backdoor Federated Learning", 2020: model replacement by
    constrain-and-scale.  The loss is alpha L + (1 - alpha) |w - w_0|^2, with L the loss of honest clients and w_0 the
    download: the squared distance is one of the measures of anomaly that the paper names.

    Args:
        epochs: number of passes over the attacker's data; null: as honest clients.
        lr: learning rate; null: as honest clients.
        alpha: weight of the loss of honest clients, in (0, 1]; 1: no penalty.
        factor: factor on the update. n / (attackers * server_lr) among n clients of equal weight replaces the model.
    """

    alpha: Annotated[float, Meta(gt=0, le=1)] = 0.7
    factor: FiniteFloat = 1.0

    @override
    def trainer(self, honest: Trainer, recipe: LocalSGD, job: AttackTask) -> LocalTrainer:
        # alpha (L + rho/2 |w - w_0|^2), where alpha is a factor on the learning rate
        rho = 2 * (1 - self.alpha) / self.alpha
        lr = self.alpha * recipe.learning_rate(job.task.version)
        recipe = replace(recipe, lr=lr, proximal=recipe.proximal + rho)
        return Trainer(honest.model, recipe, honest.seed, honest.task)

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        return self.factor * update.delta


@dataclass(frozen=True)
class ProjectedTraining(OwnTraining):
    """Trains by projected gradient descent: after each step the model is within a distance of the global model.

    Wang et al., "Attack of the Tails: Yes, You Really Can Backdoor Federated Learning", 2020 (PGD).  The paper trains
    on edge cases in this way: `Together(EdgeCases(), ProjectedTraining())`; with `Rescale` after it the model is
    replaced.

    Args:
        epochs: number of passes over the attacker's data; null: as honest clients.
        lr: learning rate; null: as honest clients.
        radius: largest norm of the update.
    """

    radius: PositiveFloat = 1.0

    @override
    def trainer(self, honest: Trainer, recipe: LocalSGD, job: AttackTask) -> LocalTrainer:
        return Projecting(honest, recipe, honest.model.arranged(job.task.start), self.radius)


@dataclass(frozen=True)
class Neurotoxin(OwnTraining):
    """Trains only the entries that honest clients change least, so that they overwrite a backdoor slowly.

    Zhang et al., "Neurotoxin: Durable Backdoors in Federated Learning", 2022.  The entries with the largest absolute
    change between the last two downloads of the attacker are kept as they are.  At its first download it trains all.

    Args:
        epochs: number of passes over the attacker's data; null: as honest clients.
        lr: learning rate; null: as honest clients.
        keep: share of the entries that are kept, in (0, 1).
    """

    keep: Annotated[float, Meta(gt=0, lt=1)] = 0.05

    @override
    def trainer(self, honest: Trainer, recipe: LocalSGD, job: AttackTask) -> LocalTrainer:
        if job.previous is None:
            return Trainer(honest.model, recipe, honest.seed, honest.task)
        change = honest.model.arranged((job.task.start - job.previous).abs())
        kept = change.topk(math.ceil(self.keep * len(change))).indices
        return Masking(honest, recipe, kept)


class Projecting(Trainer):
    """A trainer that stays within a distance of a model.

    Args:
        honest: the trainer of honest clients: its model, its task and its seed.
        recipe: the local training.
        centre: parameters in the order of the model's own memory.
        radius: largest distance.
    """

    def __init__(self, honest: Trainer, recipe: LocalSGD, centre: Vector, radius: float) -> None:
        super().__init__(honest.model, recipe, honest.seed, honest.task)
        self.centre, self.radius = centre, radius

    @override
    def descend(self, lr: float, added: Added | None) -> None:
        super().descend(lr, added)
        parameters = self.model.values[: self.model.trainable]
        change = parameters - self.centre
        factor = (self.radius / torch.linalg.vector_norm(change)).clamp(max=1.0)
        parameters.copy_(self.centre + factor * change)


class Masking(Trainer):
    """A trainer that keeps some entries as they are.

    Args:
        honest: the trainer of honest clients: its model, its task and its seed.
        recipe: the local training.
        kept: indices of these entries in the order of the model's own memory.
    """

    def __init__(self, honest: Trainer, recipe: LocalSGD, kept: Int[Tensor, "k"]) -> None:
        super().__init__(honest.model, recipe, honest.seed, honest.task)
        self.kept = kept

    @override
    def descend(self, lr: float, added: Added | None) -> None:
        parameters = self.model.values[: self.model.trainable]
        before = parameters[self.kept]
        self.model.gradient[self.kept] = 0.0  # not part of the norm that is clipped
        super().descend(lr, added)
        parameters[self.kept] = before  # not changed by weight decay either
