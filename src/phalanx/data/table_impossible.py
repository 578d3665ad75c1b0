"""Statistics of a site that cannot be: what no table that fits the schema has, up to the rounding of figures.

All but `spread_apart` are proofs.  That one compares sites, and an honest one in another unit does not pass it either.
"""

import math
from collections.abc import Iterator, Mapping

from phalanx.data.table_columns import Field
from phalanx.data.table_draft import LEAST_KNOWN

ROUNDED = 5  # to which numbers of rows are rounded; fewer are 0
APART = 100.0  # times the largest deviation of all other sites, or one part in so many of the smallest
LEAST_SITES = 3  # that know a column, below which nobody can say which of them is apart


def rounded(rows: int) -> int:
    """Return a number of rows to the nearest multiple of 5; 0 for fewer than 5."""
    return ROUNDED * round(rows / ROUNDED) if rows >= ROUNDED else 0


def _bounds(count: int) -> tuple[int, int]:
    """Return the least and the largest number of rows that is rounded to this one."""
    return (max(count - ROUNDED // 2, ROUNDED), count + ROUNDED // 2) if count else (0, ROUNDED - 1)


def _no_count(count: float) -> bool:
    return not (math.isfinite(count) and count >= 0 and count % ROUNDED == 0)


def wrong_counts(rows: int, classes: Mapping[str, int]) -> str:
    """Return why the numbers of rows of a site cannot be; empty if they can.

    Args:
        rows: their number, rounded.
        classes: the number of each class, rounded; empty for targets.
    """
    if wrong := [count for count in (rows, *classes.values()) if _no_count(count)]:
        return f"it has {wrong[0]:g} rows, which is no multiple of {ROUNDED}"
    if rows < LEAST_KNOWN:
        return f"it has {rows} rows, fewer than {LEAST_KNOWN}"
    if above := [name for name, count in classes.items() if count > rows]:
        return f"it has {classes[above[0]]:,} rows of class {above[0]!r}, of {rows:,}"
    bounds = [_bounds(count) for count in classes.values()]
    least, most = _bounds(rows)
    if classes and not (sum(low for low, _ in bounds) <= most and sum(high for _, high in bounds) >= least):
        return f"its classes have {sum(classes.values()):,} rows, and it has {rows:,}"
    return ""


def wrong_column(each: Field, rows: int, mean: float | None, deviation: float | None, missing: int) -> str:
    """Return why the statistics of a column cannot be; empty if they can.

    Args:
        each: the column.
        rows: of the table, a number that can be.
        mean: of its values; None if it is not known.
        deviation: likewise.
        missing: number of missing values, rounded.
    """
    return next(_wrong(each, rows, mean, deviation, missing), "")


def _wrong(each: Field, rows: int, mean: float | None, deviation: float | None, missing: int) -> Iterator[str]:
    """Yield why the statistics of a column cannot be; arguments as for `wrong_column`."""
    if _no_count(missing) or missing > rows:
        yield f"{missing:g} values are missing in {rows:,} rows"
    if missing and each.use.impute is None:
        yield f"{missing:,} values are missing, and the schema has none missing"
    if (mean is None) != (deviation is None):
        yield "it has one of mean and deviation"
    if mean is None or deviation is None:
        return
    if not (math.isfinite(mean) and math.isfinite(deviation) and deviation > 0):
        yield f"it has mean {mean:g} and deviation {deviation:g}"
    elif _bounds(rows)[1] - _bounds(missing)[0] < LEAST_KNOWN:
        yield f"it has a mean of fewer than {LEAST_KNOWN} values"
    elif why := _beyond(each, mean, deviation):
        yield why


def _beyond(each: Field, mean: float, deviation: float) -> str:
    """Return why no values within the bounds of a column have these; empty if some do."""
    low, high = each.constraints.minimum, each.constraints.maximum
    if each.type == "boolean":
        low, high = 0.0, 1.0
    slack = 10.0 ** (math.floor(math.log10(deviation)) - 1) / 2  # of the rounding
    lowest, highest = mean - slack, mean + slack
    if (low is not None and highest < low) or (high is not None and lowest > high):
        bounds = f"{'-' if low is None else f'{low:g}'} to {'-' if high is None else f'{high:g}'}"
        return f"its mean {mean:g} is outside of the bounds {bounds}"
    if low is None or high is None:
        return ""
    inner = min(max((low + high) / 2, lowest, low), highest, high)  # the mean that allows the largest deviation
    most = math.sqrt(max((inner - low) * (high - inner), 0.0))  # Bhatia and Davis 2000; (high - low) / 2 at most
    if deviation - slack <= most * (1 + 1e-9):
        return ""
    return f"its deviation {deviation:g} is above {most:.3g}, the largest within the bounds {low:g} to {high:g}"


def spread_apart(deviations: Mapping[str, float]) -> Mapping[str, str]:
    """Return the sites whose spread is far outside of that of all others, and why.

    Far is above `APART` times the largest deviation of the others, or below one part in `APART` of the smallest, where
    `LEAST_SITES` know the column.

    Args:
        deviations: by site.
    """
    found = dict[str, str]()
    for name, own in deviations.items() if len(deviations) >= LEAST_SITES else ():
        others = [other for site, other in deviations.items() if site != name]
        if own > APART * max(others) or own * APART < min(others):
            between = f"{min(others):g} to {max(others):g}"
            found[name] = f"its deviation is {own:g}, and that of all other sites {between}"
    return found
