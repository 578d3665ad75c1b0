"""A record as a table of pandas, as a picture, and as a card in a notebook."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from phalanx.installation import optional
from phalanx.runs.reports import reported, spread
from phalanx.runs.schema import StepRecord, Summary
from phalanx.wording import percent, plural, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

METRICS = ("accuracy", "loss", "worst_client_accuracy", "attack_success")
FATES = ("used", "filtered", "waits", "invalid", "lost")
LOOKED_AT = 2000  # lines of a history that the curve of a card is drawn from, at most
POINTS = 60  # of that curve
WIDTH, HEIGHT = 200, 64  # of that curve, in pixels


def frame(history: Iterable[StepRecord], by: Literal["step", "client"]) -> "DataFrame":
    """Return the steps of a run as a table; see `Record.frame`."""
    pandas = optional("pandas", "Record.frame", "tables")
    if by not in ("step", "client"):
        raise ValueError(f'by must be "step" or "client", got {by!r}.')
    rows = (_of_step if by == "step" else _of_clients)(history)
    columns = ("step", "version", "seconds", *METRICS, *FATES) if by == "step" else CLIENT_COLUMNS
    return pandas.DataFrame(rows, columns=list(columns))


CLIENT_COLUMNS = (
    "step",
    "client",
    "fate",
    "weight",
    "accepted",
    "score",
    "reason",
    "accuracy",
    "own_accuracy",
    "reported_accuracy",
    "reported_loss",
    "reported_examples",
)


def _of_step(history: Iterable[StepRecord]) -> Iterator[dict[str, Any]]:
    """Yield a row for each step; lines of the history with one step are one row."""
    for step, lines in groupby(history, key=lambda line: line.step):
        row: dict[str, Any] = {"step": step}
        counts = Counter[str]()
        for line in lines:
            row |= {"version": line.version, "seconds": line.seconds}
            row |= {name: getattr(line.metrics, name) for name in METRICS if line.metrics is not None}
            counts.update(fate for fate, *_ in _fates(line).values())
        yield row | {fate: counts[fate] for fate in FATES}


def _of_clients(history: Iterable[StepRecord]) -> Iterator[dict[str, Any]]:
    """Yield a row for each client of which a line of the history says something."""
    for line in history:
        received = line.metrics.received_accuracy if line.metrics is not None else {}
        own = line.metrics.client_accuracy if line.metrics is not None else {}
        fates = _fates(line)
        for client in sorted({*fates, *received}):
            fate, reason = fates.get(client, (None, ""))
            row: dict[str, Any] = {"step": line.step, "client": client, "fate": fate, "reason": reason}
            if (verdict := line.verdicts.get(client)) is not None and fate in FATES[:3]:
                row |= {"weight": verdict.weight, "accepted": verdict.accepted, "score": verdict.score}
            if (report := line.reports.get(client)) is not None:
                row |= {f"reported_{name}": getattr(report, name) for name in ("accuracy", "loss", "examples")}
            yield row | {"accuracy": received.get(client), "own_accuracy": own.get(client)}


def _fates(line: StepRecord) -> dict[int, tuple[str, str]]:
    """Return what happened to the update of each client, and why."""
    found = dict[int, tuple[str, str]]()
    for fate, reasons in (("lost", line.lost), ("invalid", line.invalid)):
        found |= {client: (fate, why) for client, why in reasons.items()}
    for client, verdict in line.verdicts.items():
        found[client] = ("waits" if verdict.waits else "used" if verdict.accepted else "filtered", verdict.reason)
    return found


def plot(name: str, history: Sequence[StepRecord], metrics: Sequence[str]) -> "Figure":
    """Return a picture of metrics over steps; see `Record.plot`."""
    from phalanx.notebook import NotebookFigure  # noqa: PLC0415  (slow to import)

    if wrong := [metric for metric in metrics if metric not in METRICS]:
        raise ValueError(f"metrics must be among {', '.join(METRICS)}, got {', '.join(map(repr, wrong))}.")
    curves = {metric: curve(history, metric) for metric in metrics}
    figure = NotebookFigure(figsize=(4.5 * len(metrics), 3.2), layout="constrained")
    for axes, (metric, points) in zip(figure.subplots(1, len(metrics), squeeze=False)[0], curves.items(), strict=True):
        axes.plot([x for x, _ in points], [y for _, y in points], linewidth=1.8)
        axes.set_xlabel("step")
        axes.locator_params(axis="x", integer=True)
        axes.set_ylabel(metric.replace("_", " "))
        axes.grid(visible=True, axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if not points:
            axes.text(0.5, 0.5, "not measured", ha="center", va="center", transform=axes.transAxes)
        if metric != "loss":
            axes.set_ylim(0, 1)
            axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    figure.suptitle(shown(name).replace("$", r"\$"))
    return figure


def curve(history: Iterable[StepRecord], metric: str) -> list[tuple[int, float]]:
    """Return a metric by step, where it was measured and finite."""
    measured = ((step.step, getattr(step.metrics, metric)) for step in history if step.metrics is not None)
    return [(step, value) for step, value in measured if value is not None]


def html(name: str, summary: Summary, history: Sequence[StepRecord]) -> str:
    """Return a short card of a record for notebooks: the outcome and the curve of its accuracy."""
    rows = {**summary.in_words, "reported": _reported(history)}
    left, top = 'style="text-align:left"', 'style="vertical-align:top"'
    lines = "".join(
        f"<tr {top}><th {left}>{title}</th><td {left}>{_text(value)}</td></tr>"
        for title, value in rows.items()
        if value
    )
    return (
        f'<div style="display:flex;gap:1.5em;align-items:center"><div><b>{_text(name)}</b>'
        f"<table>{lines}</table></div>{_sparkline(history)}</div>"
    )


def _text(value: str) -> str:
    return escape(shown(value, 160))


def _reported(history: Iterable[StepRecord]) -> str:
    """Return the spread of the last reports of clients; empty if there are none."""
    found = spread({client: each.last for client, each in reported(history).items()})
    lowest, middle, highest = found.in_words
    return f"{found.metric} {lowest} to {highest}, median {middle}" if found.values else ""


def _sparkline(history: Sequence[StepRecord]) -> str:
    """Return the curve of the accuracy as a small SVG, from 0 to 1; nothing if there are no two points."""
    points = curve(history[:: len(history) // LOOKED_AT + 1], "accuracy")
    points = points[:: len(points) // POINTS + 1]
    if len(points) < 2 or points[-1][0] == points[0][0]:
        return ""
    (first, _), (last, _) = points[0], points[-1]
    at = " ".join(f"{(x - first) / (last - first) * WIDTH:.0f},{HEIGHT * (1 - y):.1f}" for x, y in points)
    return (
        '<figure style="margin:0">'
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="-2 -2 {WIDTH + 4} {HEIGHT + 4}" role="img" '
        f'aria-label="accuracy over steps"><path d="M0 0H{WIDTH}M0 {HEIGHT}H{WIDTH}" stroke="currentColor" '
        'stroke-opacity=".25"/><polyline fill="none" stroke="currentColor" stroke-width="1.5" '
        f'points="{at}"/></svg><figcaption style="opacity:.7">accuracy, from 0 to 100 %</figcaption></figure>'
    )


def brief(name: str, summary: Summary) -> str:
    """Return a record on one line."""
    return (
        f"Record({shown(name)!r}, {summary.status} after {plural(summary.steps, 'step')}, "
        f"accuracy {percent(summary.final.accuracy)})"
    )
