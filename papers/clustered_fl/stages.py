"""Common parts of Figures 8 and 9: federated learning with three splits, group by group, compared with none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from papers.clustered_fl.setting import NEVER
from papers.clustered_fl.watching import Watched
from phalanx.algorithms import ClusteredFL
from phalanx.core import Until
from phalanx.experiments.shown.plotting import COLOURS, DASHES, INK, MARKERS, MUTED
from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FL, CFL, DEFAULT = "FL", "CFL", "CFL, default thresholds"
CHOICE, FEWER = "CFL, chosen from the path", "FL, on as many examples"  # clients keep some for validation
KEPT = 0.2  # share of its examples by which a client chooses


@dataclass(frozen=True)
class Stages:
    """A federation of known groups, and the rounds in which it is split.

    Args:
        base: the run, without its algorithm and its end.
        rounds: how many.
        splits: in which of them a cluster is split.
    """

    base: Run
    rounds: int
    splits: tuple[int, ...]

    def runs(self, names: Sequence[str], seed: int) -> dict[str, Run]:
        """Return the runs of these names; all are `Watched`, which does not change results."""
        assert self.base.groups is not None
        split = replace(ClusteredFL.as_published(), split_rounds=self.splits)
        known = {FL: NEVER, FEWER: NEVER, CFL: split, CHOICE: split, DEFAULT: ClusteredFL(memory=None)}
        until = Until(steps=self.rounds)
        return {
            name: replace(
                self.base,
                algorithm=Watched(known[name], self.base.groups),
                validation=KEPT if name in (CHOICE, FEWER) else 0.0,
                until=until,
                seed=seed,
            )
            for name in names
        }


def by_group(trace: Trace, figure: str) -> dict[int, list[float]]:
    """Return a curve of each group, "group_accuracy" or "group_loss"."""
    named = {name: curve for name, curve in trace.curves.items() if name.rpartition(" ")[0] == figure}
    return {
        int(name.rpartition(" ")[2]): [float("nan") if value is None else value for value in curve]
        for name, curve in named.items()
    }


def clusters(trace: Trace) -> tuple[int, int]:
    """Return the number of clusters at the end, and the number of groups divided among several."""
    return len(trace.state["kinds"][-1]), int(trace.state["divided"][-1])


def found(trace: Trace, groups: int) -> bool:
    """Return whether every cluster at the end is one of the true groups."""
    return clusters(trace) == (groups, 0)


def last_gaps(trace: Trace) -> dict[str, float]:
    """Return the separation gap of each cluster at the end."""
    return dict(trace.state["gaps"][-1])


def drawn(traces: Mapping[str, Sequence[Trace]], stages: Stages, figure: str, label: str, *, shares: bool) -> "Figure":
    """Draw the curves of the groups under CFL above, with the mean under FL; the gaps of all clusters below.

    Args:
        traces: by name of the run; the first seed of each is drawn.
        stages: what was run.
        figure: "group_accuracy" or "group_loss"; the exponential of the latter is drawn.
        label: of the vertical axis.
        shares: whether values are shares, shown in percent.
    """
    from matplotlib.figure import Figure as Canvas  # noqa: PLC0415  (slow to import)
    from numpy import exp  # noqa: PLC0415

    canvas = Canvas(figsize=(6.8, 5.2), layout="constrained")
    above, below = canvas.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    shown = [[t for t in traces.get(name, ()) if not t.failed][:1] for name in (CFL, FL)]
    for trace in shown[0]:
        for group, curve in sorted(by_group(trace, figure).items()):
            values = curve if shares else exp(curve).tolist()
            above.plot(
                trace.curves["step"], values, color=COLOURS[group], linestyle=DASHES[group], marker=MARKERS[group],
                markevery=max(1, len(values) // 8), markerfacecolor="white", label=f"group {group}",
            )  # fmt: skip
        _gaps(below, trace)
    for trace in shown[1]:
        curves = list(by_group(trace, figure).values())
        mean = [sum(values) / len(values) for values in zip(*curves, strict=True)]
        values = mean if shares else exp(mean).tolist()
        above.plot(trace.curves["step"], values, color=INK, linestyle=":", label="federated learning, all groups")
    for axes in (above, below):
        for split in stages.splits:
            axes.axvline(split, color=MUTED, linewidth=0.9, linestyle=(0, (4, 2)))
    below.axhline(0, color=MUTED, linewidth=1)
    below.set(xlabel="round", ylabel="separation gap")
    above.set_ylabel(label)
    if shares:
        above.set_ylim(0, 1)
        above.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    handles, labels = above.get_legend_handles_labels()
    if handles:
        canvas.legend(handles, labels, loc="outside lower center", ncols=3)
    return canvas


def _gaps(axes: "Axes", trace: Trace) -> None:
    """Draw the separation gap of each cluster while it exists."""
    steps, seen = trace.state["step"], trace.state["gaps"]
    for k, cluster in enumerate(sorted({int(v) for gaps in seen for v in gaps})):
        curve = [(step, gaps[str(cluster)]) for step, gaps in zip(steps, seen, strict=True) if str(cluster) in gaps]
        axes.plot(
            [step for step, _ in curve], [gap for _, gap in curve], color=COLOURS[k % len(COLOURS)],
            linestyle=DASHES[k % len(DASHES)], linewidth=1.2,
        )  # fmt: skip
        middle = curve[len(curve) // 2]
        above = 3 if cluster % 2 else -10  # siblings are adjacent
        axes.annotate(f"{cluster}", middle, xytext=(0, above), textcoords="offset points", fontsize=8, color=INK)
