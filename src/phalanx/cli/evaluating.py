"""The options of `phalanx evaluate`, apart from the folder."""

from dataclasses import dataclass
from pathlib import Path

from phalanx.data import Source


@dataclass(frozen=True)
class Evaluating:
    """Examples and models.

    Args:
        data: the data whose test part is used; null: the test part of the run's own data.
        data_dir: where data sets lie; null: the environment variable PHALANX_DATA, or a download if that is not set.
        best: take the models of the best evaluation, which `phalanx run --keep_best` keeps.
        module: import path of a class or function without arguments that makes the network, where the record does not
            know it, as of real clients.
    """

    data: Source | None = None
    data_dir: Path | None = None
    best: bool = False
    module: str | None = None
