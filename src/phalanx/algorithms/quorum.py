"""Rounds of the next k arrivals: a synchronous algorithm made asynchronous."""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from phalanx.aggregators.aggregator import check_rows
from phalanx.algorithms.arrivals import alone, merged, told_of_age
from phalanx.algorithms.wrapper import Wrapper
from phalanx.core import InfeasibleError, QuorumStatus, Updates, Vector, Verdict


class QuorumState(NamedTuple):
    """What the server of `Quorum` carries over; what it has not itself, such as clusters, is the algorithm's."""

    inner: Any  # the state of the algorithm
    waiting: Mapping[int, Updates]  # the arrivals that wait for others, by client
    served: frozenset[int]  # whom the algorithm has wanted to ask last, and who has joined since
    verdicts: Mapping[int, Verdict]

    @property
    def version(self) -> int:
        """The algorithm's: how often a quorum has come together."""
        version: int = self.inner.version
        return version

    @property
    def model(self) -> Vector:
        """The algorithm's."""
        model: Vector = self.inner.model
        return model

    @property
    def collected(self) -> int:
        """How many arrivals wait."""
        return len(self.waiting)

    def __getattr__(self, name: str) -> Any:
        """A field of the algorithm's state, for history and figures."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.inner, name)


@dataclass(frozen=True)
class Quorum(Wrapper):
    """Makes a synchronous algorithm asynchronous: its rounds are the next k arrivals, from k different clients.

    Who has arrived waits, and gets its next download with the others, when the algorithm has taken its step; who is
    still training is not disturbed, and is one of a later k.  So a round can hold updates of different ages.  They are
    used as changes to the present model, whatever they started from; `Guard(max_staleness=...)` keeps out the oldest.

    * Among the k each client is once: what a client sends while it waits takes the place of what it sent before.
    * If the algorithm asks fewer than k clients, because it has removed others, a round is all that are left.
    * k of n clients are the k fastest: f attackers who are fast are in every round, and the slowest clients are heard
      less often than others.  A rule has to stand f of k, not f of n.

    Args:
        algorithm: a synchronous one.
        k: the quorum, updates waited for, of as many clients. A median that is to stand f attackers needs 2f + 1.
    """

    synchronous: ClassVar[bool] = False

    k: int

    def __post_init__(self) -> None:
        if not self.algorithm.synchronous:
            name = type(self.algorithm).__name__
            raise ValueError(
                f"Quorum makes a synchronous algorithm asynchronous, and {name} is so already: use it alone."
            )
        if self.k < 1:
            raise ValueError(f"k must be at least 1, got {self.k}.")

    @property
    def observed(self) -> tuple[str, ...]:  # type: ignore[override]  # a class variable elsewhere
        """Those of the algorithm, and how many arrivals wait."""
        return (*self.algorithm.observed, "collected")

    # Role: server

    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[QuorumState, Set[int]]:
        """See `Algorithm`."""
        if len(sizes) < self.k:
            raise InfeasibleError(
                f"A quorum of {self.k} clients needs as many, got {len(sizes)}. Lower k, or ask more."
            )
        self._check_quorum(len(sizes))
        inner, ready = self.algorithm.init(model, sizes)
        return QuorumState(inner, {}, frozenset(ready), {}), ready

    def _check_quorum(self, population: int) -> None:
        """Raises `InfeasibleError` if the algorithm, or its rule, needs larger rounds than the quorum."""
        try:
            self.algorithm.check_round(self.k, population)
        except InfeasibleError as error:
            raise InfeasibleError(f"k = {self.k} is too small: {error} Or raise k.") from error
        if (rule := self.rule) is not None:
            check_rows(rule, self.k, "k")

    def quorum_status(self, state: QuorumState) -> QuorumStatus:
        """See `Algorithm`."""
        return QuorumStatus(self._needed(state), state.collected, "Lower k")

    def _needed(self, state: QuorumState) -> int:
        """The quorum, or all that are left where the algorithm asks fewer."""
        return max(1, min(self.k, len(state.served)))

    def step(self, state: QuorumState, updates: Updates) -> tuple[QuorumState, Set[int]]:
        """See `Algorithm`."""
        verdicts, ready = dict[int, Verdict](), set[int]()
        for i in updates.clients:
            state, now = self._receive(state, i, alone(updates, i))
            verdicts |= state.verdicts
            ready |= now
        return state._replace(verdicts=verdicts), ready - state.waiting.keys()

    def _receive(self, state: QuorumState, client: int, update: Updates) -> tuple[QuorumState, Set[int]]:
        """One arrival: it waits, or is the last of a round."""
        waiting = {**state.waiting, client: update}
        needed = self._needed(state)
        if len(waiting) < needed:
            told = f"waits for a quorum, {len(waiting)} of {needed}"
            return state._replace(waiting=waiting, verdicts={client: Verdict(True, 0.0, None, told, waits=True)}), set()
        round_ = merged(waiting.values(), update.reference)
        before = state.inner.version
        inner, ready = self.algorithm.step(state.inner, round_)
        ages = {i: told_of_age(before - version) for i, version in zip(round_.clients, round_.versions, strict=True)}
        verdicts = {
            i: replace(verdict, reason="; ".join(filter(None, (verdict.reason, ages.get(i)))))
            for i, verdict in inner.verdicts.items()
        }
        return QuorumState(inner, {}, frozenset(ready), verdicts), ready

    def download(self, state: QuorumState, client: int) -> Vector:
        """See `Algorithm`."""
        return self.algorithm.download(state.inner, client)

    def candidate_models(self, state: QuorumState, client: int) -> Mapping[int, Vector]:
        """See `Algorithm`."""
        return self.algorithm.candidate_models(state.inner, client)

    def weights(self, state: QuorumState, clients: Collection[int]) -> Mapping[int, float]:
        """See `Algorithm`."""
        return self.algorithm.weights(state.inner, clients)

    def join(self, state: QuorumState, client: int, size: int) -> QuorumState:
        """See `Algorithm`."""
        inner = self.algorithm.join(state.inner, client, size)
        return state._replace(inner=inner, served=state.served | {client})
