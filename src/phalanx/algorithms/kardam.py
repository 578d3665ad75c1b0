"""Kardam: asynchronous SGD that filters gradients by how fast they change.

Damaskinos, El Mhamdi, Guerraoui, Patra and Taziki, "Asynchronous Byzantine Machine Learning (the case of SGD)", 2018.
`Kardam` is its server.  A gradient g_p of client p, computed at the model x_p, passes two filters and is dampened:

    Lipschitz filter   |g_p - g'| / |x_p - x'| <= K, where g' is the last gradient that was used, computed at x'
    frequency filter   of any 2f + 1 gradients used in a row, no f clients have computed more than f
    dampening          x <- x - gamma Lambda(tau) g_p

K is the (n - f)/n quantile over all clients of |g_p - g_p'| / |x_p - x_p'|, between the last two gradients of a client.
If at most f are Byzantine, K is at most the coefficient of some honest client, whatever the others send.

Where the paper is silent, or its words and published code differ:

* A gradient is minus the change that a client trained.  gamma = 1 adds it whole, which is too much if many clients
  train at the same time: they start from similar models, and overshoot together.
* Clients send their coefficients in the paper; here the server computes them, from its own record of downloads and
  answers.  A coefficient sent by the client cannot be trusted: in the published code of Cox et al., "Asynchronous
  Byzantine Federated Learning", 2024, an attacker computes it before it poisons its update, and the server compares
  that number only, so that the filter never sees the attack.  There is no option for that.
* The quantile is the (n - f)-th smallest of n coefficients.  To interpolate between that and the next, as the usual
  library functions do, lets an attacker's coefficient in, however large: `interpolate`, off by default.
* While only m < n clients have a coefficient, K is the (m - f)-th smallest, by the same argument.  There is none
  as long as m <= f; then a gradient passes unchecked, as without any step there would never be two models to compare.
  So Kardam trusts its first round of gradients.  Once there is a K, a gradient without a coefficient is not used.
* The guarantee of the frequency filter is that 2f + 1 gradients in a row are computed by 2f + 1 clients: the f busiest
  of them must have at most f, so each one.  Published code caps each client at f instead, and two attackers in turns
  then hold 2f of 2f + 1 places: `frequency="each"`.
* The distance |x_p - x'| is between the models at which both gradients were computed, as the coefficient is one of the
  gradient.  Where they are the same, the last gradient used at another model replaces g'.
* One fast attacker is most of the first round.  `bootstrap` is ours: as long as there is no K, gradients wait, and when
  2f + 1 clients have sent one at the present model, it moves by the median of these.  Two such steps give K, of 2f + 1
  coefficients.  As n > 3f, silent attackers cannot prevent that.
* Weights of clients are not in the paper.  Its frequency filter makes f + 1 of any 2f + 1 gradients honest, which
  bounds the attackers' part of their sum only while the f largest weights are less than the f + 1 smallest together:
  other weights are refused, and with `frequency="each"` all but equal ones.
* Liveness: the filter could filter all gradients for ever, since then no model and no coefficient changes.  After
  `patience` filtered gradients in a row, the next is used whatever its coefficient; the verdict says so.  Published
  code does this, the paper does not.  So one attacker's gradient in so many is used, unless the frequency filter
  prevents it.
* The authors' code has the largest of a client's 25 last coefficients in the quantile: `memory`.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from typing_extensions import override

from phalanx.aggregators import Median
from phalanx.algorithms.arrivals import Arrival, OneByOne, age_in_words
from phalanx.algorithms.rounds import Weighted, relative_weights, weigh_all
from phalanx.algorithms.staleness import Exponential, Staleness
from phalanx.core import InfeasibleError, Traits, Vector, Verdict
from phalanx.fields import NonNegativeInt, PositiveFloat, PositiveInt
from phalanx.weighting import Ignore, Preprocess
from phalanx.wording import plural

Compared = Literal["used", "own"]
Frequency = Literal["distinct", "each"]


class KardamGradient(NamedTuple):
    """A gradient, and the model at which it was computed."""

    x: Vector
    g: Vector

    def coefficient(self, other: "KardamGradient") -> float | None:
        """Return |g - g'| / |x - x'|; None at the same model, infinite if the numbers overflow."""
        distance = float(torch.linalg.vector_norm(self.x - other.x))
        if not distance:
            return None
        k = float(torch.linalg.vector_norm(self.g - other.g)) / distance
        return math.inf if math.isnan(k) else k


class ClientGradients(NamedTuple):
    """The server's record of a client."""

    last: KardamGradient
    coefficients: tuple[float, ...] = ()  # of its last gradients, newest last

    @property
    def largest(self) -> float | None:
        """The largest of its coefficients; None if it has none."""
        return max(self.coefficients, default=None)


class KardamState(NamedTuple):
    """The server's state of `Kardam`."""

    version: int  # t, gradients used
    model: Vector  # x_t
    clients: frozenset[int]
    records: Mapping[int, ClientGradients]  # of clients that have sent something
    largest: tuple[float, ...]  # the largest coefficient of each of them that has one, in increasing order
    used: tuple[KardamGradient, ...]  # the last one used, and the last one used at another model
    recent: tuple[int, ...]  # the clients that computed the last 2f used gradients, newest last
    threshold: float | None  # K, None as long as there is none
    rejections: int  # consecutive gradients filtered by the Lipschitz filter
    verdicts: Mapping[int, Verdict]
    sizes: Mapping[int, int]  # as reported
    weights: Mapping[int, float]  # after preprocessing
    gathered: Mapping[int, KardamGradient]  # those that wait for a step of the bootstrap, by client


@dataclass(frozen=True)
class Kardam(OneByOne[KardamState], Weighted[KardamState]):
    """A filter of gradients that change faster with the model than those of most clients.

    Tolerates f of n > 3f clients with similar data that send gradients.  Honest gradients are filtered too: by design
    those of about f clients in n, by its frequency filter every client whose gradient was used lately, and more if
    clients differ.  An attack that changes smoothly has a small coefficient, and passes.  The server keeps a model and
    a gradient of each client: 2 n d numbers.

    Args:
        f: number of attackers to tolerate.
        dampening: Lambda(tau), the factor on a gradient that is tau server updates old; `Polynomial(1.0)` is the
            paper's 1 / (tau + 1).
        server_lr: gamma.
        patience: gradients filtered in a row by the Lipschitz filter after which the next one is used unchecked; None:
            the number of clients.
        compared: the gradient with which the candidate is compared: "used", the last gradient that was used; or "own",
            its client's own last gradient, which suits clients with different data.
        frequency: "distinct", no client twice among 2f + 1 gradients; or "each", no client more than f times.
        memory: number of coefficients of a client that are kept; the largest is in the quantile.
        interpolate: take the quantile between two coefficients, which lets attackers' in.
        mixing: mix the client's model in with weight gamma Lambda(tau), instead of adding its change.
        bootstrap: take medians of 2f + 1 clients' gradients as long as there is nothing to compare with, instead of
            using each gradient unseen; ours.
        preprocess: makes weights of the reported sizes; all are equal in the paper. The largest weight is 1.
    """

    f: NonNegativeInt = 1
    dampening: Staleness = Exponential(0.1)
    server_lr: PositiveFloat = 0.4
    patience: PositiveInt | None = None
    compared: Compared = "used"
    frequency: Frequency = "distinct"
    memory: PositiveInt = 1
    interpolate: bool = False
    mixing: bool = False
    bootstrap: bool = False
    preprocess: Preprocess = Ignore()

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(synchronous=False, observed=("threshold", "rejections"))

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mixing and self.server_lr > 1:
            raise ValueError(
                f"server_lr must be at most 1 where models are mixed, as it is a weight, got {self.server_lr}."
            )
        weigh_all(self)

    @classmethod
    def as_in_catalyst(cls, f: int, a: float = 0.1) -> "Kardam":
        """Return Kardam as in the code of Cox et al. (2024), for f attackers, but with coefficients by the server.

        An update counts as one server update older there, which is a factor exp(-a) on all of them.
        """
        return cls(f, Exponential(a), math.exp(-a), compared="own", frequency="each", interpolate=True, mixing=True)

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[KardamState, Set[int]]:
        if len(sizes) <= 3 * self.f:
            raise InfeasibleError(
                f"Kardam against f = {self.f} attackers needs at least 3f + 1 = {3 * self.f + 1} clients, got "
                f"{len(sizes)}. Lower f, or have more clients."
            )
        weights = self.preprocess.enrolled(sizes)
        self._check_weights(weights)
        return KardamState(0, model, frozenset(sizes), {}, (), (), (), None, 0, {}, sizes, weights, {}), sizes.keys()

    @override
    def join(self, state: KardamState, client: int, size: int) -> KardamState:
        """See `Algorithm`.  If clients are compared with their "own" last gradient, the first one is not used."""
        joined = super().join(state, client, size)
        self._check_weights(joined.weights)
        return joined._replace(clients=state.clients | {client})

    def _check_weights(self, weights: Mapping[int, float]) -> None:
        """Raise InfeasibleError if f clients can weigh as much as f + 1 others, whom the frequency filter adds."""
        ordered = sorted(weights.values())
        few, many = math.fsum(ordered[len(ordered) - self.f :]), math.fsum(ordered[: self.f + 1])
        if self.f and ordered[0] < ordered[-1] and self.frequency == "each":
            raise InfeasibleError(
                'Kardam takes weights only if no client has two of 2f + 1 gradients. Set frequency to "distinct", or '
                "preprocess to Ignore."
            )
        if self.f and few >= many:
            raise InfeasibleError(
                f"Kardam makes f + 1 = {self.f + 1} of any 2f + 1 gradients honest, and with these weights f clients "
                f"weigh as much as f + 1 others: {few:g} and {many:g}. Truncate sizes further, or set preprocess to "
                "Ignore."
            )

    @override
    def _receive(self, state: KardamState, arrival: Arrival) -> KardamState:
        p, candidate = arrival.client, KardamGradient(arrival.base, -arrival.delta)
        k_p = self._coefficient(state, p, candidate)
        before = state.records.get(p)
        record = self._recorded(before, candidate)
        largest = exchanged(state.largest, before.largest if before else None, record.largest)
        K = self._threshold(largest, len(state.clients))
        state = state._replace(records={**state.records, p: record}, largest=largest, threshold=K)
        if self._bootstraps(state):
            return self._gather(state, arrival, candidate, k_p)
        if why := self._too_frequent(state.recent, p):
            return state._replace(verdicts={p: Verdict(False, 0.0, k_p, why)})
        why, fine = self._lipschitz(k_p, K)
        patience = len(state.clients) if self.patience is None else self.patience
        if not fine and state.rejections < patience:
            return state._replace(rejections=state.rejections + 1, verdicts={p: Verdict(False, 0.0, k_p, why)})
        if not fine:
            why = f"used unchecked, as {state.rejections} in a row were filtered; {why}"
        return self._use(state, arrival, candidate, k_p, why)

    def _coefficient(self, state: KardamState, p: int, candidate: KardamGradient) -> float | None:
        """Return the candidate's coefficient; None if there is nothing to compare with."""
        others: Sequence[KardamGradient] = state.used
        if self.compared == "own":
            others = [state.records[p].last] if p in state.records else []
        found = (candidate.coefficient(other) for other in others)
        return next((k for k in found if k is not None), None)

    def _recorded(self, record: ClientGradients | None, candidate: KardamGradient) -> ClientGradients:
        """Return the record of a client with its newest gradient; one at the last model has no coefficient."""
        if record is None:
            return ClientGradients(candidate)
        k = candidate.coefficient(record.last)
        if k is None:
            return record
        return ClientGradients(candidate, (*record.coefficients, k)[-self.memory :])

    def _threshold(self, known: Sequence[float], n: int) -> float | None:
        """Return K, the quantile of sorted coefficients over clients; None while all could be attackers'."""
        m = len(known)
        if m <= self.f:
            return None
        if self.interpolate:
            return interpolated(known, (n - self.f) / n)
        return known[m - self.f - 1]

    def _lipschitz(self, k_p: float | None, K: float | None) -> tuple[str, bool]:
        """Apply the Lipschitz filter: return a reason, and whether the candidate passes."""
        if K is None:
            return f"used unchecked, as no more than {plural(self.f, 'client')} can be compared yet", True
        if k_p is None:
            return "nothing to compare it with, only recorded to compare the next one with", False
        if k_p <= K:
            return "", True
        return f"Lipschitz coefficient {k_p:.3g} > {K:.3g}", False

    def _too_frequent(self, recent: tuple[int, ...], p: int) -> str:
        """Apply the frequency filter: return why the candidate does not pass; empty if it does."""
        times, most = recent.count(p), 0 if self.frequency == "distinct" else self.f - 1
        if not self.f or times <= most:
            return ""
        return f"computed {times} of the last {plural(len(recent), 'gradient')} used, allowed: {most}"

    def _bootstraps(self, state: KardamState) -> bool:
        """Return whether gradients wait for others: until 2f + 1 clients have coefficients, which takes two steps."""
        few = len(state.largest) <= 2 * self.f
        return self.bootstrap and (state.version < 2 or few or bool(state.gathered))

    def _gather(
        self, state: KardamState, arrival: Arrival, candidate: KardamGradient, k_p: float | None
    ) -> KardamState:
        """Return the state in which a gradient waits, or after the step of the bootstrap that it completes."""
        p, needed = arrival.client, 2 * self.f + 1
        if arrival.version != state.version:
            why = "of an older model than those of the bootstrap, only recorded to compare the next one with"
            return state._replace(verdicts={p: Verdict(False, 0.0, k_p, why)})
        gathered = {**state.gathered, p: candidate}
        if len(gathered) < needed:
            reason = f"waits for the bootstrap, {len(gathered)} of {needed} clients"
            return state._replace(gathered=gathered, verdicts={p: Verdict(True, 0.0, k_p, reason, waits=True)})
        rows = torch.stack([gradient.g for gradient in gathered.values()])
        w = torch.tensor([state.weights[i] for i in gathered], dtype=torch.float64)
        median = KardamGradient(candidate.x, Median()(rows, w))
        shares = dict(zip(gathered, (w / w.sum()).tolist(), strict=True))
        return state._replace(
            version=state.version + 1,
            model=state.model - self.server_lr * median.g,
            used=(median, *_elsewhere(state.used, median)),
            gathered={},
            verdicts={i: Verdict(True, share, None, "median of the bootstrap") for i, share in shares.items()},
        )

    def _use(
        self, state: KardamState, arrival: Arrival, candidate: KardamGradient, k_p: float | None, why: str
    ) -> KardamState:
        tau = state.version - arrival.version
        dampened = self.dampening(tau)
        share = relative_weights(state.weights, [arrival.client])[arrival.client]
        weight = self.server_lr * dampened * share
        x = state.model
        moved = (1 - weight) * x + weight * (arrival.base + arrival.delta) if self.mixing else x - weight * candidate.g
        reason = "; ".join(filter(None, (why, age_in_words(tau))))
        return state._replace(
            version=state.version + 1,
            model=moved,
            used=(candidate, *_elsewhere(state.used, candidate)),
            recent=(*state.recent, arrival.client)[-2 * self.f :] if self.f else (),
            rejections=0,
            verdicts={arrival.client: Verdict(True, dampened * share, k_p, reason)},
        )


def exchanged(ordered: tuple[float, ...], old: float | None, new: float | None) -> tuple[float, ...]:
    """Return increasing numbers without `old` and with `new`, either of which can be None.

    O(log n) comparisons and a copy; sorting again would take n log n comparisons.
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
    """Return `numpy.quantile` of sorted numbers, to the bit; only the two numbers next to the quantile are read."""
    place = (len(ordered) - 1) * share
    low = math.floor(place)
    return float(np.quantile(ordered[low : low + 2], place - low))


def _elsewhere(used: Sequence[KardamGradient], candidate: KardamGradient) -> list[KardamGradient]:
    """Return the newest used gradient that was computed at another model than the candidate; None if there is none."""
    return [other for other in used if not torch.equal(other.x, candidate.x)][:1]
