"""Partitions of the examples among clients.

A partition assigns one client to each example, so every example is held exactly once; only `Natural`, and
`ClassImbalance` with clients of equal size, leave some out.  `Partition.split` is common to all partitions: it checks
the arguments, gives every client at least one example and returns the examples of each client.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Meta
from torch import Tensor
from typing_extensions import override

from phalanx.data.dataset import labels_in
from phalanx.errors import InfeasibleError
from phalanx.fields import CheckedFields, FiniteFloat, NonNegativeFloat, PositiveFloat, PositiveInt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Partition(CheckedFields, ABC):
    """A rule that assigns examples to clients.  A subclass is a frozen dataclass that defines `assign`."""

    allow_empty: bool = False  # whether clients may have no examples
    uses_labels: ClassVar[bool] = True  # whether `assign` needs the labels; if not, sequences of labels are allowed

    @property
    def partial(self) -> bool:
        """Whether `assign` may leave out examples, by assigning them to -1."""
        return False

    def split(
        self, labels: Tensor, clients: int, rng: np.random.Generator, owners: Tensor | None = None
    ) -> list[Tensor]:
        """Return the examples of each client: at least one each, unless `allow_empty` is set.

        If the rule leaves clients without examples, each of them, in increasing order, takes one random example from
        the client that then has most (the first one at a tie).  The result depends only on the arguments and `rng`.

        Args:
            labels: (n,), integers from 0; or the several labels, or the targets, of each example of a `Dataset`.
            clients: number of clients, at least 1.
            rng: random numbers, for example from `phalanx.rng.numpy_generator`.
            owners: (n,), the natural owner of each example, if it is known; used only by `Natural`.

        Returns:
            For each client, increasing int64 indices into `labels`.

        Raises:
            ValueError: if there are fewer examples than clients and `allow_empty` is not set, the rule needs labels and
                examples have several of them or targets, or an argument is not as described.
        """
        if clients < 1:
            raise ValueError(f"clients must be at least 1, got {clients}.")
        targets = labels.is_floating_point()
        if labels.ndim < 1 or labels.is_complex() or (not targets and bool((labels_in(labels) < 0).any())):
            raise ValueError(
                f"labels must be (n,) or (n, ...) integers from 0, got {labels.dtype} of shape {tuple(labels.shape)}."
            )
        if targets or labels.ndim > 1:
            labels = self._one_each(labels)
        if len(labels) < clients and not self.allow_empty:
            raise ValueError(
                f"{clients} clients need at least {clients} examples, got {len(labels)}. "
                "Use fewer clients or more examples, or set allow_empty."
            )
        holders = self.assign(labels.cpu().numpy().astype(np.int64), clients, rng)
        least = -1 if self.partial else 0
        if holders.shape != labels.shape or (len(holders) and not least <= holders.min() <= holders.max() < clients):
            raise ValueError(
                f"{type(self).__name__}.assign must name one of {clients} clients for each of {len(labels)} examples."
            )
        if not self.allow_empty and not self.partial:
            holders = _without_empty(holders, clients, rng)
        # Client -1, if any, holds the examples that are left out; it is the first part and dropped.
        order, sizes = np.argsort(holders, kind="stable"), np.bincount(holders + 1, minlength=clients + 1)
        return list(torch.split(torch.from_numpy(order), sizes.tolist()))[1:]

    def _one_each(self, labels: Tensor) -> Tensor:
        """Return zeros, (n,), in place of several labels or of targets, for a rule that does not need labels.

        Raises:
            ValueError: if the rule needs them.
        """
        if self.uses_labels:
            kind = f"a sequence of {labels.shape[1]} labels" if labels.ndim == 2 else "several labels"
            if labels.is_floating_point():
                kind = "targets, no label"
            raise ValueError(
                f"{type(self).__name__} partitions by label, and each of these examples has {kind}. "
                "Choose a partition that needs no labels, such as Uniform or PowerLaw, or "
                "Natural if the data have owners."
            )
        return torch.zeros(len(labels), dtype=torch.int64)

    @abstractmethod
    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Return the client, in 0 .. clients - 1, of each of the n examples."""


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
    """Return whole numbers with sum `total`, proportional to `shares`, by largest remainder; ties go to the first."""
    quotas = shares / shares.sum() * total
    counts: Ints = np.floor(quotas).astype(np.int64)
    # The examples that rounding down has left go to the largest remainders.
    counts[np.argsort(counts - quotas, kind="stable")[: total - counts.sum()]] += 1
    return counts


def _dealt(n: int, log_shares: Floats, rng: np.random.Generator) -> Ints:
    """Return random clients of n examples, whatever their labels, with sizes proportional to exp(log_shares)."""
    # Relative to the largest share: exp of the logarithms themselves could overflow or be all zero.
    sizes = _apportioned(n, np.exp(log_shares - log_shares.max()))
    owners: Ints = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return owners


def _require(valid: bool, name: str, allowed: str, value: object) -> None:
    if not valid:
        raise ValueError(f"{name} must be {allowed}, got {value}.")


@dataclass(frozen=True)
class Uniform(Partition):
    """The same number of examples for each client, up to one, drawn at random whatever their labels.

    Args:
        allow_empty: whether clients may have no examples.
    """

    uses_labels: ClassVar[bool] = False
    allow_empty: bool = False

    @override
    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Assign shuffled examples to the clients in turn."""
        owners: Ints = rng.permutation(np.arange(len(labels)) % clients)
        return owners


@dataclass(frozen=True)
class Natural(Partition):
    """Each client holds the examples of one natural owner: a writer, a speaker, a role.

    For data with `Dataset.owners`.  With as many clients as owners, client i is owner i.  With fewer clients, they are
    random owners, in the order of their numbers, and the examples of the other owners are left out.
    """

    uses_labels: ClassVar[bool] = False

    @override
    def split(
        self, labels: Tensor, clients: int, rng: np.random.Generator, owners: Tensor | None = None
    ) -> list[Tensor]:
        """Return the examples of each client's owner; those of other owners are left out.

        Raises:
            ValueError: if the owners are not known, or there are more clients than owners.
        """
        if clients < 1:
            raise ValueError(f"clients must be at least 1, got {clients}.")
        if owners is None:
            raise ValueError(
                "Natural gives each client the examples of one owner, and these data have no owners. "
                "Choose data with owners, such as Shakespeare, give a Dataset its owners, or choose another partition."
            )
        if owners.shape != labels.shape[:1]:
            raise ValueError(f"owners must be ({len(labels)},), one for each example, got {tuple(owners.shape)}.")
        holders = self.assign(owners.cpu().numpy(), clients, rng)
        return [torch.from_numpy(np.flatnonzero(holders == client)) for client in range(clients)]

    @override
    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Return the client of each example, -1 for none; `labels` are owners here."""
        present, owners = np.unique(labels, return_inverse=True)
        if clients > len(present):
            raise ValueError(
                f"{clients} clients need as many owners, and these examples have {len(present)}. "
                f"Use at most {len(present)} clients."
            )
        client_of = np.full(len(present), -1)
        client_of[np.sort(rng.choice(len(present), clients, replace=False))] = np.arange(clients)
        holders: Ints = client_of[owners]
        return holders


@dataclass(frozen=True)
class Dirichlet(Partition):
    """The examples of each class are divided by proportions drawn from a Dirichlet distribution.

    Yurochkin et al. (2019), Hsu et al. (2019).  The smaller alpha, the fewer clients hold most of a class.  Clients
    differ in size, too.

    Args:
        alpha: concentration, positive. 100 gives nearly equal shares; with 0.1 most clients have one to three classes.
        allow_empty: whether clients may have no examples.
    """

    alpha: PositiveFloat = 0.5
    allow_empty: bool = False

    @override
    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Draw the proportions of one class after the other; whole numbers by largest remainder."""
        owners = np.empty_like(labels)
        for c in np.unique(labels):
            members = np.flatnonzero(labels == c)
            owners[members] = _dealt(len(members), self._log_shares(clients, rng), rng)
        return owners

    def _log_shares(self, clients: int, rng: np.random.Generator) -> Floats:
        """Return the logarithms of one draw, up to a constant.

        A Gamma(alpha) variable is Gamma(alpha + 1) times U^(1/alpha).  In logarithms, and with the largest U scaled to
        1, this works for every alpha; drawn directly, all variables would underflow to 0 for a small alpha.
        """
        log_u = np.log1p(-rng.random(clients))
        with np.errstate(over="ignore"):  # minus infinity is the logarithm of a zero share
            log_gamma: Floats = (log_u - log_u.max()) / self.alpha + np.log(rng.standard_gamma(self.alpha + 1, clients))
        return log_gamma


@dataclass(frozen=True)
class Shards(Partition):
    """Examples sorted by label and cut into shards, some shards for each client (McMahan et al. 2017).

    The sizes of shards differ by at most one, so those of clients by at most `classes_per_client`.  A shard on the
    border of two classes holds both.  With fewer examples than shards, a shard has one example or none.

    Args:
        classes_per_client: number of shards of each client, at least 1.
        allow_empty: whether clients may have no examples.
    """

    classes_per_client: PositiveInt = 2
    allow_empty: bool = False

    @override
    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Shuffle within the classes, cut the shards, and assign them at random."""
        n, each = len(labels), min(self.classes_per_client, max(len(labels), 1))
        shuffled = rng.permutation(n)
        order = shuffled[np.argsort(labels[shuffled], kind="stable")]
        shards = min(n, clients * each)  # shards that are not empty
        owners = np.empty_like(labels)
        if shards:
            # Each client has `each` places for shards; an occupied place is a shard of the client.
            hands = rng.choice(clients * each, size=shards, replace=False) // each
            owners[order] = np.repeat(hands, _apportioned(n, np.ones(shards)))
        return owners


@dataclass(frozen=True)
class PowerLaw(Partition):
    """Sizes proportional to (1, 2, 3, ...)^-exponent, client 0 the largest; drawn at random whatever the labels.

    Args:
        exponent: exponent of the power law, at least 0; 0 makes all sizes equal.
        allow_empty: whether clients may have no examples.
    """

    uses_labels: ClassVar[bool] = False
    exponent: NonNegativeFloat = 1.5
    allow_empty: bool = False

    @override
    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Draw the client of each example at random, for the given sizes."""
        with np.errstate(over="ignore"):  # minus infinity is the logarithm of a zero share
            return _dealt(len(labels), -self.exponent * np.log(np.arange(1, clients + 1)), rng)


@dataclass(frozen=True)
class LinearRamp(Partition):
    """Linearly spaced sizes, client 0 the smallest; drawn at random whatever the labels.

    Xu and Lyu (2020) call these sizes a power law: of 6,005 examples, 10 clients hold 71, 189, 306, ..., 1,130.

    Args:
        ratio: largest size divided by smallest size, at least 1.
        allow_empty: whether clients may have no examples.
    """

    uses_labels: ClassVar[bool] = False
    ratio: Annotated[float, Meta(ge=1)] = 15.9
    allow_empty: bool = False

    @override
    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Draw the client of each example at random, for the given sizes."""
        ramp = np.linspace(0, 1, clients) if clients > 1 else np.ones(1)
        return _dealt(len(labels), np.log((1 - ramp) / self.ratio + ramp), rng)


@dataclass(frozen=True)
class ClassImbalance(Partition):
    """Client i owns the labels 0 .. c_i - 1; c_i grows from `fewest` to `most` in equal steps, rounded down.

    By default all examples are assigned, those of each class evenly to its owners, so a client with more classes holds
    more examples.  With `each`, every client holds that many, as evenly as possible from its classes, and the rest is
    left out: the split of Xu and Lyu (2020), 600 each of MNIST's 60,000.  In their program clients draw with
    replacement; here no two clients hold the same example.  A single client owns `most` labels.  Clients that the
    default leaves empty get an example of any class (see `split`).

    Args:
        fewest: number of labels of the first client, at least 1.
        most: number of labels of the last client, at least `fewest`; the largest label + 1 if not given.
        each: number of examples of each client, at least 1; null assigns all examples.
        allow_empty: whether clients may have no examples.
    """

    fewest: PositiveInt = 1
    most: PositiveInt | None = None
    each: PositiveInt | None = None
    allow_empty: bool = False

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.most is None or self.most >= self.fewest, "most", f"at least fewest = {self.fewest}", self.most)

    @property
    @override
    def partial(self) -> bool:
        return self.each is not None

    @override
    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Assign one class after the other to its owners, in random order.

        Raises:
            ValueError: if there are more classes than `most`, or fewer than `fewest` and no `most`; or too few examples
                of a class for its owners.
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
        """Return the client of each example, -1 for none, so that every client holds `each` examples."""
        owners = np.full_like(labels, -1)
        for c in range(int(owned.max())):
            wanted = np.array([each // k + (c < each % k) if c < k else 0 for k in owned.tolist()])
            members = rng.permutation(np.flatnonzero(labels == c))
            if len(members) < wanted.sum():
                raise ValueError(
                    f"ClassImbalance with each = {each} needs {wanted.sum():,} examples of class {c} for "
                    f"{len(owned)} clients, got {len(members):,}. Use more examples, or lower each."
                )
            owners[members[: wanted.sum()]] = np.repeat(np.arange(len(owned)), wanted)
        return owners

    def _owned(self, labels: Ints, clients: int) -> Ints:
        """Return c_i, the number of classes that each client owns."""
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
    """Each client holds only examples of the classes of its part, which no client of another part holds.

    The classes, in their order, are divided into parts, and so are the clients; the examples of a part are assigned
    evenly to its clients, whatever their labels.  Two clients hold the digits 0 to 4 and 5 to 9: the congruent case of
    Sattler, Müller and Samek 2019, Figure 7.  The data of the parts differ as much as possible, but do not contradict
    each other: one model fits all.  Clients that this leaves empty get an example of any class (see
    `split`).

    Args:
        parts: number of parts, from 1 to the number of clients or of classes (the largest label + 1), whichever is
            smaller; the largest possible number if not given.
        allow_empty: whether clients may have no examples.
    """

    parts: PositiveInt | None = None
    allow_empty: bool = False

    @override
    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Assign the shuffled examples of one part after the other.

        Raises:
            ValueError: if there are more parts than clients or classes.
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
    """Sizes proportional to draws from a lognormal distribution, whatever the labels (Portnoy et al. 2020).

    Args:
        mu: mean of the draws' logarithm. It scales all draws equally, so it does not change the sizes; it exists so
            that a configuration can state the distribution of the paper.
        sigma: standard deviation of the draws' logarithm, at least 0; 0 makes all sizes equal.
        allow_empty: whether clients may have no examples.
    """

    uses_labels: ClassVar[bool] = False
    mu: FiniteFloat = 1.5
    sigma: NonNegativeFloat = 3.45
    allow_empty: bool = False

    @override
    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Draw the sizes, then assign the shuffled examples."""
        draws = rng.standard_normal(clients)
        with np.errstate(over="ignore"):  # minus infinity is the logarithm of a zero share
            return _dealt(len(labels), (draws - draws.max()) * self.sigma, rng)


@dataclass(frozen=True)
class DirichletMultinomialSizes(Partition):
    """The sizes of the experiments of Portnoy et al. (2020), drawn as in their code, whatever the labels.

    Lognormal draws are the concentration of a Dirichlet distribution; one draw from it gives the shares of a
    multinomial distribution of all examples; clients without examples are dropped.  The paper itself describes
    `LognormalSizes`. The draw determines the number of clients: for 60,000 examples and the authors' seed 1 it is 75,
    the largest with 20,158 examples.

    The sizes come from NumPy's legacy generator, which the authors' code uses and which NumPy promises not to change.
    The examples of each client depend on the seed of the run.

    Args:
        mu: mean of the draws' logarithm; unlike in `LognormalSizes` it changes the sizes.
        sigma: standard deviation of the draws' logarithm, at least 0.
        draws: number of lognormal draws, at least 1.
        seed: seed of the sizes, not of the assignment of examples.
    """

    uses_labels: ClassVar[bool] = False
    mu: FiniteFloat = 1.5
    sigma: NonNegativeFloat = 3.45
    draws: PositiveInt = 100
    seed: Annotated[int, Meta(ge=0, lt=4294967296)] = 1

    def sizes(self, n: int) -> Ints:
        """Return the sizes of the clients for n examples, each at least 1; the draw determines their number."""
        legacy = np.random.RandomState(self.seed)
        with np.errstate(over="ignore"):
            concentration = legacy.lognormal(self.mu, self.sigma, self.draws)
        if not (np.isfinite(concentration) & (concentration > 0)).all():
            raise ValueError(f"mu = {self.mu:g} and sigma = {self.sigma:g} draw numbers beyond the range of a float.")
        counts: Ints = legacy.multinomial(n, legacy.dirichlet(concentration))
        return counts[counts > 0]

    @override
    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Draw the sizes, then assign the shuffled examples.

        Raises:
            InfeasibleError: the draw gives another number of clients.
        """
        sizes = self.sizes(len(labels))
        if len(sizes) != clients:
            raise InfeasibleError(
                f"This draw divides {len(labels)} examples among {len(sizes)} clients, not {clients}. "
                f"Set clients to {len(sizes)}, or give the partition another seed (partition.seed)."
            )
        owners: Ints = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
        return owners
