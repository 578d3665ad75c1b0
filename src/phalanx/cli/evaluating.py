"""The options of `phalanx evaluate`, apart from the folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from phalanx.cli import advice
from phalanx.cli.form import Form
from phalanx.cli.parser import Options
from phalanx.data import Source


@dataclass(frozen=True)
class Evaluating:
    """Examples and models.

    Args:
        data: a table file (CSV, Parquet), whose rows are used that the run was not trained on; or a source, as in
            `phalanx run`, whose test part is used; null: the test part of the run's own data.
        data_dir: where data sets lie; null: the environment variable PHALANX_DATA, or a download if that is not set.
        best: take the models of the best evaluation, which `phalanx run --keep_best` keeps.
        module: import path of a class or function without arguments that makes the network, where the record does not
            know it, as of real clients.
        json: print the result as JSON, with null for what is not defined.
    """

    data: Source | None = None
    data_dir: Path | None = None
    best: bool = False
    module: str | None = None
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
        elif advice.table(value) or Path(value).is_file():
            self.file = value
        else:
            self.file = None
            super()._take(name, value)
