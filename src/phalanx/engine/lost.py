"""Rounds that are lost: their updates are too few for the rule, or it has no result for them."""

from dataclasses import dataclass
from typing import Literal

from phalanx.fields import CheckedFields, PositiveInt

After = Literal["skip", "wait"]


@dataclass(frozen=True)
class LostRounds(CheckedFields):
    """The consequence of a lost round.

    A round is lost if its updates are too few for the algorithm, or its rule has no result for them.  The model stays
    as it is, verdicts say why, and clients get new downloads.  A run in which too many rounds in a row are lost ends
    with `StalledError`.

    Args:
        then: "skip": the round counts as a step. "wait": it does not, and is repeated.
        most: number of lost rounds in a row at which the run ends, at least 1.
    """

    then: After = "skip"
    most: PositiveInt = 10
