"""One figure of a run, evaluation by evaluation."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.report.words import finite

if TYPE_CHECKING:
    from phalanx.runs.record import Record


class Series(NamedTuple):
    """A curve: x in steps or seconds, y with NaN where there is no finite number."""

    x: Sequence[float]
    y: Sequence[float]

    @property
    def finite(self) -> list[float]:
        """The finite values."""
        return [y for y in self.y if np.isfinite(y)]


def series(record: "Record", field: str, x: str = "step") -> Series:
    """Return a field of `Metrics`, or a further metric, over the steps, or the "seconds", of the evaluations."""
    measured = [(float(getattr(step, x)), step.metrics) for step in record.history if step.metrics is not None]
    return Series(
        [at for at, _ in measured],
        [number(metrics.extra.get(field, getattr(metrics, field, None))) for _, metrics in measured],
    )


def number(value: object) -> float:
    """Return the finite number that `value` is, or else NaN."""
    known = finite(value)
    return math.nan if known is None else known
