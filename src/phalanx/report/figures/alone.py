"""The accuracy that each participant received against the one alone: Equation 1 of Xu and Lyu (2020), as a picture."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from phalanx.fairness import Correlation, collaborative_fairness, gains
from phalanx.report.client_ledger import ClientLedger
from phalanx.report.figures.drawing import COLOUR, DASH, HALF, Picture, canvas, styled, svg
from phalanx.report.weightings import Part

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from phalanx.runs.record import Record

SAME = ("data", "partition", "clients", "groups", "model", "training", "seed")  # options that both runs share
SIDES = ((12, 0), (-12, 0), (0, 12), (0, -12), (11, 10), (-11, 10), (11, -10), (-11, -10))  # pixels from dot to name


class AgainstAlone(NamedTuple):
    """The picture's data: a run, and that of the same participants alone.

    Args:
        name: of the run alone.
        alone: accuracy of each participant.
        received: the same of the model that each was served.
        fairness: their correlation.
        gain: mean of received minus alone.
    """

    name: str
    alone: Mapping[int, float]
    received: Mapping[int, float]
    fairness: Correlation
    gain: float


def picture(ledger: ClientLedger, records: "Sequence[Record]", key: str) -> Picture | None:
    """Return the picture; None if the report has no run of `Standalone` with the same participants.

    Args:
        ledger: of the run.
        records: all runs of the report.
        key: unique in the page, prefixes every id.
    """
    data = against_alone(ledger.record, records)
    if data is None:
        return None
    spoken = f"Collaborative fairness {data.fairness}; mean gain {100 * data.gain:+.1f} points."
    label = f"Received against standalone accuracy of {len(data.alone)} participants. {spoken}"
    return Picture(
        _draw(data, key=key, label=label),
        "Received and standalone accuracy",
        f"Each dot is an honest participant: its accuracy alone ({data.name}) and in this run, at the end; the"
        f" number next to it, if there is room, is its id. Above the diagonal it gains from taking part. {spoken}"
        " In brackets: a 95 % interval.",
    )


def against_alone(record: "Record", records: "Sequence[Record]") -> AgainstAlone | None:
    """Compare the run with the first of `Standalone` that has the same participants, data, model, training and seed."""
    received = _received(record)
    if _standalone(record) or len(received) < 2:
        return None
    for other in records:
        alike = all(other.config.get(option) == record.config.get(option) for option in SAME)
        alone = _received(other)
        if _standalone(other) and alike and alone.keys() == received.keys():
            gain = fmean(gains(alone, received).values())
            return AgainstAlone(other.name, alone, received, collaborative_fairness(alone, received), gain)
    return None


def _standalone(record: "Record") -> bool:
    return Part.of(record.config.get("algorithm")).name == "Standalone"


def _received(record: "Record") -> dict[int, float]:
    """Return the accuracy of each honest participant's final model; empty if it was not measured."""
    known = [m.received_accuracy for step in record.history if (m := step.metrics) and m.received_accuracy]
    return {c: accuracy for c, accuracy in (known[-1] if known else {}).items() if accuracy is not None}


def _draw(data: AgainstAlone, *, key: str, label: str) -> str:
    values = [*data.alone.values(), *data.received.values()]
    margin = 0.08 * max(max(values) - min(values), 0.05)
    low, high = max(0.0, min(values) - margin), min(1.0, max(values) + margin)
    with styled(key):
        figure, axes = canvas(HALF, 340)
        axes.plot([low, high], [low, high], color=COLOUR["muted"], linestyle=DASH, linewidth=1.2, zorder=1)
        x, y = [[of[c] for c in sorted(of)] for of in (data.alone, data.received)]
        axes.plot(x, y, "o", color=COLOUR["honest"], markersize=6.5, markeredgewidth=0, alpha=0.85, clip_on=False)
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
        axes.locator_params(nbins=6)
        axes.set_xlabel("accuracy alone")
        axes.set_ylabel("accuracy received")
        _name(axes, data)
        return svg(figure, key, label)


def _name(axes: "Axes", data: AgainstAlone) -> None:
    """Write the ids of the participants next to their dots, if there is room."""
    dots = dict[int, tuple[float, float]]()
    for c in sorted(data.alone):
        x, y = axes.transData.transform((data.alone[c], data.received[c])).tolist()
        dots[c] = (x, y)
    taken = list(dots.values())
    for c, (x, y) in dots.items():
        places = ((right, up) for right, up in SIDES if _free(x + right, y + up, taken, (x, y)))
        if (shift := next(places, None)) is not None:
            taken.append((x + shift[0], y + shift[1]))
            axes.annotate(str(c), (data.alone[c], data.received[c]), shift, textcoords="offset points", ha="center",
                          va="center", fontsize=10.5, color=COLOUR["muted"], annotation_clip=False)  # fmt: skip


def _free(x: float, y: float, taken: Sequence[tuple[float, float]], own: tuple[float, float]) -> bool:
    """Return whether a name at that place touches no other dot and no other name."""
    return all(abs(x - a) > 14 or abs(y - b) > 11 for a, b in taken if (a, b) != own)
