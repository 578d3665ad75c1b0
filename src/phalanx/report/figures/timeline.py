"""The tasks over time: a lane for each client, a bar for each of its tasks, and at its end the outcome."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.report.client_ledger import ClientLedger, Group
from phalanx.report.figures.drawing import COLOUR, FULL, Picture, canvas, styled, svg
from phalanx.report.figures.heatmap import places, tone
from phalanx.report.flights import ACCEPTED, FILTERED, INVALID, LOST, UNDECIDED, Flight
from phalanx.report.words import duration
from phalanx.wording import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LANES, BARS, STEPS = 24, 400, 80  # largest numbers of clients, tasks and verticals
LEFT, RIGHT, LANE = 92, 16, 17  # pixels
ENDS = {
    ACCEPTED: ("|", "ink", 9.0),
    FILTERED: ("x", "bad", 6.5),
    UNDECIDED: ("D", "muted", 4.0),
    INVALID: ("o", "s3", 6.0),
    LOST: ("_", "s4", 9.0),
}


class Timeline(NamedTuple):
    """The picture's data.

    Args:
        groups: the clients that have a lane.
        end: seconds up to which tasks are shown.
        whole: seconds of the run.
        flights: the tasks of these clients that had ended by then.
        steps: seconds at which the server's model changed, by then; empty if these are too many to show.
    """

    groups: tuple[Group, ...]
    end: float
    whole: float
    flights: tuple[Flight, ...]
    steps: tuple[float, ...]


def picture(ledger: ClientLedger, flights: Sequence[Flight], key: str) -> Picture | None:
    """Return the picture; None if there are no tasks."""
    if not flights:
        return None
    data = timeline(ledger, flights)
    counts = Counter(flight.fate for flight in data.flights)
    ends = ", ".join(f"{counts[fate]} {fate}" for fate in ENDS if counts[fate])
    lanes = sum(len(group.clients) for group in data.groups)
    return Picture(
        _draw(data, key=key, label=f"Tasks of {plural(lanes, 'client')} over time: {ends}."),
        "Tasks over time",
        "Each bar is a task of a client, from the model that it was sent to the answer."
        + _left_out(data, len(ledger.clients), lanes)
        + (" Verticals: the server's model changes." if data.steps else ""),
        keys="timeline",
        full=True,
    )


def _left_out(data: Timeline, clients: int, lanes: int) -> str:
    """Return in words which part is not shown, and by which rule."""
    out = ""
    if lanes < clients:
        out += (
            f" Of {clients} clients {lanes} have a lane: of each group in proportion, at even distances in the order of"
            " how often they answered."
        )
    if data.end < data.whole:
        out += (
            f" Of {duration(data.whole)} the first {duration(data.end)} are shown, in which these clients finished"
            f" {plural(len(data.flights), 'task')}."
        )
    return out


def timeline(ledger: ClientLedger, flights: Sequence[Flight]) -> Timeline:
    """Return the lanes, the time, and the tasks of the picture."""
    groups = _chosen(ledger.groups, Counter(flight.client for flight in flights))
    lanes = {client for group in groups for client in group.clients}
    inside = [flight for flight in flights if flight.client in lanes]
    whole = max(flight.came for flight in flights)
    end = inside[BARS - 1].came if len(inside) > BARS else whole
    steps = list[float]()
    for before, step in pairwise(ledger.record.history):
        if step.version != before.version and step.seconds <= end:
            steps.append(step.seconds)
    shown = tuple(flight for flight in inside[:BARS] if flight.came <= end)
    return Timeline(groups, end, whole, shown, tuple(steps) if len(steps) <= STEPS else ())


def _chosen(groups: Sequence[Group], came: Mapping[int, int]) -> tuple[Group, ...]:
    """Return the groups with the clients that get a lane, those with the most answers on top."""
    total = sum(len(group.clients) for group in groups)
    out = []
    for group in groups:
        ranked = sorted(group.clients, key=lambda client: (-came.get(client, 0), client))
        n = len(ranked) if total <= LANES else max(1, LANES * len(ranked) // total)
        at = np.linspace(0, len(ranked) - 1, n).round().astype(int)
        out.append(Group(group.name, tuple(ranked[k] for k in at)))
    return tuple(out)


def _draw(data: Timeline, *, key: str, label: str) -> str:
    at = places(data.groups)
    rows = len(at) + len(data.groups) - 1
    with styled(key):
        figure, axes = canvas(FULL, rows * LANE + 62, left=LEFT, right=RIGHT, bottom=44, top=18, grid=False)
        axes.vlines(data.steps, 0, rows, color=COLOUR["line"], linewidth=1, zorder=1)
        _draw_bars(axes, data, {client: row + 0.5 for client, (_, row) in at.items()})
        for group in data.groups:
            middle = at[group.clients[0]][1] + len(group.clients) / 2
            axes.text(-44 / (FULL - LEFT - RIGHT), middle, group.name, transform=axes.get_yaxis_transform(),
                      rotation=90, ha="center", va="center", color=COLOUR[tone(group)], fontweight="bold",
                      fontsize=12 if 8 * len(group.name) < LANE * (len(group.clients) + 1) else 9)  # fmt: skip
        axes.set_yticks([row + 0.5 for _, row in at.values()], [str(client) for client in at])
        axes.set_ylim(rows, 0)
        axes.set_xlim(0, data.end * 1.005)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("seconds on the run's clock")
        return svg(figure, key, label)


def _draw_bars(axes: "Axes", data: Timeline, lane: Mapping[int, float]) -> None:
    """Draw a bar for each task, and its end above."""
    for group in data.groups:
        of = [flight for flight in data.flights if flight.client in group.clients]
        rows = [lane[flight.client] for flight in of]
        axes.hlines(rows, [f.sent for f in of], [f.came for f in of], color=COLOUR[tone(group)], linewidth=7,
                    alpha=0.35, zorder=2)  # fmt: skip
        for fate, (marker, colour, size) in ENDS.items():
            ends = [(flight.came, lane[flight.client]) for flight in of if flight.fate == fate]
            if ends:
                axes.plot(*zip(*ends, strict=True), marker, color=COLOUR[tone(group) if fate == ACCEPTED else colour],
                          markersize=size, markeredgewidth=1.8, zorder=3,
                          markerfacecolor=COLOUR["page"])  # fmt: skip
