"""Attacks computed from the mean and the spread of the honest updates, or from a single one of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import torch

from phalanx.attacks.attack import Colluding, Knowledge
from phalanx.core import Matrix, Vector
from phalanx.numerics.linalg import gram


@dataclass(frozen=True)
class ALIE(Colluding):
    """Sends the honest mean plus z standard deviations of each entry: far from the mean, but too near to be filtered.

    Baruch, Baruch and Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning", 2019.  In the
    paper the attackers estimate mean and deviation from their own updates; here, by default, they know all
    honest updates.  The argument is the same for either sign of z; the authors' program subtracts from gradients, which
    means to add to updates.

    With n clients in the round, f of them attackers, s = floor(n/2 + 1) - f honest supporters make a majority, and z is
    the quantile of the normal distribution beyond which they lie.  For one or two attackers z is zero or negative: by
    this formula they can do nothing.  A majority of attackers needs no supporters; s is at least 1.

    Args:
        z: "paper": phi(z) = (n - f - s) / (n - f), the published version; "preprint": phi(z) = (n - s) / n, from the
            first preprint and always larger; "search": the z that moves the server's aggregate farthest from the honest
            mean (`line_search`); or a number. The authors' program uses 1.5.
        estimate: "honest": mean and deviation of the honest updates; "own": of the updates that the attackers would
            send if they were honest, as in the paper, without knowledge of others.
    """

    z: float | Literal["paper", "preprint", "search"] = "paper"
    estimate: Literal["honest", "own"] = "honest"

    def __post_init__(self) -> None:
        if not isinstance(self.z, str) and not math.isfinite(self.z):
            raise ValueError(f"z must be finite, got {self.z}.")

    @property
    def needs_rule(self) -> bool:
        """See `Attack`."""
        return self.z == "search"

    def collude(self, knowledge: Knowledge) -> Vector:
        """See `Colluding`."""
        honest = self.estimate == "honest"
        rows = knowledge.honest if honest else torch.stack([update.delta for update in knowledge.colluders])
        mu, sigma = rows.mean(0), rows.std(0, correction=0)
        if self.z == "search":
            z = line_search(lambda z: damage(knowledge, mu + z * sigma))
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
        epsilon: factor above 0, or "search": the one that moves the server's aggregate farthest from the honest mean
            (`line_search`).
    """

    epsilon: float | Literal["search"] = 0.1

    def __post_init__(self) -> None:
        if not isinstance(self.epsilon, str) and not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be positive and finite, got {self.epsilon}.")

    @property
    def needs_rule(self) -> bool:
        """See `Attack`."""
        return self.epsilon == "search"

    def collude(self, knowledge: Knowledge) -> Vector:
        """See `Colluding`."""
        mu = knowledge.honest.mean(0)
        if isinstance(self.epsilon, str):
            return -line_search(lambda epsilon: damage(knowledge, -epsilon * mu)) * mu
        return -self.epsilon * mu


@dataclass(frozen=True)
class Mimic(Colluding):
    """Sends the update of one honest client, which then has too much influence although no update looks unusual.

    Karimireddy, He and Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing", 2022.  The paper
    first learns, over a number of rounds, the direction z in which honest updates vary most, and then always
    copies the client i that lies farthest along it, by |z . x_i|.  An attack here has no state: "learned" takes z and i
    from the updates of the current round, so i can change.

    Args:
        target: "learned", or the id of the client to copy; if it does not take part, the next honest client by id,
            cyclically.
    """

    target: int | Literal["learned"] = "learned"

    def __post_init__(self) -> None:
        if not isinstance(self.target, str) and self.target < 0:
            raise ValueError(f"target must be the id of a client, 0 or above, got {self.target}.")

    def collude(self, knowledge: Knowledge) -> Vector:
        """See `Colluding`."""
        if isinstance(self.target, str):
            return knowledge.honest[int((knowledge.honest @ main_direction(knowledge.honest)).abs().argmax())]
        later = [row for row, client in enumerate(knowledge.clients) if client >= self.target]
        return knowledge.honest[later[0] if later else 0]


def main_direction(rows: Matrix) -> Vector:
    """Return the direction of the largest variance: the first principal component, up to sign and length."""
    # From the eigenvectors of the (h, h) Gram matrix, since the (d, d) covariance would not fit into memory.
    centred = rows - rows.mean(0)
    _, vectors = torch.linalg.eigh(gram(centred))
    main: Vector = vectors[:, -1].to(rows.dtype) @ centred
    return main


def damage(knowledge: Knowledge, forged: Vector) -> float:
    """Return the distance of the server's aggregate from the honest mean if every attacker sends `forged`."""
    return float(torch.linalg.vector_norm(knowledge.outcome(forged) - knowledge.honest.mean(0)))


def line_search(worth: Callable[[float], float], evaluations: int = 16) -> float:
    """Return a factor in [0, 2^15) that makes `worth` large: doubled while that helps, then refined by halving steps.

    The result is the best factor tried, the first one at a tie; it is close to the optimum if `worth` has a single
    peak. Allouah et al., "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity", 2023, strengthen
    their attacks in this way.

    Args:
        worth: returns the value of a factor.
        evaluations: number of calls of `worth`, at least 2.
    """
    best, top, step = 0.0, worth(0.0), 1.0
    left, growing = evaluations - 1, True
    while left > 0:
        # Once doubling has failed, both sides of the best factor are tried with half the step.
        rivals = (best + step,) if growing or step > best else (best + step, best - step)
        tried = [(worth(x), x) for x in rivals[:left]]
        left -= len(tried)
        value, x = max(tried)
        better = value > top
        if better:
            top, best = value, x
        growing = growing and better
        step = 2 * step if growing else step / 2
    return best
