"""Free riders: clients that want the model without training for it.

They do not mean to do damage, only to send an update that looks like work.  The simplest one sends no change at all:
`Rescale(0.0)`.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from typing_extensions import override

from phalanx.attacks.attack import Attack, Knowledge, Update
from phalanx.attacks.update import normal, uniform
from phalanx.core import Vector
from phalanx.fields import NonNegativeFloat, PositiveFloat


@dataclass(frozen=True)
class RandomFreeRider(Attack):
    """Sends independent entries, uniform in [-bound, bound].

    The free rider of Xu and Lyu, "Towards Building a Robust and Fair Federated Learning System", 2020, with bound 1;
    the random weights of Lin, Du and Liu, "Free-riders in Federated Learning: Attacks and Defenses", 2019, where the
    bound is small, to look like an honest update.  It sees nothing.

    Args:
        bound: largest absolute value of an entry. The norm is about bound * sqrt(d / 3).
    """

    bound: PositiveFloat = 1.0

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        return self.bound * (2 * uniform(update.delta, rng) - 1)


@dataclass(frozen=True)
class LazyFreeRider(Attack):
    """Sends the last change of the global model, its download minus the previous one, plus noise N(0, std^2).

    The delta weights of Lin, Du and Liu, "Free-riders in Federated Learning: Attacks and Defenses", 2019.  It sees its
    own downloads.  At the first one, it sends only noise.  If not all clients take part in each round, there can be
    several server updates between two downloads.

    The algorithms of the library all send models, RFFL among them: a download there holds all that was allocated.

    Args:
        std: standard deviation of the noise on each entry, at least 0: 0 for the paper's plain delta weights, larger
            for its advanced ones.
        downloads: what the server sends after the first download: "models", or, for an algorithm of your own,
            "changes" to them. Then the last change is the download itself.
    """

    std: NonNegativeFloat = 1e-3
    downloads: Literal["models", "changes"] = "models"

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        noise = self.std * normal(update.delta, rng)
        if update.previous is None:
            return noise
        return (update.base if self.downloads == "changes" else update.base - update.previous) + noise
