"""Attacks on the server's rule by name: the attackers know it, and send the most harmful update that it lets through.

Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated
Learning", 2021: the attacks that know the rule.  The attackers send mu + gamma p, where mu is the mean of the honest
updates and p a perturbation.  For the trimmed mean and the median the paper maximises the distance of the aggregate
from mu; for Krum, Multi-Krum and Bulyan it takes the largest gamma with which the attackers' updates are chosen, which
is how that distance becomes large under such a rule.  Here it is the distance for every rule, and gamma is searched on
a grid (`phalanx.attacks.search.grid_search`) instead of by halving, since the distance can have several peaks.
"""

from dataclasses import dataclass
from typing import Literal

from typing_extensions import override

from phalanx.attacks.attack import AttackTraits, Colluding, Knowledge
from phalanx.attacks.minmax import perturbed
from phalanx.attacks.search import damage, grid_search
from phalanx.core import Vector
from phalanx.numerics.linalg import norms


@dataclass(frozen=True)
class Tailored(Colluding):
    """Sends mu + gamma p, with the gamma that moves the server's aggregate farthest from the honest mean mu.

    Shejwalkar and Houmansadr 2021, the attacks tailored to a rule; here to any rule.  gamma is above 0, and counted in
    the distance from mu to the farthest honest update.

    Args:
        perturbation: direction p: "unit" is -mu / |mu|, "std" minus the standard deviation of each entry, "sign"
            -sign(mu); "best": of these three the one that does the most damage. The paper chooses by experiment.
    """

    perturbation: Literal["unit", "std", "sign", "best"] = "best"

    @property
    @override
    def traits(self) -> AttackTraits:
        return super().traits._replace(needs_rule=True)

    @override
    def collude(self, knowledge: Knowledge) -> Vector:
        mu = knowledge.honest.mean(0)
        radius = float(norms(knowledge.honest - mu).max()) or 1.0
        kinds: tuple[Literal["unit", "std", "sign"], ...]
        kinds = ("unit", "std", "sign") if self.perturbation == "best" else (self.perturbation,)
        found = list[tuple[float, Vector]]()
        for kind in kinds:
            p = perturbed(knowledge.honest, mu, kind)
            p = p * (radius / (float(norms(p[None])[0]) or 1.0))

            def objective(gamma: float, p: Vector = p) -> float:
                return damage(knowledge, mu + gamma * p, carried=True)

            gamma = grid_search(objective, both_signs=False)
            found.append((objective(gamma), mu + gamma * p))
        return max(found, key=lambda pair: pair[0])[1]
