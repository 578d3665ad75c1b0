"""Rules that make one vector of many.  Each is usable alone: `Median()(deltas, weights)`."""

from phalanx.aggregators.mean import Mean
from phalanx.aggregators.median import Median
from phalanx.aggregators.trimmed_mean import TrimmedMean
from phalanx.core import Aggregator

__all__ = ["Aggregator", "Mean", "Median", "TrimmedMean"]
