"""Who contributed what, and who got what for it.

`measures` read the records of runs: is the reward in line with the contribution, what does anybody gain by taking part,
how long do free riders stay.  `contribution` measures what an update is worth, on the updates of a round.
"""

from phalanx.fairness.contribution import (
    Contributions,
    CosineGame,
    Estimate,
    RoundGame,
    cosines_to_aggregate,
    leave_one_out,
    monte_carlo_shapley,
    shapley,
)
from phalanx.fairness.measures import (
    Comparison,
    Correlation,
    Detection,
    Spread,
    below_threshold,
    collaborative_fairness,
    compare,
    detection,
    gains,
    received_accuracy,
    reputations,
    spread,
)

__all__ = [
    "Comparison",
    "Contributions",
    "Correlation",
    "CosineGame",
    "Detection",
    "Estimate",
    "RoundGame",
    "Spread",
    "below_threshold",
    "collaborative_fairness",
    "compare",
    "cosines_to_aggregate",
    "detection",
    "gains",
    "leave_one_out",
    "monte_carlo_shapley",
    "received_accuracy",
    "reputations",
    "shapley",
    "spread",
]
