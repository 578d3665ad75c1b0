"""Figure 7: norms of updates of clients that contradict each other, and of clients that do not."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from papers.clustered_fl.setting import BATCH, CLIENTS, EPOCHS, NEVER, ROOT, TESTS, Drawn, leaves
from phalanx.algorithms import ClusteredFL
from phalanx.core import Until
from phalanx.data import MNIST, ClassSplit, SwappedLabels
from phalanx.experiments.papers.claims import Claim
from phalanx.experiments.papers.comparison import Sample, Table
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import COLOURS, DASHES
from phalanx.experiments.trace import Trace
from phalanx.models import MLP, LeNet
from phalanx.runs.plan import Run
from phalanx.training.evaluation import Evaluation
from phalanx.training.sgd import LocalSGD

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Norms of updates over the rounds, of two clients with swapped labels and of two with different digits"
CLAIM = (
    "In both cases the mean update goes to zero. The largest client update decreases along with it where clients are "
    "congruent, and stagnates or increases where they are not."
)
MINUTES = {"quick": 5.0, "paper": 1500.0}
INCONGRUENT, CONGRUENT = "swapped labels", "digits 0 to 4, and 5 to 9"
PAIR = SwappedLabels(((1, 7), (3, 5)))
EARLY, LATE = slice(10, 20), slice(-10, None)  # compared rounds: during training, and at its end
FALLS, STAYS = 1 / 3, 1 / 2  # shares of the largest norm: below the first it has fallen, above the second it has not
SPLIT = ClusteredFL(memory=None)  # with its default thresholds
LATER = replace(SPLIT, min_round=250)
PATIENT = replace(SPLIT, min_round=100, patience=10)
SETTINGS: Mapping[str, tuple[ClusteredFL, int, int]] = {  # the rule, rounds, expected number of clusters at the end
    "20 clients, one distribution": (SPLIT, 60, 1),
    "20 clients, swapped labels": (SPLIT, 60, 4),
    "20 clients, different digits": (SPLIT, 60, 1),
    "20 clients, different digits, first split after round 250": (LATER, 300, 1),
    "20 clients, swapped labels, first split after round 250": (LATER, 300, 4),
    "20 clients, different digits, patience of 10 rounds after round 100": (PATIENT, 300, 1),
    "20 clients, swapped labels, patience of 10 rounds after round 100": (PATIENT, 300, 4),
}


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return runs of two clients whose norms are observed, and of 20 clients, split or not by default thresholds."""
    return {**_pairs(scale, seed), **_split(seed)}


def _pairs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return runs of federated learning of two clients that are never split."""
    quick = scale == "quick"
    mnist = MNIST(standardize=True)
    rounds = 250 if quick else 1000
    base = Run(
        algorithm=NEVER,
        data=Drawn(mnist, 8000, TESTS, seed=seed) if quick else mnist,
        clients=2,
        model=MLP((32,)) if quick else LeNet(),
        training=LocalSGD(epochs=EPOCHS, batch_size=BATCH, lr=0.1 if quick else 0.01),
        until=Until(steps=rounds),
        evaluation=Evaluation(every=rounds),
        seed=seed,
    )
    return {INCONGRUENT: replace(base, groups=PAIR), CONGRUENT: replace(base, partition=ClassSplit(2))}


def _split(seed: int) -> dict[str, Run]:
    """Return runs of CFL of 20 clients with 100 examples each; the same on both scales."""
    out = {}
    for name, (algorithm, rounds, _) in SETTINGS.items():
        run = Run(
            algorithm=algorithm,
            data=Drawn(MNIST(standardize=True), 100 * CLIENTS, TESTS, seed=seed),
            clients=CLIENTS,
            model=MLP((64,)),
            training=LocalSGD(epochs=EPOCHS, batch_size=BATCH, lr=0.1),
            until=Until(steps=rounds),
            evaluation=Evaluation(every=rounds // 2),
            seed=seed,
        )
        if "digits" in name:
            run = replace(run, partition=ClassSplit(2))
        out[name] = replace(run, groups=SwappedLabels()) if "swapped" in name else run
    return out


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return the norms over the rounds, the splits, and the curves."""
    notes = [
        "Different digits are the hard case: what one half learns, the other half forgets, until one model serves all. "
        "So for many rounds single updates stay long while their mean is short, as if clients were incongruent, and "
        "the default thresholds split them. The criteria hold at a stationary point, as the paper has it, no sooner. "
        "After round 100 the longest update of these clients is too long in every fourth round, that of clients with "
        "swapped labels in every round: a patience of ten rounds (ours, off by default) tells them apart.",
    ]
    if context.scale == "quick":
        notes.append(
            "At quick scale: 4,000 examples for each of the two clients and 250 rounds instead of 30,000 and 1,000, "
            "and 32 hidden units instead of a convolutional network."
        )
    caption = "Norms by round on a logarithmic axis, first seed: the mean of both updates, and the longer one."
    plots = (Plot(drawn(records), caption=caption),)
    return Rendering((_norms(records), _clusters(records)), plots, notes, _claims(records))


def _claims(records: Mapping[str, Sequence[Trace]]) -> list[Claim]:
    """Return the claims on norms, with limits of ours, and on the clusters that follow from them."""
    out = []
    for name in (INCONGRUENT, CONGRUENT):
        fallen = [100 * (1 - share) for share in _left(records, name, "mean")]
        out.append(Claim(f"two clients, {name}: fall of the mean update's norm", fallen, 100 * (1 - FALLS), "%"))
    most = {name: [100 * share for share in _left(records, name, "max")] for name in (INCONGRUENT, CONGRUENT)}
    out += [
        Claim(f"two clients, {INCONGRUENT}: what is left of the longest update", most[INCONGRUENT], 100 * STAYS, "%"),
        Claim(f"two clients, {CONGRUENT}: fall of the longest update", [100 - left for left in most[CONGRUENT]],
              100 * (1 - FALLS), "%"),
    ]  # fmt: skip
    for name, (_, _, wanted) in SETTINGS.items():
        held = [leaves(t) == wanted for t in records.get(name, ()) if not t.failed]
        out.append(Claim(f"ours: {name}: CFL ends with as many clusters as there are groups", held, None))
    return out


def _left(records: Mapping[str, Sequence[Trace]], name: str, which: str) -> list[float]:
    """Return the norm in the last ten rounds as a share of that in rounds 11 to 20, by seed."""
    curves = [norms(t, which) for t in records.get(name, ()) if not t.failed]
    return [fmean(curve[LATE]) / fmean(curve[EARLY]) for curve in curves]


def norms(trace: Trace, which: str) -> list[float]:
    """Return the norms by round, "mean" or "max"."""
    return [seen[ROOT][which] for seen in trace.state["norms"]]


def _norms(records: Mapping[str, Sequence[Trace]]) -> Table:
    rows = []
    for name in (INCONGRUENT, CONGRUENT):
        traces = [t for t in records.get(name, ()) if not t.failed]
        mean, most = ([norms(t, which) for t in traces] for which in ("mean", "max"))
        texts = [Sample.of(fmean(c[at]) for c in curves).text(3) for curves in (mean, most) for at in (EARLY, LATE)]
        rows.append([name, *texts, ", ".join(f"{share:.2f}" for share in _left(records, name, "max"))])
    columns = ("two clients with", "mean, rounds 11 to 20", "mean, last 10", "longest, rounds 11 to 20",
               "longest, last 10", "share left of the longest, by seed")  # fmt: skip
    return Table("Norms of updates", columns, rows)


def _clusters(records: Mapping[str, Sequence[Trace]]) -> Table:
    rows = []
    for name, (_, _, wanted) in SETTINGS.items():
        traces = [t for t in records.get(name, ()) if not t.failed]
        found = [leaves(t) for t in traces]
        first = ", ".join(f"{r}" if (r := _first_split(t)) else "-" for t in traces)
        rows.append([name, f"{wanted}", ", ".join(f"{k}" if k else "more" for k in found), first])
    columns = ("federation", "groups", "clusters at the end, by seed", "first split in round")
    return Table("Clusters that CFL finds, with its default thresholds", columns, rows)


def _first_split(trace: Trace) -> int | None:
    """Return the round of the first split; None if there is none, or the trace does not have it."""
    born = sorted(trace.state["born"][-1].values()) if "born" in trace.state else []
    return int(born[1]) if len(born) > 1 else None


def drawn(records: Mapping[str, Sequence[Trace]]) -> "Figure":
    """Draw a panel for each pair of clients."""
    from matplotlib.figure import Figure as Canvas  # noqa: PLC0415  (slow to import)

    canvas = Canvas(figsize=(7.4, 3.2), layout="constrained")
    grid = canvas.subplots(1, 2, sharey=True)
    labels = {"mean": "norm of the mean update", "max": "norm of the longest update"}
    for axes, name in zip(grid, (INCONGRUENT, CONGRUENT), strict=True):
        for trace in [t for t in records.get(name, ()) if not t.failed][:1]:
            for k, (which, label) in enumerate(labels.items()):
                axes.plot(trace.state["step"], norms(trace, which), color=COLOURS[k], linestyle=DASHES[k], label=label)
        axes.set(title=name, xlabel="round", yscale="log")
    grid[0].set_ylabel("norm")
    handles, texts = grid[0].get_legend_handles_labels()
    if handles:
        canvas.legend(handles, texts, loc="outside lower center", ncols=2)
    return canvas
