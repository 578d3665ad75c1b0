"""Rows of a table that the models of a run were not trained on."""

from pathlib import Path

from phalanx.core import InfeasibleError
from phalanx.data import Dataset, Schema, Source
from phalanx.data.table_files import TableFile
from phalanx.runs.record import Record


def new_rows(record: Record, schema: Schema, source: TableFile, own: Source | None, data_dir: Path | None) -> Dataset:
    """Return the rows of a table that the models of a run were not trained on: of other files than its own, all rows.

    Args:
        record: of the run.
        schema: of the table that it was trained on.
        source: the table; its test part, if that is a file of its own.
        own: the run's own data; None if it is not known.
        data_dir: where files are looked for as well.

    Raises:
        InfeasibleError: it is not known which rows the models were not trained on.
        ValueError: it does not fit the schema.
    """
    path = source.test or source.path
    table = schema.read(path, data_dir, source)
    try:
        data = schema.dataset(table)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    inputs, about = record.kept().index.inputs, record.summary.data
    digests, trained_on = source.digests(path, data_dir), inputs.trained_on if inputs is not None else ()
    others = not {*digests} & {*trained_on}
    if source is not own and others:
        return data
    if isinstance(own, TableFile) and (own.test is None or source is own):
        tested = data.of(own.drawn(data.y, data.owners)) if own.test is None else data
        if about is None or tested.fingerprint() == about.fingerprint.get("test"):
            return tested
    if source is own:
        raise InfeasibleError(
            f"{path} is not as it was in training, so that it is not known which rows the models were trained on. Name "
            "a file of new rows by --data."
        )
    raise InfeasibleError(
        f"The models were trained on rows of {path}. Leave out --data to evaluate them on the run's own test part, or "
        "name a file of new rows."
    )
