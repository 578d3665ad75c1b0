"""Attacks that send updates as far from the honest mean as the distances of honest updates allow.

Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated
Learning", 2021: the two attacks that do not know the server's rule.  The attackers send mu + gamma p, where p is a
perturbation that points away from the honest mean mu, and gamma is the largest factor within a bound on distances,
found by halving (Algorithm 1).  In the paper the first step is half of the first gamma, so that a small gamma could not
be reached; the authors' program, and this one, begin with a larger step: gamma lies between 0 and twice `start`.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from phalanx.attacks.attack import Colluding, Knowledge
from phalanx.core import Matrix, Vector
from phalanx.fields import PositiveFloat
from phalanx.numerics.linalg import gram


@dataclass(frozen=True)
class Bounded(Colluding):
    """The common part of `MinMax` and `MinSum`.

    Args:
        perturbation: direction p: "unit" is -mu / |mu|, "std" minus the standard deviation of each entry, "sign"
            -sign(mu).
        start: the gamma to try first, above 0.
        precision: allowed distance from the largest gamma at which the search ends, above 0.
    """

    perturbation: Literal["unit", "std", "sign"] = "unit"
    start: PositiveFloat = 10.0
    precision: PositiveFloat = 1e-5

    @abstractmethod
    def measure(self, squares: Float[Tensor, "*rows h"]) -> Tensor:
        """Return the bounded quantity, from the squared distances of one or several updates to the h honest ones."""

    @override
    def collude(self, knowledge: Knowledge) -> Vector:
        mu = knowledge.honest.mean(0)
        p, centred = perturbed(knowledge.honest, mu, self.perturbation), knowledge.honest - mu
        products = gram(centred)
        squares = products.diagonal()
        bound = self.measure(squares[:, None] + squares - 2 * products).max()
        # |mu + gamma p - x_i|^2 is a quadratic in gamma, so the search below needs no pass over the updates.
        along, length = (centred @ p).double(), float(torch.linalg.vector_norm(p))

        def holds(gamma: float) -> bool:
            return bool(self.measure(squares - 2 * gamma * along + (gamma * length) ** 2) <= bound)

        return mu + halving(holds, self.start, self.precision) * p


@dataclass(frozen=True)
class MinMax(Bounded):
    """Sends an update no farther from any honest update than two honest updates are from each other.

    Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for
    Federated Learning", 2021.  It sees the honest updates, not the server's rule.

    Args:
        perturbation: direction p: "unit" is -mu / |mu|, "std" minus the standard deviation of each entry, "sign"
            -sign(mu).
        start: the gamma to try first, above 0.
        precision: allowed distance from the largest gamma at which the search ends, above 0.
    """

    @override
    def measure(self, squares: Float[Tensor, "*rows h"]) -> Tensor:
        """See `Bounded`: the largest squared distance."""
        return squares.amax(-1)


@dataclass(frozen=True)
class MinSum(Bounded):
    """Sends an update whose sum of squared distances to the honest updates is at most that of an honest update.

    Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for
    Federated Learning", 2021.  It sees the honest updates, not the server's rule.  The bound is the largest sum of an
    honest update, as in the paper; the authors' program takes the smallest.

    Args:
        perturbation: direction p: "unit" is -mu / |mu|, "std" minus the standard deviation of each entry, "sign"
            -sign(mu).
        start: the gamma to try first, above 0.
        precision: allowed distance from the largest gamma at which the search ends, above 0.
    """

    @override
    def measure(self, squares: Float[Tensor, "*rows h"]) -> Tensor:
        """See `Bounded`: the sum of the squared distances."""
        return squares.sum(-1)


def perturbed(honest: Matrix, mu: Vector, kind: Literal["unit", "std", "sign"]) -> Vector:
    """Return the perturbation p; zero if it has no direction, that is for a zero mean or equal updates."""
    if kind == "std":
        return -honest.std(0, correction=1 if len(honest) > 1 else 0)
    if kind == "sign":
        return -mu.sign()
    length = torch.linalg.vector_norm(mu)
    return -mu / torch.where(length > 0, length, 1)


def halving(holds: Callable[[float], bool], start: float, precision: float) -> float:
    """Return, to `precision`, the largest gamma below 2 * start for which `holds`, if it holds exactly up to it."""
    # Steps halve from start on, so gamma stays within (0, 2 * start).
    gamma = step = start
    best = 0.0
    while abs(gamma - best) > precision:
        step /= 2
        if holds(gamma):
            best = gamma
            gamma += step
        else:
            gamma -= step
    return best
