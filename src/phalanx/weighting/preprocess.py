"""Preprocessors: what makes weights of declared sizes.

Algorithm 2, line 2, of Portnoy et al. (2020).  A size is declared once, at enrolment; no later message can change it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from phalanx.weighting.truncation import check_shares, truncation_bound

Scope = Literal["population", "cohort"]


class Preprocess(ABC):
    """Turns declared sizes into weights: `weights = preprocess(sizes)`.

    Its scope says whose sizes it looks at: those of the whole population, when a run begins and when a client joins;
    or, in each step, those of the clients that took part in it.
    """

    scope: Scope = "population"

    @abstractmethod
    def __call__(self, sizes: Mapping[int, int]) -> dict[int, float]:
        """A finite non-negative weight for each client, at least one positive.  Only ratios matter.

        Args:
            sizes: what each client declares, at least 1.

        Raises:
            ValueError: these sizes cannot be made into such weights.
        """

    def enrolled(self, sizes: Mapping[int, int]) -> dict[int, float]:
        """What is fixed at enrolment: the weights, or, for the scope "cohort", the sizes from which they are made."""
        return self(sizes) if self.scope == "population" else {i: float(size) for i, size in sizes.items()}

    def among(self, enrolled: Mapping[int, float], clients: Iterable[int]) -> dict[int, float]:
        """The weights of those clients that take part in a step.

        Args:
            enrolled: what `enrolled` returned.
            clients: who takes part.

        Raises:
            ValueError: as for a call.
        """
        those = {i: enrolled[i] for i in clients}
        return those if self.scope == "population" else self({i: int(size) for i, size in those.items()})


@dataclass(frozen=True)
class AsReported(Preprocess):
    """Weighs each client by the size that it declares, as FedAvg does.  One lie breaks it."""

    def __call__(self, sizes: Mapping[int, int]) -> dict[int, float]:
        """See `Preprocess`."""
        return {client: float(size) for client, size in sizes.items()}


@dataclass(frozen=True)
class Ignore(Preprocess):
    """Weighs all clients alike, whatever they declare."""

    def __call__(self, sizes: Mapping[int, int]) -> dict[int, float]:
        """See `Preprocess`."""
        return dict.fromkeys(sizes, 1.0)


@dataclass(frozen=True)
class Truncate(Preprocess):
    """Weighs each client by min(n_k, U*), the size that it declares, truncated (Portnoy et al. 2020, Equation 4).

    U* is the largest bound with which no alpha of the clients can hold more than alpha* of the weight, whatever they
    declare.  Truncation is no defence by itself: it makes true what a weighted robust rule assumes.  So `alpha_star` is
    what the rule stands: less than 1/2 for the median, at most beta for the trimmed mean.  The mean stands nothing, and
    can do worse under attack with truncated sizes than with `Ignore`.

    Args:
        alpha: largest share of the clients that may be Byzantine, in [0, 1). Attackers that enrol under many names
            are many clients.
        alpha_star: largest share of the weight that they may get, in (0, 1).
        scope: "population": U* is found once, for all clients that enrol. "cohort": anew in each step, for those that
            take part in it; then alpha must hold of every cohort.

    Raises:
        ValueError: a share is out of range; when called, no bound can keep the promise: the message names the
            largest feasible alpha.
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
