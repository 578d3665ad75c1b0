"""Local training by one compiled loop, with gradients written by hand.

An operation of torch takes some microseconds before it computes anything, and a step of training has some fifty of
them: a small network spends most of its time there.  And torch's convolutions leave most of a processor idle where
channels are few.  Here a whole task is one call: a compiled loop over its minibatches.  It is the training of
`LocalSGD`, on the minibatches and dropout of the same random streams; results differ from it by rounding.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook
from typing_extensions import override

from phalanx.data.dataset import Dataset, Inputs
from phalanx.numerics.blas_kernels import gemm
from phalanx.rng import generator
from phalanx.training.compiled import chain_kernels as kernels
from phalanx.training.compiled.chain import NetworkChain
from phalanx.training.compiled.chain_kernels import BEYOND, SCRATCH, SHAPES
from phalanx.training.local import CorrectableTrainer, LocalTask
from phalanx.training.task import Classification, Task
from phalanx.training.vector import FlatModule

if TYPE_CHECKING:
    from phalanx.training.sgd import LocalSGD

PART = 32  # examples whose outputs are computed at once


class CompiledNetwork:
    """A network's outputs by a compiled loop, for evaluation.

    Args:
        model: the module, bound to its vector.

    Raises:
        ValueError: the network has no compiled form.
    """

    def __init__(self, model: FlatModule) -> None:
        self.model, self.chain = model, NetworkChain(model)
        address = None if self.chain.why else gemm(model.values.numpy().dtype)
        why = self.chain.why or ("" if address else "this build of torch does not share its matrix products")
        if why or address is None:
            raise ValueError(f"Training has no compiled form: {why}. Set training.engine to loop.")
        self.gemm, self._values = address, model.values.numpy()
        self._room: Room | None = None
        self._shape: torch.Size | None = None  # of examples that fit

    def __call__(self, x: Inputs) -> Tensor:
        """Return the scores of all classes for a batch, an (n, classes) tensor; dropout does nothing.

        Raises:
            ValueError: the network does not take such examples.
        """
        examples, shape = self.examples(x)
        if self._room is None or self._room.shape != shape:
            self._room = Room(self.chain, shape, PART, self._values.dtype)
        scores = self.model.values.new_empty((len(examples) // math.prod(shape), self.chain.outputs))
        self._room.predict(self.gemm, self._values, examples, scores.numpy())
        return scores

    def examples(self, x: Inputs) -> tuple[NDArray[Any], tuple[int, ...]]:
        """Return the numbers or tokens of some inputs, one example after the other, and the shape of an example.

        Raises:
            ValueError: the network does not take them.
        """
        fits = isinstance(x, Tensor) and (x.shape[1:] == self._shape or self.chain.takes(tuple(x.shape[1:])))
        if not isinstance(x, Tensor) or not fits:
            got = f"of shape {tuple(x.shape[1:])}" if isinstance(x, Tensor) else "that are several tensors"
            raise ValueError(f"The first layer takes {self.chain.wanted()} for each example, got inputs {got}.")
        lookup = self.chain.lookup
        wanted, why = (self.model.dtype, "as the model is") if lookup is None else (torch.int64, "as tokens are")
        if x.dtype != wanted:
            raise ValueError(f"Compiled training takes inputs in {wanted}, {why}, got {x.dtype}.")
        if lookup is not None and len(x) and not 0 <= int(x.min()) <= int(x.max()) < len(lookup.part.weight):
            raise ValueError(
                f"Tokens must lie in 0..{len(lookup.part.weight) - 1}, the rows of the embedding, got "
                f"{int(x.min())}..{int(x.max())}."
            )
        if _has_any_global_hook():  # type: ignore[no-untyped-call]  # of all modules, which may have come since
            raise ValueError("Torch has hooks of all modules, which compiled training leaves out. Remove them.")
        self._shape = x.shape[1:]
        found: NDArray[Any] = x.detach().reshape(-1).numpy()
        return found, tuple(self._shape)


class CompiledTrainer(CorrectableTrainer):
    """A trainer by stochastic gradient descent, in a compiled loop.

    Args:
        model: the module, bound to its vector.
        recipe: the local training.
        seed: seed of the run; the random streams are those of `phalanx.training.sgd.Trainer`.
        task: the task that is trained.

    Raises:
        ValueError: the network has no compiled form, or the task is not a classification.
    """

    def __init__(self, model: FlatModule, recipe: "LocalSGD", seed: int, task: Task) -> None:
        super().__init__(model, task)
        network, why = CompiledNetwork(model), ""
        self._half = recipe.precision == "bfloat16"
        if type(task) is not Classification:
            why = "the task has other losses"
        elif self._half and model.dtype != torch.float32:
            why = f"the model is in {model.dtype}, and precision is bfloat16"
        elif self._half and not any(any(stage.filters) for stage in network.chain.stages):
            why = "it has no convolution, and compiled training computes nothing else in bfloat16"
        elif self._half and not kernels.BFLOAT16:
            why = "this processor has no instructions for products in bfloat16 (AVX512_BF16)"
        if why:
            raise ValueError(f"Training has no compiled form: {why}. Set training.engine to loop.")
        self.recipe, self.seed, self._network, self._chain = recipe, seed, network, network.chain
        self._values, self._gradient = model.values.numpy(), model.gradient.numpy()
        held = model.values.new_empty
        self._received = held(model.trainable if recipe.proximal else 0).numpy()
        self._velocity = held(model.trainable if recipe.momentum else 0).numpy()
        self._none = held(0).numpy()
        self._room: Room | None = None

    @override
    def reach(self, held: int, version: int) -> float:
        return self.recipe.count(held) * self.recipe.learning_rate(version)

    @override
    def train(self, task: LocalTask, data: Dataset) -> float:
        """See `CorrectableTrainer`: clipping leaves the correction as it is, momentum does not."""
        recipe, model = self.recipe, self.model
        if not len(data):
            task.row.zero_()
            return math.nan
        x, shape = self._network.examples(data.x)
        if data.y.dtype != torch.int64 or data.y.ndim != 1:
            raise ValueError(
                f"Compiled training takes one label of torch.int64 for each example, got labels of shape "
                f"{tuple(data.y.shape)} in {data.y.dtype}."
            )
        size, count = recipe.examples(len(data)), recipe.count(len(data))
        model.load(task.start)
        if recipe.proximal:
            self._received[:] = self._values[: model.trainable]
        self._velocity[:] = 0
        added, pull = self._none, 0.0
        if task.correction is not None:
            vector, pull = model.arranged(task.correction.vector), task.correction.proximal
            start = model.values[: model.trainable]
            added = (vector - pull * start if pull else vector).contiguous().numpy()
        if self._room is None or not self._room.fits(shape, size):
            self._room = Room(self._chain, shape, size, self._none.dtype, half=self._half)
        settings = (
            *self._room.read(x, self._values), data.y.numpy(), self._order(task, len(data)), size, count,
            recipe.learning_rate(task.version), recipe.clip_norm or math.inf, recipe.weight_decay, recipe.proximal,
            self._received, added, pull, recipe.momentum, self._velocity,
        )  # fmt: skip
        noise = self._noise(task, len(data))
        total, known = self._room.train(self._network.gemm, self._values, self._gradient, settings, noise)
        if not known:
            raise ValueError(f"Labels must be below {self._chain.outputs}, the number of the model's outputs.")
        model.write_change(task.start, task.row)
        return float(total) / min(len(data), count * size)

    def _order(self, task: LocalTask, held: int) -> NDArray[np.int64]:
        """Return the examples of all epochs in the order of `LocalSGD.minibatches`."""
        recipe, rng = self.recipe, generator(self.seed, "batches", task.client, task.turn)
        epochs = -(-recipe.count(held) // -(-held // recipe.examples(held)))
        orders = [torch.randperm(held, generator=rng) for _ in range(epochs)]
        return (torch.cat(orders) if epochs > 1 else orders[0]).numpy()

    def _noise(self, task: LocalTask, held: int) -> NDArray[np.floating]:
        """Return the factors of dropout of all minibatches, in the numbers and the order of torch's layers."""
        dropped = [stage for stage in self._chain.stages if stage.dropout]
        if not dropped:
            return self._none
        recipe, rng = self.recipe, generator(self.seed, "dropout", task.client, task.turn)
        size, found = recipe.examples(held), list[Tensor]()
        ends = [min(size, held - at) for at in range(0, held, size)]
        for step in range(recipe.count(held)):
            for stage in dropped:
                shape = (ends[step % len(ends)], stage.noise)
                kept = self.model.values.new_empty(shape).bernoulli_(1 - stage.dropout, generator=rng)
                found.append(kept.div_(1 - stage.dropout).flatten())
        return torch.cat(found).numpy()


class Room:
    """The memory for minibatches of a network.

    Args:
        chain: the network.
        shape: of an example.
        size: examples of a minibatch, at most.
        kind: type of the numbers.
        half: whether convolutions compute in bfloat16.
    """

    def __init__(
        self, chain: NetworkChain, shape: tuple[int, ...], size: int, kind: np.dtype[Any], *, half: bool = False
    ) -> None:
        self.shape, self.size = shape, size
        first, images = chain.stages[0], any(chain.stages[0].filters)
        self._lookup = None if chain.lookup is None else np.array(chain.lookup.table(shape[0]), np.int64)
        self._pad, self._example = first.padding, np.array(shape if images else (first.inputs, 1, 1), np.int64)
        rows, taps, at, which, scratch, largest = list[list[int]](), [np.empty((0, 2), np.int64)], 0, 0, 0, 0
        height, width = shape[1:] if images else (1, 1)
        for stage, after in zip(chain.stages, [*chain.stages[1:], None], strict=True):
            lines, line, (tall, broad) = height + 2 * stage.padding, width + 2 * stage.padding, stage.filters
            height, width = stage.image(height, width) if tall else (1, 1)
            scale, border = 2 if stage.pooled else 1, after.padding if after else 0
            first_tap = sum(map(len, taps))
            rows.append([
                stage.inputs, stage.outputs, tall, broad, stage.weight, stage.bias, stage.activation, stage.pooled,
                scale * height, scale * width, lines, line, height + 2 * border, width + 2 * border, border, at, which,
                first_tap, stage.noise, stage.whole, tile(stage.outputs), tile(stage.inputs),
                first_tap + stage.inputs * tall * broad,
            ])  # fmt: skip
            if tall:
                down, over = np.arange(tall)[:, None, None] * line, np.arange(broad)[:, None]
                for channels in (stage.inputs, *([-(-stage.inputs // 2)] if half else [])):
                    begins = (down + over + np.arange(channels) * lines * line).ravel()
                    taps.append(np.stack([np.arange(len(begins)), begins], 1))
                largest = max(largest, (stage.inputs + 1) * lines * line)
                which += stage.outputs * height * width if stage.pooled else 0
                two = 2 * stage.outputs * (scale * width * size + BEYOND)  # rows of pixels, if they are more
                scratch = max(scratch, SCRATCH // kind.itemsize, two)
            at += stage.inputs * (lines * line if tall else 1)
        self._table, self._taps = np.array(rows, np.int64), np.concatenate(taps).ravel()
        self._still = self._table.copy()  # without dropout
        self._still[:, kernels.NOISE] = 0
        self._offsets = np.empty_like(self._taps)
        self._begun = np.empty(
            2 * max(size, *(stage.outputs * stage.filters[0] for stage in chain.stages), 1), np.int64
        )
        count = size * (at + chain.outputs) + (len(rows) + 1) * BEYOND
        self._outputs, self._backward = np.empty(count, kind), np.empty(count, kind)
        self._which, self._scratch = np.empty(size * which + BEYOND, np.int8), np.zeros(scratch + BEYOND, kind)
        # Of float32; see `kernels.train`.
        pairs, single = largest * size // 2 + 2 * BEYOND, largest * size + 2 * BEYOND
        filters = max(stage.part.weight.numel() for stage in chain.stages)
        sizes = {np.uint32: (pairs, filters, scratch + BEYOND), np.uint16: (single, scratch + BEYOND)}
        self._halves = tuple(np.zeros(n, number) for number in sizes for n in sizes[number]) if half else None

    def read(self, x: NDArray[Any], values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any]]:
        """Return the examples as the kernels take them: numbers, tokens and how these are looked up."""
        return (x, None, self._begun) if self._lookup is None else (values[:0], x, self._lookup)

    def fits(self, shape: tuple[int, ...], size: int) -> bool:
        """Return whether there is room for a minibatch of so many examples of a shape."""
        return self.shape == shape and self.size >= size

    def train(
        self, address: int, values: NDArray[Any], gradient: NDArray[Any], settings: tuple[Any, ...], noise: NDArray[Any]
    ) -> tuple[float, bool]:
        """Return the sum of the losses of the first epoch, and whether all labels are known; see `kernels.train`."""
        found: tuple[float, bool] = kernels.train(
            address, self._table, self._taps, values, gradient, *settings, self._example, self._pad, noise,
            self._outputs, self._backward, self._which, self._scratch, self._offsets, self._begun,
            self._halves,
        )  # fmt: skip
        return found

    def predict(self, address: int, values: NDArray[Any], x: NDArray[Any], scores: NDArray[Any]) -> None:
        """Write the scores of examples; see `kernels.predict`."""
        kernels.predict(
            address, self._still, self._taps, values, *self.read(x, values), np.arange(len(scores)), self.size,
            self._example, self._pad, values[:0], self._outputs, self._which, self._scratch, self._offsets, self._begun,
            scores,
        )  # fmt: skip


def tile(count: int) -> int:
    """Return the number of filters of a tile with which the fewest are computed twice, of so many."""
    return min(SHAPES, key=lambda filters: (-(-count // filters) * filters, -filters))
