"""Figure 5: the separation gap over the number of examples on every client."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from papers.clustered_fl import setting
from phalanx.experiments.papers.claims import Claim
from phalanx.experiments.papers.comparison import Sample, Table
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import COLOURS, DASHES, MARKERS, MUTED
from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Separation gap with swapped labels after 50 rounds, over the number of examples on every client"
CLAIM = "Clustering is correct from 20 examples per client on MNIST and about 500 on CIFAR-10; gradients need more."
MINUTES = {"quick": 4.0, "paper": 100.0}
EXAMPLES: Mapping[Scale, Mapping[str, Sequence[int]]] = {
    "quick": {"MNIST": (10, 20, 50, 100)},
    "paper": {"MNIST": (10, 20, 50, 100, 150, 200), "CIFAR-10": (100, 250, 500, 1000, 1500, 2000, 2400)},
}
ENOUGH = {"MNIST": 20, "CIFAR-10": 500}  # the smallest number with a positive gap in the paper
BALANCED = "balanced"


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return a run for each data set, partition, and number of examples."""
    return {
        _name(data, dealt, each): setting.swapped(data, each, seed, dealt)
        for data, numbers in EXAMPLES[scale].items()
        for dealt in setting.DEALT
        for each in numbers
    }


def _name(data: str, dealt: str, each: int) -> str:
    return f"{data} / {dealt} / {each}"


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return a table of gaps and correct bi-partitions, and the curves."""
    rows = [
        [data, dealt, f"{each}", *_row(records.get(_name(data, dealt, each), ()))]
        for data, numbers in EXAMPLES[context.scale].items()
        for dealt in setting.DEALT
        for each in numbers
    ]
    columns = ("data", "dealt", "examples", "gap of updates", "gap of gradients", "correct bi-partitions")
    notes = (
        "After 50 rounds; correct: of the bi-partitions of the updates of rounds 41 to 50 over all seeds, those that "
        "divide no group.",
        "A positive gap is sufficient for a correct bi-partition, not necessary: the paper has it as both. Its own gap "
        "is positive from 20 examples on MNIST on.",
        f'"{BALANCED}": every client holds as many examples of each class. Dealt as it comes, a client with 20 '
        "examples holds 4 of the two classes that it swaps on average, and one in fourteen holds at most one: nobody "
        "can tell in which group it is.",
        setting.SILENT,
    )
    table = Table("Separation gap, and share of correct bi-partitions", columns, rows, notes)
    caption = (
        "Separation gap after 50 rounds, mean and range over seeds, over the examples on every client. Above 0 the "
        "bi-partition is certain to be correct. Dashed: from where on the paper finds it so."
    )
    plots = (Plot(drawn(records, context), caption=caption),)
    return Rendering((table, _needed(records, context)), plots, claims=_claims(records, context))


def _claims(records: Mapping[str, Sequence[Trace]], context: Context) -> list[Claim]:
    """Return for each data set and partition the claims on correctness and on gradients, of seeds with all numbers."""
    out = []
    for data, numbers in EXAMPLES[context.scale].items():
        for dealt in setting.DEALT:
            runs = [
                {t.seed: setting.gaps(t) for t in records.get(_name(data, dealt, each), ()) if not t.failed}
                for each in numbers
            ]
            seeds = sorted(set.intersection(*map(set, runs)))
            enough = [of for each, of in zip(numbers, runs, strict=True) if each >= ENOUGH[data]]
            right = [all(all(of[seed].correct[-LAST:]) for of in enough) for seed in seeds]
            ahead = [fmean(of[seed].updates[-1] - of[seed].gradients[-1] for of in runs) for seed in seeds]
            where = f"{data}, dealt {dealt}" if dealt != BALANCED else f"{data}, balanced"
            text = f"{where}: from {ENOUGH[data]} examples on, all bi-partitions of rounds 41 to 50 are correct"
            out.append(Claim(text, right, None))
            text = f"{where}: gap of updates minus that of gradients, mean over the numbers of examples"
            out.append(Claim(text, ahead, 0.0, "of the gap", decimals=2))
    return out


def _needed(records: Mapping[str, Sequence[Trace]], context: Context) -> Table:
    """Return the rows on the claim that gradients need more examples than updates."""
    rows = []
    for data, numbers in EXAMPLES[context.scale].items():
        for dealt in setting.DEALT:
            found = {each: records.get(_name(data, dealt, each), ()) for each in numbers}
            gaps = {each: [setting.gaps(t) for t in traces if not t.failed] for each, traces in found.items()}
            if not all(gaps.values()):
                continue
            updates = [each for each in numbers if min(g.updates[-1] for g in gaps[each]) > 0]
            gradients = [each for each in numbers if min(g.gradients[-1] for g in gaps[each]) > 0]
            ahead = [each for each in numbers if fmean(g.updates[-1] - g.gradients[-1] for g in gaps[each]) > 0]
            first = [f"{known[0]}" if known else f"more than {numbers[-1]}" for known in (updates, gradients)]
            rows.append([data, dealt, *first, ", ".join(map(str, ahead)) or "none"])
    columns = ("data", "dealt", "gap of updates positive from", "of gradients", "updates ahead with")
    notes = ("Examples per client; positive: in all seeds. Ahead: the mean gap of updates is larger.",)
    return Table("Do gradients need more examples?", columns, rows, notes)


LAST = 10  # rounds whose bi-partitions are counted


def _row(traces: Sequence[Trace]) -> list[str]:
    found = [setting.gaps(trace) for trace in traces if not trace.failed]
    updates, gradients = Sample.of(f.updates[-1] for f in found), Sample.of(f.gradients[-1] for f in found)
    judged = [right for f in found for right in f.correct[-LAST:]]
    return [updates.text(2), gradients.text(2), f"{sum(judged)} of {len(judged)}" if judged else "-"]


def drawn(records: Mapping[str, Sequence[Trace]], context: Context) -> "Figure":
    """Draw a panel for each data set and partition, a curve for updates and one for gradients."""
    from matplotlib.figure import Figure as Canvas  # noqa: PLC0415  (slow to import)

    panels = [(data, dealt) for data in EXAMPLES[context.scale] for dealt in setting.DEALT]
    canvas = Canvas(figsize=(0.4 + 3.2 * len(panels), 3.1), layout="constrained")
    grid = canvas.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (data, dealt) in zip(grid, panels, strict=True):
        numbers = EXAMPLES[context.scale][data]
        found = {
            each: [setting.gaps(t) for t in records.get(_name(data, dealt, each), ()) if not t.failed]
            for each in numbers
        }
        for k, what in enumerate(("updates", "gradients")):
            known = {each: [getattr(f, what)[-1] for f in of] for each, of in found.items() if of}
            means = [sum(values) / len(values) for values in known.values()]
            axes.plot(
                list(known), means, color=COLOURS[k], linestyle=DASHES[k], marker=MARKERS[k],
                markerfacecolor="white", label=what,
            )  # fmt: skip
            axes.fill_between(list(known), [min(v) for v in known.values()], [max(v) for v in known.values()],
                              color=COLOURS[k], alpha=0.2, linewidth=0)  # fmt: skip
        axes.axhline(0, color=MUTED, linewidth=1)
        axes.axvline(ENOUGH[data], color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
        axes.set(xlabel="examples on every client", title=f"{data}, {dealt}", xscale="log")
        axes.set_xticks(list(numbers), [f"{each}" for each in numbers])
        axes.minorticks_off()
    grid[0].set_ylabel("separation gap")
    handles, labels = grid[0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=2)
    return canvas
