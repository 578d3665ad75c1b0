"""The accuracy of all runs, over steps and over time; and the further metrics of their tasks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phalanx.report.figures.drawing import HALF, MARKERS, Picture, Style, canvas, line, percents, styled, svg
from phalanx.report.figures.series import Series, series
from phalanx.report.words import clock, percent
from phalanx.wording import visible

if TYPE_CHECKING:
    from phalanx.runs.record import Record

MOST = 6  # further metrics that are drawn
UNITS = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0))


def pictures(records: "Sequence[Record]", styles: Sequence[Style]) -> tuple[Picture, ...]:
    """Return both pictures of the accuracy, if it was measured, and one of each further metric.

    Args:
        records: the runs.
        styles: the style of each run.
    """
    over_steps = [series(r, "accuracy", "step") for r in records]
    over_time = [series(r, "accuracy", "seconds") for r in records]
    if not any(s.finite for s in over_steps):
        return _further(["loss", *_extra(records)], records, styles)
    longest = max((max(s.x, default=0.0) for s in over_time), default=0.0)
    name, unit = next(((n, size) for n, size in UNITS if longest >= 3 * size), ("seconds", 1.0))
    ends = ", ".join(
        f"{r.name} {percent(s.finite[-1] if s.finite else None)}" for r, s in zip(records, over_steps, strict=True)
    )
    lasts = [s.x[-1] for s in over_steps if s.x and s.x[-1] > 0]
    uneven = bool(lasts) and max(lasts) > 8 * min(lasts)  # rounds together with single arrivals
    broken = any(len(s.finite) < len(s.y) for s in over_steps)
    spoken = f"Accuracy over steps. Last values: {ends}."
    time = clock(r.config for r in records)
    spoken_time = f"Accuracy over {time} in {name}. Last values: {ends}."
    return (
        Picture(
            _draw(over_steps, styles, "step", key="f-steps", label=spoken, logarithmic=uneven),
            "Accuracy over steps",
            "Share of the test set that the model classifies correctly, mean over honest clients, at each evaluated"
            " step of the server."
            + (" Dashed lines with hollow markers are runs under attack." if any(s.dashed for s in styles) else "")
            + (" A line that breaks off had no finite accuracy there." if broken else "")
            + (" The axis is logarithmic: runs differ widely in their numbers of steps." if uneven else ""),
        ),
        Picture(
            _draw(over_time, styles, f"{time} in {name}", key="f-time", label=spoken_time, unit=unit),
            f"Accuracy over {time}",
            "The same over the clock of the run: a method that waits for the slowest client of each round pays for it.",
        ),
        *_further(_extra(records), records, styles),
    )


def _extra(records: "Sequence[Record]") -> list[str]:
    """Return the further metrics of the tasks of all runs."""
    return [*dict.fromkeys(name for record in records for name in record.summary.final.extra)]


def _further(names: Sequence[str], records: "Sequence[Record]", styles: Sequence[Style]) -> tuple[Picture, ...]:
    """Return a picture of each of some metrics over the steps, as far as it was measured; `MOST` at most."""
    out = list[Picture]()
    for k, name in enumerate(names[:MOST]):
        lines = [series(record, name) for record in records]
        if any(s.finite for s in lines):
            title = f"{visible(name)[:1].upper()}{visible(name)[1:]} over steps"
            ends = ", ".join(f"{r.name} {s.finite[-1]:.3g}" for r, s in zip(records, lines, strict=True) if s.finite)
            drawn = _draw(
                lines, styles, "step", key=f"f-further-{k}", label=f"{title}. Last values: {ends}.", share=False
            )
            out.append(Picture(drawn, title, "On all test examples, mean over honest clients, at each evaluated step."))
    return tuple(out)


def _draw(
    lines: Sequence[Series],
    styles: Sequence[Style],
    xlabel: str,
    *,
    key: str,
    label: str,
    unit: float = 1.0,
    logarithmic: bool = False,
    share: bool = True,
) -> str:
    """Draw the curves in one figure; `unit` is the number of seconds in one unit of the axis."""
    with styled(key):
        figure, axes = canvas(HALF, 300)
        if logarithmic:
            axes.set_xscale("symlog", linthresh=1, linscale=0.4)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        for s, style in zip(lines, styles, strict=True):
            x = [x / unit for x in s.x]
            line(axes, x, s.y, f"s{style.colour}", MARKERS[style.colour], dashed=style.dashed)
        lowest = min(y for s in lines for y in s.finite)
        if share:
            percents(axes, 0.5 if lowest > 0.55 else 0.0)
        axes.set_xlabel(xlabel)
        return svg(figure, key, label)
