"""Dates and times of tables as numbers: days since 1970-01-01, and parts of days."""

import re
from collections.abc import Collection
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from phalanx.installation import optional

DATE: Final = "%Y-%m-%d"
DATETIME: Final = "%Y-%m-%dT%H:%M:%S"
PATTERNS = tuple(
    f"{date}{time}"
    for date in (DATE, "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y")
    for time in ("", " %H:%M", " %H:%M:%S", "T%H:%M:%S")
)
TWO_DIGITS = ("%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%y-%m-%d")  # of a year: of which century, nobody knows
LIKE_DATE = re.compile(r"\s*\d{1,4}[-./]\d{1,2}[-./]\d{1,4}\D?.*")


def holds_dates(column: Any) -> bool:
    """Return whether a column of pandas is one of dates or times."""
    from pandas.api.types import infer_dtype  # noqa: PLC0415  (optional)

    return bool(column.dtype.kind == "M" or infer_dtype(column, skipna=True) in ("date", "datetime"))


def days_of(column: Any, pattern: str) -> npt.NDArray[np.float64]:
    """Return the days since 1970-01-01 of the cells of a column, (n,); NaN where there is no date.

    Args:
        column: dates, of which those with a time zone are taken in UTC; or texts.
        pattern: how texts are written, in the notation of `datetime.strptime`.
    """
    pandas = optional("pandas", "A date", "tables")
    column = pandas.Series(column)
    if holds_dates(column):
        moments = pandas.to_datetime(column, utc=True)
    else:
        moments = pandas.to_datetime(column.astype(str).str.strip(), format=pattern, errors="coerce", utc=True)
    since = moments - pandas.Timestamp(0, tz="UTC")
    return np.asarray((since / pandas.Timedelta(days=1)).to_numpy(dtype=np.float64, na_value=np.nan))


def pattern_of(texts: Collection[str], column: str) -> str:
    """Return how dates are written, in the notation of `datetime.strptime`; empty if most texts are no dates.

    Args:
        texts: the different ones.
        column: that holds them.

    Raises:
        ValueError: not all of them are written in one way, or day and month can be either.
    """
    if 2 * sum(LIKE_DATE.fullmatch(text) is not None for text in texts) < max(len(texts), 1):
        return ""
    read = {pattern: ~np.isnan(days_of([*texts], pattern)) for pattern in (*PATTERNS, *TWO_DIGITS)}
    whole = [pattern for pattern, found in read.items() if found.all() and pattern not in TWO_DIGITS]
    if len(whole) == 1:
        return whole[0]
    remedy = "Write them as 2024-12-31, list words for a missing value in missing, or drop the column"
    if whole:
        raise ValueError(f"Column {column!r} holds dates in which day and month can be either. {remedy}.")
    if 2 * np.any([*read.values()], axis=0).sum() < len(texts):
        return ""
    raise ValueError(
        f"Column {column!r} holds dates, and not all are written in one way, with a year of four digits. {remedy}."
    )


def numbered(values: npt.NDArray[Any]) -> bool:
    """Return whether numbers seem to be dates as 20241231, whose differences are no days."""
    known = values[np.isfinite(values)]
    like = len(known) > 0 and (known % 1 == 0).all() and known.min() >= 19_000_101 and known.max() <= 21_001_231
    return bool(like and not np.isnan(days_of(known.astype(np.int64), "%Y%m%d")).any())
