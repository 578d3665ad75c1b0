"""Attacks tailored to one rule, which move the aggregate against the direction in which it would go.

Fang, Cao, Jia and Gong, "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning", 2020, with full
knowledge.  The direction s is, for each entry, the sign of its change without attack: the sign of the mean of the
updates that all clients would send, attackers included, as in the authors' program.  c is the number of attackers in
the round, m the number of all clients in it.

With partial knowledge (`knows="own"`) the attackers know their own honest updates alone, and s is the sign of the mean
of these.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from msgspec import Meta
from typing_extensions import override

from phalanx.attacks.attack import Attack, AttackTraits, Colluding, Knowledge, Update, needed
from phalanx.attacks.update import uniform
from phalanx.core import Matrix, Vector
from phalanx.fields import PositiveFloat
from phalanx.numerics.linalg import norms, squared_distances


@dataclass(frozen=True)
class FangKrum(Colluding):
    """Sends -lambda s, with the largest lambda of a halving series for which Krum would choose it.

    Fang et al. 2020, the attack on Krum.  The series begins at the paper's upper bound and ends at `smallest`, which is
    sent if Krum chooses none.  All attackers send the same update; in the paper, supporters send updates within a small
    distance of it.  Krum is the textbook rule with f = c, whatever rule the server has, and at least one neighbour.

    With partial knowledge, Krum is tried on crafted updates and the attackers' c honest ones: one crafted update at
    first, one more as long as Krum chooses none.

    Args:
        smallest: smallest lambda to try, above 0.
        knows: "all": the updates of all clients; "own": what the attackers would send if they were honest.
    """

    smallest: PositiveFloat = 1e-5
    knows: Literal["all", "own"] = "all"

    @override
    def collude(self, knowledge: Knowledge) -> Vector:
        c = len(knowledge.colluders)
        if self.knows == "all":
            s = direction(knowledge)
            return -max(self._largest(knowledge.honest, s, c, c), self.smallest) * s
        own = own_updates(knowledge)
        s = own.mean(0).sign()
        found = (self._largest(own, s, crafted, c) for crafted in range(1, c + 1))
        return -next((lambda_ for lambda_ in found if lambda_ > self.smallest), self.smallest) * s

    def _largest(self, honest: Matrix, s: Vector, crafted: int, f: int) -> float:
        """Return the largest lambda of the series for which Krum chooses a crafted update; `smallest` or less if none.

        Args:
            honest: the updates that are known.
            s: the direction.
            crafted: number of crafted updates.
            f: number of attackers that Krum tolerates.
        """
        lambda_ = upper_bound(honest, crafted)
        while lambda_ > self.smallest:
            if krum_choice(torch.cat(((-lambda_ * s).expand(crafted, -1), honest)), f) < crafted:
                break
            lambda_ /= 2
        return lambda_


@dataclass(frozen=True)
class FangTrimmedMean(Attack):
    """Sends entries just beyond the honest ones, on the side away from s: beyond the largest, or below the smallest.

    Fang et al. 2020, the attack on the trimmed mean and the median.  If an entry would decrease, the attackers send
    values between the largest honest value w and b w (w / b if w is negative); if it would increase, values between the
    smallest honest value w and w / b (b w if w is negative); if it would not change, the honest mean.  With partial
    knowledge they send values from 3 to 4 standard deviations beyond their own mean; "end" is 4.

    Args:
        b: factor that sets the width of the interval, above 1; 2 in the paper.
        draw: "end": all attackers send the far end of the interval, as in the authors' program; "uniform": each
            attacker draws from the interval, as in the paper.
        of: "model": the values are of models, download plus update, as in the paper; "update": of updates.
        knows: "all": the updates of all clients; "own": what the attackers would send if they were honest. Then `b` and
            `of` play no part.
    """

    traits: ClassVar[AttackTraits] = AttackTraits(omniscient=True)

    b: Annotated[float, Meta(gt=1)] = 2.0
    draw: Literal["end", "uniform"] = "end"
    of: Literal["model", "update"] = "model"
    knows: Literal["all", "own"] = "all"

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        seen = needed(self, knowledge)
        if not len(seen.honest):
            return update.delta
        if self.knows == "own":
            return self._beyond(own_updates(seen), rng)
        s = direction(seen)
        origin = update.base if self.of == "model" else torch.zeros_like(update.base)
        w = origin + torch.where(s < 0, seen.honest.amax(0), seen.honest.amin(0))
        # b w is beyond w if it has the sign of the push, otherwise w / b is.
        end = torch.where((w > 0) == (s < 0), self.b * w, w / self.b)
        share = uniform(w, rng) if self.draw == "uniform" else 1.0
        return torch.where(s == 0, seen.honest.mean(0), w + share * (end - w) - origin)

    def _beyond(self, own: Matrix, rng: torch.Generator) -> Vector:
        """Return values beyond the mean of the attackers' own updates, on the side away from s."""
        mean, deviation = own.mean(0), own.std(0, correction=0)
        share = uniform(mean, rng) if self.draw == "uniform" else 1.0
        return mean - mean.sign() * (3 + share) * deviation


def own_updates(knowledge: Knowledge) -> Matrix:
    """Return the updates that the attackers of the round would send if they were honest, (c, d)."""
    return torch.stack([update.delta for update in knowledge.colluders])


def direction(knowledge: Knowledge) -> Vector:
    """Return s: the sign of the mean of the updates that all clients of the round would send."""
    return torch.cat((knowledge.honest, own_updates(knowledge))).mean(0).sign()


def upper_bound(honest: Matrix, c: int) -> float:
    """Return the lambda beyond which Krum cannot choose the attackers' update.

    (min over honest i of the sum of the distances to its m - c - 2 nearest honest) / ((m - 2c - 1) sqrt(d)), plus the
    largest norm of an honest update / sqrt(d).  Neither factor is less than 1.
    """
    m, d = len(honest) + c, honest.shape[1]
    distances = squared_distances(honest).sqrt().sort(1).values[:, 1:]
    nearest = distances[:, : max(1, m - c - 2)].sum(1).min()
    farthest = norms(honest).max()
    return (float(nearest) / max(1, m - 2 * c - 1) + float(farthest)) / math.sqrt(d)


def krum_choice(rows: Matrix, f: int) -> int:
    """Return the row that Krum chooses, the first one at a tie."""
    nearest = squared_distances(rows).sort(1).values[:, 1 : 1 + max(1, len(rows) - f - 2)]
    return int(nearest.sum(1).argmin())
