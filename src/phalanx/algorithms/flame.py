"""FLAME: a round, filtered by direction, clipped to the median length, and disturbed.

Nguyen et al., "FLAME: Taming Backdoors in Federated Learning", 2022.  `FLAME` is its Algorithm 1, in the three
functions into which Cox et al., "Asynchronous Byzantine Federated Learning", 2024, take it apart in their Algorithm 2:

    e, S <- ClipBound(W_1, ..., W_n)      lengths of the updates, and their median over all clients
    b_1, ..., b_L <- Filtering(W_1, ...)  the densest majority by cosine distance
    G <- Aggregate(G, e, S, W_b)          mean over the majority of (W - G) min(1, S / e), plus normal noise

As a rule for other algorithms the same is `phalanx.aggregators.FLAMEFilter`.

Where the papers leave a choice:

* They take cosines between models.  These are nearly one whatever the clients do, as models share their origin; here
  they are between updates.  `compare="models"` is the papers' form.
* S is the median over all updates of the round, admitted or not.
* The noise is calibrated for differential privacy by formula, lambda = sqrt(2 ln(1.25 / delta)) / epsilon, and set by
  hand in every public implementation (0.001, which is epsilon = 3,776 at delta = 0.001).  Here it is off; `noise` is
  lambda, or `epsilon` and `delta` give it.  That is the formula for one round, with S for the sensitivity: no privacy
  of a run is accounted for.  `Private` does that.
* The papers do not consider rounds that are too small.  Fewer than 2f + 1 updates are an error: f could be half.
* HDBSCAN cannot call all updates noise with these settings: see `phalanx.clustering.density`.
"""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import torch
from msgspec import Meta
from typing_extensions import override

from phalanx.aggregators import Aggregator, Choice, Median
from phalanx.aggregators.aggregator import weighs_rows
from phalanx.aggregators.flame import DensestMajority, FLAMEFilter, disturbed
from phalanx.algorithms.rounds import Weighted, verdicts_of, weights_of
from phalanx.core import InfeasibleError, Matrix, Pool, Setting, Traits, Updates, Vector, Verdict, Weights
from phalanx.fields import NonNegativeFloat, NonNegativeInt, PositiveFloat
from phalanx.numerics.linalg import norms, shortened
from phalanx.promises.promise_watch import combine
from phalanx.weighting import Ignore, Preprocess

Compare = Literal["updates", "models"]


class FLAMEState(NamedTuple):
    """The server's state of `FLAME`."""

    version: int  # t, rounds completed
    model: Vector  # G_t
    sizes: Mapping[int, int]  # as reported
    weights: Mapping[int, float]  # after preprocessing, or before it if that is per cohort
    bound: float | None  # S_t of the last round; None before the first
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class FLAME(Weighted[FLAMEState]):
    """The mean of the densest majority by direction, of updates clipped to the median length.

    Tolerates attackers with less than one half of the weight in this sense: an honest client is among the admitted, and
    no update is longer than the median length.  Attackers in the direction of the honest clients are admitted with
    them.  Drops up to half of the honest in every round, those with the rarest data first, without any attack.

    Args:
        f: number of attackers to tolerate; a round needs 2f + 1 updates. 0: no condition.
        noise: lambda, the standard deviation of the noise on each coordinate, as a part of S; 0 is none.
        epsilon: gives lambda by the paper's formula, together with `delta`; null if `noise` does.
        delta: see `epsilon`, in (0, 1).
        seed: of the noise.
        compare: "updates" or "models", between which cosines are taken; models in the paper.
        preprocess: makes weights of the reported sizes; all are equal in the paper.
    """

    f: NonNegativeInt = 0
    noise: NonNegativeFloat = 0.0
    seed: int = 0
    compare: Compare = "updates"
    preprocess: Preprocess = Ignore()
    epsilon: PositiveFloat | None = None
    delta: Annotated[float, Meta(gt=0, lt=1)] = 1e-5

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(observed=("bound",))

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon is not None and self.noise:
            raise ValueError(
                f"Give noise or epsilon, got both, {self.noise} and {self.epsilon}: epsilon gives the noise."
            )

    @property
    def sigma(self) -> float:
        """Return lambda, the standard deviation of the noise as a part of S."""
        return self.noise if self.epsilon is None else math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon

    @property
    @override
    def rule(self) -> FLAMEFilter:
        """See `Algorithm`: that of one round, with its noise."""
        return FLAMEFilter(self.sigma, self.seed)

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[FLAMEState, Set[int]]:
        self._check(len(sizes))
        weights = self.preprocess.enrolled(sizes)
        return FLAMEState(0, model, dict(sizes), weights, None, {}), weights.keys()

    @override
    def step(self, state: FLAMEState, updates: Updates) -> tuple[FLAMEState, Set[int]]:
        """See `Algorithm`; lines by Algorithm 2 of Cox et al."""
        self._check(len(updates))
        n = weights_of(self.weights(state, updates.clients), updates)
        e, S = clip_bound(updates.deltas, n, updates.clients)  # line 24
        models = compared(self.compare, updates.bases, updates.deltas)
        delta, choice = aggregated(
            DensestMajority(clipped=True), shortened(updates.deltas, S, e), models, n, updates.clients
        )  # lines 25, 14 and 15
        if self.sigma > 0:
            delta = disturbed(delta, self.sigma * S, self.seed, state.version)  # lines 16 and 17
        new = state._replace(
            version=state.version + 1,
            model=state.model + delta,
            bound=S,
            verdicts=clipped_verdicts(verdicts_of(updates, n, choice, self.remark(state, updates)), e, S),
        )
        return new, state.weights.keys()

    @override
    def pools(self, setting: Setting, state: FLAMEState | None = None) -> tuple[Pool, ...]:
        return (Pool.of_round(self.rule, self.preprocess, setting, refused=self._too_few(setting.asked)),)

    def _too_few(self, m: int) -> str:
        """Return why a round of m updates is too few; "" if it is not."""
        if m >= (least := 2 * self.f + 1):
            return ""
        return f"FLAME needs at least 2f + 1 = {least} clients in a round, got {m}. Lower f, or have more clients."

    def _check(self, m: int) -> None:
        """Raise `InfeasibleError` if a round of m updates is too few."""
        if why := self._too_few(m):
            raise InfeasibleError(why)


# Algorithm 2 of Cox et al., in parts


def clip_bound(deltas: Matrix, n: Weights, owners: Sequence[int]) -> tuple[Weights, float]:
    """Return the result of ClipBound: the lengths of updates, and their median; both as float64.

    Args:
        deltas: (m, d).
        n: (m,), weights.
        owners: m clients.
    """
    e = norms(deltas).cpu()
    return e, float(combine(Median(), e[:, None], n.cpu(), owners, "set of lengths")[0])


def compared(compare: Compare, bases: Sequence[Vector], deltas: Matrix) -> Matrix | None:
    """Return the models, if the filter compares these; None if it compares updates."""
    return torch.stack(tuple(bases)) + deltas if compare == "models" else None


def aggregated(
    rule: Aggregator,
    rows: Matrix,
    models: Matrix | None,
    n: Weights,
    owners: Sequence[int],
    *,
    name: str = "round",
    turn: int = 0,
    previous: Vector | None = None,
) -> tuple[Vector, Choice | None]:
    """Return the result of Filtering and Aggregate on clipped updates: the vector, and the decision on each update.

    Args:
        rule: filters, and takes the mean.
        rows: (m, d), clipped updates.
        models: (m, d), compared instead of updates, None if updates are; with models the rule must weigh whole rows.
        n: (m,), weights.
        owners: m clients.
        name: what the rows are, as in `Pool`.
        turn: number of the call, for rules that draw.
        previous: the last result of the rule, for rules that start from there.
    """
    if models is None:
        return combine(rule, rows, n, owners, name, turn=turn, previous=previous)
    _, choice = combine(rule, models, n, owners, name, turn=turn)
    if choice is None:
        raise _cannot_choose(rule)
    return choice.shares.to(rows.device, rows.dtype) @ rows, choice


def clipped_verdicts(verdicts: Mapping[int, Verdict], e: Weights, S: float) -> dict[int, Verdict]:
    """Return the verdicts, in the order of the lengths e, with a note on updates clipped to S."""
    noted = dict[int, Verdict]()
    for (i, verdict), norm in zip(verdicts.items(), e.tolist(), strict=True):
        clipped = verdict.accepted and norm > S
        word = f"norm {norm:.3g} clipped to {S:.3g}" if clipped else ""
        noted[i] = replace(verdict, reason="; ".join(filter(None, (verdict.reason, word))))
    return noted


def check_chooses(rule: Aggregator, m: int, compare: Compare) -> None:
    """Raise `InfeasibleError` if models are compared, and the rule cannot choose m updates by them."""
    if compare == "models" and not weighs_rows(rule, m):
        raise _cannot_choose(rule)


def _cannot_choose(rule: Aggregator) -> InfeasibleError:
    return InfeasibleError(
        f"{rule} does not weigh whole updates, so that it cannot choose them by their models. "
        'Compare "updates", or choose another rule.'
    )
