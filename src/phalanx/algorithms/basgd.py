"""Buffered asynchronous SGD.

Yang and Li, "BASGD: Buffered Asynchronous SGD for Byzantine Learning", 2021.  `BASGD` is its server: worker s belongs
to buffer b = s mod B, a buffer keeps the mean of the gradients that arrived since the last step, and when no buffer is
empty, a robust rule makes one gradient of the B means.

    N_b <- N_b + 1,  h_b <- ((N_b - 1) h_b + g) / N_b
    if all N_b > 0:  w <- w - eta Aggr(h_1, ..., h_B), and all buffers are emptied

`momentum` makes it BASGDm of Yang and Li, "Buffered Asynchronous SGD for Byzantine Learning", 2023: clients send
m_s <- mu m_s + (1 - mu) g_s in place of g_s.

Where the papers leave a choice:

* Of the second paper the abstract could be read here, which says that momentum is local.  Its equation is the usual one
  of the field (Karimireddy, He and Jaggi, "Learning from History for Byzantine Robust Optimization", 2021), and it
  begins with the first gradient.
* Gradients in a buffer count alike there.  `preprocess` weighs them: an attacker spoils its buffer whatever it weighs,
  so that what the rule tolerates is the same.  The B means count alike in the rule, weights or not: a buffer that had
  the weight of its clients could hold most of it with one attacker inside.
* A gradient is minus the change that a client trained; a stale one counts like any other.
* s is the rank of a client's id among those that enrolled, not the id, so that no buffer is without clients.
* In the paper, clients are reassigned to buffers when a timer finds a buffer empty for too long.  An algorithm here has
  no clock, so the timer counts arrivals: `reassign_after`.  The clients that sent something since the last step are
  distributed evenly, by id, then the others; and only if they are enough for all buffers, so that f fast attackers
  cannot have the honest clients reassigned for ever while B > f.  The buffers are then emptied, since a client could
  otherwise contribute to two of them, and f attackers to 2f.
* The published code of Cox et al., "Asynchronous Byzantine Federated Learning", 2024, keeps means of models, and the
  median of them replaces the model.  As it discards stale models, that is the same: all have the same base, and the
  median moves with it.  `fresh_only`, `first_only` and `forgets_first` are the three ways in which that code differs;
  `BASGD.as_in_catalyst(f)` has all three.  With one buffer, its choice for f = 0, every client that is up to date
  then overwrites the work of all others.
"""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from msgspec import Meta
from typing_extensions import override

from phalanx.aggregators import Aggregator, Choice, Median
from phalanx.aggregators.aggregator import check_rows
from phalanx.algorithms.arrivals import Arrival, OneByOne, age_in_words
from phalanx.algorithms.momentum import MomentumClient
from phalanx.algorithms.rounds import Weighted, relative_weights, weigh_all
from phalanx.core import InfeasibleError, Pool, Setting, Traits, Updates, Vector, Verdict, lost_verdicts
from phalanx.fields import PositiveFloat, PositiveInt
from phalanx.promises.promise_watch import combine
from phalanx.weighting import Ignore, Preprocess
from phalanx.wording import plural


class Buffer(NamedTuple):
    """The gradients of the clients of one buffer since the last step."""

    mean: Vector | None = None  # minus h_b; None if empty
    counts: Mapping[int, int] = {}  # client -> number of its gradients, N_b in all
    first: int | None = None  # the client whose gradient was the first
    weight: float = 0.0  # of all these gradients together, for the mean

    @property
    def total(self) -> int:
        """N_b."""
        return sum(self.counts.values())


class BASGDState(NamedTuple):
    """The server's state of `BASGD`."""

    version: int  # t, SGD steps
    model: Vector  # w^t
    assigned: Mapping[int, int]  # client -> b
    buffers: tuple[Buffer, ...]
    filled: int  # buffers that are not empty
    senders: frozenset[int]  # clients that sent something since the last step, or since the last reassignment
    arrivals: int  # since then
    aggregate: Vector | None  # what the rule returned last, for rules that start from there
    verdicts: Mapping[int, Verdict]
    sizes: Mapping[int, int]  # as reported
    weights: Mapping[int, float]  # after preprocessing


@dataclass(frozen=True)
class BASGD(OneByOne[BASGDState], MomentumClient[BASGDState], Weighted[BASGDState]):
    """Gradients collected in buffers, and a robust step when all buffers have some.

    With a rule that tolerates f of B rows, such as the median for B >= 2f + 1, it tolerates f attackers: each is in one
    buffer, however fast it is, and corrupts that one at most.  The others of its buffer are then lost too.  It waits
    for the slowest buffer, and honest clients that share a buffer have less weight.

    Args:
        buffers: B, the quorum, updates waited for: one of each of B groups of clients. One is asynchronous SGD, and no
            defence; as many as there are clients is a barrier for all.
        aggregate: Aggr; the paper has the median and the trimmed mean.
        server_lr: eta.
        reassign_after: arrivals without a step after which clients are reassigned to buffers; None for never.
        fresh_only: filter updates that started from an older model.
        first_only: filter further updates of a client before the next step.
        forgets_first: leave the first gradient out of the mean when others follow; a mistake of the Catalyst code.
        momentum: mu in [0, 1), of the clients; 0 is BASGD, above 0 it is BASGDm.
        preprocess: makes weights of the reported sizes within a buffer; all are equal in the paper.
    """

    buffers: PositiveInt = 3
    aggregate: Aggregator = Median()
    server_lr: PositiveFloat = 1.0
    reassign_after: int | None = None
    fresh_only: bool = False
    first_only: bool = False
    forgets_first: bool = False
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    preprocess: Preprocess = Ignore()

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(synchronous=False, observed=("filled",))

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reassign_after is not None and self.reassign_after < self.buffers:
            raise ValueError(
                f"reassign_after must be at least the number of buffers, {self.buffers}, got {self.reassign_after}: "
                "no fewer arrivals can fill them."
            )
        weigh_all(self)

    @classmethod
    def as_in_catalyst(cls, f: int) -> "BASGD":
        """Return BASGD as in the published code of Cox et al. (2024), for f attackers."""
        return cls(2 * f + 1, Median(), fresh_only=True, first_only=True, forgets_first=True)

    # Role: server

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[BASGDState, Set[int]]:
        if len(sizes) < self.buffers:
            raise InfeasibleError(
                f"BASGD with {self.buffers} buffers needs at least {self.buffers} clients, got {len(sizes)}: an empty "
                "buffer stops it. Lower buffers, or have more clients."
            )
        check_rows(self.aggregate, self.buffers, "buffers")
        assigned = {s: rank % self.buffers for rank, s in enumerate(sorted(sizes))}
        empty = (Buffer(),) * self.buffers
        weights = self.preprocess.enrolled(sizes)
        return BASGDState(0, model, assigned, empty, 0, frozenset(), 0, None, {}, sizes, weights), sizes.keys()

    @override
    def join(self, state: BASGDState, client: int, size: int) -> BASGDState:
        """See `Algorithm`.  The new client gets the next rank."""
        assigned = {**state.assigned, client: len(state.assigned) % self.buffers}
        return super().join(state, client, size)._replace(assigned=assigned)

    @override
    def weights(self, state: BASGDState, clients: Collection[int]) -> dict[int, float]:
        """See `Algorithm`: the rule's rows are buffers, which have equal weights."""
        return dict.fromkeys(clients, 1.0)

    @override
    def _receive(self, state: BASGDState, arrival: Arrival) -> BASGDState:
        s, tau = arrival.client, state.version - arrival.version
        b = state.assigned[s]
        state = state._replace(arrivals=state.arrivals + 1, senders=state.senders | {s})
        if why := self._complaint(state, b, s, tau):
            state = state._replace(verdicts={s: Verdict(False, 0.0, float(tau), why)})
        else:
            state = self._add(state, b, arrival)
        if state.filled == self.buffers:
            return self._descend(state)
        if self.reassign_after is not None and state.arrivals >= self.reassign_after:
            return self._reassign(state)
        return state

    def _complaint(self, state: BASGDState, b: int, s: int, tau: int) -> str:
        """Return why an update is not added to its buffer; empty if it is."""
        if not state.weights[s]:
            return "its client has no weight"
        if self.fresh_only and tau:
            return f"{age_in_words(tau)}, only fresh ones are used"
        if self.first_only and s in state.buffers[b].counts:
            return "a second update before the next step"
        return ""

    def _add(self, state: BASGDState, b: int, arrival: Arrival) -> BASGDState:
        s, tau, h = arrival.client, state.version - arrival.version, state.buffers[b]
        n, w = h.total + 1, relative_weights(state.weights, [s])[s]  # N_b
        before = 0.0 if self.forgets_first and n == 2 else h.weight
        mean = arrival.delta if h.mean is None else (before * h.mean + w * arrival.delta) / (before + w)
        counts = {**h.counts, s: h.counts.get(s, 0) + 1}
        added = Buffer(mean, counts, s if h.first is None else h.first, before + w)
        buffers = (*state.buffers[:b], added, *state.buffers[b + 1 :])
        filled = sum(buffer.mean is not None for buffer in buffers)
        reason = f"waits in buffer {b} with {plural(n - 1, 'other')}; {filled} of {self.buffers} buffers have some"
        reason = "; ".join(filter(None, (reason, age_in_words(tau))))
        verdict = Verdict(True, 0.0, float(tau), reason, waits=True)
        return state._replace(buffers=buffers, filled=filled, verdicts={s: verdict})

    def _descend(self, state: BASGDState) -> BASGDState:
        """Return the state after the SGD step on the buffers, which are emptied."""
        h = torch.stack([buffer.mean for buffer in state.buffers if buffer.mean is not None])
        owners = [frozenset(buffer.counts) for buffer in state.buffers if buffer.mean is not None]
        delta, choice = combine(
            self.aggregate, h, None, owners, "set of buffers", turn=state.version, previous=state.aggregate
        )
        return state._replace(
            version=state.version + 1,
            model=state.model + self.server_lr * delta,
            buffers=(Buffer(),) * self.buffers,
            filled=0,
            senders=frozenset(),
            arrivals=0,
            aggregate=delta,
            verdicts=self._verdicts(state, choice),
        )

    @override
    def lose_round(self, state: BASGDState, updates: Updates, why: str) -> tuple[BASGDState, Set[int]]:
        """See `Algorithm`: the buffers are emptied."""
        verdicts = lost_verdicts({s for buffer in state.buffers for s in buffer.counts} | set(updates.clients), why)
        empty = (Buffer(),) * self.buffers
        new = state._replace(buffers=empty, filled=0, senders=frozenset(), arrivals=0, verdicts=verdicts)
        return new, set(updates.clients)

    def _verdicts(self, state: BASGDState, choice: Choice | None) -> dict[int, Verdict]:
        """Return the verdict on each client in a buffer: the buffer's share, divided among its clients."""
        verdicts = dict[int, Verdict]()
        for b, buffer in enumerate(state.buffers):
            share = 1 / len(state.buffers) if choice is None else float(choice.shares[b])
            w = relative_weights(state.weights, buffer.counts)
            score = None if choice is None or choice.scores is None else float(choice.scores[b])
            why = choice.reasons[b] if choice is not None and choice.reasons else ""
            reason = f"mean of {buffer.total} in buffer {b}" + (f": {why}" if why else "")
            forgotten = buffer.first if self.forgets_first and buffer.total > 1 else None
            for s, count in buffer.counts.items():
                counted = count - (s == forgotten)
                weight = share * w[s] * counted / buffer.weight
                verdicts[s] = Verdict(weight > 0, weight, score, reason if counted else f"{reason}, but for the first")
        return verdicts

    def _reassign(self, state: BASGDState) -> BASGDState:
        """Reassign the clients to buffers, if those that sent something suffice for all; empty the buffers."""
        empty = [b for b, buffer in enumerate(state.buffers) if buffer.mean is None]
        reason = f"buffer {empty[0]} stayed empty for {plural(state.arrivals, 'arrival')}"
        if len(state.senders) < self.buffers:
            return state
        order = sorted(state.senders) + sorted(state.assigned.keys() - state.senders)
        dropped = {s for buffer in state.buffers for s in buffer.counts} | state.verdicts.keys()
        return state._replace(
            assigned={s: rank % self.buffers for rank, s in enumerate(order)},
            buffers=(Buffer(),) * self.buffers,
            filled=0,
            senders=frozenset(),
            arrivals=0,
            verdicts={s: Verdict(False, 0.0, None, f"{reason}: all were emptied, clients reassigned") for s in dropped},
        )

    @override
    def pools(self, setting: Setting, state: BASGDState | None = None) -> tuple[Pool, ...]:
        """See `Algorithm`: one row for each buffer, which are as wrong as the clients that share it."""
        b = self.buffers
        return (Pool("set of buffers", self.rule, b, b, larger="raise buffers"),)
