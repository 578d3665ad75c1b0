"""FoolsGold: a smaller weight for clients whose updates point in the same direction as another client's.

Fung, Yoon and Beschastnikh, "The Limitations of Federated Learning in Sybil Settings", 2020, Algorithm 1:

    cs_ij <- cosine of rows i and j, i != j;  v_i <- max_j cs_ij
    where v_j > v_i:  cs_ij <- cs_ij v_i / v_j                        (pardoning)
    alpha_i <- 1 - max_j cs_ij;  alpha_i <- alpha_i / max_i alpha_i
    alpha_i <- ln( alpha_i / (1 - alpha_i) ) + 0.5,  clipped to [0, 1]

Where the paper is silent or the authors' code says more:

* The largest cosine is at least 0: a row opposed to all others counts in full, and pardoning changes no sign.
* A rescaled alpha of 1, where the logit is infinite, is replaced by 0.99, which still counts in full.
* If every row has the direction of another one, all alpha are 0 and the scale is 0 / 0.  Then the rule raises an error,
  because all clients look like Sybils.
* The paper sums the weighted rows; here they are averaged, so that the result has the size of an update.
"""

from dataclasses import dataclass

import torch
from typing_extensions import override

from phalanx.aggregators.aggregator import Choice, Selection
from phalanx.aggregators.points import Points
from phalanx.core import InfeasibleError, Weights
from phalanx.numerics.linalg import Square

BLURRED = 1e-6  # 1 - cosine below which two rows have the same direction, up to rounding in single precision
FULL = 0.99  # replaces a rescaled alpha of 1, whose logit is infinite


@dataclass(frozen=True)
class FoolsGoldWeights(Selection):
    """The mean of the rows, each weighted by how little it resembles any other, times its weight.

    Made against Sybils: several clients of one attacker that push in one direction.  A single attacker is not found,
    and honest clients with the same data are taken for Sybils.  The number of Sybils need not be known and is not
    bounded. There is no guarantee against attackers who differ from each other.

    The paper compares the sums of all updates that each client has sent.  A rule sees one round: this one compares the
    rows of the call.  For the algorithm, pass it the sums and apply the shares to the round's updates.

    A weight multiplies the share of a row.  It does not act like copies: copies are Sybils here.  Not equivariant to
    translation, as directions are compared.  A zero row has no direction and resembles other zero rows only.

    Cost: one product of the rows with themselves, O(m^2 d), which other rules on the same points share.

    Examples:
        >>> FoolsGoldWeights()(torch.tensor([[2.0, 0.0], [0.0, 4.0], [9.0, 9.0], [9.0, 9.0]]))
        tensor([1., 2.])
    """

    @override
    def choose(self, points: Points) -> Choice:
        if len(points) == 1:
            return Choice(points.share, [1.0], [""])
        cs = points.cosines.clone().fill_diagonal_(0)
        parts = learning_rates(cs)
        if not bool(parts.any()):
            raise InfeasibleError(
                f"{self}: each of the {len(cs)} rows points in the direction of another one, so all look like Sybils. "
                "Leave copies out, or use a rule that does not look for Sybils."
            )
        shares = parts * points.weights
        reasons = [
            "" if part == 1 else f"cosine {cosine:.3f} with another update"
            for part, cosine in zip(parts.tolist(), cs.amax(1).tolist(), strict=True)
        ]
        return Choice(shares / shares.sum(), parts.tolist(), reasons)


def learning_rates(cs: Square, confidence: float = 1.0) -> Weights:
    """Return alpha of Algorithm 1, in [0, 1]; all zero if every row has the direction of another one.

    Args:
        cs: cosines, with zeros on the diagonal.
        confidence: kappa, the factor on the logit with its 0.5.
    """
    v = cs.amax(1)
    # Where v_i < v_j, v_j is positive, so the division is safe.
    pardon = torch.where(v[:, None] < v, v[:, None] / v, 1.0)
    alpha = 1 - (cs * pardon).amax(1)
    if float(alpha.max()) <= BLURRED:
        return torch.zeros_like(alpha)
    alpha = alpha.clamp(0, 1) / alpha.max()
    alpha = torch.where(alpha >= 1, FULL, alpha)
    return (confidence * (alpha.logit() + 0.5)).clamp(0, 1)
