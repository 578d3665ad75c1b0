"""A custom partition: every client has a favourite class.

phalanx partition --partition own_partition.Favourites --partition.share 0.9        (from the folder examples)
"""

from dataclasses import dataclass

import numpy as np

from phalanx.data import Partition


@dataclass(frozen=True)
class Favourites(Partition):
    """Deals a share of each class to the clients whose favourite it is, and the rest to all.

    Args:
        share: probability that an example is dealt to one of those, from 0 to 1.
    """

    share: float = 0.7

    def assign(self, labels, clients, rng):
        anyone = rng.integers(clients, size=len(labels))
        favourite = np.arange(clients) % (labels.max() + 1)  # of each client
        fans = [np.flatnonzero(favourite == label) for label in range(labels.max() + 1)]
        own = np.array([rng.choice(fans[label]) if len(fans[label]) else -1 for label in labels])
        return np.where((own >= 0) & (rng.random(len(labels)) < self.share), own, anyone)
