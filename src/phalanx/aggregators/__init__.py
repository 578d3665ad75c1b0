"""Rules that make one vector of many.  Each is usable alone: `Median()(deltas, weights)`."""

from phalanx.aggregators.aggregator import Aggregator, Chain, Choice, PreAggregator, Selection, Steps
from phalanx.aggregators.bulyan import Bulyan
from phalanx.aggregators.centered_clipping import CenteredClipping
from phalanx.aggregators.geometric_median import GeometricMedian
from phalanx.aggregators.krum import Krum, MultiKrum
from phalanx.aggregators.mean import Mean
from phalanx.aggregators.mean_around_median import MeaMed
from phalanx.aggregators.median import Median
from phalanx.aggregators.points import Mixture, Points
from phalanx.aggregators.preaggregators import AdaptiveClip, Bucketing, Clip, NearestNeighborMixing
from phalanx.aggregators.trimmed_mean import TrimmedMean

__all__ = [
    "AdaptiveClip",
    "Aggregator",
    "Bucketing",
    "Bulyan",
    "CenteredClipping",
    "Chain",
    "Choice",
    "Clip",
    "GeometricMedian",
    "Krum",
    "MeaMed",
    "Mean",
    "Median",
    "Mixture",
    "MultiKrum",
    "NearestNeighborMixing",
    "Points",
    "PreAggregator",
    "Selection",
    "Steps",
    "TrimmedMean",
]
