"""A benchmark that is a study: its options on the command line, its records, and its tables in Markdown."""

import argparse
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

from phalanx import Study
from phalanx.experiments.results import Results, Row

Tables = Callable[[Results], str]


def carry_out(text: str, studies: Mapping[str, Study | Callable[[], Study]], tables: Tables, folder: str) -> None:
    """Carry out what has no record yet, and print the tables.

    Args:
        text: the docstring of the program.
        studies: by name; or what makes one, if that takes long.
        tables: makes the tables of the results of one.
        folder: its records, below `build`.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=tuple(studies), default=tuple(studies))
    parser.add_argument("--seeds", type=int, nargs="*", default=None, help="in place of those of the study")
    parser.add_argument("--folder", type=Path, default=Path("build") / folder)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--data_dir", default=os.environ.get("PHALANX_DATA"), help="else data sets are downloaded")
    parser.add_argument("--table", action="store_true", help="only print what is there")
    given = parser.parse_args()
    for name in given.only:
        made = studies[name]
        study = made if isinstance(made, Study) else made()
        study = study if given.seeds is None else replace(study, seeds=given.seeds)
        where = given.folder / name
        carry = partial(study.run, data_dir=given.data_dir, jobs=given.jobs)
        print(tables((study.results if given.table else carry)(where)), flush=True)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def crossed(results: Results, rows: str, columns: str, cell: Callable[[list[Row]], str]) -> str:
    """Return a table of the values of two axes; a dash where there is no run."""

    def shown(row: str, column: str) -> str:
        found = results.where({rows: row, columns: column})
        return cell(found) if found else "-"

    across = results.axes[columns]
    return markdown(["", *across], ([row, *(shown(row, column) for column in across)] for row in results.axes[rows]))


def leads(results: Results, axis: str, first: str, metric: str = "accuracy") -> dict[str, tuple[str, str]]:
    """Return by how many points one value of an axis is ahead of each other one, and p by Holm for all pairs."""
    found = dict[str, tuple[str, str]]()
    for test in results.tests(axis, metric):
        if first in (test.first, test.second):
            d = test.difference
            lead = d if test.first == first else replace(d, mean=-d.mean, low=-d.high, high=-d.low)
            other = test.second if test.first == first else test.first
            found[other] = lead.text(100.0), f"{test.adjusted:.2g}"
    return found


def percent(row: Row, metric: str) -> str:
    """Return a figure of a run in percent; a dash if it was not measured."""
    value = row.value(metric)
    return "-" if value is None else f"{100 * value:.1f}"


def mean(rows: Sequence[Row], metric: str) -> str:
    """Return the mean of a figure over runs, in percent; a dash if one of them has none."""
    values = [value for row in rows if (value := row.value(metric)) is not None]
    return f"{100 * fmean(values):.1f}" if len(values) == len(rows) else "-"


def mean_and_least(rows: Sequence[Row], metric: str) -> str:
    """Return the mean of a figure over runs, in percent, and in brackets the least; a dash if one of them has none."""
    return f"{mean(rows, metric)} ({percent(min(rows, key=lambda row: row.value(metric) or 0.0), metric)})"


def count(rows: Sequence[Row], metric: str) -> str:
    """Return in how many of the runs something holds; a dash if it is not known of all."""
    values = [row.value(metric) for row in rows]
    return "-" if None in values else f"{sum(map(bool, values))} of {len(values)}"
