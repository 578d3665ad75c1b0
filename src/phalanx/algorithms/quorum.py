"""Rounds of the next k arrivals: a synchronous algorithm made asynchronous."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from typing_extensions import override

from phalanx.aggregators.aggregator import check_rows
from phalanx.algorithms.arrivals import age_in_words, alone, merged
from phalanx.algorithms.wrapper import OuterState, StatefulWrapper
from phalanx.core import InfeasibleError, Pool, Setting, TooFewError, Traits, Updates, Vector, Verdict, lost_verdicts
from phalanx.fields import PositiveInt


@dataclass(frozen=True)
class QuorumState(OuterState):
    """The server's state of `Quorum`."""

    waiting: Mapping[int, Updates]  # the arrivals that wait for others, by client
    served: frozenset[int]  # the clients that the algorithm named last for a download, and those that have joined since
    verdicts: Mapping[int, Verdict]

    @property
    def collected(self) -> int:
        """The number of waiting arrivals."""
        return len(self.waiting)


@dataclass(frozen=True)
class Quorum(StatefulWrapper):
    """A synchronous algorithm made asynchronous: its rounds are the next k arrivals, from k different clients.

    A client that has answered waits, and gets its next download with the others, after the algorithm's step; a client
    that still trains goes on, and its answer is in a later round.  So a round can hold updates of different ages.  They
    are used as changes to the current model, whatever they started from; `Guard(max_staleness=...)` makes old ones
    invalid.

    * Each client is at most once among the k: a second update of a waiting client replaces the first.
    * If the algorithm has fewer than k clients left, because it has excluded others, a round is all that are left.
    * If k are too few for the algorithm's rule, or for truncated weights, the round is held back until more arrive; if
      all are too few, or the rule has no result for them, the round is lost and all are asked again.
    * The k of n clients are the k fastest: f fast attackers are in every round, and the slowest clients contribute less
      often than others.  The rule must tolerate f of k, not f of n.

    Args:
        algorithm: a synchronous one.
        k: the quorum, updates waited for, of as many clients. A median that tolerates f attackers needs 2f + 1.
    """

    k: PositiveInt

    @property
    @override
    def traits(self) -> Traits:
        """See `Algorithm`: it takes arrivals, and shows the number of those that wait."""
        inner = super().traits
        return inner._replace(synchronous=False, observed=(*inner.observed, "collected"))

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.algorithm.traits.synchronous:
            name = type(self.algorithm).__name__
            raise ValueError(
                f"Quorum makes a synchronous algorithm asynchronous, and {name} is so already: use it alone."
            )

    # Role: server

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[QuorumState, Set[int]]:
        if len(sizes) < self.k:
            raise InfeasibleError(
                f"A quorum of {self.k} clients needs as many, got {len(sizes)}. Lower k, or have more clients."
            )
        self._check_quorum(len(sizes))
        inner, ready = self.algorithm.init(model, sizes)
        return QuorumState(inner, {}, frozenset(ready), {}), ready

    def _check_quorum(self, population: int) -> None:
        """Raise `InfeasibleError` if the algorithm, or its rule, needs larger rounds than the quorum."""
        for pool in self._within(Setting(population)) or ():
            if pool.refused:
                raise InfeasibleError(f"k = {self.k} is too small: {pool.refused} Or raise k.")
        if (rule := self.rule) is not None:
            check_rows(rule, self.k, "k")

    def _needed(self, state: QuorumState) -> int:
        """Return the quorum, or the number of clients left if the algorithm has fewer."""
        return max(1, min(self.k, len(state.served)))

    @override
    def step(self, state: QuorumState, updates: Updates) -> tuple[QuorumState, Set[int]]:
        verdicts, ready = dict[int, Verdict](), set[int]()
        for i in updates.clients:
            state, now = self._receive(state, i, alone(updates, i))
            verdicts |= state.verdicts
            ready |= now
        return replace(state, verdicts=verdicts), ready - state.waiting.keys()

    def _receive(self, state: QuorumState, client: int, update: Updates) -> tuple[QuorumState, Set[int]]:
        """Return the state after one arrival: it waits, or is the last of a round."""
        waiting = {**state.waiting, client: update}
        needed = self._needed(state)
        if len(waiting) < needed:
            reason = f"waits for a quorum, {len(waiting)} of {needed}"
            verdicts = {client: Verdict(True, 0.0, None, reason, waits=True)}
            return replace(state, waiting=waiting, verdicts=verdicts), set()
        round_ = merged(waiting.values(), update.reference)
        before = state.inner.version
        try:
            inner, ready = self.algorithm.step(state.inner, round_)
        except TooFewError as error:
            if state.served <= waiting.keys():
                raise  # nobody is left to wait for
            held = Verdict(True, 0.0, None, f"held back with {len(waiting)}, waits for more: {error}", waits=True)
            return replace(state, waiting=waiting, verdicts={client: held}), set()
        ages = {i: age_in_words(before - version) for i, version in zip(round_.clients, round_.versions, strict=True)}
        verdicts = {
            i: replace(verdict, reason="; ".join(filter(None, (verdict.reason, ages.get(i)))))
            for i, verdict in inner.verdicts.items()
        }
        return QuorumState(inner, {}, frozenset(ready), verdicts), ready

    @override
    def lose_round(self, state: QuorumState, updates: Updates, why: str) -> tuple[QuorumState, Set[int]]:
        """See `Algorithm`: all who wait are asked again."""
        lost = state.waiting.keys() | set(updates.clients)
        return replace(state, waiting={}, verdicts=lost_verdicts(lost, why)), lost

    @override
    def part(self, state: QuorumState, clients: Mapping[int, int]) -> tuple[QuorumState, Set[int]]:
        """See `Algorithm`: what waits for a quorum is dropped."""
        if len(clients) < self.k:
            raise InfeasibleError(f"A quorum of {self.k} clients needs as many, got {len(clients)}. Lower k.")
        inner, ready = self.algorithm.part(state.inner, clients)
        return QuorumState(inner, {}, frozenset(ready), {}), ready

    @override
    def join(self, state: QuorumState, client: int, size: int) -> QuorumState:
        inner = self.algorithm.join(state.inner, client, size)
        return replace(state, inner=inner, served=state.served | {client})

    @override
    def pools(self, setting: Setting, state: QuorumState | None = None) -> tuple[Pool, ...] | None:
        """See `Algorithm`: the quorum, or a part of it, such as a cluster."""
        inner = self._within(setting, state)
        if inner is None:
            return None
        pools = tuple(
            replace(pool, name="quorum", larger="raise k", chosen="arrival") if pool.name == "round" else pool
            for pool in inner
        )
        if state is None:
            return pools
        wanted = max(self._needed(state), state.collected + 1)  # more than the quorum while a step is held back
        waiting = Pool("quorum", self.rule, wanted, wanted, smaller="Lower k", chosen="arrival", there=state.collected)
        return (*pools, waiting)

    def _within(self, setting: Setting, state: QuorumState | None = None) -> tuple[Pool, ...] | None:
        """Return the pools of the algorithm within, for which a quorum is a round."""
        m = min(self.k, setting.asked)
        quorum = replace(setting, drawn=m, fastest=True, lossy=False)
        return self.algorithm.pools(quorum, state and state.inner)
