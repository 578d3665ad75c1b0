"""Kardam: asynchronous SGD that filters gradients by how fast they change.

Damaskinos, El Mhamdi, Guerraoui, Patra and Taziki, "Asynchronous Byzantine Machine Learning (the case of SGD)", 2018.
`Kardam` is its server.  A gradient g_p of client p, computed at the model x_p, passes two filters and is dampened:

    Lipschitz filter   |g_p - g'| / |x_p - x'| <= K, where g' is the last gradient that was used, computed at x'
    frequency filter   of any 2f + 1 gradients used in a row, no f clients have computed more than f
    dampening          x <- x - gamma Lambda(tau) g_p

K is the (n - f)/n quantile over all clients of |g_p - g_p'| / |x_p - x_p'|, between the last two gradients of a client.
If at most f are Byzantine, K is at most the coefficient of some honest one, whatever the others send.

Where the paper is silent, or its words and published code differ:

* A gradient is minus the change that a client trained.  gamma = 1 adds it whole, which is too much where many clients
  train at a time: they have started from much the same model, and overshoot together.
* Clients send their coefficients in the paper; here the server computes them, from its own record of what it sent and
  what came back.  A coefficient that comes from the client is a hole: in the published code of Cox et al.,
  "Asynchronous Byzantine Federated Learning", 2024, an attacker computes it before it poisons its update, and the
  server compares that number only, so that the filter never sees the attack.  There is no option for that.
* The quantile is the (n - f)-th smallest of n coefficients.  To interpolate between that and the next, as the usual
  library functions do, lets an attacker's coefficient in, however large: `interpolate`, off by default.
* While only m < n clients have a coefficient, K is the (m - f)-th smallest, by the same argument.  There is none
  as long as m <= f; then a gradient passes unseen, as without any step there would never be two models to compare at.
  So Kardam trusts its first round of gradients.  Once there is a K, a gradient without a coefficient is not used.
* The guarantee of the frequency filter is that 2f + 1 gradients in a row are computed by 2f + 1 clients: the f busiest
  of them must have at most f, so each one.  Published code caps each client at f instead, and two attackers in turns
  then hold 2f of 2f + 1 places: `frequency="each"`.
* The distance |x_p - x'| is between the models at which both gradients were computed, as the coefficient is one of the
  gradient.  Where they are the same, the last gradient used at another model takes the place of g'.
* Liveness: the filter can reject everybody for ever, as then no model changes, and no coefficient either.  After
  `patience` rejections in a row, the next gradient is used whatever its coefficient; the verdict says so.  Published
  code does this, the paper does not.  It hands attackers one gradient in so many, but for the frequency filter.
* The authors' code has the largest of a client's 25 last coefficients in the quantile: `memory`.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch

from phalanx.algorithms.arrivals import Arrival, one_by_one, told_of_age
from phalanx.algorithms.staleness import Exponential, Staleness
from phalanx.core import Algorithm, InfeasibleError, Updates, Vector, Verdict
from phalanx.wording import plural

Compared = Literal["used", "own"]
Frequency = Literal["distinct", "each"]


class Gradient(NamedTuple):
    """A gradient, and where it was computed."""

    x: Vector
    g: Vector

    def coefficient(self, other: "Gradient") -> float | None:
        """|g - g'| / |x - x'|; None at the same model, infinite if the numbers overflow."""
        distance = float(torch.linalg.vector_norm(self.x - other.x))
        if not distance:
            return None
        k = float(torch.linalg.vector_norm(self.g - other.g)) / distance
        return math.inf if math.isnan(k) else k


class ClientGradients(NamedTuple):
    """What the server knows of a client."""

    last: Gradient
    coefficients: tuple[float, ...] = ()  # of its last gradients, newest last

    @property
    def largest(self) -> float | None:
        """The largest of its coefficients; None if it has none."""
        return max(self.coefficients, default=None)


class KardamState(NamedTuple):
    """What the server of `Kardam` carries over."""

    version: int  # t, gradients used
    model: Vector  # x_t
    clients: frozenset[int]
    records: Mapping[int, ClientGradients]  # of clients that have sent something
    largest: tuple[float, ...]  # the largest coefficient of each of them that has one, in increasing order
    used: tuple[Gradient, ...]  # the last one used, and the last one used at another model
    recent: tuple[int, ...]  # who computed the last 2f that were used, newest last
    threshold: float | None  # K, None as long as there is none
    rejections: int  # by the Lipschitz filter, in a row
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class Kardam(Algorithm[KardamState]):
    """Uses a gradient if it differs no more from the last one used than gradients of a client do among themselves.

    Made for f of n > 3f clients with like data that send gradients.  Honest gradients are rejected too: by design those
    of about f clients in n, by its frequency filter every client that was used lately, and more where clients differ.
    An attack that changes smoothly has a small coefficient, and passes.  The server remembers a model and a gradient of
    each client: 2 n d numbers.

    Args:
        f: number of attackers to withstand.
        dampening: Lambda(tau), the factor on a gradient that is tau server updates old; `Polynomial(1.0)` is the
            paper's 1 / (tau + 1).
        server_lr: gamma.
        patience: rejections by the Lipschitz filter in a row after which the next gradient is used unseen; None for as
            many as there are clients.
        compared: what the candidate is compared with: "used", the last gradient that was used; or "own", its client's
            own last gradient, which suits clients with different data.
        frequency: "distinct", no client twice among 2f + 1 gradients; or "each", no client more than f times.
        memory: how many coefficients of a client are kept; the largest is in the quantile.
        interpolate: take the quantile between two coefficients, which lets attackers' in.
        mixing: mix the client's model in with weight gamma Lambda(tau), instead of adding its change.
    """

    synchronous: ClassVar[bool] = False
    can_join: ClassVar[bool] = True
    observed: ClassVar[tuple[str, ...]] = ("threshold", "rejections")

    f: int = 1
    dampening: Staleness = Exponential(0.1)
    server_lr: float = 0.4
    patience: int | None = None
    compared: Compared = "used"
    frequency: Frequency = "distinct"
    memory: int = 1
    interpolate: bool = False
    mixing: bool = False

    def __post_init__(self) -> None:
        checks = (
            (self.f >= 0, f"f must be at least 0, got {self.f}"),
            (0 < self.server_lr < math.inf, f"server_lr must be positive and finite, got {self.server_lr}"),
            (
                not self.mixing or self.server_lr <= 1,
                f"server_lr must be at most 1 where models are mixed, as it is a weight, got {self.server_lr}",
            ),
            (self.patience is None or self.patience >= 1, f"patience must be at least 1, got {self.patience}"),
            (self.compared in get_args(Compared), f'compared must be "used" or "own", got {self.compared!r}'),
            (self.frequency in get_args(Frequency), f'frequency must be "distinct" or "each", got {self.frequency!r}'),
            (self.memory >= 1, f"memory must be at least 1, got {self.memory}"),
        )
        if problems := [message for fine, message in checks if not fine]:
            raise ValueError("; ".join(problems) + ".")

    @classmethod
    def as_in_catalyst(cls, f: int, a: float = 0.1) -> "Kardam":
        """Kardam as the published code of Cox et al. (2024) has it, for f attackers, but for the clients' own numbers.

        An update counts as one server update older there, which is a factor exp(-a) on all of them.
        """
        return cls(f, Exponential(a), math.exp(-a), compared="own", frequency="each", interpolate=True, mixing=True)

    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[KardamState, Set[int]]:
        """See `Algorithm`."""
        if len(sizes) <= 3 * self.f:
            raise InfeasibleError(
                f"Kardam against f = {self.f} attackers needs at least 3f + 1 = {3 * self.f + 1} clients, got "
                f"{len(sizes)}. Lower f, or ask more clients."
            )
        return KardamState(0, model, frozenset(sizes), {}, (), (), (), None, 0, {}), sizes.keys()

    def join(self, state: KardamState, client: int, size: int) -> KardamState:
        """See `Algorithm`.  If each is compared with its "own" last gradient, its first one is not used."""
        return state._replace(clients=state.clients | {client})

    def step(self, state: KardamState, updates: Updates) -> tuple[KardamState, Set[int]]:
        """See `Algorithm`."""
        verdicts = dict[int, Verdict]()
        for arrival in one_by_one(updates):
            state = self._receive(state, arrival)
            verdicts |= state.verdicts
        return state._replace(verdicts=verdicts), set(updates.clients)

    def _receive(self, state: KardamState, arrival: Arrival) -> KardamState:
        p, candidate = arrival.client, Gradient(arrival.base, -arrival.delta)
        k_p = self._coefficient(state, p, candidate)
        before = state.records.get(p)
        record = self._recorded(before, candidate)
        largest = exchanged(state.largest, before.largest if before else None, record.largest)
        K = self._threshold(largest, len(state.clients))
        state = state._replace(records={**state.records, p: record}, largest=largest, threshold=K)
        if why := self._too_frequent(state.recent, p):
            return state._replace(verdicts={p: Verdict(False, 0.0, k_p, why)})
        why, fine = self._lipschitz(k_p, K)
        patience = len(state.clients) if self.patience is None else self.patience
        if not fine and state.rejections < patience:
            return state._replace(rejections=state.rejections + 1, verdicts={p: Verdict(False, 0.0, k_p, why)})
        if not fine:
            why = f"used unseen, as {state.rejections} in a row were rejected; {why}"
        return self._use(state, arrival, candidate, k_p, why)

    def _coefficient(self, state: KardamState, p: int, candidate: Gradient) -> float | None:
        """The candidate's coefficient; None if there is nothing to compare with."""
        others: Sequence[Gradient] = state.used
        if self.compared == "own":
            others = [state.records[p].last] if p in state.records else []
        found = (candidate.coefficient(other) for other in others)
        return next((k for k in found if k is not None), None)

    def _recorded(self, record: ClientGradients | None, candidate: Gradient) -> ClientGradients:
        """The record of a client with its newest gradient; one at the same model as the last has no coefficient."""
        if record is None:
            return ClientGradients(candidate)
        k = candidate.coefficient(record.last)
        if k is None:
            return record
        return ClientGradients(candidate, (*record.coefficients, k)[-self.memory :])

    def _threshold(self, known: Sequence[float], n: int) -> float | None:
        """K, the quantile over clients, of coefficients in order; None as long as all of them could be attackers'."""
        m = len(known)
        if m <= self.f:
            return None
        if self.interpolate:
            return interpolated(known, (n - self.f) / n)
        return known[m - self.f - 1]

    def _lipschitz(self, k_p: float | None, K: float | None) -> tuple[str, bool]:
        """The Lipschitz filter: what there is to say, and whether the candidate passes."""
        if K is None:
            return f"used unseen, as no more than {plural(self.f, 'client')} can be compared yet", True
        if k_p is None:
            return "nothing to compare it with, only recorded to compare the next one with", False
        if k_p <= K:
            return "", True
        return f"Lipschitz coefficient {k_p:.3g} > {K:.3g}", False

    def _too_frequent(self, recent: tuple[int, ...], p: int) -> str:
        """The frequency filter: why the candidate does not pass; empty if it does."""
        times, most = recent.count(p), 0 if self.frequency == "distinct" else self.f - 1
        if not self.f or times <= most:
            return ""
        return f"computed {times} of the last {plural(len(recent), 'gradient')} used, allowed: {most}"

    def _use(
        self, state: KardamState, arrival: Arrival, candidate: Gradient, k_p: float | None, why: str
    ) -> KardamState:
        tau = state.version - arrival.version
        dampened = self.dampening(tau)
        weight = self.server_lr * dampened
        x = state.model
        moved = (1 - weight) * x + weight * (arrival.base + arrival.delta) if self.mixing else x - weight * candidate.g
        told = "; ".join(filter(None, (why, told_of_age(tau))))
        return state._replace(
            version=state.version + 1,
            model=moved,
            used=(candidate, *_elsewhere(state.used, candidate)),
            recent=(*state.recent, arrival.client)[-2 * self.f :] if self.f else (),
            rejections=0,
            verdicts={arrival.client: Verdict(True, dampened, k_p, told)},
        )


def exchanged(ordered: tuple[float, ...], old: float | None, new: float | None) -> tuple[float, ...]:
    """Numbers in increasing order, with `old` taken out and `new` put in, each if it is one.

    O(log n) comparisons and a copy, where to sort them anew would take n log n of them.
    """
    if old == new:
        return ordered
    numbers = list(ordered)
    if old is not None:
        del numbers[bisect_left(numbers, old)]
    if new is not None:
        insort(numbers, new)
    return tuple(numbers)


def interpolated(ordered: Sequence[float], share: float) -> float:
    """`numpy.quantile` of numbers that are in order, to the bit: it needs the two next to that place only."""
    place = (len(ordered) - 1) * share
    low = math.floor(place)
    return float(np.quantile(ordered[low : low + 2], place - low))


def _elsewhere(used: Sequence[Gradient], candidate: Gradient) -> list[Gradient]:
    """The newest of the used gradients that was computed at another model than the candidate, if there is one."""
    return [other for other in used if not torch.equal(other.x, candidate.x)][:1]
