"""The options of `phalanx evaluate`, apart from the folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from phalanx.cli.form import Form
from phalanx.cli.parser import Options
from phalanx.data import Source
from phalanx.reading import table_reader


@dataclass(frozen=True)
class Evaluating:
    """Examples and models.

    Args:
        data: a table file (CSV, Parquet); rows whose inputs and label are those of a row of the training are left out,
            as far as the run's own data is there; or a source, as in `phalanx run`, whose test part is used; null: the
            test part of the run's own data.
        data_dir: where data sets lie; null: the environment variable PHALANX_DATA, or a download if that is not set.
        best: take the models of the best evaluation, which `phalanx run --keep_best` keeps.
        module: import path of a class or function without arguments that makes the network, where the record does not
            know it, as of real clients.
        equal_rows: use rows of a table file as well that are equal to rows of the training, as other examples with the
            same values are.
        json: print the result as JSON, with null for what is not defined.
    """

    data: Source | None = None
    data_dir: Path | None = None
    best: bool = False
    module: str | None = None
    equal_rows: bool = False
    json: bool = False


class EvaluationForm(Form):
    """The parser of `phalanx evaluate`, whose option --data can also be a file."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.file: str | None = None
        super().__init__(*arguments, **options)

    @override
    def options(self, arguments: Sequence[str]) -> Options:
        options = super().options(arguments)
        options.file = self.file
        return options

    @override
    def _take(self, name: str, value: str) -> None:
        if name != "data":
            super()._take(name, value)
        elif table_reader(value) or Path(value).is_file():
            self.file = value
        else:
            self.file = None
            super()._take(name, value)
