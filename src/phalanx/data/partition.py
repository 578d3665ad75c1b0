"""How examples are dealt to clients.

A partition names one client for each example, so that every example is held exactly once whatever the rule is; only
`Natural`, and `ClassImbalance` with clients of one size, leave some out.  `Partition.split` does what all rules share:
it checks the arguments, gives every client at least one example and lists each client's examples.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phalanx.data.dataset import labels_in

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Partition(ABC):
    """A rule that deals examples to clients.  A subclass is a frozen dataclass that writes `assign`."""

    allow_empty: bool = False  # whether a client may end up without examples
    uses_labels: ClassVar[bool] = True  # whether `assign` looks at the labels; if not, sequences of labels will do

    @property
    def partial(self) -> bool:
        """Whether `assign` may leave out examples, of which it says that -1 owns them."""
        return False

    def split(
        self, labels: Tensor, clients: int, rng: np.random.Generator, owners: Tensor | None = None
    ) -> list[Tensor]:
        """Deals the examples: each to one client at most, at least one to each client unless `allow_empty`.

        Where the rule leaves clients without examples, each of them, in increasing order, gets one random example of
        the client that then has most (the first such client).  The result depends on the arguments and on `rng` alone.

        Args:
            labels: (n,), integers from 0; or (n, t), the sequences of labels of a `Dataset`.
            clients: number of clients, at least 1.
            rng: where the random numbers come from, `phalanx.rng.numpy_generator` for one.
            owners: (n,), whose each example is by nature, if that is known; for `Natural`, and ignored by all others.

        Returns:
            For each client its examples: int64 indices into `labels`, increasing.

        Raises:
            ValueError: there are fewer examples than clients and `allow_empty` is not set, the rule deals by label and
                the labels are sequences, or an argument is not as described.
        """
        if clients < 1:
            raise ValueError(f"clients must be at least 1, got {clients}.")
        whole = not (labels.is_floating_point() or labels.is_complex())
        if labels.ndim not in (1, 2) or not whole or bool((labels_in(labels) < 0).any()):
            raise ValueError(
                f"labels must be (n,) or (n, t) integers from 0, got {labels.dtype} of shape {tuple(labels.shape)}."
            )
        if labels.ndim == 2:
            labels = self._one_each(labels)
        if len(labels) < clients and not self.allow_empty:
            raise ValueError(
                f"{clients} clients need at least {clients} examples, got {len(labels)}. "
                "Take fewer clients or more examples, or set allow_empty."
            )
        holders = self.assign(labels.cpu().numpy().astype(np.int64), clients, rng)
        least = -1 if self.partial else 0
        if holders.shape != labels.shape or (len(holders) and not least <= holders.min() <= holders.max() < clients):
            raise ValueError(
                f"{type(self).__name__}.assign must name one of {clients} clients for each of {len(labels)} examples."
            )
        if not self.allow_empty and not self.partial:
            holders = _without_empty(holders, clients, rng)
        order, sizes = np.argsort(holders, kind="stable"), np.bincount(holders + 1, minlength=clients + 1)
        return list(torch.split(torch.from_numpy(order), sizes.tolist()))[1:]

    def _one_each(self, labels: Tensor) -> Tensor:
        """Zeros, (n,), for a rule that does not look at labels.

        Raises:
            ValueError: the rule does.
        """
        if self.uses_labels:
            raise ValueError(
                f"{type(self).__name__} deals by label, and each of these examples has a sequence of "
                f"{labels.shape[1]} labels. Choose a partition that looks at none, such as Uniform or PowerLaw, or "
                "Natural if the data say whose each example is."
            )
        return labels.new_zeros(len(labels))

    @abstractmethod
    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """The owner, in 0 .. clients - 1, of each of the (n,) examples."""


def _without_empty(owners: Ints, clients: int, rng: np.random.Generator) -> Ints:
    owners = owners.copy()
    sizes = np.bincount(owners, minlength=clients)
    for client in np.flatnonzero(sizes == 0):
        donor = sizes.argmax()
        owners[rng.choice(np.flatnonzero(owners == donor))] = client
        sizes[donor] -= 1
        sizes[client] += 1
    return owners


def _apportioned(total: int, shares: Floats) -> Ints:
    """`total` in whole numbers proportional to `shares` by largest remainder, ties to the first."""
    quotas = shares / shares.sum() * total
    counts: Ints = np.floor(quotas).astype(np.int64)
    counts[np.argsort(counts - quotas, kind="stable")[: total - counts.sum()]] += 1
    return counts


def _dealt(n: int, log_shares: Floats, rng: np.random.Generator) -> Ints:
    """Owners of n examples drawn without regard to their labels; sizes are proportional to exp(log_shares)."""
    sizes = _apportioned(n, np.exp(log_shares - log_shares.max()))
    owners: Ints = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return owners


def _require(valid: bool, name: str, allowed: str, value: object) -> None:
    if not valid:
        raise ValueError(f"{name} must be {allowed}, got {value}.")


@dataclass(frozen=True)
class Uniform(Partition):
    """The same number of examples for everybody, give or take one, drawn without regard to their labels.

    Args:
        allow_empty: whether a client may end up without examples.
    """

    uses_labels: ClassVar[bool] = False
    allow_empty: bool = False

    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Deals the shuffled examples in turn."""
        owners: Ints = rng.permutation(np.arange(len(labels)) % clients)
        return owners


@dataclass(frozen=True)
class Natural(Partition):
    """Each client holds what is somebody's by nature: the examples of one writer, speaker or role.

    For data that say whose each example is (`Dataset.owners`).  With as many clients as there are owners, client i is
    owner i.  With fewer, the clients are owners drawn at random, in the order of their numbers, and the examples of all
    others are left out: this is the one partition that does not deal every example.
    """

    uses_labels: ClassVar[bool] = False

    def split(
        self, labels: Tensor, clients: int, rng: np.random.Generator, owners: Tensor | None = None
    ) -> list[Tensor]:
        """Gives each client the examples of its owner, and nobody those of owners that are no clients.

        Raises:
            ValueError: it is not known whose the examples are, or there are more clients than owners.
        """
        if clients < 1:
            raise ValueError(f"clients must be at least 1, got {clients}.")
        if owners is None:
            raise ValueError(
                "Natural gives each client the examples of one owner, and these data do not say whose an example is. "
                "Take data that do, such as Shakespeare, give a Dataset its owners, or choose another partition."
            )
        if owners.shape != labels.shape[:1]:
            raise ValueError(f"owners must be ({len(labels)},), one for each example, got {tuple(owners.shape)}.")
        holders = self.assign(owners.cpu().numpy(), clients, rng)
        return [torch.from_numpy(np.flatnonzero(holders == client)) for client in range(clients)]

    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """The client of each example, -1 if none; here `labels` are owners."""
        present, owners = np.unique(labels, return_inverse=True)
        if clients > len(present):
            raise ValueError(
                f"{clients} clients need as many owners, and these examples have {len(present)}. "
                f"Take at most {len(present)} clients."
            )
        client_of = np.full(len(present), -1)
        client_of[np.sort(rng.choice(len(present), clients, replace=False))] = np.arange(clients)
        holders: Ints = client_of[owners]
        return holders


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each class is shared out by proportions drawn from a Dirichlet distribution.

    Yurochkin et al. (2019), Hsu et al. (2019).  The smaller alpha is, the fewer clients hold most of a class; clients
    differ in size, too.

    Args:
        alpha: concentration, positive. 100 is close to equal shares, 0.1 leaves most clients with one to three classes.
        allow_empty: whether a client may end up without examples.
    """

    alpha: float = 0.5
    allow_empty: bool = False

    def __post_init__(self) -> None:
        _require(0 < self.alpha < np.inf, "alpha", "positive and finite", self.alpha)

    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Shares out one class after the other; whole numbers by largest remainder."""
        owners = np.empty_like(labels)
        for c in np.unique(labels):
            members = np.flatnonzero(labels == c)
            owners[members] = _dealt(len(members), self._log_shares(clients, rng), rng)
        return owners

    def _log_shares(self, clients: int, rng: np.random.Generator) -> Floats:
        """Logarithms of one draw, up to a constant.

        A Gamma(alpha) variable is Gamma(alpha + 1) times U^(1/alpha).  In logarithms, and with the largest U put to 1,
        this works for every alpha; drawn directly, all variables would be 0 for a small one.
        """
        log_u = np.log1p(-rng.random(clients))
        with np.errstate(over="ignore"):  # minus infinity is a share of zero
            log_gamma: Floats = (log_u - log_u.max()) / self.alpha + np.log(rng.standard_gamma(self.alpha + 1, clients))
        return log_gamma


@dataclass(frozen=True)
class Shards(Partition):
    """Examples sorted by label, cut in shards, some shards for each client (McMahan et al. 2017).

    The shards' sizes differ by one at most, so the clients' sizes by `classes_per_client` at most.  A shard that
    straddles the border of two classes holds both.  With fewer examples than shards, a shard has one example or none.

    Args:
        classes_per_client: number of shards of each client, at least 1.
        allow_empty: whether a client may end up without examples.
    """

    classes_per_client: int = 2
    allow_empty: bool = False

    def __post_init__(self) -> None:
        _require(self.classes_per_client >= 1, "classes_per_client", "at least 1", self.classes_per_client)

    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Shuffles within the classes, cuts, and deals the shards at random."""
        n, each = len(labels), min(self.classes_per_client, max(len(labels), 1))
        shuffled = rng.permutation(n)
        order = shuffled[np.argsort(labels[shuffled], kind="stable")]
        shards = min(n, clients * each)  # those with examples
        owners = np.empty_like(labels)
        if shards:
            hands = rng.choice(clients * each, size=shards, replace=False) // each
            owners[order] = np.repeat(hands, _apportioned(n, np.ones(shards)))
        return owners


@dataclass(frozen=True)
class PowerLaw(Partition):
    """Sizes proportional to (1, 2, 3, ...)^-exponent, client 0 the largest; drawn without regard to labels.

    Args:
        exponent: at least 0; 0 makes all sizes equal.
        allow_empty: whether a client may end up without examples.
    """

    uses_labels: ClassVar[bool] = False
    exponent: float = 1.5
    allow_empty: bool = False

    def __post_init__(self) -> None:
        _require(0 <= self.exponent < np.inf, "exponent", "at least 0 and finite", self.exponent)

    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Deals the shuffled examples by size."""
        with np.errstate(over="ignore"):  # minus infinity is a share of zero
            return _dealt(len(labels), -self.exponent * np.log(np.arange(1, clients + 1)), rng)


@dataclass(frozen=True)
class LinearRamp(Partition):
    """Sizes linearly spaced, client 0 the smallest; drawn without regard to labels.

    Xu and Lyu (2020) call these sizes a power law: of 6,005 examples, 10 clients hold 71, 189, 306, ..., 1,130.

    Args:
        ratio: largest size over smallest, at least 1.
        allow_empty: whether a client may end up without examples.
    """

    uses_labels: ClassVar[bool] = False
    ratio: float = 15.9
    allow_empty: bool = False

    def __post_init__(self) -> None:
        _require(1 <= self.ratio < np.inf, "ratio", "at least 1 and finite", self.ratio)

    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Deals the shuffled examples by size."""
        ramp = np.linspace(0, 1, clients) if clients > 1 else np.ones(1)
        return _dealt(len(labels), np.log((1 - ramp) / self.ratio + ramp), rng)


@dataclass(frozen=True)
class ClassImbalance(Partition):
    """Client i owns the labels 0 .. c_i - 1; c_i grows from `fewest` to `most` in equal steps, rounded down.

    By default all examples are dealt, those of each class evenly to its owners, so that a client with more classes
    holds more examples.  With `each`, every client holds that many, as evenly as can be from its classes, and the rest
    is left out: the split of Xu and Lyu (2020), 600 each of MNIST's 60,000, whose program lets clients draw with
    replacement; here nobody holds an example of somebody else.  A single client owns `most` labels.  Clients that the
    default leaves empty get an example of any class (see `split`).

    Args:
        fewest: labels of the first client, at least 1.
        most: labels of the last client, at least `fewest`; as many as there are (the largest label + 1) if not given.
        each: examples of each client, at least 1; null deals all there are.
        allow_empty: whether a client may end up without examples.
    """

    fewest: int = 1
    most: int | None = None
    each: int | None = None
    allow_empty: bool = False

    def __post_init__(self) -> None:
        _require(self.fewest >= 1, "fewest", "at least 1", self.fewest)
        _require(self.most is None or self.most >= self.fewest, "most", f"at least fewest = {self.fewest}", self.most)
        _require(self.each is None or self.each >= 1, "each", "at least 1", self.each)

    @property
    def partial(self) -> bool:
        """See `Partition`."""
        return self.each is not None

    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Deals one class after the other to its owners, in random order.

        Raises:
            ValueError: there are more classes than `most`, or fewer than `fewest` and no `most`; or fewer examples of a
                class than its owners are to hold.
        """
        owned = self._owned(labels, clients)
        if self.each is not None:
            return self._equal(labels, owned, rng, self.each)
        owners = np.empty_like(labels)
        for c in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == c))
            owners[members] = np.resize(rng.permutation(np.flatnonzero(owned > c)), len(members))
        return owners

    def _equal(self, labels: Ints, owned: Ints, rng: np.random.Generator, each: int) -> Ints:
        """The owner of each example where every client holds `each`, -1 if none."""
        owners = np.full_like(labels, -1)
        for c in range(int(owned.max())):
            wanted = np.array([each // k + (c < each % k) if c < k else 0 for k in owned.tolist()])
            members = rng.permutation(np.flatnonzero(labels == c))
            if len(members) < wanted.sum():
                raise ValueError(
                    f"ClassImbalance with each = {each} needs {wanted.sum():,} examples of class {c} for "
                    f"{len(owned)} clients, got {len(members):,}. Take more examples, or lower each."
                )
            owners[members[: wanted.sum()]] = np.repeat(np.arange(len(owned)), wanted)
        return owners

    def _owned(self, labels: Ints, clients: int) -> Ints:
        """c_i, how many classes each client owns."""
        classes = int(labels.max(initial=-1)) + 1
        most = max(classes, 1) if self.most is None else self.most
        if most < classes:
            raise ValueError(
                f"most = {most} leaves the labels {most}..{classes - 1} without an owner. "
                f"Raise it to {classes} or drop their examples."
            )
        if most < self.fewest:
            raise ValueError(f"fewest must be at most the number of classes, {most}, got {self.fewest}.")
        steps = max(clients - 1, 1)
        return np.array([self.fewest + (most - self.fewest) * i // steps for i in range(clients - 1)] + [most])


@dataclass(frozen=True)
class ClassSplit(Partition):
    """Each client holds examples of its own classes only, which no client of another part holds.

    The classes, in their order, are cut into parts, and so are the clients; the examples of a part are dealt evenly to
    its clients, without regard to their labels.  Two clients hold the digits 0 to 4 and 5 to 9: the congruent case of
    Sattler, Müller and Samek 2019, Figure 7.  What clients hold differs as much as it can, but nothing that one holds
    contradicts another: one model serves all.  Clients that this leaves empty get an example of any class (see
    `split`).

    Args:
        parts: number of parts, at least 1, and at most as many as clients and as classes (the largest label + 1); as
            many as possible if not given.
        allow_empty: whether a client may end up without examples.
    """

    parts: int | None = None
    allow_empty: bool = False

    def __post_init__(self) -> None:
        _require(self.parts is None or self.parts >= 1, "parts", "at least 1", self.parts)

    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Deals the shuffled examples of one part after the other.

        Raises:
            ValueError: there are more parts than clients or classes.
        """
        classes = int(labels.max(initial=-1)) + 1
        most = max(min(clients, classes), 1)
        parts = most if self.parts is None else self.parts
        _require(parts <= most, "parts", f"at most {most}, of {clients} clients and {classes} classes", parts)
        part_of_class, part_of_client = (np.arange(n) * parts // max(n, 1) for n in (classes, clients))
        owners = np.empty_like(labels)
        for part in range(parts):
            members = rng.permutation(np.flatnonzero(part_of_class[labels] == part))
            owners[members] = np.resize(rng.permutation(np.flatnonzero(part_of_client == part)), len(members))
        return owners


@dataclass(frozen=True)
class LognormalSizes(Partition):
    """Sizes proportional to draws from a lognormal distribution, without regard to labels (Portnoy et al. 2020).

    Args:
        mu: mean of the draws' logarithm. It scales all draws alike, so the sizes here do not depend on it; it is kept
            so that a configuration can state the distribution of the paper.
        sigma: standard deviation of the draws' logarithm, at least 0; 0 makes all sizes equal.
        allow_empty: whether a client may end up without examples.
    """

    uses_labels: ClassVar[bool] = False
    mu: float = 1.5
    sigma: float = 3.45
    allow_empty: bool = False

    def __post_init__(self) -> None:
        _require(-np.inf < self.mu < np.inf, "mu", "finite", self.mu)
        _require(0 <= self.sigma < np.inf, "sigma", "at least 0 and finite", self.sigma)

    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Draws the sizes, then deals the shuffled examples."""
        draws = rng.standard_normal(clients)
        with np.errstate(over="ignore"):  # minus infinity is a share of zero
            return _dealt(len(labels), (draws - draws.max()) * self.sigma, rng)


@dataclass(frozen=True)
class DirichletMultinomialSizes(Partition):
    """The sizes of the experiments of Portnoy et al. (2020) as their code draws them, without regard to labels.

    Lognormal draws are the concentration of a Dirichlet distribution; one draw of that are the shares of a multinomial
    distribution of all examples; who gets none is dropped.  The paper itself describes `LognormalSizes`.  The number of
    clients comes out of the draw: for 60,000 examples and the authors' seed 1 it is 75, the largest of whom holds
    20,158 examples.

    The sizes come from NumPy's legacy generator, which is what the authors' code uses and what NumPy promises not to
    change.  Which examples a client gets comes from the run's seed.

    Args:
        mu: mean of the draws' logarithm; unlike in `LognormalSizes` it matters.
        sigma: standard deviation of the draws' logarithm, at least 0.
        draws: number of lognormal draws, at least 1.
        seed: of the sizes.
    """

    uses_labels: ClassVar[bool] = False
    mu: float = 1.5
    sigma: float = 3.45
    draws: int = 100
    seed: int = 1

    def __post_init__(self) -> None:
        _require(-np.inf < self.mu < np.inf, "mu", "finite", self.mu)
        _require(0 <= self.sigma < np.inf, "sigma", "at least 0 and finite", self.sigma)
        _require(self.draws >= 1, "draws", "at least 1", self.draws)
        _require(0 <= self.seed < 2**32, "seed", "an integer from 0 to 2^32 - 1", self.seed)

    def sizes(self, n: int) -> Ints:
        """The sizes of the clients that n examples are dealt to: each at least 1, their number as it comes."""
        legacy = np.random.RandomState(self.seed)
        with np.errstate(over="ignore"):
            concentration = legacy.lognormal(self.mu, self.sigma, self.draws)
        if not (np.isfinite(concentration) & (concentration > 0)).all():
            raise ValueError(f"mu = {self.mu:g} and sigma = {self.sigma:g} draw numbers beyond what a float can hold.")
        counts: Ints = legacy.multinomial(n, legacy.dirichlet(concentration))
        return counts[counts > 0]

    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Draws the sizes, then deals the shuffled examples.

        Raises:
            ValueError: the draw gives another number of clients.
        """
        sizes = self.sizes(len(labels))
        if len(sizes) != clients:
            raise ValueError(
                f"This draw deals {len(labels)} examples to {len(sizes)} clients, not to {clients}. "
                f"Set clients to {len(sizes)}, or give the partition another seed (partition.seed)."
            )
        owners: Ints = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
        return owners
