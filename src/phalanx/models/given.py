"""A torch module that exists already, as the model of a run."""

import hashlib
import re
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn, uint8
from torch.nn.parameter import is_lazy
from typing_extensions import override

from phalanx.models.model import Model
from phalanx.wording import shown


@dataclass(frozen=True, eq=False, repr=False)
class GivenModule(Model):
    """A module and its values, from which training begins whatever the seed: `Run(model=nn.Linear(64, 10))`.

    It is copied, so that what happens to the module later changes no run.  Two are equal if their class, their printed
    structure and their values are.  A configuration file cannot hold the values: name a class of your own by its import
    path, or use `TorchModule`, for a run that a file describes.

    Args:
        module: the module. It maps a batch of examples to logits, as `Model.build` says.

    Raises:
        ValueError: if the module has parameters that have no size yet, or cannot be copied.
    """

    module: nn.Module

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if lazy := [name for name, parameter in self.module.named_parameters() if is_lazy(parameter)]:
            raise ValueError(
                f"A module must know its size before the first batch, got lazy parameters {lazy}. "
                "Run one batch through it first, or use the layers that are not lazy."
            )
        object.__setattr__(self, "module", _copied(self.module))

    @override
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return a copy of the module; neither argument is used."""
        return _copied(self.module).train()

    @cached_property
    def canonical(self) -> dict[str, str]:
        """The identity of this model: its class, its printed structure without addresses, and its values."""
        kind, digest = type(self.module), hashlib.sha256()
        for name, value in self.module.state_dict(keep_vars=True).items():
            if isinstance(value, Tensor):
                digest.update(repr((name, str(value.dtype), tuple(value.shape), value.requires_grad)).encode())
                digest.update(value.detach().cpu().contiguous().flatten().view(uint8).numpy().data)
            else:
                digest.update(repr((name, value)).encode())
        structure = re.sub(r" at 0x[0-9a-f]+", "", repr(self.module))
        return {
            "module": f"{kind.__module__}.{kind.__qualname__}",
            "structure": structure,
            "values": digest.hexdigest(),
        }

    @property
    def source_modules(self) -> tuple[str, ...]:
        """The modules whose code it runs; see `phalanx.runs.canonical.source`."""
        return tuple(sorted({type(part).__module__ for part in self.module.modules()}))

    @override
    def __eq__(self, other: object) -> bool:
        return self.canonical == other.canonical if isinstance(other, GivenModule) else NotImplemented

    @override
    def __hash__(self) -> int:
        return hash(tuple(self.canonical.values()))

    @override
    def __repr__(self) -> str:
        count = sum(parameter.numel() for parameter in self.module.parameters())
        return f"GivenModule({type(self.module).__name__} of {count:,} parameters)"


def _copied(module: nn.Module) -> nn.Module:
    """Return a copy of a module; raise `ValueError` if it cannot be copied."""
    try:
        return deepcopy(module)
    except Exception as error:  # of somebody's class
        said = shown(str(error).strip().rstrip("."), 200)
        raise ValueError(
            f"{type(module).__name__} cannot be copied: {type(error).__name__}: {said}. Where it uses "
            "torch.nn.utils.weight_norm, take torch.nn.utils.parametrizations.weight_norm; or name a function that "
            'builds it: TorchModule("package.module.function").'
        ) from error
