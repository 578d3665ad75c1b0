"""The weighted mean: not robust, the baseline for all rules."""

from dataclasses import dataclass

from phalanx.aggregators.aggregator import Choice, Selection
from phalanx.aggregators.points import Points


@dataclass(frozen=True)
class Mean(Selection):
    """The weighted mean of the rows.

    One row can move the result anywhere.  McMahan et al., "Communication-Efficient Learning of Deep Networks from
    Decentralized Data", 2017.

    Example:
        >>> Mean()(torch.tensor([[0.0, 1.0], [4.0, 5.0]]), torch.tensor([3.0, 1.0]))
        tensor([1., 2.])
    """

    def breakdown_point(self) -> float:
        """See `Aggregator`."""
        return 0.0

    def choose(self, points: Points) -> Choice:
        """See `Selection`."""
        return Choice(points.share)
