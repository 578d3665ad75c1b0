"""An algorithm around another one."""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from phalanx.core import (
    Algorithm,
    Correction,
    Download,
    InfeasibleError,
    Local,
    QuorumStatus,
    Rule,
    SmallestSet,
    Updates,
    Vector,
    Verdict,
)
from phalanx.training.local import LocalTraining


@dataclass(frozen=True)
class Wrapper(Algorithm[Any]):
    """An algorithm that forwards all calls to the one within; a subclass overrides what it changes.

    Args:
        algorithm: the one within.
    """

    algorithm: Algorithm

    # Declarations

    @property
    def synchronous(self) -> bool:  # type: ignore[override]  # a class variable elsewhere
        """See `Algorithm`."""
        return self.algorithm.synchronous

    @property
    def observed(self) -> tuple[str, ...]:  # type: ignore[override]  # a class variable elsewhere
        """See `Algorithm`."""
        return self.algorithm.observed

    @property
    def exact_losses(self) -> bool:  # type: ignore[override]  # a class variable elsewhere
        """See `Algorithm`."""
        return self.algorithm.exact_losses

    @property
    def needs_reference(self) -> bool:  # type: ignore[override]  # a class variable elsewhere
        """See `Algorithm`."""
        return self.algorithm.needs_reference

    @property
    def can_join(self) -> bool:  # type: ignore[override]  # a class variable elsewhere
        """See `Algorithm`."""
        return self.algorithm.can_join

    @property
    def title(self) -> str:
        """See `Algorithm`: with the title of the one within."""
        return f"{type(self).__name__}({self.algorithm.title})"

    @property
    def rule(self) -> Rule | None:
        """See `Algorithm`."""
        return self.algorithm.rule

    @property
    def knows_layout(self) -> bool:
        """See `Algorithm`."""
        return self.algorithm.knows_layout

    @property
    def reference_every(self) -> int:
        """See `Algorithm`."""
        return self.algorithm.reference_every

    @property
    def corrects(self) -> bool:
        """See `Algorithm`."""
        return self.algorithm.corrects

    @property
    def remembers(self) -> bool:
        """See `Algorithm`."""
        return self.algorithm.remembers

    @property
    def reads_training(self) -> bool:
        """See `Algorithm`."""
        return self.algorithm.reads_training

    # Role: server

    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[Any, Set[int]]:
        """See `Algorithm`."""
        return self.algorithm.init(model, sizes)

    def step(self, state: Any, updates: Updates) -> tuple[Any, Set[int]]:
        """See `Algorithm`."""
        return self.algorithm.step(state, updates)

    def download(self, state: Any, client: int) -> Download:
        """See `Algorithm`."""
        return self.algorithm.download(state, client)

    def download_size(self, d: int) -> int:
        """See `Algorithm`."""
        return self.algorithm.download_size(d)

    def join(self, state: Any, client: int, size: int) -> Any:
        """See `Algorithm`."""
        return self.algorithm.join(state, client, size)

    def part(self, state: Any, clients: Mapping[int, int]) -> tuple[Any, Set[int]]:
        """See `Algorithm`."""
        return self.algorithm.part(state, clients)

    def weights(self, state: Any, clients: Collection[int]) -> Mapping[int, float]:
        """See `Algorithm`."""
        return self.algorithm.weights(state, clients)

    def carried(self, state: Any) -> tuple[int, Vector | None]:
        """See `Algorithm`."""
        return self.algorithm.carried(state)

    def candidate_models(self, state: Any, client: int) -> Mapping[int, Download]:
        """See `Algorithm`."""
        return self.algorithm.candidate_models(state, client)

    def quorum_status(self, state: Any) -> QuorumStatus | None:
        """See `Algorithm`."""
        return self.algorithm.quorum_status(state)

    def smallest_set(self, m: int, population: int) -> SmallestSet:
        """See `Algorithm`."""
        return self.algorithm.smallest_set(m, population)

    def lose_round(self, state: Any, updates: Updates, why: str) -> tuple[Any, Set[int]]:
        """See `Algorithm`."""
        return self.algorithm.lose_round(state, updates, why)

    def check_training(self, training: LocalTraining) -> None:
        """See `Algorithm`."""
        self.algorithm.check_training(training)

    def check_round(self, m: int, population: int) -> None:
        """See `Algorithm`."""
        self.algorithm.check_round(m, population)

    # Role: client

    def integrate(self, local: Local | None, download: Download) -> Vector:
        """See `Algorithm`."""
        return self.algorithm.integrate(local, download)

    def correction(self, local: Local | None, download: Download, reach: float) -> Correction | None:
        """See `Algorithm`."""
        return self.algorithm.correction(local, download, reach)

    def upload(self, delta: Vector, memory: Tensor | None) -> tuple[Vector, Tensor | None]:
        """See `Algorithm`."""
        return self.algorithm.upload(delta, memory)


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
class OuterStateWithoutVerdicts(OuterState):
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

    @abstractmethod
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[Any, Set[int]]:
        """See `Algorithm`."""

    @abstractmethod
    def step(self, state: Any, updates: Updates) -> tuple[Any, Set[int]]:
        """See `Algorithm`."""

    def download(self, state: Any, client: int) -> Download:
        """See `Algorithm`."""
        return self.algorithm.download(state.inner, client)

    def weights(self, state: Any, clients: Collection[int]) -> Mapping[int, float]:
        """See `Algorithm`."""
        return self.algorithm.weights(state.inner, clients)

    def carried(self, state: Any) -> tuple[int, Vector | None]:
        """See `Algorithm`."""
        return self.algorithm.carried(state.inner)

    def candidate_models(self, state: Any, client: int) -> Mapping[int, Download]:
        """See `Algorithm`."""
        return self.algorithm.candidate_models(state.inner, client)

    def quorum_status(self, state: Any) -> QuorumStatus | None:
        """See `Algorithm`."""
        return self.algorithm.quorum_status(state.inner)

    def join(self, state: Any, client: int, size: int) -> Any:
        """See `Algorithm`."""
        return replace(state, inner=self.algorithm.join(state.inner, client, size))

    def part(self, state: Any, clients: Mapping[int, int]) -> tuple[Any, Set[int]]:
        """See `Algorithm`."""
        inner, ready = self.algorithm.part(state.inner, clients)
        return replace(state, inner=inner), ready

    def lose_round(self, state: Any, updates: Updates, why: str) -> tuple[Any, Set[int]]:
        """See `Algorithm`."""
        inner, ready = self.algorithm.lose_round(state.inner, updates, why)
        return replace(state, inner=inner), ready


@dataclass(frozen=True)
class OneModelWrapper(StatefulWrapper):
    """A wrapper with a state of its own, around a synchronous algorithm with one model."""

    def __post_init__(self) -> None:
        if not self.synchronous or not serves_one_model(self.algorithm):
            has = "serves several models" if self.synchronous else "takes updates one at a time"
            raise InfeasibleError(
                f"{type(self).__name__} needs rounds and one model for all clients, and {self.algorithm.title} {has}. "
                "Choose another algorithm, such as FedAvg."
            )


def serves_one_model(algorithm: Algorithm) -> bool:
    """Return whether all clients are sent the model of the state, and train that."""
    forwards = Wrapper.download, StatefulWrapper.download
    while isinstance(algorithm, Wrapper) and type(algorithm).download in forwards:
        algorithm = algorithm.algorithm
    kind = type(algorithm)
    return kind.download is Algorithm.download and kind.integrate is Algorithm.integrate
