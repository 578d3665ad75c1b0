"""Preprocessors, which turn reported sizes into weights.

Algorithm 2, line 2, of Portnoy et al. (2020).  A size is reported once, at enrolment; no later message can change it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from phalanx.weighting.truncation import check_shares, truncation_bound

Scope = Literal["population", "cohort"]


class Preprocess(ABC):
    """Turns reported sizes into weights: `weights = preprocess(sizes)`.

    Its scope says which sizes it uses: those of the whole population, when a run begins and when a client joins; or, in
    each step, those of the clients that take part in the step.
    """

    scope: Scope = "population"

    @abstractmethod
    def __call__(self, sizes: Mapping[int, int]) -> dict[int, float]:
        """Return a finite non-negative weight for each client, at least one positive.  Only ratios matter.

        Args:
            sizes: the size that each client reports, at least 1.

        Raises:
            ValueError: if these sizes have no such weights.
        """

    def enrolled(self, sizes: Mapping[int, int]) -> dict[int, float]:
        """Return the values that are fixed at enrolment: the weights, or the sizes for the scope "cohort"."""
        return self(sizes) if self.scope == "population" else {i: float(size) for i, size in sizes.items()}

    def among(self, enrolled: Mapping[int, float], clients: Iterable[int]) -> dict[int, float]:
        """Return the weights of the clients that take part in a step.

        Args:
            enrolled: the result of `enrolled`.
            clients: ids of the clients that take part.

        Raises:
            ValueError: as in a call.
        """
        those = {i: enrolled[i] for i in clients}
        return those if self.scope == "population" else self({i: int(size) for i, size in those.items()})


@dataclass(frozen=True)
class AsReported(Preprocess):
    """Weighs each client by the size that it reports, as FedAvg does.  A single false size breaks it."""

    def __call__(self, sizes: Mapping[int, int]) -> dict[int, float]:
        """See `Preprocess`."""
        return {client: float(size) for client, size in sizes.items()}


@dataclass(frozen=True)
class Ignore(Preprocess):
    """Gives all clients the same weight, whatever they report."""

    def __call__(self, sizes: Mapping[int, int]) -> dict[int, float]:
        """See `Preprocess`."""
        return dict.fromkeys(sizes, 1.0)


@dataclass(frozen=True)
class Truncate(Preprocess):
    """Weighs each client by its reported size, truncated to min(n_k, U*) (Portnoy et al. 2020, Equation 4).

    U* is the largest bound with which no share alpha of the clients can hold more than alpha* of the weight, whatever
    they report.  Truncation alone is no defence: it ensures the assumption of a weighted robust rule.  So set
    `alpha_star` to the share that the rule tolerates: below 1/2 for the median, at most beta for the trimmed mean.  The
    mean tolerates no attacker, and can be worse under attack with truncated sizes than with `Ignore`.

    Args:
        alpha: largest share of the clients that may be Byzantine, in [0, 1). An attacker that enrols under several
            names counts as several clients.
        alpha_star: largest share of the weight that Byzantine clients may have, in (0, 1).
        scope: "population": U* is computed once, for all clients that enrol. "cohort": U* is computed in each step, for
            the clients that take part in it; then alpha must hold for every cohort.

    Raises:
        ValueError: if a share is out of range; in a call, if no bound is feasible: the message gives the largest
            feasible alpha.
    """

    alpha: float = 0.1
    alpha_star: float = 0.5
    scope: Scope = "population"

    def __post_init__(self) -> None:
        check_shares(self.alpha, self.alpha_star)
        if self.scope not in get_args(Scope):
            raise ValueError(f'scope must be "population" or "cohort", got {self.scope!r}.')

    def __call__(self, sizes: Mapping[int, int]) -> dict[int, float]:
        """See `Preprocess`."""
        U = truncation_bound(sizes, self.alpha, self.alpha_star)
        return {client: float(min(size, U)) for client, size in sizes.items()}
