"""Buffered asynchronous SGD.

Yang and Li, "BASGD: Buffered Asynchronous SGD for Byzantine Learning", 2021.  `BASGD` is its server: worker s belongs
to buffer b = s mod B, a buffer keeps the mean of the gradients that came since the last step, and when no buffer is
empty, a robust rule makes one gradient of the B means.

    N_b <- N_b + 1,  h_b <- ((N_b - 1) h_b + g) / N_b
    if all N_b > 0:  w <- w - eta Aggr(h_1, ..., h_B), and all buffers are emptied

Where the paper leaves a choice:

* A gradient is minus the change that a client trained; a stale one counts like any other.
* s is the rank of a client's id among those that enrolled, not the id, so that no buffer is without clients.
* In the paper, clients are dealt out anew when a timer says that some buffer has been empty for too long.  An algorithm
  here has no clock, so the timer counts arrivals: `reassign_after`.  The clients that sent something since the last
  step are dealt out evenly, by id, then the others; and only if they are enough for all buffers, so that f attackers
  who are fast cannot have the honest dealt out anew for ever while B > f.  On that occasion the buffers are emptied,
  for else a client could have a part in two of them, and f attackers in 2f.
* The published code of Cox et al., "Asynchronous Byzantine Federated Learning", 2024, keeps means of models, and the
  median of them replaces the model.  As it throws stale models away, that is the same: all have the same base, and
  the median moves with it.  `fresh_only`, `first_only` and `forgets_first` are the three ways in which that code
  differs; `BASGD.as_in_catalyst(f)` has all three.  With one buffer, which is what it takes for f = 0, every client
  that is up to date then overwrites the work of all others.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from phalanx.aggregators import Aggregator, Choice, Median
from phalanx.aggregators.aggregator import check_rows
from phalanx.algorithms.arrivals import Arrival, one_by_one, told_of_age
from phalanx.core import Algorithm, InfeasibleError, Updates, Vector, Verdict
from phalanx.wording import plural


class Buffer(NamedTuple):
    """What came from the clients of one buffer since the last step."""

    mean: Vector | None = None  # minus h_b; None if nothing came
    counts: Mapping[int, int] = {}  # client -> how many of these gradients are its own, N_b together
    first: int | None = None  # whose came first

    @property
    def total(self) -> int:
        """N_b."""
        return sum(self.counts.values())


class BASGDState(NamedTuple):
    """What the server of `BASGD` carries over."""

    version: int  # t, SGD steps
    model: Vector  # w^t
    assigned: Mapping[int, int]  # client -> b
    buffers: tuple[Buffer, ...]
    filled: int  # buffers that are not empty
    senders: frozenset[int]  # clients that sent something since the last step, or since they were dealt out
    arrivals: int  # since then
    aggregate: Vector | None  # what the rule returned last, for rules that start from there
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class BASGD(Algorithm[BASGDState]):
    """Collects gradients in buffers, and takes a robust step when all buffers have some.

    With a rule that stands f of B rows, such as the median for B >= 2f + 1, it stands f attackers: each is in one
    buffer, however fast it is, and spoils that one at most.  The others of its buffer are then lost too.  It waits for
    the slowest buffer, and honest clients that share a buffer count for less.

    Args:
        buffers: B, the quorum, updates waited for: one of each of B groups of clients. One is asynchronous SGD, and no
            defence; as many as there are clients is a barrier for all.
        aggregate: Aggr; the paper has the median and the trimmed mean.
        server_lr: eta.
        reassign_after: arrivals without a step after which clients are dealt out anew; None for never.
        fresh_only: reject updates that started from an older model.
        first_only: reject what a client sends again before the next step.
        forgets_first: leave the first gradient out of the mean when others follow; a mistake of the Catalyst code.
    """

    synchronous: ClassVar[bool] = False
    can_join: ClassVar[bool] = True
    observed: ClassVar[tuple[str, ...]] = ("filled",)

    buffers: int = 3
    aggregate: Aggregator = Median()
    server_lr: float = 1.0
    reassign_after: int | None = None
    fresh_only: bool = False
    first_only: bool = False
    forgets_first: bool = False

    def __post_init__(self) -> None:
        if self.buffers < 1:
            raise ValueError(f"buffers must be at least 1, got {self.buffers}.")
        if not 0 < self.server_lr < float("inf"):
            raise ValueError(f"server_lr must be positive and finite, got {self.server_lr}.")
        if self.reassign_after is not None and self.reassign_after < self.buffers:
            raise ValueError(
                f"reassign_after must be at least the number of buffers, {self.buffers}, got {self.reassign_after}: "
                "no fewer arrivals can fill them."
            )

    @classmethod
    def as_in_catalyst(cls, f: int) -> "BASGD":
        """BASGD as the published code of Cox et al. (2024) has it, for f attackers."""
        return cls(2 * f + 1, Median(), fresh_only=True, first_only=True, forgets_first=True)

    @property
    def rule(self) -> Aggregator:
        """See `Algorithm`."""
        return self.aggregate

    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[BASGDState, Set[int]]:
        """See `Algorithm`."""
        if len(sizes) < self.buffers:
            raise InfeasibleError(
                f"BASGD with {self.buffers} buffers needs at least {self.buffers} clients, got {len(sizes)}: an empty "
                "buffer stops it. Lower buffers, or ask more clients."
            )
        check_rows(self.aggregate, self.buffers, "buffers")
        assigned = {s: rank % self.buffers for rank, s in enumerate(sorted(sizes))}
        empty = (Buffer(),) * self.buffers
        return BASGDState(0, model, assigned, empty, 0, frozenset(), 0, None, {}), sizes.keys()

    def join(self, state: BASGDState, client: int, size: int) -> BASGDState:
        """See `Algorithm`.  It takes the next rank."""
        return state._replace(assigned={**state.assigned, client: len(state.assigned) % self.buffers})

    def step(self, state: BASGDState, updates: Updates) -> tuple[BASGDState, Set[int]]:
        """See `Algorithm`."""
        verdicts = dict[int, Verdict]()
        for arrival in one_by_one(updates):
            state = self._receive(state, arrival)
            verdicts |= state.verdicts
        return state._replace(verdicts=verdicts), set(updates.clients)

    def _receive(self, state: BASGDState, arrival: Arrival) -> BASGDState:
        s, tau = arrival.client, state.version - arrival.version
        b = state.assigned[s]
        state = state._replace(arrivals=state.arrivals + 1, senders=state.senders | {s})
        if why := self._complaint(state.buffers[b], s, tau):
            state = state._replace(verdicts={s: Verdict(False, 0.0, float(tau), why)})
        else:
            state = self._add(state, b, arrival)
        if state.filled == self.buffers:
            return self._descend(state)
        if self.reassign_after is not None and state.arrivals >= self.reassign_after:
            return self._reassign(state)
        return state

    def _complaint(self, buffer: Buffer, s: int, tau: int) -> str:
        """Why an update is not taken into its buffer; empty if it is."""
        if self.fresh_only and tau:
            return f"{told_of_age(tau)}, only fresh ones are used"
        if self.first_only and s in buffer.counts:
            return "a second update before the next step"
        return ""

    def _add(self, state: BASGDState, b: int, arrival: Arrival) -> BASGDState:
        s, tau, h = arrival.client, state.version - arrival.version, state.buffers[b]
        n = h.total + 1  # N_b
        counted = max(n - 1, 1) if self.forgets_first else n
        mean = arrival.delta if h.mean is None else ((counted - 1) * h.mean + arrival.delta) / counted
        added = Buffer(mean, {**h.counts, s: h.counts.get(s, 0) + 1}, s if h.first is None else h.first)
        buffers = (*state.buffers[:b], added, *state.buffers[b + 1 :])
        filled = sum(buffer.mean is not None for buffer in buffers)
        told = f"waits in buffer {b} with {plural(n - 1, 'other')}; {filled} of {self.buffers} buffers have some"
        told = "; ".join(filter(None, (told, told_of_age(tau))))
        verdict = Verdict(True, 0.0, float(tau), told, waits=True)
        return state._replace(buffers=buffers, filled=filled, verdicts={s: verdict})

    def _descend(self, state: BASGDState) -> BASGDState:
        """The SGD step on what is in the buffers, which are emptied."""
        h = torch.stack([buffer.mean for buffer in state.buffers if buffer.mean is not None])
        delta, choice = self.aggregate.explained(h, turn=state.version, previous=state.aggregate)
        return state._replace(
            version=state.version + 1,
            model=state.model + self.server_lr * delta,
            buffers=(Buffer(),) * self.buffers,
            filled=0,
            senders=frozenset(),
            arrivals=0,
            aggregate=delta,
            verdicts=self._verdicts(state.buffers, choice),
        )

    def _verdicts(self, buffers: tuple[Buffer, ...], choice: Choice | None) -> dict[int, Verdict]:
        """What became of each client that is in a buffer: the buffer's share, divided among those in it."""
        verdicts = dict[int, Verdict]()
        for b, buffer in enumerate(buffers):
            share = 1 / len(buffers) if choice is None else float(choice.shares[b])
            score = None if choice is None or choice.scores is None else float(choice.scores[b])
            why = choice.reasons[b] if choice is not None and choice.reasons else ""
            told = f"mean of {buffer.total} in buffer {b}" + (f": {why}" if why else "")
            forgotten = buffer.first if self.forgets_first and buffer.total > 1 else None
            for s, count in buffer.counts.items():
                counted = count - (s == forgotten)
                weight = share * counted / (buffer.total - (forgotten is not None))
                verdicts[s] = Verdict(weight > 0, weight, score, told if counted else f"{told}, but for the first")
        return verdicts

    def _reassign(self, state: BASGDState) -> BASGDState:
        """Deals the clients out anew, if those that are there suffice for all buffers; empties the buffers."""
        empty = [b for b, buffer in enumerate(state.buffers) if buffer.mean is None]
        told = f"buffer {empty[0]} stayed empty for {plural(state.arrivals, 'arrival')}"
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
            verdicts={
                s: Verdict(False, 0.0, None, f"{told}: all were emptied, clients dealt out anew") for s in dropped
            },
        )
