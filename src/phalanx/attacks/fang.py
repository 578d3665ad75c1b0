"""Attacks that are cut to one rule: they move the aggregate against the direction in which it would go.

Fang, Cao, Jia and Gong, "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning", 2020, with full
knowledge.  The direction s holds, for each entry, the sign of its change without attack: that of the mean of what all
clients would send, the attackers among them, as in the authors' program.  c is the number of attackers in the round, m
that of all clients in it.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from phalanx.attacks.attack import Attack, Colluding, Knowledge, Update, needed
from phalanx.attacks.update import uniform
from phalanx.core import Matrix, Vector
from phalanx.numerics.linalg import norms, squared_distances


@dataclass(frozen=True)
class FangKrum(Colluding):
    """Sends -lambda s, with the largest lambda of a halving series for which Krum would choose it.

    Fang et al. 2020, the attack on Krum.  The series begins at the paper's upper bound and ends at `smallest`, which is
    sent if Krum falls for none.  All attackers send the same, the limit of the paper's supporters within a small
    distance.  Krum is the textbook's with f = c, whatever rule the server has, and counts at least one neighbour.

    Args:
        smallest: the lambda at which the attackers give up, above 0.
    """

    smallest: float = 1e-5

    def __post_init__(self) -> None:
        if not 0 < self.smallest < math.inf:
            raise ValueError(f"smallest must be positive and finite, got {self.smallest}.")

    def collude(self, knowledge: Knowledge) -> Vector:
        """See `Colluding`."""
        honest, c, s = knowledge.honest, len(knowledge.colluders), direction(knowledge)
        lambda_ = upper_bound(honest, c)
        while lambda_ > self.smallest:
            if krum_choice(torch.cat(((-lambda_ * s).expand(c, -1), honest)), c) < c:
                break
            lambda_ /= 2
        return -max(lambda_, self.smallest) * s


@dataclass(frozen=True)
class FangTrimmedMean(Attack):
    """Sends entries just beyond the honest ones, on the side away from s: beyond the largest, or below the smallest.

    Fang et al. 2020, the attack on the trimmed mean and the median.  Where the entry would decrease, the attackers send
    values between the largest honest one, w, and b w (w / b if w is negative); where it would increase, values between
    the smallest, w, and w / b (b w if it is negative); where it would stay, the honest mean.

    Args:
        b: above 1; 2 in the paper.
        draw: "end": the far end of the interval, the same from all, as in the authors' program; "uniform": each
            attacker draws from the interval, as in the paper.
        of: "model": the values are those of models, download plus update, as in the paper; "update": of updates.
    """

    omniscient: ClassVar[bool] = True

    b: float = 2.0
    draw: Literal["end", "uniform"] = "end"
    of: Literal["model", "update"] = "model"

    def __post_init__(self) -> None:
        if not 1 < self.b < math.inf:
            raise ValueError(f"b must be above 1 and finite, got {self.b}.")

    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        """See `Attack`."""
        seen = needed(self, knowledge)
        if not len(seen.honest):
            return update.delta
        s = direction(seen)
        origin = update.base if self.of == "model" else torch.zeros_like(update.base)
        w = origin + torch.where(s < 0, seen.honest.amax(0), seen.honest.amin(0))
        end = torch.where((w > 0) == (s < 0), self.b * w, w / self.b)
        share = uniform(w, rng) if self.draw == "uniform" else 1.0
        return torch.where(s == 0, seen.honest.mean(0), w + share * (end - w) - origin)


def direction(knowledge: Knowledge) -> Vector:
    """s: the sign of the mean of what all clients of the round would send."""
    return torch.cat((knowledge.honest, torch.stack([u.delta for u in knowledge.colluders]))).mean(0).sign()


def upper_bound(honest: Matrix, c: int) -> float:
    """The lambda beyond which Krum cannot choose the attackers' update.

    (min over honest i of the sum of the distances to its m - c - 2 nearest honest) / ((m - 2c - 1) sqrt(d)), plus the
    largest norm of an honest update / sqrt(d).  Neither factor is taken below 1.
    """
    m, d = len(honest) + c, honest.shape[1]
    distances = squared_distances(honest).sqrt().sort(1).values[:, 1:]
    nearest = distances[:, : max(1, m - c - 2)].sum(1).min()
    farthest = norms(honest).max()
    return (float(nearest) / max(1, m - 2 * c - 1) + float(farthest)) / math.sqrt(d)


def krum_choice(rows: Matrix, f: int) -> int:
    """The row that Krum chooses: smallest sum of squared distances to its m - f - 2 nearest, the first of equals."""
    nearest = squared_distances(rows).sort(1).values[:, 1 : 1 + max(1, len(rows) - f - 2)]
    return int(nearest.sum(1).argmin())
