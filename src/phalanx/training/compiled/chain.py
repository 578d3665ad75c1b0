"""Networks that have a compiled form: chains of layers, each trained layer with what follows it.

Before the first one there may be an embedding of tokens.
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from phalanx.training.compiled.chain_kernels import IN_TURN, MEAN, NO_ACTIVATION, RELU, SUMMED, TANH
from phalanx.training.network import UNUSUAL, NoChainError, Trained, layers_of, misfit
from phalanx.training.vector import FlatModule

ACTIVATIONS: dict[type, int] = {nn.ReLU: RELU, nn.Tanh: TANH}


@dataclass
class Stage:
    """A trained layer, and what follows it: pooling, an activation, dropout, in this order.

    They commute where the network has another order: pooling with what is monotonic, dropout with ReLU.

    Args:
        part: the layer.
        weight: where its weights begin in the values of the model.
        bias: the same of its biases.
    """

    part: nn.Conv2d | nn.Linear
    weight: int
    bias: int
    pooled: bool = False
    activation: int = NO_ACTIVATION
    dropout: float = 0.0  # probability of a zero
    whole: bool = False  # whether dropout is of single numbers of an image, not of channels
    noise: int = 0  # factors of dropout for an example

    @property
    def inputs(self) -> int:
        """The number of inputs: channels of a convolution."""
        return self.part.weight.shape[1]  # not its attributes, which may say otherwise

    @property
    def outputs(self) -> int:
        """The number of outputs: channels of a convolution."""
        return self.part.weight.shape[0]

    @property
    def filters(self) -> tuple[int, int]:
        """The height and width of a convolution's filters; 0 of a linear layer."""
        height, width = (*self.part.weight.shape[2:], 0, 0)[:2]
        return height, width

    @property
    def padding(self) -> int:
        """The pixels of zeros around the inputs."""
        return self.part.padding[0] if isinstance(self.part, nn.Conv2d) else 0  # type: ignore[return-value]  # no text here

    def image(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the outputs of a convolution; not positive if the inputs are too small."""
        sides = (side + 2 * self.padding - own + 1 for side, own in zip((height, width), self.filters, strict=True))
        height, width = (side // 2 if self.pooled else side for side in sides)
        return height, width


@dataclass
class Lookup:
    """The rows of a table that stand for tokens, before the first stage: one after the other, or their sum or mean.

    Args:
        part: the layer.
        weight: where its rows begin in the values of the model.
    """

    part: nn.Embedding | nn.EmbeddingBag
    weight: int

    @property
    def width(self) -> int:
        """The number of numbers in a row."""
        return self.part.weight.shape[1]

    @property
    def way(self) -> int:
        """How the rows of an example are put together; see `phalanx.training.compiled.chain_kernels`."""
        return {"sum": SUMMED, "mean": MEAN}[self.part.mode] if isinstance(self.part, nn.EmbeddingBag) else IN_TURN

    def table(self, tokens: int) -> tuple[int, ...]:
        """Return the settings of `chain_kernels`, for examples of so many tokens."""
        left_out = -1 if self.part.padding_idx is None else self.part.padding_idx
        return self.weight, len(self.part.weight), self.width, tokens, self.way, left_out


class NetworkChain:
    """The stages of a network.

    Args:
        model: the module, bound to its vector.
    """

    def __init__(self, model: FlatModule) -> None:
        self.stages = list[Stage]()
        self.lookup: Lookup | None = None
        self.flat = False  # whether there is a `Flatten`
        self.why = self._read(model)  # why there is no compiled form, as the end of a sentence; "" if there is one

    @property
    def outputs(self) -> int:
        """The number of classes."""
        return self.stages[-1].outputs

    def wanted(self) -> str:
        """Return what an example must be, as the object of a sentence."""
        first = self.stages[0]
        if (lookup := self.lookup) is not None:
            return "tokens" if lookup.way != IN_TURN else f"{first.inputs // lookup.width} tokens"
        return f"images of {first.inputs} channels that fit it" if any(first.filters) else f"{first.inputs} numbers"

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Return whether examples of this shape fit."""
        if (lookup := self.lookup) is not None:
            bag = lookup.way != IN_TURN
            return (bag and len(shape) == 1 and shape[0] > 0) or shape == (self.stages[0].inputs // lookup.width,)
        images = [stage for stage in self.stages if any(stage.filters)]
        if not images:
            return len(shape) >= 1 and (len(shape) == 1 or self.flat) and prod(shape) == self.stages[0].inputs
        if len(shape) != 3 or shape[0] != images[0].inputs:
            return False
        _, height, width = shape
        for stage in images:
            height, width = stage.image(height, width)
            if min(height, width) < 1:
                return False
        return images[-1].outputs * height * width == self.stages[len(images)].inputs

    def _read(self, model: FlatModule) -> str:
        if model.device.type != "cpu" or model.dtype not in (torch.float32, torch.float64):
            return f"the model is on {model.device}, in {model.dtype}, and not on the CPU in float32 or float64"
        try:
            for layer in layers_of(model.module):
                self._append(layer, model)
        except NoChainError as error:
            return str(error)
        if not self.stages or any(self.stages[-1].filters):
            return "its last layer is not linear"
        parts: list[nn.Module] = [stage.part for stage in self.stages]
        parts += [self.lookup.part] if self.lookup else []
        if sum(p.numel() for part in parts for p in part.parameters()) != model.trainable:
            return "it trains parameters outside of its layers"
        return ""

    def _append(self, part: nn.Module, model: FlatModule) -> None:
        """Add a layer; raise `NoChainError` if it cannot be added."""
        if isinstance(part, Trained):
            self._append_trained(part, model)
            return
        kind, last, fits = type(part), self.stages[-1] if self.stages else None, False
        image = last is not None and any(last.filters) and not self.flat
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            fits = not (self.lookup or self.flat or last)
            self.lookup = Lookup(part, _begin(part.weight, model))
        elif kind is nn.Flatten:
            fits = not self.flat and (last is None or image)
            self.flat = True
        elif last is not None and kind in ACTIVATIONS:
            fits = last.activation == NO_ACTIVATION and not (last.dropout and kind is nn.Tanh)
            last.activation = ACTIVATIONS[kind]
        elif last is not None and kind is nn.MaxPool2d:
            fits = image and not last.pooled
            last.pooled = True
        elif last is not None and isinstance(part, nn.Dropout | nn.Dropout2d):
            fits = not last.dropout and (kind is nn.Dropout2d) == image
            last.dropout, last.whole, last.noise = part.p, not image, last.outputs
        if not fits:
            raise misfit(part)

    def _append_trained(self, part: Trained, model: FlatModule) -> None:
        """Add a linear layer or a convolution; raise `NoChainError` if it cannot be added."""
        assert part.bias is not None
        before, why = self.stages[-1] if self.stages else None, ""
        images = before is not None and any(before.filters)
        stage = Stage(part, _begin(part.weight, model), _begin(part.bias, model))
        follows = before is None or images != any(stage.filters) or before.outputs == stage.inputs
        if part.bias.shape != (stage.outputs,) or not follows or not part.weight.numel():
            why = "the sizes of its layers do not fit, or are 0"
        elif any({stage.weight, stage.bias} & {other.weight, other.bias} for other in self.stages):
            why = "two layers share parameters"
        elif isinstance(part, nn.Conv2d):
            if self.lookup:
                why = "a convolution comes after an embedding"
            elif self.flat or (before and not images):
                why = "a convolution comes after a linear layer"
            elif not _usual(part):
                why = UNUSUAL
        elif images and not self.flat:
            why = "a linear layer comes after a convolution without a Flatten between"
        elif self.lookup and not before:
            why = self._misfit_of(self.lookup, stage.inputs)
        if why:
            raise NoChainError(why)
        if before and before.whole:
            before.noise = stage.inputs
        self.stages.append(stage)

    def _misfit_of(self, lookup: Lookup, inputs: int) -> str:
        """Return why a first linear layer of so many inputs cannot follow an embedding; empty if it can."""
        if lookup.way == IN_TURN and not self.flat:
            return "a linear layer comes after an embedding without a Flatten between"
        fits = not inputs % lookup.width if lookup.way == IN_TURN else inputs == lookup.width
        return "" if fits else "the sizes of its layers do not fit, or are 0"


def _usual(part: nn.Conv2d) -> bool:
    """Return whether a convolution moves by one pixel, among zeros on all sides alike, from all channels to all."""
    return (part.stride, part.dilation, part.groups) == ((1, 1), (1, 1), 1) and len(set(part.padding)) == 1


def _begin(parameter: Tensor, model: FlatModule) -> int:
    """Return where the entries of a parameter begin in the values of a model."""
    return (parameter.data_ptr() - model.values.data_ptr()) // model.values.itemsize
