"""Any torch module, by its import path."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy
from typing_extensions import override

from phalanx.models.model import Model


@dataclass(frozen=True)
class TorchModule(Model):
    """A network that is defined elsewhere: `TorchModule("torchvision.models.resnet18", {"num_classes": 10})`.

    The shape of examples and the number of classes are not passed on: give in `arguments` what the class or function
    needs.  Importing runs code, so trust a configuration from others only as you would trust their program.

    Args:
        path: import path of a class or function that returns a `torch.nn.Module`.
        arguments: keyword arguments of the call.

    Raises:
        ValueError: if the path is not of the form package.module.name.
    """

    path: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        parts = self.path.split(".")
        if len(parts) < 2 or not all(part.isidentifier() for part in parts):
            raise ValueError(f"path must have the form package.module.name, like torch.nn.Linear, got {self.path!r}.")

    @property
    def source_modules(self) -> tuple[str, ...]:
        """The modules whose code builds it, besides its own class; see `phalanx.runs.canonical.source`."""
        return (self.path.rpartition(".")[0],)

    @override
    def __hash__(self) -> int:
        """Return the hash of the path alone, because arguments may be unhashable; equality compares both."""
        return hash(self.path)

    @override
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Call the class or function of `path`, and return its module; neither argument is used.

        Args:
            shape: shape of one example, without the batch.
            classes: number of classes.

        Raises:
            ValueError: if the import or the call fails, or the result is no module, or one with lazy parameters.
        """
        factory = self._imported()
        try:
            module = factory(**self.arguments)
        except Exception as error:
            raise ValueError(
                f"{self.path} does not take the arguments {dict(self.arguments)}: {type(error).__name__}: {error}. "
                "Correct the arguments, or the path."
            ) from error
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"{self.path} must return a torch.nn.Module, got {type(module).__name__}. "
                "Name a module class, or a function that builds one."
            )
        if lazy := [name for name, parameter in module.named_parameters() if is_lazy(parameter)]:
            raise ValueError(
                f"{self.path} must know its size before the first batch, got lazy parameters {lazy}. "
                "Give the sizes, and use the layers that are not lazy."
            )
        return module

    def _imported(self) -> Callable[..., object]:
        """Return the class or function of `path`.

        Raises:
            ValueError: if it cannot be imported or called.
        """
        package, _, name = self.path.rpartition(".")
        try:
            factory: object = getattr(import_module(package), name)
        except (ImportError, AttributeError) as error:
            raise ValueError(
                f"Nothing can be imported from {self.path}: {error}. Correct the path, or install the package."
            ) from error
        if not callable(factory):
            raise ValueError(
                f"{self.path} must be a class or a function, got {type(factory).__name__}. Correct the path."
            )
        return factory
