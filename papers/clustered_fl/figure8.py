"""Figure 8: clients that name the classes in four ways, separated in three splits."""

import math
from collections.abc import Mapping, Sequence

from papers.clustered_fl.setting import BATCH, CLIENTS, EPOCHS, TESTS, Drawn
from papers.clustered_fl.stages import (
    CFL,
    CHOICE,
    DEFAULT,
    FEWER,
    FL,
    Stages,
    by_group,
    clusters,
    drawn,
    found,
    last_gaps,
)
from phalanx.data import CIFAR10, MNIST, PermutedLabels
from phalanx.experiments.papers.claims import Claim
from phalanx.experiments.papers.comparison import Cell, Sample, Table, compared
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.trace import Trace
from phalanx.models import MLP, SattlerCifarCNN
from phalanx.runs.plan import Run
from phalanx.training.evaluation import Evaluation
from phalanx.training.sgd import LocalSGD

TITLE = "Permuted labels: accuracy of four groups of clients, and separation gaps, over three splits"
CLAIM = (
    "Federated learning stagnates; three splits separate the groups, lift each at once, and more than double the "
    "accuracy of all clients; in the end no cluster has a gap above zero."
)
MINUTES = {"quick": 4.0, "paper": 400.0}
GROUPS = PermutedLabels(count=4)
ALONE = "one group, "  # prefix of the cells without contradictions
NOISE = 5.0  # points by which a stagnating accuracy may change


def stages(scale: Scale, seed: int, groups: PermutedLabels = GROUPS) -> Stages:
    """Return the federation: on MNIST with a small network at quick scale, on CIFAR-10 at that of the paper."""
    quick = scale == "quick"
    each = 150 if groups.count > 1 else 30
    data = Drawn(MNIST(standardize=True), CLIENTS * each, TESTS, seed=seed) if quick else CIFAR10(standardize=True)
    base = Run(
        data=data,
        clients=CLIENTS,
        groups=groups,
        model=MLP((200,)) if quick else SattlerCifarCNN(),
        training=LocalSGD(epochs=EPOCHS, batch_size=BATCH, lr=0.1 if quick else 0.05),
        evaluation=Evaluation(every=3 if quick else 5),
    )
    return Stages(base, 60, (15, 30, 45)) if quick else Stages(base, 200, (50, 100, 150))


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return runs of federated learning, and CFL in three forms, with four groups; the same splits with one group."""
    out = stages(scale, seed).runs((FL, CFL, DEFAULT, FEWER, CHOICE), seed)
    alone = stages(scale, seed, PermutedLabels(count=1)).runs((FL, CFL, FEWER, CHOICE), seed)
    return out | {ALONE + name: run for name, run in alone.items()}


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return accuracies, the claims seed by seed, and the picture."""
    plan = stages(context.scale, 0)
    tables, claims = (_accuracies(records),), _claims(records, plan)
    caption = (
        "Above: accuracy of each group on the test images as it names them, first seed. Below: separation gap of each "
        "cluster, by its number in the tree. Dashed: the rounds of the splits."
    )
    figure = drawn(records, plan, "group_accuracy", "test accuracy", shares=True)
    notes = [
        "A cluster of one group has no gap above zero by definition: its least similar clients are no more similar "
        "than those of its best two parts.",
        f'"{CHOICE}": each client keeps a fifth of its examples from training, and takes the model on its path from '
        "the root to its cluster that has the least loss on them.",
        f'"{ALONE}...": the same splits where nothing contradicts anything, and clients have 30 examples each (at '
        "quick scale). Splits cost accuracy there. Of 30 examples a client keeps six, by which it can hardly tell "
        "models apart; and the model of the root is that of the first split, while federated learning goes on.",
    ]
    if context.scale == "quick":
        notes.append(
            "At quick scale: MNIST and a network of one hidden layer instead of CIFAR-10 and one of five layers, 150 "
            "examples per client, splits after 15, 30 and 45 of 60 rounds instead of 50, 100 and 150 of 200."
        )
    return Rendering(tables, (Plot(figure, caption=caption),), notes, claims)


def _accuracies(records: Mapping[str, Sequence[Trace]]) -> Table:
    rows = list[list[Cell]]()
    for prefix, names in (("", (FL, CFL, DEFAULT, FEWER, CHOICE)), (ALONE, (FL, CFL, FEWER, CHOICE))):
        for name in names:
            traces = [t for t in records.get(prefix + name, ()) if not t.failed]
            worst = Sample.of(100 * value for t in traces if (value := t.final("worst_client_accuracy")) is not None)
            counts = ", ".join(f"{clusters(t)[0]}" for t in traces)
            cell = compared(records.get(prefix + name, ()))
            rows.append([prefix.rstrip(", ") or "four groups", name, cell, worst.text(), counts])
    columns = ("data", "method", "accuracy, %", "of the worst client, %", "clusters at the end, by seed")
    notes = ("The published accuracies are about 20 % for federated learning, and close to 60 % for CFL, on CIFAR-10.",)
    return Table("Accuracy after the last round", columns, rows, notes)


def _claims(records: Mapping[str, Sequence[Trace]], plan: Stages) -> list[Claim]:
    """Return the claims on stages and splits, and two of ours."""
    names = (FL, CFL, CHOICE, FEWER, ALONE + FEWER, ALONE + CHOICE)
    by_seed = {name: {t.seed: t for t in records.get(name, ()) if not t.failed} for name in names}
    fl, cfl = by_seed[FL], by_seed[CFL]
    stalls = {s: 100 * (_at(t, plan.rounds) - _at(t, plan.splits[0])) for s, t in fl.items()}
    lifts = {s: 100 * lift(t, plan) for s, t in cfl.items()}
    right = {s: float(found(t, 4)) for s, t in cfl.items()}
    factors = {s: _at(cfl[s], plan.rounds) / _at(fl[s], plan.rounds) for s in sorted(fl.keys() & cfl.keys())}
    largest = {s: max(last_gaps(t).values(), default=math.nan) for s, t in cfl.items()}
    better = _ahead(by_seed[CHOICE], by_seed[FEWER])
    first, last = by_seed[ALONE + FEWER], by_seed[ALONE + CHOICE]
    both = sorted(first.keys() & last.keys())
    alone = {s: 100 * (_at(last[s], plan.rounds) - _at(first[s], plan.splits[0])) for s in both}
    return [
        Claim("federated learning stagnates: points that it changes by after the first split, below "
              f"{NOISE:g}", [NOISE - abs(v) for v in stalls.values()], published="above 0"),
        Claim("the first split lifts the group that it separates at once", list(lifts.values())),
        Claim("three splits find the four groups", list(right.values()), None),
        Claim("accuracy at least doubles", list(factors.values()), 2.0, "times", decimals=2),
        Claim("gaps are below zero at the end", [value < 0 for value in largest.values()], None),
        Claim("ours: with a choice the worst client is better off than with federated learning", list(better.values())),
        Claim("ours: with a choice clients of one group are not worse off than before the first split",
              list(alone.values())),
    ]  # fmt: skip


def _at(trace: Trace, step: int) -> float:
    """Return the accuracy at the last evaluation up to a step."""
    curve = zip(trace.curves["step"], trace.curves["accuracy"], strict=True)
    known = [value for at, value in curve if at is not None and value is not None and at <= step]
    return known[-1]


def lift(trace: Trace, plan: Stages) -> float:
    """Return the largest gain of a group between the evaluations around the first split."""
    steps = [step for step in trace.curves["step"] if step is not None]
    before = max(k for k, step in enumerate(steps) if step <= plan.splits[0])
    return max(curve[before + 1] - curve[before] for curve in by_group(trace, "group_accuracy").values())


def _ahead(ours: Mapping[int, Trace], theirs: Mapping[int, Trace]) -> dict[int, float]:
    """Return by seed the lead of the worst client of one run over that of another, at the end, in points."""
    finals = [{s: t.final("worst_client_accuracy") or 0.0 for s, t in runs.items()} for runs in (ours, theirs)]
    return {s: 100 * (finals[0][s] - finals[1][s]) for s in sorted(ours.keys() & theirs.keys())}
