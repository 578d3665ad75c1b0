"""The results of a study as tables of text."""

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from phalanx.experiments.results import METRICS, Results
from phalanx.experiments.shown.text import Flat
from phalanx.report.words import percent
from phalanx.runs.files import write
from phalanx.wording import plural

LISTED = 15  # pairs of methods that a table of tests shows, those with the smallest p
PANELS = 12  # combinations of further axes with tables of their own, at most
COSTS = ("virtual_seconds", "wall_seconds", "megabytes", "honest_excluded")
SIGNIFICANT = 0.05


def panels(results: Results) -> list[dict[str, str]]:
    """Return the values of the third and further axes for which there are tables of the first two.

    One without values, where there are more than `PANELS` combinations, means: the mean over them.
    """
    further = list(results.axes)[2:]
    every = [dict(zip(further, names, strict=True)) for names in itertools.product(*(results.axes[a] for a in further))]
    there = [at for at in every if results.where(at)]
    return there if len(there) <= PANELS else [{}]


def own(results: Results) -> list[str]:
    """Return the figures that not every study has: further metrics of the tasks, and measures that are numbers."""
    return [name for name in results.metrics if name not in METRICS]


def axes_of(results: Results) -> tuple[str, str | None]:
    """Return the axes of the rows and of the columns: the first two; a study without axes has none to show.

    Raises:
        ValueError: it has no axes.
    """
    names = list(results.axes)
    if not names:
        raise ValueError("A study without axes has no table.")
    return names[0], names[1] if len(names) > 1 else None


def heading(results: Results, metric: str, at: Mapping[str, str]) -> str:
    """Return the title of a table: the figure, and where it is."""
    where = ", ".join(f"{axis}: {value}" for axis, value in at.items())
    further = [axis for axis in list(results.axes)[2:] if axis not in at]
    mean = f"mean over {', '.join(further)}" if further else ""
    target = f"target {percent(results.target)}" if metric.endswith("_target") else ""
    title = f"{results.metrics[metric].title}, by {' and '.join(list(results.axes)[:2])}"
    return "; ".join(filter(None, (title, target, where, mean)))


def estimates(results: Results, metric: str = "accuracy", at: Mapping[str, str] | None = None) -> Flat:
    """Return the table of a figure by the first two axes."""
    rows, columns = axes_of(results)
    found = results.table(rows, columns, metric, at)
    names = [results.metrics[metric].title] if columns is None else list(results.axes[columns])
    body, notes = found.texts(), [found.legend]
    if metric.endswith("_target"):
        body = [[text.replace("failed", "not reached") for text in row] for row in body]
        notes.append("The mean is over the seeds that reached the target.")
    right = [False, *[True] * len(names)]
    return Flat(heading(results, metric, at or {}), [rows, *names], body, notes, right)


def paired_tests(results: Results, metric: str = "accuracy") -> Flat | None:
    """Return the paired tests between the values of the first axis; None if no two have two seeds in common."""
    axis, _ = axes_of(results)
    found, scale = results.tests(axis, metric), results.metrics[metric].scale
    if not found:
        return None
    rows = [
        [
            f"{test.first} – {test.second}",
            test.difference.text(scale).removesuffix(f" (n {test.difference.n})"),
            str(test.difference.n),
            _p(test.p),
            _p(test.adjusted),
            "yes" if test.adjusted < SIGNIFICANT else "no",
        ]
        for test in found[:LISTED]
    ]
    notes = [
        f"Paired t test on common seeds: for each seed the mean difference over all other axes. Adjusted for "
        f"{plural(len(found), 'test')} by Holm (1979)."
    ]
    notes += (
        [f"The {LISTED} pairs with the smallest p of {len(found)}; tests.csv has all."] if len(found) > LISTED else []
    )
    columns = [axis, f"Difference: {results.metrics[metric].title}", "n", "p", "p, Holm", f"Below {SIGNIFICANT}"]
    return Flat("Paired tests", columns, rows, notes, [False, True, True, True, True, False])


def _p(value: float) -> str:
    return "<0.0001" if value < 1e-4 else f"{value:.4f}"


def costs(results: Results) -> Flat:
    """Return the table of seconds, bytes and exclusions by the first axis, as means over all others."""
    axis, _ = axes_of(results)
    by_metric = {metric: results.table(axis, None, metric) for metric in COSTS}
    known = [m for m in COSTS if any(e[m].mean is not None for e in by_metric[m].values())]
    means = {name: [by_metric[m][name][m].mean for m in known] for name in results.axes[axis]}
    rows = [[name, *("–" if mean is None else f"{mean:,.1f}" for mean in of)] for name, of in means.items()]
    notes = ["Means over all runs. Megabytes: 4 bytes a parameter of each update that reached the server."]
    columns = [axis, *(results.metrics[metric].title for metric in known)]
    return Flat("Costs", columns, rows, notes, [False, *[True] * len(known)])


def tables(results: Results) -> list[Flat]:
    """Return the tables of a page: accuracy, time to accuracy and the study's own figures; tests, and costs."""
    figures = ("accuracy", "steps_to_target", *own(results))
    shown = [estimates(results, figure, at) for figure in figures for at in panels(results)]
    tests = paired_tests(results)
    return [*shown, *([tests] if tests is not None else []), costs(results)]


# CSV


def runs_csv(results: Results) -> str:
    """Return a line for each run, as in `Results.frame`."""
    return _csv(results.records())


def tables_csv(results: Results) -> str:
    """Return a line for each cell and figure: mean, interval, number of seeds."""
    lines = []
    for names, rows in results.cells():
        for metric in results.metrics:
            e = results.estimate(rows, metric)
            numbers = {"mean": e.mean, "low": e.low, "high": e.high, "n": e.n, "failed": e.failed}
            lines += [dict(zip(results.axes, names, strict=True)) | {"metric": metric} | numbers] if e.n else []
    return _csv(lines)


def tests_csv(results: Results) -> str:
    """Return a line for each pair of values of each axis."""
    return _csv(
        [
            {"axis": axis, "first": t.first, "second": t.second, "difference": t.difference.mean,
             "low": t.difference.low, "high": t.difference.high, "n": t.difference.n, "p": t.p, "p_holm": t.adjusted}
            for axis in results.axes for t in results.tests(axis)
        ]
    )  # fmt: skip


def _csv(lines: Sequence[Mapping[str, object]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(key for line in lines for key in line)), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in line.items()} for line in lines)
    return out.getvalue()


def _cell(value: object) -> object:
    """Return a value as a spreadsheet shows it: text that it would take for a formula has a quote before it."""
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def write_csv(results: Results, folder: Path) -> list[Path]:
    """Write runs.csv, tables.csv and tests.csv; return their paths."""
    texts = {"runs.csv": runs_csv(results), "tables.csv": tables_csv(results), "tests.csv": tests_csv(results)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write(folder / name, text.encode())
    return [folder / name for name in texts]
