"""An algorithm around another one."""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from typing_extensions import override

from phalanx.core import (
    Algorithm,
    Correction,
    Download,
    InfeasibleError,
    Local,
    Pool,
    Rule,
    Setting,
    Traits,
    Updates,
    Vector,
    Verdict,
)


@dataclass(frozen=True)
class Wrapper(Algorithm[Any]):
    """An algorithm that forwards all calls to the one within; a subclass overrides what it changes.

    Args:
        algorithm: the one within.
    """

    algorithm: Algorithm

    # Declarations

    @property
    @override
    def traits(self) -> Traits:
        return self.algorithm.traits

    @property
    @override
    def title(self) -> str:
        """See `Algorithm`: with the title of the one within."""
        return f"{type(self).__name__}({self.algorithm.title})"

    @property
    @override
    def rule(self) -> Rule | None:
        return self.algorithm.rule

    # Role: server

    @staticmethod
    def _inner(state: Any) -> Any:
        """Return the state of the algorithm within: the same, of a wrapper without a state of its own."""
        return state

    @staticmethod
    def _around(state: Any, inner: Any) -> Any:
        """Return a state with another one within."""
        return inner

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[Any, Set[int]]:
        return self.algorithm.init(model, sizes)

    @override
    def step(self, state: Any, updates: Updates) -> tuple[Any, Set[int]]:
        return self.algorithm.step(state, updates)

    @override
    def download(self, state: Any, client: int) -> Download:
        return self.algorithm.download(self._inner(state), client)

    @override
    def join(self, state: Any, client: int, size: int) -> Any:
        return self._around(state, self.algorithm.join(self._inner(state), client, size))

    @override
    def part(self, state: Any, clients: Mapping[int, int]) -> tuple[Any, Set[int]]:
        inner, ready = self.algorithm.part(self._inner(state), clients)
        return self._around(state, inner), ready

    @override
    def weights(self, state: Any, clients: Collection[int]) -> Mapping[int, float]:
        return self.algorithm.weights(self._inner(state), clients)

    @override
    def carried(self, state: Any) -> tuple[int, Vector | None]:
        return self.algorithm.carried(self._inner(state))

    @override
    def candidate_models(self, state: Any, client: int) -> Mapping[int, Download]:
        return self.algorithm.candidate_models(self._inner(state), client)

    @override
    def lose_round(self, state: Any, updates: Updates, why: str) -> tuple[Any, Set[int]]:
        inner, ready = self.algorithm.lose_round(self._inner(state), updates, why)
        return self._around(state, inner), ready

    # Role: client

    @override
    def integrate(self, local: Local | None, download: Download) -> Vector:
        return self.algorithm.integrate(local, download)

    @override
    def correction(self, local: Local | None, download: Download, reach: float) -> Correction | None:
        return self.algorithm.correction(local, download, reach)

    @override
    def upload(self, delta: Vector, memory: Tensor | None) -> tuple[Vector, Tensor | None]:
        return self.algorithm.upload(delta, memory)

    @abstractmethod
    @override
    def pools(self, setting: Setting, state: Any = None) -> tuple[Pool, ...] | None:
        """Return what is combined; a wrapper that changes nothing in it returns this of its base."""
        return self.algorithm.pools(setting, None if state is None else self._inner(state))


@dataclass(frozen=True)
class OuterState:
    """The server's state of a wrapper that has one; fields that it does not have are those of the state within."""

    inner: Any  # the state of the algorithm within

    @property
    def version(self) -> int:
        """The version of the algorithm within."""
        version: int = self.inner.version
        return version

    @property
    def model(self) -> Vector:
        """The model of the algorithm within."""
        model: Vector = self.inner.model
        return model

    def __getattr__(self, name: str) -> Any:
        """Return a field of the state within."""
        if name.startswith("_") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


@dataclass(frozen=True)
class OuterStateWithInnerVerdicts(OuterState):
    """An `OuterState` whose verdicts are those of the algorithm within."""

    @property  # and not by `__getattr__`: since Python 3.12 an instance of a protocol has all its members itself
    def verdicts(self) -> Mapping[int, Verdict]:
        """The verdicts of the algorithm within."""
        verdicts: Mapping[int, Verdict] = self.inner.verdicts
        return verdicts


@dataclass(frozen=True)
class StatefulWrapper(Wrapper):
    """A wrapper with a state of its own, an `OuterState`.

    All but its `init` and `step` is of the state within, unless a subclass overrides it.
    """

    @staticmethod
    @override
    def _inner(state: OuterState) -> Any:
        return state.inner

    @staticmethod
    @override
    def _around(state: OuterState, inner: Any) -> Any:
        return replace(state, inner=inner)

    @abstractmethod
    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[Any, Set[int]]: ...

    @abstractmethod
    @override
    def step(self, state: Any, updates: Updates) -> tuple[Any, Set[int]]: ...


@dataclass(frozen=True)
class OneModelWrapper(StatefulWrapper):
    """A wrapper with a state of its own, around a synchronous algorithm with one model."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.traits.synchronous or not serves_one_model(self.algorithm):
            has = "serves several models" if self.traits.synchronous else "takes updates one at a time"
            raise InfeasibleError(
                f"{type(self).__name__} needs rounds and one model for all clients, and {self.algorithm.title} {has}. "
                "Choose another algorithm, such as FedAvg."
            )


def serves_one_model(algorithm: Algorithm) -> bool:
    """Return whether all clients are sent the model of the state, and train that."""
    while isinstance(algorithm, Wrapper) and type(algorithm).download is Wrapper.download:
        algorithm = algorithm.algorithm
    kind = type(algorithm)
    return kind.download is Algorithm.download and kind.integrate is Algorithm.integrate
