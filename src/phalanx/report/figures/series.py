"""One measurement of a run, line by line."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.report.words import finite

if TYPE_CHECKING:
    from phalanx.runs.history import Record


class Series(NamedTuple):
    """A curve: x in steps or seconds, y with NaN where there is no finite number."""

    x: Sequence[float]
    y: Sequence[float]

    @property
    def finite(self) -> list[float]:
        """The finite values."""
        return [y for y in self.y if np.isfinite(y)]


def series(record: "Record", field: str, x: str = "step") -> Series:
    """The lines of the history in which `field` was measured."""
    lines = [line for line in record.history if field in line]
    return Series([float(line[x]) for line in lines], [number(line[field]) for line in lines])


def number(value: object) -> float:
    """The finite number that `value` is, or else NaN."""
    known = finite(value)
    return math.nan if known is None else known
