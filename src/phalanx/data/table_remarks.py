"""What may be meant of a table that fits a schema: remarks on its columns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from phalanx.data.findings import Finding, as_texts, fills, leaks, zeros
from phalanx.data.table_columns import Field, ReadColumn
from phalanx.data.tables import Name

LEAST_KNOWN = 20  # values from which a unit is judged
APART = 3.0  # deviations between the mean of a schema and the median of a file, from which the unit is in question


def classes_in(target: Field, read: Mapping[str, ReadColumn]) -> Mapping[Name, int]:
    """Return the number of rows of each class; empty if the target does not fit."""
    column = read.get(target.name)
    if column is None or column.found:
        return {}
    return {label: int((column.cells == label).sum()) for label in target.categories}


def remarks_on(inputs: Sequence[Field], target: Field, read: Mapping[str, ReadColumn]) -> Iterator[Finding]:
    """Yield what may be meant, of the columns that fit.

    Args:
        inputs: the columns of the inputs.
        target: the column of the labels or targets.
        read: the columns that were read.
    """
    if not any(len(one.cells) for one in read.values()):
        return
    classes = classes_in(target, read)
    for label, count in classes.items():
        if not count:
            yield Finding("empty", str(label), f"No row is of class {label!r}.", error=False)
    there = {each.name: read[each.name] for each in inputs if each.name in read}
    cells = {name: one.cells for name, one in there.items() if not one.found}
    numbers = {name: values for name, values in cells.items() if values.dtype.kind == "f"}
    for each in inputs:
        if each.use.scaling is None or each.name not in numbers:
            continue
        known = numbers[each.name][~np.isnan(numbers[each.name])]
        distance = abs(np.median(known) - each.use.scaling.mean) if len(known) >= LEAST_KNOWN else 0.0
        if distance > APART * each.use.scaling.deviation:
            what = f"In most rows column {each.name!r} is more than {APART:g} deviations from the mean of the schema"
            yield Finding("unit", each.name, f"{what}. Is it in another unit?", error=False)
    for name, values in cells.items():
        if (values == None if values.dtype.kind == "O" else np.isnan(values)).all():  # noqa: E711  (of each entry)
            yield Finding("missing", name, f"Column {name!r} is missing in every row.", error=False)
    for name, values in numbers.items():
        if (values == 0).all():
            only = f"Column {name!r} is 0 in every row. If 0 stands for a missing value, say so in the schema."
            yield Finding("zero", name, only, error=False)
    yield from zeros(numbers)
    yield from fills(numbers)
    if classes:
        labels = np.unique(as_texts(read[target.name].cells), return_inverse=True)[1]
        columns = {name: as_texts(values) if values.dtype.kind == "O" else values for name, values in cells.items()}
        for one in leaks(columns, labels):
            yield replace(one, error=False)
