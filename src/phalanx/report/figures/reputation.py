"""Reputations over the steps of a run, the threshold, and the clients that fell below it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.report.client_ledger import BYZANTINE, ClientLedger
from phalanx.report.figures.drawing import COLOUR, DASH, FULL, HALF, Picture, canvas, spread, styled, svg
from phalanx.report.figures.progress import in_words
from phalanx.report.figures.series import Series, number
from phalanx.runs.observed import observed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from phalanx.runs.schema import StepRecord

RIGHT = 104  # pixels for names
POINTS = 250  # largest number per curve
NAMED = 14  # largest number of clients named at the ends of their curves


class Reputations(NamedTuple):
    """The picture's data.

    Args:
        curves: the reputation of each client over the steps in which it has one.
        threshold: over the steps.
        fell: for each excluded client, the step and the reputation with which it was excluded.
    """

    curves: Mapping[int, Series]
    threshold: Series
    fell: Mapping[int, tuple[int, float]]


def picture(ledger: ClientLedger, key: str, *, full: bool) -> Picture | None:
    """Return the picture; None if the algorithm keeps no reputations."""
    data = reputations(ledger)
    if not data.curves:
        return None
    final = ", ".join(f"client {c} {s.y[-1]:.3f}" for c, s in data.curves.items() if c not in data.fell)
    label = (
        f"Reputations over steps. Exclusions: {in_words(ledger.exclusions)}. At the end: {final or 'nobody is left'}."
    )
    return Picture(
        _draw(ledger, data, key=key, label=label, width=FULL if full else HALF),
        "Reputations",
        "One curve for each client, those of Byzantine clients in orange; dashed: the threshold."
        + (" A cross: the client is excluded with that reputation." if data.fell else " Nobody was excluded."),
        full=full,
    )


def reputations(ledger: ClientLedger) -> Reputations:
    """Return the curves; of long runs POINTS steps at even distances, and the last."""
    steps = [step for step in ledger.record.history if observed(step, "reputation")]
    if not steps:
        return Reputations({}, Series([], []), {})
    fell = {c: (exclusion.step, _score(steps, c, exclusion.step)) for c, exclusion in ledger.excluded.items()}
    shown = [steps[k] for k in np.unique(np.linspace(0, len(steps) - 1, POINTS).round().astype(int))]
    known_of = [observed(step, "reputation") for step in shown]
    clients = sorted({c for of in known_of for c in of} | fell.keys())
    curves = dict[int, Series]()
    for c in clients:
        points = [(float(step.step), number(of.get(c))) for step, of in zip(shown, known_of, strict=True)]
        known = [(x, y) for x, y in points if np.isfinite(y) and (c not in fell or x < fell[c][0])]
        if c in fell and np.isfinite(fell[c][1]):
            known.append((float(fell[c][0]), fell[c][1]))
        if known:
            curves[c] = Series(*map(list, zip(*known, strict=True)))
    limits = [(float(step.step), number(observed(step, "threshold"))) for step in shown]
    return Reputations(curves, Series(*map(list, zip(*limits, strict=True))), fell)


def _score(steps: "list[StepRecord]", client: int, at: int) -> float:
    """Return the score of the verdict by which the client was excluded."""
    verdicts = [step.verdicts[client] for step in steps if step.step == at and client in step.verdicts]
    return number(verdicts[0].score) if verdicts else float("nan")


def _draw(ledger: ClientLedger, data: Reputations, *, key: str, label: str, width: int) -> str:
    few = len(data.curves) <= NAMED
    bad = set(ledger.of(BYZANTINE))
    with styled(key):
        figure, axes = canvas(width, 340, right=RIGHT)
        for c, s in data.curves.items():
            axes.plot(s.x, s.y, color=COLOUR["byzantine" if c in bad else "honest"], linewidth=1.6 if few else 0.9,
                      marker="." if len(s.x) == 1 else None, zorder=4 if c in bad else 3)  # fmt: skip
            if c in data.fell:
                axes.plot(s.x[-1:], s.y[-1:], "x", color=COLOUR["byzantine" if c in bad else "honest"], markersize=8,
                          markeredgewidth=2.2, clip_on=False, zorder=6)  # fmt: skip
        axes.plot(*data.threshold, color=COLOUR["muted"], linestyle=DASH, linewidth=1.6, zorder=5)
        top = 1.06 * max(y for s in (*data.curves.values(), data.threshold) for y in s.finite)
        axes.set_ylim(0, top or 1)
        _name_ends(axes, data, bad, top or 1, few=few)
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel("step")
        axes.set_ylabel("reputation")
        return svg(figure, key, label)


def _name_ends(axes: "Axes", data: Reputations, bad: set[int], top: float, *, few: bool) -> None:
    """Write the names of the threshold, and of the remaining clients if they are few, at the ends of their curves."""
    ends = [(limit, "threshold", "muted") for limit in data.threshold.finite[-1:]]
    if few:
        ends += [
            (s.y[-1], f"client {c}", "byzantine" if c in bad else "honest")
            for c, s in data.curves.items()
            if c not in data.fell
        ]
    ends.sort()
    for y, (_, text, colour) in zip(spread([end[0] / top for end in ends], 0.056), ends, strict=True):
        axes.text(1.02, y, text, color=COLOUR[colour], transform=axes.transAxes, va="center", fontsize=11)
