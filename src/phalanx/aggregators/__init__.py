"""Aggregation rules: functions of many vectors that return one.  Use them alone: `Median()(deltas, weights)`."""

from phalanx.aggregators.aggregator import Aggregator, Chain, Choice, PreAggregator, Selection, Steps, TooFewRowsError
from phalanx.aggregators.bulyan import Bulyan
from phalanx.aggregators.caf import CAF
from phalanx.aggregators.centered_clipping import CenteredClipping
from phalanx.aggregators.ctma import CTMA
from phalanx.aggregators.dnc import DnC
from phalanx.aggregators.flame import DensestMajority, FLAMEFilter
from phalanx.aggregators.foolsgold import FoolsGoldWeights
from phalanx.aggregators.geometric_median import GeometricMedian
from phalanx.aggregators.krum import Krum, MultiKrum
from phalanx.aggregators.mda import MDA
from phalanx.aggregators.mean import Mean
from phalanx.aggregators.mean_around_median import MeaMed
from phalanx.aggregators.median import Median
from phalanx.aggregators.monna import MoNNA
from phalanx.aggregators.points import Mixture, Points
from phalanx.aggregators.preaggregators import AdaptiveClip, Bucketing, Clip, NearestNeighborMixing
from phalanx.aggregators.sign_majority import SignMajority
from phalanx.aggregators.smea import SMEA
from phalanx.aggregators.trimmed_mean import TrimmedMean

__all__ = [
    "CAF",
    "CTMA",
    "MDA",
    "SMEA",
    "AdaptiveClip",
    "Aggregator",
    "Bucketing",
    "Bulyan",
    "CenteredClipping",
    "Chain",
    "Choice",
    "Clip",
    "DensestMajority",
    "DnC",
    "FLAMEFilter",
    "FoolsGoldWeights",
    "GeometricMedian",
    "Krum",
    "MeaMed",
    "Mean",
    "Median",
    "Mixture",
    "MoNNA",
    "MultiKrum",
    "NearestNeighborMixing",
    "Points",
    "PreAggregator",
    "Selection",
    "SignMajority",
    "Steps",
    "TooFewRowsError",
    "TrimmedMean",
]
