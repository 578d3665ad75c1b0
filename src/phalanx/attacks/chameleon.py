"""An attack by local training that makes a backdoor last: features first, by contrast, then the last layer.

Dai and Li, "Chameleon: Adapting to Peer Images for Planting Durable Backdoors in Federated Learning", 2023.  A backdoor
vanishes by what honest clients do with images that look alike: those of the original class pull poisoned images back,
those of the target class keep them.  So an attacker trains in two stages, on data that are poisoned already:

    1. all layers but the last, by the supervised contrastive loss of their features z (Khosla et al. 2020),
       mean over i of  -1/|P(i)| sum over p in P(i) of log( exp(z_i z_p / t) / sum over a != i of exp(z_i z_a / t) ),
       where |z| = 1 and P(i) are the other examples with the label of i: poisoned images come to lie among those of the
       target class, and far from those of their own;
    2. the last layer, by the loss of honest clients, on features that stay as they are.

The paper's abstract was read, and programs that follow it; its section on the method was not at hand.  Where it differs
from them: both stages have the learning rate `lr`, the momentum and the weight decay of honest
clients, without a schedule within a stage; the update is not projected to a norm.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the usual name)
from jaxtyping import Float, Int
from torch import Tensor, nn
from typing_extensions import override

from phalanx.attacks.training import AttackTask, Masking, OwnTraining
from phalanx.core import InfeasibleError
from phalanx.data import Dataset
from phalanx.fields import PositiveFloat
from phalanx.rng import stream
from phalanx.training.local import LocalTask, LocalTrainer
from phalanx.training.sgd import LocalSGD, Trainer
from phalanx.training.task import Classification, Task


@dataclass(frozen=True)
class Chameleon(OwnTraining):
    """Trains features by contrast first, then the last layer, so that honest clients keep a backdoor longer.

    Dai and Li 2023.  Which data it trains on is for another attack: `Together(Backdoor(), Chameleon())`.

    Args:
        epochs: number of passes over the attacker's data in each of the two stages; null: as honest clients.
        lr: learning rate; null: as honest clients.
        temperature: t of the contrastive loss.
    """

    temperature: PositiveFloat = 0.07

    @override
    def check_trainer(self, honest: LocalTrainer) -> None:
        super().check_trainer(honest)
        last = last_layer(honest.model.module)
        inside = sum(p.numel() for p in last.parameters(recurse=False) if p.requires_grad)
        if inside == honest.model.trainable or not isinstance(honest.task, Classification):
            raise InfeasibleError(
                "Chameleon trains features and then the last layer of a classifier, and this model has a single layer "
                "or another task. Choose a model with hidden layers, or another attack, such as Neurotoxin."
            )

    @override
    def trainer(self, honest: Trainer, recipe: LocalSGD, job: AttackTask) -> LocalTrainer:
        return TwoStages(honest, recipe, self.temperature)


class TwoStages(LocalTrainer):
    """A trainer of features by contrast, and then of the last layer.

    Args:
        honest: the trainer of honest clients: its model, its task and its seed.
        recipe: the local training in each stage.
        temperature: t.
    """

    def __init__(self, honest: Trainer, recipe: LocalSGD, temperature: float) -> None:
        super().__init__(honest.model, honest.task)
        self.last = last_layer(honest.model.module)
        inside, outside = self._entries()
        self.contrast = _Contrast(temperature)
        seed = stream(honest.seed, "contrast")  # of the minibatches
        self.first = Masking(Trainer(honest.model, recipe, seed, self.contrast), recipe, inside)
        self.second = Masking(Trainer(honest.model, recipe, honest.seed, honest.task), recipe, outside)

    @override
    def train(self, task: LocalTask, data: Dataset) -> float:
        """See `LocalTrainer`: the loss is that of the second stage."""
        if data.y.ndim != 1:
            raise ValueError(
                f"Chameleon contrasts examples with one label each, got labels of shape {tuple(data.y.shape)}. Choose "
                "another attack."
            )
        change = torch.empty_like(task.start)
        with self._observed():
            self.first.train(task._replace(row=change), data)
        loss = self.second.train(task._replace(start=task.start + change), data)
        task.row.add_(change)
        return loss

    def _entries(self) -> tuple[Int[Tensor, "k"], Int[Tensor, "r"]]:
        """Return the entries of the last layer in the order of the model's own memory, and the others."""
        model, chosen = self.model, torch.zeros(self.model.trainable, dtype=torch.bool)
        for p in self.last.parameters(recurse=False):
            if p.requires_grad:
                at = (p.data_ptr() - model.values.data_ptr()) // p.itemsize
                chosen[at : at + p.numel()] = True
        inside, outside = chosen.nonzero()[:, 0], (~chosen).nonzero()[:, 0]
        return inside.to(model.device), outside.to(model.device)

    @contextmanager
    def _observed(self) -> Iterator[None]:
        """Give the contrastive loss the inputs of the last layer."""

        def look(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            self.contrast.features.append(inputs[0])

        handle = self.last.register_forward_pre_hook(look)
        try:
            yield
        finally:
            handle.remove()


class _Contrast(Task):
    """The supervised contrastive loss of the features that were seen last, in place of that of the outputs.

    Args:
        temperature: t.
    """

    def __init__(self, temperature: float) -> None:
        self.temperature, self.features = temperature, list[Tensor]()

    @override
    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return contrastive_loss(self.features.pop().flatten(1), y, self.temperature)

    @override
    def outputs(self, data: Dataset) -> int:
        return data.classes


def contrastive_loss(features: Float[Tensor, "m k"], y: Int[Tensor, "m"], temperature: float) -> Float[Tensor, ""]:
    """Return the supervised contrastive loss, over the examples that have another one with their label; 0 if none."""
    z = F.normalize(features, dim=1)
    itself = torch.eye(len(y), dtype=torch.bool, device=y.device)
    likeness = (z @ z.T / temperature).masked_fill(itself, -torch.inf)
    logs = torch.log_softmax(likeness, 1).masked_fill(itself, 0.0)  # a minibatch of one example has NaN there
    partners = (y[:, None] == y) & ~itself
    counts = partners.sum(1)
    each = -(logs * partners).sum(1) / counts.clamp(min=1)
    return each.sum() / (counts > 0).sum().clamp(min=1)


def last_layer(module: nn.Module) -> nn.Module:
    """Return the last layer with trained parameters of its own."""
    return [m for m in module.modules() if any(p.requires_grad for p in m.parameters(recurse=False))][-1]
