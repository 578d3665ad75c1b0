"""Local training of small networks by one compiled loop, with gradients written by hand.

An operation of torch takes some microseconds before it computes anything, and a step of training has some fifty of
them: a small network spends most of its time there.  Here a whole task is one call: a compiled loop over its
minibatches, which calls the matrix products of torch's own BLAS.  It is the training of `LocalSGD`, on the minibatches
of the same random streams; results differ from it by rounding.
"""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from phalanx.data import Dataset
from phalanx.numerics.blas_kernels import gemm
from phalanx.rng import generator
from phalanx.training import kernels
from phalanx.training.gradient import hooked
from phalanx.training.kernels import ACTIVATION, BIAS, INPUTS, NO_ACTIVATION, OUTPUTS, RELU, TANH, WEIGHT
from phalanx.training.local import CorrectableTrainer, LocalTask
from phalanx.training.task import Classification, Task
from phalanx.training.vector import FlatModule

if TYPE_CHECKING:
    from phalanx.training.sgd import LocalSGD

ACTIVATIONS: dict[type, int] = {nn.ReLU: RELU, nn.Tanh: TANH}


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
        self._flat = False  # whether examples are flattened first
        layers = self._layers(model)
        address = gemm(model.values.numpy().dtype) if isinstance(layers, list) else None
        why = layers if isinstance(layers, str) else "" if type(task) is Classification else "the task has other losses"
        if not why and address is None:
            why = "this build of torch does not share its matrix products"
        if why:
            raise ValueError(f"Training has no compiled form: {why}. Set training.compiled to false.")
        self.recipe, self.seed = recipe, seed
        self._table, self._gemm = np.array(layers, dtype=np.int64), address
        self._values, self._gradient = model.values.numpy(), model.gradient.numpy()
        held = model.values.new_empty
        self._received = held(model.trainable if recipe.proximal else 0).numpy()
        self._velocity = held(model.trainable if recipe.momentum else 0).numpy()
        self._none = held(0).numpy()
        self._outputs = self._backward = self._none
        self._room = int(self._table[0][INPUTS] + self._table[:, OUTPUTS].sum())  # entries for an example

    def _layers(self, model: FlatModule) -> "list[list[int]] | str":
        """Return a row of the table for each linear layer, or why there is none, as the end of a sentence."""
        if model.device.type != "cpu" or model.dtype not in (torch.float32, torch.float64):
            return f"the model is on {model.device}, in {model.dtype}, and not on the CPU in float32 or float64"
        table = list[list[int]]()
        for part in chain_of(model.module):
            if (
                type(part) is nn.Flatten
                and not table
                and not hooked(part)
                and (part.start_dim, part.end_dim) == (1, -1)
            ):
                self._flat = True
            elif why := _append(part, table, model):
                return why
        if table and sum((row[INPUTS] + 1) * row[OUTPUTS] for row in table) != model.trainable:
            return "it trains parameters outside of its linear layers"
        return table or "it has no linear layer"

    def reach(self, held: int, version: int) -> float:
        """See `CorrectableTrainer`."""
        return self.recipe.count(held) * self.recipe.learning_rate(version)

    def train(self, task: LocalTask, data: Dataset) -> float:
        """See `CorrectableTrainer`: clipping leaves the correction as it is, momentum does not."""
        recipe, model = self.recipe, self.model
        if not len(data):
            task.row.zero_()
            return math.nan
        model.load(task.start)
        if recipe.proximal:
            self._received[:] = self._values[: model.trainable]
        self._velocity[:] = 0
        order, size, count = self._order(task, len(data)), recipe.examples(len(data)), recipe.count(len(data))
        if len(self._outputs) < size * self._room:
            self._outputs, self._backward = (model.values.new_empty(size * self._room).numpy() for _ in range(2))
        added, pull = self._none, 0.0
        if task.correction is not None:
            vector, pull = task.correction.vector[: model.trainable], task.correction.proximal
            added = (vector - pull * task.start[: model.trainable] if pull else vector).contiguous().numpy()
        total, known = kernels.train(
            self._gemm, self._table, self._values, self._gradient, self._rows(data), data.y.numpy(), order, size,
            count, recipe.learning_rate(task.version), recipe.clip_norm or math.inf, recipe.weight_decay,
            recipe.proximal, self._received, added, pull, recipe.momentum, self._velocity, self._outputs,
            self._backward,
        )  # fmt: skip
        if not known:
            raise ValueError(f"Labels must be below {self._table[-1][OUTPUTS]}, the number of the model's outputs.")
        model.write_change(task.start, task.row)
        return float(total) / min(len(data), count * size)

    def _order(self, task: LocalTask, held: int) -> NDArray[np.int64]:
        """Return the examples of all epochs in the order of `LocalSGD.minibatches`."""
        recipe, rng = self.recipe, generator(self.seed, "batches", task.client, task.turn)
        epochs = -(-recipe.count(held) // -(-held // recipe.examples(held)))
        orders = [torch.randperm(held, generator=rng) for _ in range(epochs)]
        return (torch.cat(orders) if epochs > 1 else orders[0]).numpy()

    def _rows(self, data: Dataset) -> NDArray[np.floating]:
        """Return the inputs, one row of numbers for each example, of examples that can be trained on."""
        x, y, wanted = data.x, data.y, int(self._table[0][INPUTS])
        if not isinstance(x, Tensor) or x.ndim < 2 or (x.ndim > 2 and not self._flat) or x[0].numel() != wanted:
            got = f"of shape {tuple(x.shape[1:])}" if isinstance(x, Tensor) else "that are several tensors"
            raise ValueError(f"The first layer takes {wanted} numbers for each example, got inputs {got}.")
        if x.dtype != self.model.dtype or y.dtype != torch.int64 or y.ndim != 1:
            raise ValueError(
                f"Compiled training takes inputs in {self.model.dtype}, as the model is, and one label of torch.int64 "
                f"for each example, got {x.dtype} and labels of shape {tuple(y.shape)} in {y.dtype}."
            )
        if _has_any_global_hook():  # type: ignore[no-untyped-call]  # of all modules, which may have come since the trainer was made
            raise ValueError("Torch has hooks of all modules, which compiled training leaves out. Remove them.")
        found: NDArray[np.floating] = x.detach().reshape(len(x), -1).numpy()
        return found


def chain_of(module: nn.Module) -> list[nn.Module]:
    """Return the parts of a chain of layers, also of chains within it; a module that is no chain is its only part."""
    if type(module) is not nn.Sequential or hooked(module):
        return [module]
    return [inner for part in module for inner in chain_of(part)]


def _append(part: nn.Module, table: list[list[int]], model: FlatModule) -> str:
    """Add a layer to the table, or return why it cannot be added, as the end of a sentence."""
    kind, why = type(part), ""
    if hooked(part):
        why = f"a {kind.__name__} has hooks"
    elif kind in ACTIVATIONS and table and table[-1][ACTIVATION] == NO_ACTIVATION:
        table[-1][ACTIVATION] = ACTIVATIONS[kind]
    elif not isinstance(part, nn.Linear) or kind is not nn.Linear:
        why = f"it takes linear layers, each with ReLU, tanh or nothing after it, and no {kind.__name__} there"
    elif part.bias is None or not all(p.requires_grad for p in part.parameters()):
        why = "a linear layer has no bias, or is not trained"
    else:
        outputs, inputs = part.weight.shape  # not its attributes, which may say otherwise
        ends = [_begin(p, model) for p in (part.weight, part.bias)]
        if part.bias.shape != (outputs,) or (table and table[-1][OUTPUTS] != inputs) or not part.weight.numel():
            why = "the sizes of its layers do not fit, or are 0"
        elif any({*ends} & {row[WEIGHT], row[BIAS]} for row in table):
            why = "two layers share parameters"
        table.append([inputs, outputs, *ends, NO_ACTIVATION])
    return why


def _begin(parameter: Tensor, model: FlatModule) -> int:
    """Return where the entries of a parameter begin in the vector of a model."""
    return (parameter.data_ptr() - model.values.data_ptr()) // model.values.itemsize
