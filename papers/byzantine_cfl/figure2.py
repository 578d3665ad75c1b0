"""Figure 2: alpha_cross by round, and the separated clients."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from papers.byzantine_cfl import setting
from phalanx.experiments.papers.claims import Claim
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import COLOURS, INK, MUTED
from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Similarity of the two candidate clusters over the rounds, 70 benign and 30 adversarial clients"
CLAIM = (
    "All adversaries are separated within 34 rounds and no benign client before them: noisy and label-flipping ones at "
    "once, Byzantine ones one after the other; without adversaries alpha_cross never falls below 0.02."
)
MINUTES = {"quick": 6.0, "paper": 430.0}
CLIENTS = 100
LATEST = 34  # round in which the last adversary is separated in the paper
TOGETHER = ("noisy", "label flip")  # scenarios in which all adversaries leave at once


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return the runs: Algorithm 1 in each scenario; and, until stable, in the Byzantine one."""
    return setting.cells(CLIENTS, scale, seed, ("CFL", setting.STABLE))


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return the excluded clients, the claims and the curves of the first seed."""
    tables = [setting.removals(CLIENTS, records, context)]
    notes = [
        "Byzantine adversaries send N(0, I), 484 times as long as a unit vector and thousands of times as long as an "
        "honest update. Until the last is gone they throw the model about; until stable, all go before the first "
        "average.",
    ]
    if context.scale == "quick":
        notes.append(setting.SMALLER.format(each=setting.EACH[CLIENTS], full=600))
    caption = (
        "alpha_cross by round, first seed. Green: a round in which adversaries were separated, and how many; red: "
        f"one in which honest clients were. Dashed: the threshold {setting.THRESHOLD}."
    )
    return Rendering(tables, (Plot(drawn(records, context), caption=caption),), notes, claims(records, context))


def claims(records: Mapping[str, Sequence[Trace]], context: Context) -> list[Claim]:
    """Return the paper's claims on its figure."""
    out = []
    for data in setting.SHOWN[context.scale]:
        found = {
            scenario: [t for t in records.get(setting.name(data, "CFL", scenario), ()) if not t.failed]
            for scenario in setting.SCENARIOS
        }
        out.append(Claim(f"{data}, byzantine: the last adversary is separated within {LATEST} rounds",
                         [0 < _last(t) <= LATEST for t in found["byzantine"]], None))  # fmt: skip
        for scenario in TOGETHER:
            at_once = [_rounds(t) == 1 for t in found[scenario]]
            out.append(Claim(f"{data}, {scenario}: all adversaries are separated in one round", at_once, None))
        least = [_least(t) for t in found["clean"]]
        text = f"{data}, clean: the least alpha_cross"
        out.append(Claim(text, least, setting.THRESHOLD, "", decimals=3))
    return out


def _last(trace: Trace) -> float:
    """Return the round in which the last adversary was separated; 0 if one was not."""
    gone = {r.client: r.step for r in trace.excluded if r.client in trace.byzantine}
    return max(gone.values()) if gone.keys() == set(trace.byzantine) else 0


def _rounds(trace: Trace) -> float:
    """Return the number of rounds in which adversaries were separated."""
    return len({r.step for r in trace.excluded if r.client in trace.byzantine})


def _least(trace: Trace) -> float:
    """Return the smallest alpha_cross of the run."""
    return min((cross for cross in trace.state["alpha_cross"] if cross is not None), default=math.nan)


def drawn(records: Mapping[str, Sequence[Trace]], context: Context) -> "Figure":
    """Draw a row of panels for each data set, a panel for each scenario."""
    from matplotlib.figure import Figure as Canvas  # noqa: PLC0415  (slow to import)
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    data = setting.SHOWN[context.scale]
    canvas = Canvas(figsize=(11, 0.6 + 2.3 * len(data)), layout="constrained")
    grid = canvas.subplots(len(data), len(setting.SCENARIOS), sharex=True, sharey=True, squeeze=False)
    for row, what in zip(grid, data, strict=True):
        for axes, scenario in zip(row, setting.SCENARIOS, strict=True):
            traces = [t for t in records.get(setting.name(what, "CFL", scenario), ()) if not t.failed]
            axes.axhline(setting.THRESHOLD, color=MUTED, linestyle=(0, (4, 2)), linewidth=1)
            if traces:
                _draw(axes, traces[0])
            axes.set_title(f"{what}, {scenario}" if len(data) > 1 else scenario)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        row[0].set_ylabel("alpha_cross")
    for axes in grid[-1]:
        axes.set_xlabel("round")
    return canvas


def _draw(axes: "Axes", trace: Trace) -> None:
    """Draw the curve of a run, with a line and a number at each separation."""
    cross = dict(zip(trace.state["step"], trace.state["alpha_cross"], strict=True))
    axes.plot(list(cross), [float("nan") if c is None else c for c in cross.values()], color=COLOURS[0])
    events = dict[int, list[int]]()
    for excluded in trace.excluded:
        events.setdefault(excluded.step, []).append(excluded.client)
    crowded = len(events) > 8
    for step, clients in events.items():
        honest = len(set(clients) - set(trace.byzantine))
        colour = COLOURS[3] if honest else COLOURS[2]
        axes.axvline(step, color=colour, linewidth=1, alpha=0.6, linestyle="-" if not honest else (0, (2, 1)))
        axes.plot([step], [cross[step]], marker="x" if honest else "o", color=colour, markersize=4)
        if not crowded:
            axes.annotate(
                f"{len(clients)}", (step, cross[step]), xytext=(4, 6), textcoords="offset points", color=INK, fontsize=8
            )
    if crowded:
        count = f"{sum(map(len, events.values()))} in {len(events)} rounds"
        axes.annotate(count, (0.97, 0.05), xycoords="axes fraction", ha="right", color=INK, fontsize=8)
