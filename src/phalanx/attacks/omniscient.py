"""Attacks made from the mean and the spread of the honest updates, and from a single one of them."""

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
    """Sends the honest mean plus z standard deviations of each entry: far for the mean, yet near for a filter.

    Baruch, Baruch and Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning", 2019.  In the
    paper the attackers estimate mean and deviation from their own updates; here they know all honest ones, unless told
    otherwise.  The argument is the same for either sign of z; the authors' program subtracts from gradients, which is
    to add to updates.

    With n clients in the round, f of them attackers, s = floor(n/2 + 1) - f honest supporters make a majority, and z is
    the quantile of the normal distribution that leaves them beyond it.  For one or two attackers it is zero or below:
    by this formula they can do nothing.  Attackers in the majority need no supporter; s is never taken below 1.

    Args:
        z: "paper": phi(z) = (n - f - s) / (n - f), the published version; "preprint": phi(z) = (n - s) / n, in
            circulation from the first preprint, always larger; "search": what moves the server's rule farthest from the
            honest mean (`line_search`); or a number. The authors' program uses 1.5.
        estimate: "honest": mean and deviation of the honest updates; "own": of what the attackers would send if they
            were honest, as in the paper, with no knowledge of anybody else.
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
    """The largest z at which a majority can be expected to lie with the attackers.

    Args:
        honest: n - f, at least 1.
        attackers: f, at least 1.
        preprint: by the formula of the first preprint.
    """
    n = honest + attackers
    s = max(1, math.floor(n / 2 + 1) - attackers)
    share = (n - s) / n if preprint else (honest - s) / honest
    return NormalDist().inv_cdf(share) if share > 0 else 0.0  # one honest client: there is no deviation to multiply


@dataclass(frozen=True)
class InnerProduct(Colluding):
    """Sends minus the honest mean, times epsilon: the aggregate is to point against the honest mean.

    Xie, Koyejo and Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation", 2019.  The
    plain average turns round if epsilon is above honest / attackers; a small epsilon deceives rules that choose by
    distance, such as Krum.

    Args:
        epsilon: above 0; or "search": what moves the server's rule farthest from the honest mean (`line_search`).
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
    """Sends the update of one honest client, which so counts for more than its share: no update looks strange.

    Karimireddy, He and Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing", 2022.  The paper
    first learns, over a number of rounds, the direction z in which honest updates vary most, and then copies for ever
    the client i that lies farthest along it, by |z . x_i|.  An attack here remembers nothing: "learned" takes z and i
    from the updates of the round alone, so that i can change.

    Args:
        target: "learned", or the client that is copied; where it does not take part, the next honest one by id, and the
            first one after the last.
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
    """The direction of largest variance: the first principal component, up to its sign and length."""
    centred = rows - rows.mean(0)
    _, vectors = torch.linalg.eigh(gram(centred))
    main: Vector = vectors[:, -1].to(rows.dtype) @ centred
    return main


def damage(knowledge: Knowledge, forged: Vector) -> float:
    """How far the server's rule ends up from the honest mean if every attacker sends `forged`."""
    return float(torch.linalg.vector_norm(knowledge.outcome(forged) - knowledge.honest.mean(0)))


def line_search(worth: Callable[[float], float], evaluations: int = 16) -> float:
    """A factor in [0, 2^15) that makes `worth` large, by trial: doubled while that helps, then narrowed down.

    The best of what was tried, of equals the first; close to the very best if `worth` rises to one peak and falls.
    Allouah et al., "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity", 2023, make their attacks
    stronger in this manner.

    Args:
        worth: of a factor.
        evaluations: how often `worth` is asked, at least 2.
    """
    best, top, step = 0.0, worth(0.0), 1.0
    left, growing = evaluations - 1, True
    while left > 0:
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
