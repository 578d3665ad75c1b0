"""The similarity across the two clusters over steps, and the exclusions: Figure 2 of Sattler et al. (2020)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.report.client_ledger import ClientLedger, Exclusions
from phalanx.report.figures.drawing import COLOUR, HALF, Picture, canvas, end_label, line, styled, svg
from phalanx.report.figures.progress import in_words
from phalanx.report.figures.series import number
from phalanx.runs.observed import observed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from phalanx.runs.record import Record
    from phalanx.runs.schema import StepRecord


class Similarity(NamedTuple):
    """The picture's data.

    Args:
        steps: one for each value.
        alpha: largest cosine similarity across the two clusters, -1 .. 1, NaN if there is none.
        threshold: below it the smaller cluster is excluded; NaN if there is none.
    """

    steps: Sequence[int]
    alpha: Sequence[float]
    threshold: Sequence[float]


def measured(record: "Record") -> "list[StepRecord]":
    """Return the steps whose state holds the similarity."""
    return [step for step in record.history if "alpha_cross" in step.state]


def picture(ledger: ClientLedger, key: str, *, full: bool) -> Picture | None:
    """Return the picture; None if the method has no such similarity."""
    steps = measured(ledger.record)
    if not steps:
        return None
    exclusions = ledger.exclusions
    data = Similarity(
        [step.step for step in steps],
        [number(observed(step, "alpha_cross")) for step in steps],
        [number(observed(step, "threshold")) for step in steps],
    )
    label = f"Cross-cluster similarity over steps. Exclusions: {in_words(exclusions)}."
    return Picture(
        _draw(data, exclusions, key=key, label=label),
        "Similarity across the two clusters",
        "The largest cosine similarity between an update of one cluster and an update of the other (alpha_cross)."
        " In a step where it is below the threshold, the smaller cluster is excluded"
        + ("; the numbers count those clients." if exclusions else ". That never happened in this run."),
        keys="exclusions" if exclusions else "",
        full=full,
    )


def _draw(data: Similarity, exclusions: Sequence[Exclusions], *, key: str, label: str) -> str:
    known = [t for t in data.threshold if np.isfinite(t)]
    finite = [v for v in (*data.alpha, *data.threshold) if np.isfinite(v)] or [0.0]
    low, high = min(finite), max(finite)
    with styled(key):
        figure, axes = canvas(HALF, 280, right=118 if known else 16)
        line(axes, data.steps, data.alpha, "s0", "", dashed=False)
        line(axes, data.steps, data.threshold, "muted", "", dashed=True)
        if known:
            end_label(axes, known[-1], f"threshold {known[-1]:.3g}", "muted")
        _badges(axes, data, exclusions, low)
        span = max(high - low, 0.05)
        axes.set_ylim(low - 0.14 * span, high + 0.14 * span)
        axes.set_xlabel("step")
        return svg(figure, key, label)


def _badges(axes: "Axes", data: Similarity, exclusions: Sequence[Exclusions], low: float) -> None:
    """Draw badges with the numbers of excluded clients on the curve; one above the other if they would overlap."""
    at = {step: a if np.isfinite(a) else t for step, a, t in zip(*data, strict=True)}
    previous, stack = -np.inf, 0
    for exclusion in exclusions:
        y = at.get(exclusion.step, np.nan)
        pixel = exclusion.step * (HALF - 76) / max(data.steps[-1], 1)
        stack = stack + 1 if pixel - previous < 19 else 0
        previous = pixel
        both = (exclusion.byzantine, "good", "circle,pad=0.28"), (exclusion.others, "bad", "square,pad=0.36")
        kinds = [kind for kind in both if kind[0]]
        for place, (count, name, shape) in enumerate(kinds):
            stack += place
            box = {"boxstyle": shape, "facecolor": COLOUR[name], "edgecolor": COLOUR["page"]}
            axes.annotate(
                f"{count}", (exclusion.step, y if np.isfinite(y) else low), (0, 18 * stack),
                textcoords="offset points", ha="center", va="center", color=COLOUR["page"], fontsize=10,
                fontweight="bold", bbox=box, annotation_clip=False,
            )  # fmt: skip
