"""Any torch module, by its import path."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from torch import nn
from torch.nn.parameter import is_lazy
from typing_extensions import override

from phalanx.models.model import Model
from phalanx.trust import named


@dataclass(frozen=True)
class TorchModule(Model):
    """A network that is defined elsewhere: `TorchModule("torchvision.models.resnet18", {"num_classes": 10})`.

    The shape of examples and the number of classes are not passed on: give in `arguments` what the class or function
    needs.  Importing runs code, so trust a configuration from others only as you would trust their program.

    Args:
        path: import path of a subclass of `torch.nn.Module`, or of a function that is annotated to return one:
            `def network() -> nn.Module`. Nothing else is called, and no function of torch, of which some run a text.
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
        try:
            factory: Any = named(self.path)
        except (ImportError, AttributeError) as error:
            raise ValueError(
                f"Nothing can be imported from {self.path}: {error}. Correct the path, or install the package."
            ) from error
        if not _makes_modules(factory):
            kind = factory if isinstance(factory, type) else type(factory)
            raise ValueError(
                f"{self.path} must be a subclass of torch.nn.Module, or a function that is annotated to return one, "
                f"got {'' if isinstance(factory, type) else 'a '}{kind.__name__}. Nothing else is called: correct the "
                "path, or write `def network() -> torch.nn.Module` in a module of your own."
            )
        found: Callable[..., object] = factory
        return found


def _makes_modules(factory: object) -> bool:
    """Return whether a class or function says of itself that a call returns a module.

    Functions of torch make none without another one, or from a text that they run (`reduce_graph_module`).
    """
    kind: object = factory
    if inspect.isfunction(factory):
        if factory.__module__.partition(".")[0] == "torch":
            return False
        try:
            kind = get_type_hints(factory).get("return")
        except (NameError, TypeError):  # names that its module imports for type checkers only
            return False
    return isinstance(kind, type) and issubclass(kind, nn.Module)
