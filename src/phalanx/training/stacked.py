"""Local training of several clients at once: their networks are stacked, and gradients are written by hand.

A client of a small network leaves most of a processor idle: matrices are small, and every operation of autograd costs
more than its arithmetic.  Here one operation serves all clients of a stack.  It is the training of `LocalSGD`, on the
minibatches and dropout of the same random streams; results differ from one client at a time by rounding.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from phalanx.core import Vector
from phalanx.data import Dataset
from phalanx.rng import generator
from phalanx.training.layers import Dropout, Layer, stack_of
from phalanx.training.sgd import LocalSGD
from phalanx.training.vector import FlatModule

WIDTH = 12  # clients of a stack, at most
CACHED = 1 << 22  # bytes of the parameters of a stack, if its clients are several


class Turn(NamedTuple):
    """One task of a client, for a stack."""

    client: int
    turn: int  # number of its earlier tasks
    version: int  # of the model that it was sent
    start: Vector  # parameters from which it trains
    out: Vector  # receives trained minus start


class StackedTrainer:
    """Trains the clients of a stack together.

    Args:
        model: the network, of which only the architecture is used.
        recipe: the local training.
        seed: seed of the run; see `phalanx.training.Trainer`.

    Raises:
        ValueError: the network has no stacked form.
    """

    def __init__(self, model: FlatModule, recipe: LocalSGD, seed: int) -> None:
        layers = stack_of(model.module)
        if isinstance(layers, str):
            raise ValueError(f"Clients of this network cannot be stacked: {layers}.")
        self.layers, self.recipe, self.seed, self.size = layers, recipe, seed, model.size
        self._like = model.values
        self._fused = not (recipe.momentum or recipe.weight_decay or recipe.proximal or recipe.clip_norm is not None)
        convolutional = model.convolutional
        self.width = 1 if convolutional else max(1, min(WIDTH, CACHED // (self.size * model.values.itemsize)))
        self._values = self._targets = self._like.new_empty(0, 0)

    def train(self, turns: Sequence[Turn], data: Mapping[int, Dataset]) -> list[float]:
        """Train clients, write their changes, and return their mean losses over the first epoch, in nats per label.

        Args:
            turns: at most `width` tasks, of different clients.
            data: examples of each client, all of one shape, with one label each.
        """
        losses = [math.nan] * len(turns)
        order = sorted(range(len(turns)), key=lambda k: -self._steps(len(data[turns[k].client])))
        working = [k for k in order if len(data[turns[k].client])]
        for k in set(order) - set(working):
            turns[k].out.zero_()
        if working:
            found = self._train([turns[k] for k in working], [data[turns[k].client] for k in working])
            for k, loss in zip(working, found, strict=True):
                losses[k] = loss
        return losses

    def _steps(self, held: int) -> int:
        """Return the number of minibatches of a task."""
        recipe = self.recipe
        if recipe.steps is not None:
            return recipe.steps if held else 0
        return recipe.epochs * math.ceil(held / recipe.examples(held)) if held else 0

    def _train(self, turns: Sequence[Turn], held: Sequence[Dataset]) -> list[float]:
        self._load(turns)
        begun = self._values[: len(turns)].clone() if self.recipe.proximal else None
        velocity = torch.zeros_like(self._values[: len(turns)]) if self.recipe.momentum else None
        plans = [self._plan(turn, len(data)) for turn, data in zip(turns, held, strict=True)]
        lr = self._like.new_tensor([self.recipe.learning_rate(turn.version) for turn in turns])
        total = torch.zeros(len(turns), dtype=torch.float64)
        for step in range(len(plans[0].batches)):
            active = sum(len(plan.batches) > step for plan in plans)
            chosen = [plan.batches[step] for plan in plans[:active]]
            x, y, weights = _gathered(held, chosen)
            self._set_counts([len(part) for part in chosen])
            loss = self._gradient(x, y, weights * lr[:active, None] if self._fused else weights)
            first = torch.tensor([step < plan.first for plan in plans[:active]])
            total[:active] += torch.where(first, loss, 0.0)
            if not self._fused:
                self._descend(active, lr, begun, velocity)
        self._read(turns)
        return [float(loss) / plan.seen for loss, plan in zip(total.tolist(), plans, strict=True)]

    def _gradient(self, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Let all layers compute gradients of the weighted cross-entropy, and return its sum for each client."""
        for layer in self.layers:
            x = layer.forward(x)
        scores = torch.log_softmax(x, 2)
        y = y[:, :, None]
        loss = -(scores.gather(2, y)[:, :, 0] * (weights > 0)).sum(1, dtype=torch.float64)
        g = scores.exp_()
        g.scatter_add_(2, y, g.new_full((), -1.0).expand(y.shape))
        g *= weights[:, :, None]
        for number in range(len(self.layers) - 1, -1, -1):
            g = self.layers[number].backward(g, further=number > self._first)
        return loss

    @property
    def _first(self) -> int:
        """The number of the first layer with parameters: no gradient is needed before it."""
        return next(number for number, layer in enumerate(self.layers) if layer.size)

    def _descend(self, active: int, lr: Tensor, begun: Tensor | None, velocity: Tensor | None) -> None:
        """Take one step of gradient descent with each client's gradient; see `phalanx.training.sgd.Trainer`."""
        recipe, values, gradient = self.recipe, self._values[:active], self._targets[:active]
        if recipe.clip_norm is not None:
            norms = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
            gradient *= (recipe.clip_norm / norms).clamp(max=1.0)
        if recipe.weight_decay:
            gradient.add_(values, alpha=recipe.weight_decay)
        if begun is not None:
            gradient.add_(values - begun[:active], alpha=recipe.proximal)
        if velocity is not None:
            gradient = velocity[:active].mul_(recipe.momentum).add_(gradient)
        values.addcmul_(gradient, lr[:active, None], value=-1)

    def _plan(self, turn: Turn, held: int) -> "Plan":
        """Return the minibatches of a task, as `LocalSGD.minibatches` makes them."""
        recipe, rng = self.recipe, generator(self.seed, "batches", turn.client, turn.turn)
        size, batches, first, seen = recipe.examples(held), list[Tensor](), 0, 0
        while len(batches) < self._steps(held):
            order = torch.randperm(held, generator=rng)
            if recipe.steps is not None:
                order = order[: (recipe.steps - len(batches)) * size]
            batches += order.split(size)
            if not first:
                first, seen = len(batches), len(order)
        return Plan(batches, first, seen)

    def _load(self, turns: Sequence[Turn]) -> None:
        """Set the parameters of all clients, and seed their dropout."""
        if len(self._values) < len(turns):
            self._values = self._like.new_empty(len(turns), self.size)
            self._targets = self._values if self._fused else torch.empty_like(self._values)
            at = 0
            for layer in self.layers:
                layer.bind(self._values[:, at : at + layer.size], self._targets[:, at : at + layer.size])
                at += layer.size
        streams = [generator(self.seed, "dropout", turn.client, turn.turn) for turn in turns]
        for layer, part in self._parts():
            if isinstance(layer, Dropout):
                layer.streams = streams
            for row, turn in enumerate(turns):
                layer.load(turn.start[part], row)

    def _read(self, turns: Sequence[Turn]) -> None:
        for layer, part in self._parts():
            for row, turn in enumerate(turns):
                layer.read(turn.out[part], row)
        for turn in turns:
            turn.out.sub_(turn.start)

    def _parts(self) -> list[tuple[Layer, slice]]:
        """Return each layer with its part of a vector."""
        ends = torch.tensor([layer.size for layer in self.layers]).cumsum(0).tolist()
        return [(layer, slice(end - layer.size, end)) for layer, end in zip(self.layers, ends, strict=True)]

    def _set_counts(self, counts: Sequence[int]) -> None:
        for layer in self.layers:
            if isinstance(layer, Dropout):
                layer.counts = counts


class Plan(NamedTuple):
    """The minibatches of one task."""

    batches: list[Tensor]  # indices of the examples of each
    first: int  # number of those of the first epoch
    seen: int  # examples of the first epoch


def _gathered(held: Sequence[Dataset], chosen: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the inputs, labels and weights of one minibatch of each client, padded to the length of the longest.

    The weights are 1 / m for the m examples of a client's minibatch, and 0 for the padding.
    """
    longest, like = max(map(len, chosen)), held[0]
    x = _room(like.x, len(chosen), longest)
    y = like.y.new_zeros(len(chosen), longest)
    weights = x.new_zeros(len(chosen), longest)
    for row, (data, indices) in enumerate(zip(held, chosen, strict=False)):
        count = len(indices)
        torch.index_select(data.x, 0, indices, out=x[row, :count])
        torch.index_select(data.y, 0, indices, out=y[row, :count])
        weights[row, :count] = 1 / count
        x[row, count:] = 0
    return x, y, weights


def _room(like: Tensor, clients: int, examples: int) -> Tensor:
    """Return memory for inputs; images are channels last, the fastest layout."""
    if like.ndim != 4:
        return like.new_empty(clients, examples, *like.shape[1:])
    channels, height, width = like.shape[1:]
    return like.new_empty(clients, examples, height, width, channels).permute(0, 1, 4, 2, 3)
