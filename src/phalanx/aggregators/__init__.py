"""Rules that make one vector of many.  Each is usable alone: `Median()(deltas, weights)`."""

from phalanx.aggregators.aggregator import Aggregator, Chain, Choice, PreAggregator, Selection, Steps
from phalanx.aggregators.mean import Mean
from phalanx.aggregators.median import Median
from phalanx.aggregators.points import Mixture, Points
from phalanx.aggregators.trimmed_mean import TrimmedMean

__all__ = [
    "Aggregator",
    "Chain",
    "Choice",
    "Mean",
    "Median",
    "Mixture",
    "Points",
    "PreAggregator",
    "Selection",
    "Steps",
    "TrimmedMean",
]
