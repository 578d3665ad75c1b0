"""Fairness among clients: contributions and rewards.

`measures` reads the records of runs: the correlation of reward and contribution, the gain of each participant, the
rounds until free riders are excluded.  `contribution` measures the value of each update of a round.
"""

from phalanx.fairness.contribution import (
    Contributions,
    CosineGame,
    RoundGame,
    SampledShapley,
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
    fairness_by_cluster,
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
    "RoundGame",
    "SampledShapley",
    "Spread",
    "below_threshold",
    "collaborative_fairness",
    "compare",
    "cosines_to_aggregate",
    "detection",
    "fairness_by_cluster",
    "gains",
    "leave_one_out",
    "monte_carlo_shapley",
    "received_accuracy",
    "reputations",
    "shapley",
    "spread",
]
