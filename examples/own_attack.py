"""A custom attack: attackers that know the honest updates send their negative mean.

phalanx run --attack own_attack.Opposite --byzantine 6        (from the folder examples)
"""

from dataclasses import dataclass

from phalanx.attacks import Colluding


@dataclass(frozen=True)
class Opposite(Colluding):
    """Sends the mean of the honest updates of its round times a negative factor.

    Args:
        strength: the factor without its sign.
    """

    strength: float = 2.0

    def collude(self, knowledge):
        return -self.strength * knowledge.honest.mean(0)
