"""Preprocessors, which turn reported sizes into weights.

Algorithm 2, line 2, of Portnoy et al. (2020).  A size is reported once, at enrolment; no later message can change it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Annotated, Literal

from msgspec import Meta
from typing_extensions import override

from phalanx.errors import InfeasibleError
from phalanx.fields import LEFT_OUT, UNIDENTIFIED, CheckedFields, NonNegativeInt, PositiveInt
from phalanx.weighting.sampling import drawn_attackers
from phalanx.weighting.truncation import attacker_share, exact, largest_share, subset_bound, top, truncation_bound

Scope = Literal["population", "cohort", "subset"]
Infeasible = Literal["hold", "unweighted"]


class Preprocess(CheckedFields, ABC):
    """Turns reported sizes into weights: `weights = preprocess(sizes)`.

    Its scope says which sizes it uses: those of the whole population, when a run begins and when a client joins; in
    each step those of the clients that take part in it ("cohort"); or in each step those of the worst clients, of all,
    that could take part in one of as many ("subset").  None is "subset", but for algorithms that use updates one at a
    time, "population".
    """

    scope: Scope | None = "population"

    @abstractmethod
    def __call__(self, sizes: Mapping[int, int]) -> dict[int, float]:
        """Return a finite non-negative weight for each client, at least one positive.  Only ratios matter.

        Args:
            sizes: the size that each client reports, at least 1.

        Raises:
            ValueError: if these sizes have no such weights.
        """

    def enrolled(self, sizes: Mapping[int, int]) -> dict[int, float]:
        """Return the values that are fixed at enrolment: the weights, or the sizes for the other scopes."""
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

    def within(self, sizes: Mapping[int, int], members: Iterable[int], clients: Iterable[int]) -> dict[int, float]:
        """Return the weights of some members of a cluster, whose sizes alone are compared.

        Args:
            sizes: those of all clients.
            members: ids of the clients of the cluster.
            clients: ids of those of them that take part in a step.

        Raises:
            ValueError: as in a call.
        """
        return self.among(self.enrolled({i: sizes[i] for i in members}), clients)

    def held(self, sizes: Mapping[int, int] | None, f: int, q: int, clients: int, *, parted: bool = False) -> Fraction:
        """Return the largest share of the weight that any f of any q clients hold; 1 if it is not bounded.

        Sets that `among` has no weights for are left out: nothing is aggregated then.

        Args:
            sizes: those that all clients report; None: whatever they report.
            f: number of clients.
            q: number of clients whose updates are aggregated at once.
            clients: number of clients that are enrolled.
            parted: whether the q are of a part of the clients, whose sizes alone are compared; see `within`.
        """
        if not f:
            return Fraction(0)
        if sizes is None or parted or self.scope != "population":
            return Fraction(1)
        return exact(attacker_share(self(sizes), f, q))

    def one_by_one(self) -> "Preprocess":
        """Return it for an algorithm that uses updates one at a time: by the sizes of all clients."""
        return self

    @property
    def holds(self) -> bool:
        """Whether a set of clients for which no bound is feasible is not aggregated."""
        return False

    def feasible(self, q: int, clients: int) -> bool:
        """Return whether any q of so many clients have weights."""
        return True

    def requested(self, clients: int) -> int | None:
        """Return the number of attackers, of so many clients, that the weights are made for; None for no number."""
        return None

    def taking_part(self, f: int, clients: int) -> int:
        """Return how many of f attackers among so many clients a draw brings, but for a small probability."""
        return f

    def remark(self, enrolled: Mapping[int, float], clients: Iterable[int]) -> str:
        """Return what verdicts say of the weights of `among`: why they are equal, if sizes have no others; else ""."""
        return ""


@dataclass(frozen=True)
class AsReported(Preprocess):
    """Weighs each client by the size that it reports, as FedAvg does.  A single false size breaks it.

    Args:
        beyond_tolerance: treatment of a run one of whose clients has reported so much that it holds more of the weight
            than the robust rule tolerates. "refuse": it does not begin. "remark": it begins with a warning, as where
            several clients hold that much. No other number of the run depends on it.
    """

    beyond_tolerance: Literal["refuse", "remark"] = field(default="refuse", repr=False, metadata={UNIDENTIFIED: True})

    @override
    def __call__(self, sizes: Mapping[int, int]) -> dict[int, float]:
        return {client: float(size) for client, size in sizes.items()}

    @override
    def held(self, sizes: Mapping[int, int] | None, f: int, q: int, clients: int, *, parted: bool = False) -> Fraction:
        return Fraction(bool(f)) if sizes is None else largest_share(sizes, f, q)


@dataclass(frozen=True)
class Ignore(Preprocess):
    """Gives all clients the same weight, whatever they report."""

    @override
    def __call__(self, sizes: Mapping[int, int]) -> dict[int, float]:
        return dict.fromkeys(sizes, 1.0)

    @override
    def held(self, sizes: Mapping[int, int] | None, f: int, q: int, clients: int, *, parted: bool = False) -> Fraction:
        return Fraction(min(f, q), q)


@dataclass(frozen=True)
class Truncate(Preprocess):
    """Weighs each client by its reported size, truncated to min(n_k, U*) (Portnoy et al. 2020, Equation 4).

    U* is the largest bound with which no share alpha of the clients can hold more than alpha* of the weight, whatever
    they report.  Truncation alone is no defence: it ensures the assumption of a weighted robust rule.  So set
    `alpha_star` to the share that the rule tolerates: below 1/2 for the median, at most beta for the trimmed mean.  The
    mean tolerates no attacker, and can be worse under attack with truncated sizes than with `Ignore`.

    By default the guarantee is for whatever is aggregated.  With a scope it is for all clients together ("population",
    the paper), or for the clients of each step: whichever of all clients these are ("subset"), or if no more than alpha
    of them are Byzantine ("cohort").

    Args:
        alpha: largest share of the clients that may be Byzantine, in [0, 1). An attacker that enrols under several
            names counts as several clients.
        alpha_star: largest share of the weight that Byzantine clients may have, in (0, 1).
        scope: "population": U* is computed once, for all clients that enrol. "cohort": U* is computed in each step, for
            the clients that take part in it; then alpha must hold for every cohort. "subset": U* is that for the worst
            of all sets of as many clients as take part in the step, with alpha of all clients in it. null: "subset",
            or "population" for an algorithm that uses updates one at a time.
        infeasible: treatment of a step for whose clients no bound is feasible; scopes "cohort" and "subset".
            "hold": it is not taken: an asynchronous algorithm waits for more updates, a round is lost. "unweighted":
            its clients weigh the same, without a guarantee, and verdicts say so.
        drawn: number of clients that are drawn at random for each round; scope "subset". The guarantee is then for the
            attackers that are drawn, but for `delta`. null: for any set, also of the fastest clients.
        delta: largest probability, in (0, 1), that more attackers are drawn for a round than the bound is made for.
        f: number of clients that may be Byzantine, whatever the number of clients; in place of `alpha`.  Scope
            "subset".

    Raises:
        ValueError: if a parameter is out of range; in a call, if no bound is feasible: the message gives the largest
            feasible alpha.
    """

    alpha: Annotated[float, Meta(ge=0, lt=1, description="it is a share of the clients")] = 0.1
    alpha_star: Annotated[float, Meta(gt=0, lt=1, description="it is a share of the weight")] = 0.5
    scope: Scope | None = field(default=None, metadata={LEFT_OUT: "population"})
    infeasible: Infeasible = "hold"
    drawn: PositiveInt | None = None
    delta: Annotated[float, Meta(gt=0, lt=1, description="it is a probability")] = 0.01
    f: NonNegativeInt | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("drawn", "f"):
            if (given := getattr(self, name)) is not None and not self.of_any:
                raise ValueError(f'{name} needs the scope "subset", got {given} and {self.scope!r}.')

    @classmethod
    def as_published(cls, alpha: float, alpha_star: float) -> "Truncate":
        """Return the paper's truncation, by one bound for all clients that enrol."""
        return cls(alpha, alpha_star, "population")

    @property
    def of_any(self) -> bool:
        """Whether the guarantee is for any clients that take part in a step."""
        return self.scope is None or self.scope == "subset"

    @override
    def one_by_one(self) -> "Truncate":
        return self if self.scope is not None else replace(self, scope="population")

    def most(self, population: int) -> int:
        """Return the largest number of Byzantine clients of so many that are enrolled."""
        return top(self.alpha, population) if self.f is None else min(self.f, population)

    @property
    @override
    def holds(self) -> bool:
        return self.scope != "population" and self.infeasible == "hold"

    @override
    def feasible(self, q: int, clients: int) -> bool:
        if not self.holds:
            return True
        return (top(self.alpha, q) if self.scope == "cohort" else self.attackers(clients)) <= exact(self.alpha_star) * q

    @override
    def requested(self, clients: int) -> int | None:
        return self.most(clients)

    @override
    def taking_part(self, f: int, clients: int) -> int:
        return f if self.drawn is None or f > self.most(clients) else min(f, self.attackers(clients))

    def fixed(self, population: int) -> "Truncate":
        """Return a truncation that is made for as many attackers in any part of so many clients, if for any."""
        return self if not self.of_any else replace(self, f=self.most(population))

    @override
    def __call__(self, sizes: Mapping[int, int]) -> dict[int, float]:
        return _truncated(sizes, truncation_bound(sizes, self.alpha, self.alpha_star))

    def attackers(self, population: int) -> int:
        """Return the largest number of Byzantine clients in a step for which the bound for any clients is made.

        Args:
            population: number of clients that are enrolled.
        """
        F = self.most(population)
        if self.drawn is None or population == 0:
            return F
        return drawn_attackers(population, F, min(self.drawn, population), self.delta)

    @override
    def held(self, sizes: Mapping[int, int] | None, f: int, q: int, clients: int, *, parted: bool = False) -> Fraction:
        """See `Preprocess`.  A bound is made for a number of attackers; for more of them, nothing is said."""
        if not f:
            return Fraction(0)
        limit, equal = exact(self.alpha_star), Fraction(min(f, q), q)
        made_for = top(self.alpha, q) if self.scope == "cohort" else self.attackers(clients)
        if self.scope == "population" and (parted or q < clients):
            return Fraction(1) if sizes is None or parted else exact(attacker_share(self(sizes), f, q))
        if f > made_for:
            return Fraction(1)
        if self.infeasible == "unweighted" and self.scope != "population":
            return max(limit, equal)
        return limit

    def bound(self, sizes: Mapping[int, int], size: int) -> int:
        """Return U* of any clients that take part in a step.

        Args:
            sizes: those of all clients.
            size: number of clients that take part in a step.

        Raises:
            TooFewError: no bound is feasible.
        """
        return subset_bound(sizes, self.attackers(len(sizes)), size, self.alpha_star)

    @override
    def among(self, enrolled: Mapping[int, float], clients: Iterable[int]) -> dict[int, float]:
        clients = list(clients)
        try:
            return self._feasible(enrolled, clients)
        except InfeasibleError:
            if self.infeasible == "hold":
                raise
            return dict.fromkeys(clients, 1.0)

    def _feasible(self, enrolled: Mapping[int, float], clients: list[int]) -> dict[int, float]:
        """Return the weights; raise `InfeasibleError` if no bound is feasible."""
        if not self.of_any or not clients:
            return super().among(enrolled, clients) if clients else {}
        U = self.bound({i: int(size) for i, size in enrolled.items()}, len(clients))
        return _truncated({i: int(enrolled[i]) for i in clients}, U)

    @override
    def within(self, sizes: Mapping[int, int], members: Iterable[int], clients: Iterable[int]) -> dict[int, float]:
        """See `Preprocess`.  Where any clients count, all attackers can be in one cluster, so that all sizes do."""
        return super().within(sizes, sizes if self.of_any else members, clients)

    @override
    def remark(self, enrolled: Mapping[int, float], clients: Iterable[int]) -> str:
        if self.infeasible == "hold" or self.scope == "population":
            return ""
        try:
            self._feasible(enrolled, list(clients))
        except InfeasibleError as error:
            return f"unweighted: {error}"
        return ""


def _truncated(sizes: Mapping[int, int], U: int) -> dict[int, float]:
    return {client: float(min(size, U)) for client, size in sizes.items()}
