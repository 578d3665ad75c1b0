"""An attack of one's own: attackers that know the honest updates and send their mean, turned round.

phalanx run --attack own_attack.Opposite --byzantine 6        (from the folder examples)
"""

from dataclasses import dataclass
from typing import ClassVar

from phalanx.attacks import Attack


@dataclass(frozen=True)
class Opposite(Attack):
    """Sends the mean of the honest updates of its round times a negative number.

    Args:
        strength: how many times as long.
    """

    omniscient: ClassVar[bool] = True

    strength: float = 2.0

    def forge(self, update, knowledge, rng):
        return -self.strength * knowledge.honest.mean(0) if len(knowledge.honest) else -update.delta
