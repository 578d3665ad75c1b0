"""The time of the check before the first step: `python benchmarks/preflight.py`."""

import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from phalanx import Run
from phalanx.data import CSV, Digits, Natural, table_files, tables
from phalanx.models import MLP, ResNet18
from phalanx.runs import federation

HEART = str(Path(__file__).parents[1] / "docs" / "tutorials" / "heart" / "*.csv")
CLASSES = {"healthy": [0], "ill": [1, 2, 3, 4]}
CHECKS = [(federation, "preflight"), (tables, "_findings"), (table_files, "_again")]
TRIES = 3


def wide(folder: str, rows: int = 20_000, columns: int = 30) -> str:
    """A table of many rows."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(rows, columns))).add_prefix("x")
    frame.assign(y=rng.integers(0, 2, rows)).to_csv(Path(folder) / "wide.csv", index=False)
    return str(Path(folder) / "wide.csv")


def seconds(run: Run) -> tuple[float, float]:
    """Return the seconds of the checks of a run, and those with its data and its model; the least of some."""
    spent = [0.0]

    def timed(check):
        def call(*arguments, **named):
            begin = time.perf_counter()
            found = check(*arguments, **named)
            found = found if isinstance(found, tuple) else tuple(found)
            spent[0] += time.perf_counter() - begin
            return found

        return call

    kept = [getattr(module, name) for module, name in CHECKS]
    for (module, name), check in zip(CHECKS, kept, strict=True):
        setattr(module, name, timed(check))
    found = []
    for _ in range(TRIES):
        spent[0], begin = 0.0, time.perf_counter()
        federation.Federation(run)
        found.append((spent[0], time.perf_counter() - begin))
    for (module, name), check in zip(CHECKS, kept, strict=True):
        setattr(module, name, check)
    return min(found)


def main() -> None:
    """Print a row for each run."""
    with tempfile.TemporaryDirectory() as folder:
        heart = CSV(HEART, "target", class_names=CLASSES, missing=("?",), impute="indicator")
        runs = {
            "four hospitals, 920 rows": Run(data=heart, partition=Natural(), clients=4, model=MLP((16,))),
            "20,000 rows of 31 columns": Run(data=CSV(wide(folder), "y"), clients=10, model=MLP((16,))),
            "digits, MLP": Run(data=Digits(), clients=10),
            "digits, ResNet-18 of 11 million parameters": Run(
                data=Digits(), clients=10, model=ResNet18(), buffers="average"
            ),
        }
        print("| run | check | with data and model |\n| --- | --- | --- |")
        for name, run in runs.items():
            check, whole = seconds(run)
            print(f"| {name} | {check:.2f} s | {whole:.2f} s |")


if __name__ == "__main__":
    main()
