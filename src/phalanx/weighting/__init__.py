"""Weights from the sizes that clients report, and bounds on the influence of false sizes.

Portnoy, Tirosh and Hendler, "Towards Federated Learning With Byzantine-Robust Client Weighting", 2020.
"""

from phalanx.weighting.certificate import Certificate, certify
from phalanx.weighting.diagnostics import Concentration, ObjectiveShift, concentration, objective_shift, weight_shift
from phalanx.weighting.picture import plot_truncation_curve
from phalanx.weighting.preprocess import AsReported, Ignore, Preprocess, Truncate
from phalanx.weighting.sampling import RoundCertificate, certify_rounds, drawn_attackers, more_drawn
from phalanx.weighting.truncation import TradeOff, attacker_share, mwp, subset_bound, truncation_bound, truncation_curve

__all__ = [
    "AsReported",
    "Certificate",
    "Concentration",
    "Ignore",
    "ObjectiveShift",
    "Preprocess",
    "RoundCertificate",
    "TradeOff",
    "Truncate",
    "attacker_share",
    "certify",
    "certify_rounds",
    "concentration",
    "drawn_attackers",
    "more_drawn",
    "mwp",
    "objective_shift",
    "plot_truncation_curve",
    "subset_bound",
    "truncation_bound",
    "truncation_curve",
    "weight_shift",
]
