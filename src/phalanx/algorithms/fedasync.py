"""Asynchronous federated optimisation.

Xie, Koyejo and Gupta, "Asynchronous Federated Optimization", 2019.  `FedAsync` is Algorithm 1: whoever is done is mixed
in at once, the less the older the model is that it started from.

Where the paper leaves a choice:

* Its proximal term rho/2 |x - x_t|^2 is a matter of local training: `LocalSGD(proximal=rho)`.  It is off by default.
* Its experiments have alpha fall once, to a half.  Here it is constant.
* `Exponential` is in the authors' code, and in Kardam's paper, not in this one.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from phalanx.algorithms.arrivals import one_by_one, told_of_age
from phalanx.algorithms.staleness import Polynomial, Staleness
from phalanx.core import Algorithm, Updates, Vector, Verdict


class FedAsyncState(NamedTuple):
    """What the server of `FedAsync` carries over."""

    version: int  # t, updates mixed in
    model: Vector  # x_t
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class FedAsync(Algorithm[FedAsyncState]):
    """Mixes each arrival into the model: x <- (1 - alpha s(tau)) x + alpha s(tau) x_new.

    Every client counts alike: a fast client counts more often.  No defence.

    Args:
        mixing: alpha in (0, 1], the weight of a fresh model.
        staleness: s(tau), the factor on alpha for a model that started tau updates ago.
    """

    synchronous: ClassVar[bool] = False
    can_join: ClassVar[bool] = True

    mixing: float = 0.6
    staleness: Staleness = Polynomial(0.5)

    def __post_init__(self) -> None:
        if not 0 < self.mixing <= 1:
            raise ValueError(f"mixing must lie in (0, 1], got {self.mixing}.")

    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[FedAsyncState, Set[int]]:
        """See `Algorithm`."""
        return FedAsyncState(0, model, {}), sizes.keys()

    def step(self, state: FedAsyncState, updates: Updates) -> tuple[FedAsyncState, Set[int]]:
        """See `Algorithm`."""
        x, t, verdicts = state.model, state.version, dict[int, Verdict]()
        for i, version, base, delta in one_by_one(updates):
            tau = t - version
            alpha = self.mixing * self.staleness(tau)
            x = (1 - alpha) * x + alpha * (base + delta)
            t += 1
            verdicts[i] = Verdict(True, alpha, float(tau), told_of_age(tau))
        return FedAsyncState(t, x, verdicts), set(updates.clients)
