"""Local training of several clients at once: their networks are stacked, and gradients are written by hand.

A client of a small network leaves most of a processor idle: matrices are small, and every operation of autograd costs
more than its arithmetic.  Here one operation serves all clients of a stack.  It is the training of `LocalSGD`, on the
minibatches and dropout of the same random streams; results differ from one client at a time by rounding.

On a GPU nothing waits for it until the losses are read, once for all clients of a stack.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from typing_extensions import override

from phalanx.core import InfeasibleError, Vector
from phalanx.data import Dataset
from phalanx.rng import generator
from phalanx.training.layers import Dropout, Trained, note_layouts, stack_of
from phalanx.training.local import LocalTask, LocalTrainer
from phalanx.training.task import Classification, Task
from phalanx.training.vector import FlatModule

if TYPE_CHECKING:
    from phalanx.training.sgd import LocalSGD

WIDTH, CACHED, MADE = 12, 1 << 22, 1 << 24  # of a stack: clients, bytes of parameters and of activations, at most
ON_GPU = 64, 1 << 30, 1 << 30  # the same where no cache is to be kept
REFUSED = "Clients cannot be stacked: {}. Set training.stacked to false."
DROPOUT = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d
SAME = 0.01  # difference of outputs by rounding, as a share of the largest, at most


class StackedTrainer(LocalTrainer):
    """A trainer by stochastic gradient descent, of several clients together.

    Args:
        model: the module, bound to its vector; only its architecture is used.
        recipe: the local training.
        seed: seed of the run; the random streams are those of `phalanx.training.sgd.Trainer`.
        task: the task that is trained.

    Raises:
        ValueError: the network has no stacked form, or the task is not a classification.
    """

    def __init__(self, model: FlatModule, recipe: "LocalSGD", seed: int, task: Task) -> None:
        super().__init__(model, task)
        self._parameters = [p for p in model.module.parameters() if p.requires_grad]
        try:
            self._chain = stack_of(model.module)
            self._check(self._chain.parameters)
        except ValueError as error:
            raise ValueError(REFUSED.format(error)) from error
        self.recipe, self.seed = recipe, seed
        parts = [*self._chain.parts()]
        self._trained = [layer for layer in parts if isinstance(layer, Trained)]
        self._dropouts = [layer for layer in parts if isinstance(layer, Dropout)]
        note_layouts(self._chain.layers, model.layout, model.layout)
        width, cached, self._room = (WIDTH, CACHED, MADE) if model.device.type == "cpu" else ON_GPU
        self.width = max(1, min(width, cached // (model.size * model.values.itemsize)))
        self._numbers = dict[torch.Size, int]()  # that layers make of an example, by its shape
        self._fused = not (recipe.momentum or recipe.weight_decay or recipe.proximal or recipe.clip_norm is not None)
        self._values = self._targets = model.values.new_empty(0, 0)

    def _check(self, held: Sequence[Tensor]) -> None:
        """Raise `ValueError` unless each parameter belongs to one layer, and the task is a classification."""
        same = len(held) == len(self._parameters) and {*map(id, held)} == {*map(id, self._parameters)}
        if not same or sum(p.numel() for p in held) != self.model.size:
            raise ValueError("it has parameters or buffers outside of its layers, or layers that share some")
        if type(self.task) is not Classification:
            raise ValueError("the task has other losses")
        dropped = [part for part in self.model.module.modules() if isinstance(part, DROPOUT) and part.p]
        if len(dropped) != sum(isinstance(layer, Dropout) for layer in self._chain.parts()):
            raise ValueError("its chain has other dropout")

    @override
    def train(self, task: LocalTask, data: Dataset) -> float:
        return self.train_together([task], {task.client: data})[0]

    @override
    def train_together(self, tasks: Sequence[LocalTask], data: Mapping[int, Dataset]) -> list[float]:
        working = [task for task in tasks if len(data[task.client])]
        working.sort(key=lambda task: -self._steps(len(data[task.client])))
        for task in tasks:
            if not len(data[task.client]):
                task.row.zero_()
        self._check_examples([data[task.client] for task in working])
        found, width = dict[int, float](), self._width([data[task.client] for task in working])
        for some in (working[at : at + width] for at in range(0, len(working), width)):
            losses = self._train(some, [data[task.client] for task in some])
            found.update(zip((task.client for task in some), losses, strict=True))
        return [found.get(task.client, math.nan) for task in tasks]

    def _check_examples(self, held: Sequence[Dataset]) -> None:
        """Raise `ValueError` for what would be misread: hooks, and clients whose examples differ."""
        if _has_any_global_hook():  # type: ignore[no-untyped-call]
            raise ValueError("Torch has hooks of all modules, which stacked training leaves out. Remove them.")
        if len(kinds := {(tensor(data).shape[1:], tensor(data).dtype) for data in held}) > 1:
            shown = " and ".join(sorted(f"{tuple(shape)} in {dtype}" for shape, dtype in kinds))
            raise ValueError(f"Clients that train together need examples of one shape and type, got {shown}.")

    @override
    def try_out(self, few: Dataset) -> None:
        """See `LocalTrainer`: compare the outputs with those of the module, in case it names another chain."""
        if not isinstance(few.x, Tensor) or few.y.ndim > 1:
            what = "an example is several tensors" if few.y.ndim == 1 else "an example has several labels"
            raise InfeasibleError(REFUSED.format(what))
        self.model.module.eval()
        with torch.inference_mode():
            wanted = self.model.outputs(few.x)
        try:
            found = self._outputs(few.x)[0]
        except (ValueError, TypeError, IndexError, RuntimeError) as error:
            raise InfeasibleError(REFUSED.format(str(error).partition("\n")[0].rstrip("."))) from error
        nearly = SAME * float(wanted.abs().max().nan_to_num())
        if found.shape != wanted.shape or not torch.allclose(found, wanted, SAME, nearly, equal_nan=True):
            raise InfeasibleError(REFUSED.format("the module and its `as_chain` have other outputs"))

    def _outputs(self, x: Tensor) -> Tensor:
        """Return the outputs of the present model, without dropout, as those of one client."""
        self._load([self.model.read()])
        for dropout in self._dropouts:
            dropout.streams = ()
        return self._chain.forward(x[None])

    def _width(self, held: Sequence[Dataset]) -> int:
        """Return the number of clients for whose activations there is room."""
        if self.width == 1 or len(held) < 2:
            return 1
        x, size = tensor(held[0])[:1], max(self.recipe.examples(len(data)) for data in held)
        if x.shape not in self._numbers:
            self._outputs(x)
            self._numbers[x.shape] = x.numel() + self._chain.made
        return max(1, self._room // (self._numbers[x.shape] * size * self.model.values.itemsize))

    def _steps(self, held: int) -> int:
        """Return the number of minibatches of a task."""
        recipe = self.recipe
        if recipe.steps is not None:
            return recipe.steps if held else 0
        return recipe.epochs * math.ceil(held / recipe.examples(held)) if held else 0

    def _train(self, tasks: Sequence[LocalTask], held: Sequence[Dataset]) -> list[float]:
        self._load([task.start for task in tasks])
        self._seed(tasks)
        begun = self._values[: len(tasks)].clone() if self.recipe.proximal else None
        velocity = torch.zeros_like(self._values[: len(tasks)]) if self.recipe.momentum else None
        plans = [self._plan(task, len(data)) for task, data in zip(tasks, held, strict=True)]
        lr = self._values.new_tensor([self.recipe.learning_rate(task.version) for task in tasks])
        device = self.model.device
        firsts = torch.tensor([plan.first for plan in plans], device=device)
        total = torch.zeros(len(tasks), dtype=torch.float64, device=device)
        for step in range(len(plans[0].batches)):
            active = sum(len(plan.batches) > step for plan in plans)
            chosen = [plan.batches[step] for plan in plans[:active]]
            x, y, weights = _gathered(held, chosen, self.model.dtype)
            self._set_counts([len(part) for part in chosen])
            loss = self._gradient(x, y, weights * lr[:active, None] if self._fused else weights)
            total[:active] += torch.where(firsts[:active] > step, loss, 0.0)
            if not self._fused:
                self._descend(active, lr, begun, velocity)
        for values, task in zip(self._values, tasks, strict=False):
            torch.sub(values, task.start, out=task.row)
        return [float(loss) / plan.seen for loss, plan in zip(total.tolist(), plans, strict=True)]

    def _gradient(self, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Let all layers compute gradients of the weighted cross-entropy, and return its sum for each client."""
        scores = torch.log_softmax(self._chain.forward(x), 2)
        y = y[:, :, None]
        loss = -(scores.gather(2, y)[:, :, 0] * (weights > 0)).sum(1, dtype=torch.float64)
        g = scores.exp_()
        g.scatter_add_(2, y, g.new_full((), -1.0).expand(y.shape))
        g *= weights[:, :, None]
        self._chain.backward(g, further=False)
        return loss

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

    def _plan(self, task: LocalTask, held: int) -> "Plan":
        """Return the minibatches of a task, as `LocalSGD.minibatches` makes them."""
        recipe, rng = self.recipe, generator(self.seed, "batches", task.client, task.turn)
        size, batches, first, seen = recipe.examples(held), list[Tensor](), 0, 0
        while len(batches) < self._steps(held):
            order = torch.randperm(held, generator=rng).to(self.model.device)
            if recipe.steps is not None:
                order = order[: (recipe.steps - len(batches)) * size]
            batches += torch.split(order, size)
            if not first:
                first, seen = len(batches), len(order)
        return Plan(batches, first, seen)

    def _load(self, starts: Sequence[Vector]) -> None:
        """Set the parameters of all clients."""
        if len(self._values) < len(starts):
            self._values = self.model.values.new_empty(len(starts), self.model.size)
            self._targets = self._values if self._fused else torch.empty_like(self._values)
            held = [self._views(rows) for rows in (self._values, self._targets)]
            for layer in self._trained:
                values, targets = ([views[id(p)] for p in layer.parameters] for views in held)
                layer.bind(values, targets, steps=self._fused)
        for row, start in zip(self._values, starts, strict=False):
            row.copy_(start)

    def _seed(self, tasks: Sequence[LocalTask]) -> None:
        """Seed the dropout of all clients."""
        keys = [("dropout", task.client, task.turn) for task in tasks if self._dropouts]
        streams = [generator(self.seed, *key, device=self.model.device) for key in keys]
        for dropout in self._dropouts:
            dropout.streams = streams

    def _views(self, rows: Tensor) -> dict[int, Tensor]:
        """Return each parameter (C, *shape) of the clients whose vectors are the rows, by the `id` of torch's."""
        found, at = dict[int, Tensor](), 0
        for p in self._parameters:
            found[id(p)] = rows[:, at : at + p.numel()].view(-1, *p.shape)
            at += p.numel()
        return found

    def _set_counts(self, counts: Sequence[int]) -> None:
        for layer in self._dropouts:
            layer.counts = counts


class Plan(NamedTuple):
    """The minibatches of one task."""

    batches: list[Tensor]  # indices of the examples of each
    first: int  # number of those of the first epoch
    seen: int  # examples of the first epoch


def tensor(data: Dataset) -> Tensor:
    """Return the inputs, which are one tensor where a chain of layers takes them."""
    assert isinstance(data.x, Tensor)
    return data.x


def _gathered(held: Sequence[Dataset], chosen: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return the inputs, labels and weights of one minibatch of each client, padded to the length of the longest.

    The weights are 1 / m for the m examples of a client's minibatch, and 0 for the padding.
    """
    longest, like = max(map(len, chosen)), tensor(held[0])
    x = like.new_empty(len(chosen), longest, *like.shape[1:])
    y = held[0].y.new_zeros(len(chosen), longest)
    weights = x.new_zeros(len(chosen), longest, dtype=dtype)
    for row, (data, indices) in enumerate(zip(held, chosen, strict=False)):
        count = len(indices)
        torch.index_select(tensor(data), 0, indices, out=x[row, :count])
        torch.index_select(data.y, 0, indices, out=y[row, :count])
        weights[row, :count] = 1 / count
        x[row, count:] = x[row, count - 1]  # its weight is 0; zeros can have no variance
    return x, y, weights
