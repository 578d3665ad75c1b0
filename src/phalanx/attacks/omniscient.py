"""Attacks computed from the mean and the spread of the honest updates, or from a single one of them."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, NamedTuple

import torch
from typing_extensions import override

from phalanx.attacks.attack import AttackTraits, Colluding, Forged, Knowledge, Remembering, Update, needed
from phalanx.attacks.search import damage, grid_search, line_search
from phalanx.core import Matrix, Vector
from phalanx.fields import FiniteFloat, NonNegativeInt, PositiveFloat, PositiveInt
from phalanx.numerics.linalg import gram


@dataclass(frozen=True)
class ALIE(Colluding):
    """Sends the honest mean plus z standard deviations of each entry: far from the mean, but too near to be filtered.

    Baruch, Baruch and Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning", 2019.  In the
    paper the attackers estimate mean and deviation from their own updates; here, by default, they know all
    honest updates.  The argument is the same for either sign of z; the authors' program subtracts from gradients, which
    means to add to updates.

    With n clients in the round, f of them attackers, s = floor(n/2 + 1) - f honest supporters make a majority, and z is
    the quantile of the normal distribution beyond which they lie.  For one attacker, and for two if n is even, z is
    zero or negative: by this formula they can do nothing.  A majority of attackers needs no supporters; s is at least
    1.

    Args:
        z: "paper": phi(z) = (n - f - s) / (n - f), the published version; "preprint": phi(z) = (n - s) / n, from the
            first preprint and always larger; "search": the z that moves the server's aggregate farthest from the honest
            mean, climbing from 0 (`line_search`); "grid": the same among both signs, by more trials (`grid_search`), of
            the rule as the server calls it in this round; or a number. The authors' program uses 1.5.
        estimate: "honest": mean and deviation of the honest updates; "own": of the updates that the attackers would
            send if they were honest, as in the paper, without knowledge of others.
    """

    z: FiniteFloat | Literal["paper", "preprint", "search", "grid"] = "paper"
    estimate: Literal["honest", "own"] = "honest"

    @property
    @override
    def traits(self) -> AttackTraits:
        return super().traits._replace(needs_rule=self.z in ("search", "grid"))

    @override
    def collude(self, knowledge: Knowledge) -> Vector:
        honest = self.estimate == "honest"
        rows = knowledge.honest if honest else torch.stack([update.delta for update in knowledge.colluders])
        mu, sigma = rows.mean(0), rows.std(0, correction=0)
        if self.z == "search":
            z = line_search(lambda z: damage(knowledge, mu + z * sigma))
        elif self.z == "grid":
            z = grid_search(lambda z: damage(knowledge, mu + z * sigma, carried=True))
        elif isinstance(self.z, str):
            z = supported(len(knowledge.honest), len(knowledge.colluders), preprint=self.z == "preprint")
        else:
            z = self.z
        return mu + z * sigma


def supported(honest: int, attackers: int, *, preprint: bool = False) -> float:
    """Return the largest z with which attackers and supporters are expected to be the majority.

    Args:
        honest: number of honest clients, n - f, at least 1.
        attackers: number of attackers, f, at least 1.
        preprint: use the formula of the first preprint.
    """
    n = honest + attackers
    s = max(1, math.floor(n / 2 + 1) - attackers)
    share = (n - s) / n if preprint else (honest - s) / honest
    return NormalDist().inv_cdf(share) if share > 0 else 0.0  # with one honest client the deviation is 0 anyway


@dataclass(frozen=True)
class InnerProduct(Colluding):
    """Sends minus epsilon times the honest mean, to make the aggregate point against the honest mean.

    Xie, Koyejo and Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation", 2019.  The
    plain mean is reversed if epsilon is above honest / attackers; a small epsilon deceives rules that choose by
    distance, such as Krum.

    Args:
        epsilon: factor above 0; "search": the one that moves the server's aggregate farthest from the honest mean,
            climbing from 0 (`line_search`); or "grid": the same among both signs, by more trials (`grid_search`), of
            the rule as the server calls it in this round.
    """

    epsilon: PositiveFloat | Literal["search", "grid"] = 0.1

    @property
    @override
    def traits(self) -> AttackTraits:
        return super().traits._replace(needs_rule=isinstance(self.epsilon, str))

    @override
    def collude(self, knowledge: Knowledge) -> Vector:
        mu = knowledge.honest.mean(0)
        if self.epsilon == "grid":
            return -grid_search(lambda epsilon: damage(knowledge, -epsilon * mu, carried=True)) * mu
        if isinstance(self.epsilon, str):
            return -line_search(lambda epsilon: damage(knowledge, -epsilon * mu)) * mu
        return -self.epsilon * mu


class MimicMemory(NamedTuple):
    """The common memory of the attackers of `Mimic`."""

    rounds: int  # of the warm-up that they have seen
    mean: Vector  # of the honest updates of these rounds
    direction: Vector  # z, of length 1
    target: int  # id of the client to copy


@dataclass(frozen=True)
class Mimic(Colluding, Remembering):
    """Sends the update of one honest client, which then has too much influence although no update looks unusual.

    Karimireddy, He and Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing", 2022.  The paper
    learns, over a number of rounds, the direction z in which honest updates vary most, and copies the client that lies
    farthest along it; after these rounds always the same one.  That is `warmup`: mean and z are averages over rounds,
    z by power iteration (Oja's rule).  Without it, "learned" takes z, exactly, and the client from the updates of the
    current round, so that the client can change.

    Args:
        target: "learned", or the id of the client to copy; if it does not take part, the next honest client by id,
            cyclically.
        warmup: number of rounds in which z and the client are learned, at least 1; null: in each round again.
    """

    target: NonNegativeInt | Literal["learned"] = "learned"
    warmup: PositiveInt | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup is not None and not isinstance(self.target, str):
            raise ValueError(
                f'warmup must be at least 1, and target "learned", got {self.warmup} and {self.target}. Set warmup to '
                "null for a client that is given."
            )

    @property
    @override
    def remembers(self) -> bool:
        return self.warmup is not None

    @override
    def collude(self, knowledge: Knowledge) -> Vector:
        if isinstance(self.target, str):
            return knowledge.honest[int((knowledge.honest @ main_direction(knowledge.honest)).abs().argmax())]
        return copied(knowledge, self.target)

    @override
    def respond(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Forged:
        seen = needed(self, knowledge)
        if self.warmup is None or not len(seen.honest):
            return Forged(self.forge(update, knowledge, rng), update.memory)
        memory = update.memory if isinstance(update.memory, MimicMemory) else None
        if memory is None or memory.rounds < self.warmup:
            memory = learned(memory, seen)
        return Forged(copied(seen, memory.target), memory)


def copied(knowledge: Knowledge, target: int) -> Vector:
    """Return the update of a client; if it does not take part, of the next honest client by id, cyclically."""
    later = [row for row, client in enumerate(knowledge.clients) if client >= target]
    return knowledge.honest[later[0] if later else 0]


def learned(memory: MimicMemory | None, knowledge: Knowledge) -> MimicMemory:
    """Return the memory of `Mimic` after one more round of its warm-up; at least one honest update is seen."""
    honest = knowledge.honest
    if memory is None:
        mean, t = honest.mean(0), 0
        z = normalised(main_direction(honest))
    else:
        t = memory.rounds
        mean = (t * memory.mean + honest.mean(0)) / (t + 1)
        centred = honest - mean
        z = normalised(t * memory.direction + normalised((centred @ memory.direction) @ centred))
    target = knowledge.clients[int((honest @ z).abs().argmax())]
    return MimicMemory(t + 1, mean, z, target)


def normalised(vector: Vector) -> Vector:
    """Return the vector with length 1, or zero if it is zero."""
    length = torch.linalg.vector_norm(vector)
    return vector / torch.where(length > 0, length, 1)


def main_direction(rows: Matrix) -> Vector:
    """Return the direction of the largest variance: the first principal component, up to sign and length."""
    # From the eigenvectors of the (h, h) Gram matrix, since the (d, d) covariance would not fit into memory.
    centred = rows - rows.mean(0)
    _, vectors = torch.linalg.eigh(gram(centred))
    main: Vector = vectors[:, -1].to(rows.dtype) @ centred
    return main
