"""Weights from the sizes that clients report, and bounds on the influence of false sizes.

Portnoy, Tirosh and Hendler, "Towards Federated Learning With Byzantine-Robust Client Weighting", 2020.
"""

from phalanx.weighting.certificate import Certificate, certify
from phalanx.weighting.diagnostics import Concentration, ObjectiveShift, concentration, objective_shift, weight_shift
from phalanx.weighting.picture import plot_truncation_curve
from phalanx.weighting.preprocess import AsReported, Ignore, Preprocess, Truncate
from phalanx.weighting.truncation import TradeOff, mwp, truncation_bound, truncation_curve

__all__ = [
    "AsReported",
    "Certificate",
    "Concentration",
    "Ignore",
    "ObjectiveShift",
    "Preprocess",
    "TradeOff",
    "Truncate",
    "certify",
    "concentration",
    "mwp",
    "objective_shift",
    "plot_truncation_curve",
    "truncation_bound",
    "truncation_curve",
    "weight_shift",
]
