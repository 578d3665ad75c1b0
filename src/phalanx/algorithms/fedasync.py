"""Asynchronous federated optimisation.

Xie, Koyejo and Gupta, "Asynchronous Federated Optimization", 2019.  `FedAsync` is Algorithm 1: each arrival is mixed
into the model at once, with a weight that falls with the age of the model that it started from.

Where the paper leaves a choice:

* Its proximal term rho/2 |x - x_t|^2 is a matter of local training: `LocalSGD(proximal=rho)`.  It is off by default.
* In its experiments alpha is halved once.  Here it is constant.
* `Exponential` is in the authors' code, and in Kardam's paper, not in this one.
* Every client counts alike in the paper.  `preprocess` weighs them: alpha is multiplied by a client's weight over the
  largest weight, which keeps it in (0, 1] for every arrival, as the paper's theorem asks.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from msgspec import Meta
from typing_extensions import override

from phalanx.algorithms.arrivals import age_in_words, one_by_one
from phalanx.algorithms.rounds import Weighted, relative_weights, weigh_all
from phalanx.algorithms.staleness import Polynomial, Staleness
from phalanx.core import Traits, Updates, Vector, Verdict
from phalanx.weighting import Ignore, Preprocess


class FedAsyncState(NamedTuple):
    """The server's state of `FedAsync`."""

    version: int  # t, updates mixed in
    model: Vector  # x_t
    verdicts: Mapping[int, Verdict]
    sizes: Mapping[int, int]  # as reported
    weights: Mapping[int, float]  # after preprocessing


@dataclass(frozen=True)
class FedAsync(Weighted[FedAsyncState]):
    """Each arrival mixed into the model: x <- (1 - alpha s(tau)) x + alpha s(tau) x_new.

    Fast clients contribute more often, whatever their weight.  No defence.

    Args:
        mixing: alpha in (0, 1], the weight of a fresh model.
        staleness: s(tau), the factor on alpha for a model that started tau updates ago.
        preprocess: makes weights of the reported sizes; all are equal in the paper. The largest weight is 1.
    """

    mixing: Annotated[float, Meta(gt=0, le=1)] = 0.6
    staleness: Staleness = Polynomial(0.5)
    preprocess: Preprocess = Ignore()

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(synchronous=False)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        weigh_all(self)

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[FedAsyncState, Set[int]]:
        return FedAsyncState(0, model, {}, sizes, self.preprocess.enrolled(sizes)), sizes.keys()

    @override
    def step(self, state: FedAsyncState, updates: Updates) -> tuple[FedAsyncState, Set[int]]:
        x, t, verdicts = state.model, state.version, dict[int, Verdict]()
        share = relative_weights(state.weights, updates.clients)
        for i, version, base, delta in one_by_one(updates):
            tau = t - version
            alpha = self.mixing * self.staleness(tau) * share[i]
            x = (1 - alpha) * x + alpha * (base + delta)
            t += 1
            verdicts[i] = Verdict(True, alpha, float(tau), age_in_words(tau))
        return state._replace(version=t, model=x, verdicts=verdicts), set(updates.clients)
