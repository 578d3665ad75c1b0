"""The output files of an experiment: a page in Markdown, a table in CSV, each plot as SVG and PNG."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from phalanx.experiments.papers.claims import claims_table, judged
from phalanx.experiments.papers.experiment import Context, Experiment
from phalanx.experiments.papers.output import csv_text, flat
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import save
from phalanx.experiments.shown.text import markdown_table
from phalanx.experiments.trace import Trace
from phalanx.report.words import duration
from phalanx.runs.files import write as write_file
from phalanx.wording import plural

Records = Mapping[str, Sequence[Trace]]
SHOWN = {  # of the provenance, by its name on a page
    "phalanx": "phalanx",
    "numerics": "numerics version",
    "torch": "torch",
    "python": "python",
    "device": "device",
}


LISTED = 10  # names of missing runs that are shown


def write(
    rendering: Rendering,
    experiment: Experiment,
    context: Context,
    records: Records,
    *,
    missing: Sequence[str],
    folder: Path,
) -> list[Path]:
    """Write all files of an experiment, in place of older ones; equal records give equal bytes.

    Args:
        rendering: the result of the experiment.
        experiment: the experiment.
        context: of the rendering.
        records: its traces, by cell.
        missing: names of the runs that were not carried out.
        folder: of the paper's results.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{experiment.name}-{context.form}"
    drawn = {plot.part: save(plot.figure, _stem(stem, plot)) for plot in rendering.plots}
    page = stem.with_name(stem.name + ".md")
    blocks = [*_blocks(rendering, experiment, drawn), _origin(experiment, context, records), *_gaps(records, missing)]
    write_file(page, ("\n\n".join(blocks) + "\n").encode())
    table = stem.with_name(stem.name + ".csv")
    if rendering.tables:
        write_file(table, csv_text(rendering.tables).encode())
    return [page, *([table] if rendering.tables else []), *(path for paths in drawn.values() for path in paths)]


def _stem(stem: Path, plot: Plot) -> Path:
    return stem.with_name(f"{stem.name}-{plot.part}" if plot.part else stem.name)


def _blocks(rendering: Rendering, experiment: Experiment, drawn: Mapping[str, Sequence[Path]]) -> list[str]:
    """Return the blocks of the page, as Markdown."""
    exhibit, paper = experiment.exhibit, experiment.paper
    blocks = [f"# {paper.title}: {experiment.name}", exhibit.title, f"{paper.citation}", f"The paper: {exhibit.claim}"]
    blocks += map(markdown_table, map(flat, rendering.tables))
    if claims := judged(rendering.claims):
        blocks.append(markdown_table(flat(claims_table(claims))))
    for plot in rendering.plots:
        picture = f"![{plot.caption or exhibit.title}]({drawn[plot.part][0].name})"
        blocks += [picture, *([plot.caption] if plot.caption else [])]
    return [*blocks, *rendering.notes]


def _origin(experiment: Experiment, context: Context, records: Records) -> str:
    """Return the command, and the software and hardware of the runs."""
    options = f"--scale {context.scale} --seeds {len(context.seeds)}"
    options += "" if context.engine is None else f" --engine {context.engine}"
    command = f"phalanx reproduce {experiment.paper.name} {experiment.name} {options}"
    traces = [*{trace.identity: trace for of in records.values() for trace in of}.values()]  # once, if in several cells
    if not traces:
        return f"Made by `{command}`."
    seconds = duration(sum(trace.wall_seconds for trace in traces))
    made = Counter(map(_computed_with, traces))
    used = "; ".join(
        f"{plural(n, 'run')} with {words}" if len(made) > 1 else f"with {words}" for words, n in made.items()
    )
    fast = sum(trace.provenance.engine == context.engine for trace in traces)
    by = "" if context.engine is None else f", {fast} of them by the engine {context.engine},"
    return (
        f"Made by `{command}` from {plural(len(traces), 'run')}{by} that took {seconds} of one process in all, {used}."
    )


def _computed_with(trace: Trace) -> str:
    """Return `phalanx 0.1.0, numerics version 1, torch 2.13.0`, as far as it is known."""
    values = {name: getattr(trace.provenance, field) for field, name in SHOWN.items()}
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _gaps(records: Records, missing: Sequence[str]) -> list[str]:
    """Return sentences on the runs that are missing, and on those that failed."""
    failed = [
        f"Failed: {cell} (seed {trace.seed}): {'; '.join(map(str.strip, (trace.error or '').splitlines()))}"
        for cell, traces in records.items()
        for trace in traces
        if trace.failed
    ]
    return ([f"Missing: {shortened(missing)}."] if missing else []) + failed


def shortened(names: Sequence[str]) -> str:
    """Return the first ten names, and the number of the others."""
    more = f"; and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return "; ".join(names[:LISTED]) + more
