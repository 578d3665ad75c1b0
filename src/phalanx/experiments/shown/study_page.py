"""The pages of a study: HTML, one file without others, and Markdown."""

import base64
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import yaml

from phalanx.experiments.results import Results, Row
from phalanx.experiments.shown import study_tables
from phalanx.experiments.shown.plotting import save, styled
from phalanx.experiments.shown.study_figures import Drawn, curve_figures, heat_map
from phalanx.experiments.shown.text import Flat, markdown_table
from phalanx.report.page import filled, put
from phalanx.report.words import duration, percent
from phalanx.version import VERSION
from phalanx.wording import plural

SHADES = 10  # of cells, from the lowest to the highest value of a table
UNFOLDED = 30  # runs that the page lists unfolded, at most
FURTHER = ("worst_client_accuracy", "attack_success", "groups_found")  # figures with tables of their own, folded
LISTED = {  # of a run, in the page's list
    "accuracy": "{:.1f} %", "best_accuracy": "{:.1f} %", "steps_to_target": "{:,.0f}", "wall_seconds": "{:,.1f}",
    "megabytes": "{:,.1f}", "honest_excluded": "{:.0f}",
}  # fmt: skip


class Shaded(NamedTuple):
    """A table with a shade from 0 to SHADES for each cell."""

    table: Flat
    shades: list[list[int]]


def shaded(results: Results, metric: str, at: dict[str, str]) -> Shaded:
    """Return the table of a figure with a shade for each estimate: the darker, the higher."""
    rows, columns = study_tables.axes_of(results)
    means = [[e.mean for e in inner.values()] for inner in results.table(rows, columns, metric, at).values()]
    known = [mean for row in means for mean in row if mean is not None]
    low, span = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    shades = [[0 if m is None or not span else round(SHADES * (m - low) / span) for m in row] for row in means]
    return Shaded(study_tables.estimates(results, metric, at), shades)


def facts(results: Results) -> list[str]:
    """Return what the head of a page says: how many runs, seeds, failures, how long."""
    traces = [row.trace for row in results.rows]
    failed = sum(trace.failed for trace in traces)
    parts = [plural(len(traces), "run"), plural(len({trace.seed for trace in traces}), "seed")]
    parts += [plural(failed, "failed run")] if failed else []
    parts += [plural(results.missing, "missing run")] if results.missing else []
    parts += [f"{trace.data['name']}" for trace in traces[:1] if "name" in trace.data]
    return [*parts, f"{duration(sum(trace.wall_seconds for trace in traces))} of one process"]


def best(results: Results) -> list[str]:
    """Return a sentence for each value of the first axis, the most accurate first: its mean and its worst cell.

    If the values do not have the same runs, means are over those that all have, since others may be easier.
    """
    rows, columns = study_tables.axes_of(results)
    for seeds in (True, False):
        having = {row.labels[rows]: set[tuple[object, ...]]() for row in results.rows}
        for row in results.rows:
            having[row.labels[rows]].add(_others(row, rows, seeds))
        common, every = set.intersection(*having.values()), set.union(*having.values())
        if common:
            break
    results = replace(results, rows=[row for row in results.rows if not common or _others(row, rows, seeds) in common])
    overall = results.table(rows)
    by_column = results.table(rows, columns) if columns is not None else {}
    order = sorted(overall, key=lambda name: -(overall[name]["accuracy"].mean or 0.0))
    out = []
    for name in order:
        text = f"{name}: {overall[name]['accuracy'].text(100.0).replace(' (', ' % (')}"
        known = {c: e.mean for c, e in by_column.get(name, {}).items() if e.mean is not None}
        if len(known) > 1:
            worst = min(known, key=lambda c: known[c])
            text += f"; lowest {percent(known[worst])}, for {worst}"
        out.append(text)
    if not common:
        out.append(f"These are not comparable: no combination of the other axes has a run of each {rows}.")
    elif len(common) < len(every):
        of = "the other axes and seeds" if seeds else "the other axes"
        out.append(f"Means over the {len(common)} of {len(every)} combinations of {of} that all have.")
    return out


def _others(row: Row, axis: str, seeds: bool) -> tuple[object, ...]:
    """Return the values of a run on all axes but one, and its seed if asked for."""
    return (*(value for name, value in row.labels.items() if name != axis), row.trace.seed if seeds else None)


def runs(results: Results) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of the list of runs."""
    target = results.target
    heads = [*results.axes, "Seed", *(results.metrics[metric].title.removesuffix(", %") for metric in LISTED), "Status"]
    body = []
    for row in results.rows:
        values = [(row.value(metric, target), metric) for metric in LISTED]
        texts = ["–" if v is None else LISTED[m].format(v * results.metrics[m].scale) for v, m in values]
        status = f"failed: {row.trace.error}" if row.trace.failed else row.trace.status
        body.append([*row.labels.values(), str(row.trace.seed), *texts, status])
    return heads, body


def html(results: Results, drawn: Sequence[Drawn], command: str) -> str:
    """Return the page of a study; the figures are embedded.  The same results give the same text.

    Args:
        results: of a study with at least one axis and one run.
        drawn: the figures.
        command: made the page.
    """
    heads, body = runs(results)
    panels, widths = study_tables.panels(results), [one.figure.get_size_inches()[0] for one in drawn]
    further = [
        m for m in (*FURTHER, *study_tables.own(results)) if any(results.estimate([row], m).n for row in results.rows)
    ]
    return filled(
        files("phalanx.experiments.shown").joinpath("study.html").read_text(encoding="utf-8"),
        title=results.name,
        facts=facts(results),
        best=best(results),
        notes=results.notes,
        main=[shaded(results, "accuracy", at) for at in panels],
        further=[shaded(results, metric, at) for metric in further for at in panels],
        reached=[shaded(results, "steps_to_target", at) for at in panels],
        tests=study_tables.paired_tests(results),
        costs=study_tables.costs(results),
        figures=[
            (one.caption, _embedded(one), round(100 * w / max(widths))) for one, w in zip(drawn, widths, strict=True)
        ],
        heads=heads,
        runs=body,
        unfolded=len(body) <= UNFOLDED,
        command=command,
        version=VERSION,
    )


def _embedded(one: Drawn) -> str:
    """Return a figure as the address of an image that holds it."""
    out = BytesIO()
    one.figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(out.getvalue()).decode()}"


def markdown(results: Results, drawn: Sequence[Drawn], command: str) -> str:
    """Return the page as Markdown; the figures are files next to it.  Arguments as for `html`."""
    blocks = [f"# {results.name}", f"{', '.join(facts(results))}. Made by `{command}`."]
    blocks += ["\n".join(f"* {line}" for line in (*best(results), *results.notes))]
    blocks += map(markdown_table, study_tables.tables(results))
    blocks += [f"![{one.caption}]({one.name}.svg)\n\n{one.caption}" for one in drawn]
    return "\n\n".join(blocks) + "\n"


def write(results: Results, folder: Path, command: str) -> list[Path]:
    """Write page, Markdown, CSV files and figures of a study; return the paths, the page first.

    Args:
        results: of a study with at least one axis and one run.
        folder: takes the files, in place of older ones.
        command: made them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, plan in results.alone.items():
        put(yaml.safe_dump(plan.config, sort_keys=False), folder / "worst" / name)
    with styled():
        drawn = list(curve_figures(results))
        page = put(html(results, drawn, command), folder / "study.html")
        put(markdown(results, [*_heat_maps(results), *drawn], command), folder / "study.md")
        pictures = [path for one in (*_heat_maps(results), *drawn) for path in save(one.figure, folder / one.name)]
    return [page, folder / "study.md", *study_tables.write_csv(results, folder), *pictures]


def _heat_maps(results: Results) -> list[Drawn]:
    if len(results.axes) < 2:
        return []
    panels = study_tables.panels(results)
    names = ["heat-map" if len(panels) == 1 else f"heat-map-{k}" for k in range(1, len(panels) + 1)]
    caption = study_tables.heading
    return [
        Drawn(name, caption(results, "accuracy", at), heat_map(results, at=at))
        for name, at in zip(names, panels, strict=True)
        if any(row.value("accuracy") is not None for row in results.where(at))
    ]
