"""Models of which only a part is trained: some parameters by name, or adapters of low rank."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from phalanx.fields import PositiveInt
from phalanx.installation import optional
from phalanx.models.model import Model

HEADS = frozenset({"classification_head", "classifier", "fc", "head", "heads", "qa_outputs", "score"})
ADAPTED = frozenset({"base_layer", "lora_A", "lora_B"})  # parts of the names in a layer with an adapter


@dataclass(frozen=True)
class PartlyTrained(Model):
    """A model of which only some parameters are trained and sent; the others keep their initial values.

    Clients of one process share the others, which are in memory once.

    Args:
        model: the whole model; `GivenModule` for one that was trained before.
        trained: patterns of the names of parameters that are trained, with * for any text: ["score.*"].
    """

    model: Model
    trained: tuple[str, ...]

    @override
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """See `Model.build`.

        Raises:
            ValueError: no parameter has such a name.
        """
        module = self.model.build(shape, classes)
        train_only(module, self.trained)
        return module


def train_only(module: nn.Module, patterns: tuple[str, ...]) -> None:
    """Let only parameters be trained whose names fit one of the patterns; raise `ValueError` if there are none."""
    found = False
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(any(fnmatchcase(name, pattern) for pattern in patterns))
        found |= parameter.requires_grad
    if not found:
        names = ", ".join(name for name, _ in module.named_parameters())
        raise ValueError(f"No parameter has a name like {', '.join(patterns)}. Choose some of: {names}.")


@dataclass(frozen=True)
class LoRA(Model):
    """A model with adapters of low rank, which alone are trained and sent: W x becomes W x + alpha / rank B A x.

    Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2022, by the package `peft` (extra `lora`).
    A (rank, inputs) begins at random, B (outputs, rank) at 0.  Clients of one process share W, which is in memory once.
    The algorithm `LowRankProducts` aggregates B A.

    Args:
        model: the whole model; `GivenModule` for one that was trained before.
        layers: last parts of the names of the layers that get an adapter, such as ["query", "value"].
        rank: of the adapters.
        alpha: factor of the adapters, times their rank.
        base: type of the parameters that are not trained; "bfloat16" halves their memory. For models of texts.
        train: patterns of the names of parameters that are trained whole next to the adapters, such as ["pooler.*"].
        heads: whether a head is, which is new for most tasks: parameters below a part named as in `HEADS`.
    """

    model: Model
    layers: tuple[str, ...]
    rank: PositiveInt = 4
    alpha: PositiveInt = 8
    base: Literal["float32", "bfloat16"] = "float32"
    train: tuple[str, ...] = ()
    heads: bool = True

    @override
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """See `Model.build`.

        Raises:
            ValueError: no layer, or no parameter to train, has such a name.
            ModuleNotFoundError: peft is not installed.
        """
        peft = optional("peft", "LoRA", "lora")  # slow to import
        module = self.model.build(shape, classes).to(getattr(torch, self.base))
        settings = peft.LoraConfig(r=self.rank, lora_alpha=self.alpha, target_modules=list(self.layers))
        adapted: nn.Module = peft.inject_adapter_in_model(settings, module)
        names = [name for name, _ in adapted.named_parameters()]
        if unknown := [pattern for pattern in self.train if not any(fnmatchcase(name, pattern) for name in names)]:
            raise ValueError(f"No parameter has a name like {', '.join(unknown)}. Choose some of: {', '.join(names)}.")
        parts = {name: name.split(".") for name in names if self.heads}
        heads = [name for name, of in parts.items() if not HEADS.isdisjoint(of) and ADAPTED.isdisjoint(of)]
        train_only(adapted, ("*.lora_A.*", "*.lora_B.*", *self.train, *heads))
        for part in adapted.modules():
            trained = [parameter for parameter in part.parameters(recurse=False) if parameter.requires_grad]
            for parameter in trained:
                parameter.data = parameter.data.float()
            if trained and self.base != "float32":
                part.register_forward_pre_hook(_in_float32)
        return adapted


def _in_float32(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs)
