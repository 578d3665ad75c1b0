"""Attacks on the update that need only the attacker's own update."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from msgspec import Meta
from typing_extensions import override

from phalanx.attacks.attack import Attack, Knowledge, Update
from phalanx.core import Vector
from phalanx.fields import FiniteFloat, PositiveFloat


@dataclass(frozen=True)
class Gaussian(Attack):
    """Sends noise: independent entries from N(0, std^2).

    The Byzantine scenario of Sattler et al., "On the Byzantine Robustness of Clustered Federated Learning", 2020, with
    std 1, whatever the scale of honest updates: the norm is about std * sqrt(d).

    Args:
        std: standard deviation of each entry.
        add: whether to add the noise to the honest update instead of replacing it.
    """

    std: PositiveFloat = 1.0
    add: bool = False

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        noise = self.std * normal(update.delta, rng)
        return update.delta + noise if self.add else noise


@dataclass(frozen=True)
class RandomPerturbation(Attack):
    """Sends its honest update g plus noise in proportion to its norm: g + N(0, (strength |g|)^2 I).

    The random disturbance of Yang and Li, "BASGD: Buffered Asynchronous SGD for Byzantine Learning", 2021.  Cox et al.,
    "Asynchronous Byzantine Federated Learning", 2024, use it with strength 0.1; by their text only the noise is
    sent, which is `replace`.  The noise is about strength * sqrt(d) times as long as the update.

    Args:
        strength: sigma, standard deviation of each entry of the noise, as a multiple of the norm of the update.
        replace: whether to send only the noise.
    """

    strength: PositiveFloat = 0.1
    replace: bool = False

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        g, sigma = update.delta, self.strength
        noise: Vector = sigma * torch.linalg.vector_norm(g) * normal(g, rng)
        return noise if self.replace else g + noise


@dataclass(frozen=True)
class Rescale(Attack):
    """Sends its honest update times a factor.

    Args:
        factor: the factor: large to dominate a mean, negative to undo progress. -10 is the gradient inversion of
            Cox et al., "Asynchronous Byzantine Federated Learning", 2024; -100 the re-scaling of Xu and Lyu, "Towards
            Building a Robust and Fair Federated Learning System", 2020; 0 the plain free rider of Fraboni et al.,
            "Free-rider Attacks on Model Aggregation in Federated Learning", 2021. n / (attackers * server_lr) among n
            clients of equal weight is the model replacement of Bagdasaryan et al., "How To Backdoor Federated
            Learning", 2020: the average becomes the attackers' model, once the honest updates are small.
    """

    factor: FiniteFloat = -10.0

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        return self.factor * update.delta


@dataclass(frozen=True)
class RandomRescale(Attack):
    """Sends its honest update with each entry times an independent factor, uniform in [-bound, bound].

    The arbitrary re-scaling of Bernstein et al., "signSGD with Majority Vote is Communication Efficient And Fault
    Tolerant", 2019, whose multiplicative adversaries see only their own update.

    Args:
        bound: largest absolute value of a factor.
    """

    bound: PositiveFloat = 100.0

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        return self.bound * (2 * uniform(update.delta, rng) - 1) * update.delta


@dataclass(frozen=True)
class SignFlip(Attack):
    """Sends its honest update with the opposite sign, so that its norm is honest but its direction is not."""

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        return -update.delta


@dataclass(frozen=True)
class RandomSigns(Attack):
    """Sends its honest update with a random sign for each entry, each with probability 1/2.

    Bernstein et al., "signSGD with Majority Vote is Communication Efficient And Fault Tolerant", 2019; the sign
    randomising of Xu and Lyu, "Towards Building a Robust and Fair Federated Learning System", 2020.
    """

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        return torch.where(uniform(update.delta, rng) < 0.5, -update.delta, update.delta)


@dataclass(frozen=True)
class RandomInversion(Attack):
    """Sends its honest update with a random share of the entries g replaced by 1 / (g + 1e-10).

    Bernstein et al., "signSGD with Majority Vote is Communication Efficient And Fault Tolerant", 2019; the value
    inversion of Xu and Lyu, "Towards Building a Robust and Fair Federated Learning System", 2020.  The papers say
    "randomly invert the values"; share and offset are those of the second paper's program.  Zeros become 1e10.

    Args:
        share: probability that an entry is inverted, in (0, 1].
    """

    share: Annotated[float, Meta(gt=0, le=1)] = 0.5

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        g = update.delta
        return torch.where(uniform(g, rng) < self.share, 1 / (g + 1e-10), g)


@dataclass(frozen=True)
class ModelNegation(Attack):
    """Sends minus the model that it received, times a factor, which pulls the mean towards the zero model.

    The model negation of Portnoy, Tirosh and Hendler, "Towards Federated Learning With Byzantine-Robust Client
    Weighting", 2020, who name Blanchard et al. 2017 for it.  By their text a client "returns a negation of the server's
    model"; what their program sends is the update -w, so that its own model is zero.

    Args:
        factor: 1 for the update -w; 2 for -2 w, which makes its own model -w.
    """

    factor: PositiveFloat = 1.0

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        return -self.factor * update.base


@dataclass(frozen=True)
class NonFinite(Attack):
    """Sends NaN or infinite values, like a client with a numerical failure.

    Args:
        value: value of every entry.
    """

    value: Literal["nan", "inf", "-inf"] = "nan"

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        return torch.full_like(update.delta, float(self.value))


def normal(like: Vector, rng: torch.Generator) -> Vector:
    """Return independent draws from N(0, 1), as many as `like` has entries; drawn on the CPU."""
    return torch.randn(like.shape, generator=rng, dtype=like.dtype).to(like.device)


def uniform(like: Vector, rng: torch.Generator) -> Vector:
    """Return independent draws from [0, 1), as many as `like` has entries; drawn on the CPU."""
    return torch.rand(like.shape, generator=rng, dtype=like.dtype).to(like.device)
