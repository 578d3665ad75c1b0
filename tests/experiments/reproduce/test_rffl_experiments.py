"""The experiments of Xu and Lyu: their runs are the paper's and are shared, and what they render says what was run."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from made import trace

from papers.rffl import claims, figure1, figure2, tables
from papers.rffl.measured import Pair, attackers_removed, interval, signed
from papers.rffl.remarks import CONTRADICTION, FAR, LENGTH, NOVEL, REVERSED, SUM, THEIRS, TURNED, UNTRAINED
from papers.rffl.robustness import ALIKE, SMALL_ONES, each
from papers.rffl.setting import (
    BY_CLASS,
    FEW,
    FIXED,
    FLIP,
    MANY,
    OURS,
    RIDE,
    ROBUST,
    STANDALONE,
    Enemy,
    Federation,
    carried_out,
    cell,
)
from phalanx.aggregators import MultiKrum
from phalanx.experiments.papers.comparison import ComparedCell
from phalanx.experiments.papers.experiment import Context, reproductions
from phalanx.experiments.papers.output import flat
from phalanx.experiments.store import Store
from phalanx.experiments.trace import Excluded
from phalanx.fairness import collaborative_fairness
from phalanx.models import XuLyuMnistCNN
from phalanx.rng import numpy_generator
from phalanx.runs.engine_choice import with_engine

MNIST = Federation("MNIST", 10, "uniform")


@pytest.fixture(scope="module")
def reproduction():
    return reproductions()["rffl"]


@pytest.fixture(scope="module")
def context(reproduction):
    return Context("quick", (0,), reproduction.published)


def table(reproduction, number):
    return reproduction.experiments[f"table{number}"].exhibit


@cache
def identities(module, scale="quick", seed=0):
    return {run.identity for run in module.runs(scale, seed).values()}


def test_all_tables_and_figures_of_the_paper_are_there(reproduction):
    named = {f"table{k}" for k in range(1, 23)} | {"figure1", "figure2"}
    assert set(reproduction.experiments) == named | {"claims", "program"}
    assert set(reproduction.published.tables) == named - {"table10"}


def test_experiments_share_their_runs(reproduction):
    runs = {k: identities(table(reproduction, k)) for k in range(1, 23)}
    assert (runs[1], runs[2], runs[11]) == (runs[3], runs[4], runs[12])
    assert identities(figure1) <= runs[1]
    assert identities(figure2) <= runs[5] | runs[13] | runs[14] | runs[18]
    own = {run.identity for name, run in claims.runs("quick", 0).items() if BY_CLASS in name}
    assert len(own) == 6, "plain, with free riders, and with label flippers, on two splits"
    assert identities(claims) - own <= runs[1] | identities(figure2)
    assert identities(figure2, "paper") <= set.union(
        *(identities(table(reproduction, k), "paper") for k in (5, 13, 14, 18))
    )
    for k in tables.ATTACKED:
        assert len(runs[k]) == len(ROBUST)
        assert len(runs[k] & runs[1]) == 1, "everybody alone is everybody alone, whoever attacks"
    assert [len(runs[k]) for k in (1, 2, 10, 11)] == [2 * 3 * 5, 5 * 5, 0, 2 * 3 * 5]


def test_the_runs_are_those_of_the_paper():
    paper = MNIST.base("paper", 7)
    assert (paper.model, paper.until.steps, paper.training.batch_size, paper.seed) == (XuLyuMnistCNN(), 60, 16, 7)
    assert (paper.training.epochs, paper.training.lr.start, paper.training.lr.decay) == (1, 0.25, 0.977)
    assert Federation("MNIST", 5, "uniform").base("paper", 0).training.lr.start == 0.15
    rates = [Federation("CIFAR-10", n, "uniform").base("paper", 0).training.lr.start for n in (5, 10)]
    assert rates == [0.015, 0.025]
    fedavg = carried_out(MNIST, "FedAvg", "paper", 0)
    assert fedavg.evaluation.local_epochs == 1
    assert carried_out(MNIST, "FedAvg", "paper", 0, Enemy(RIDE, FEW)).evaluation.local_epochs == 0
    assert carried_out(MNIST, "q-FFL", "paper", 0).participation == 0.8
    assert carried_out(MNIST, FIXED, "paper", 0).algorithm.clip == 0.5
    assert carried_out(MNIST, OURS, "paper", 0).algorithm.own == "replaced"


@pytest.mark.parametrize(
    ("clients", "sizes"), [(5, [71, 336, 600, 865, 1130]), (10, [71, 189, 306, 424, 542, 659, 777, 895, 1012, 1130])]
)
def test_the_power_law_is_the_programs_ramp(clients, sizes):
    base = Federation("MNIST", clients, "powerlaw").base("quick", 0)
    assert base.data.limit == sum(sizes)
    labels = torch.zeros(base.data.limit, dtype=torch.int64)
    parts = base.partition.split(labels, clients, numpy_generator(0, "partition"))
    assert [len(part) for part in parts] == pytest.approx(sizes, abs=1)


@pytest.mark.parametrize(("data", "clients"), [("CIFAR-10", 5), ("CIFAR-10", 10), ("MNIST", 5), ("MNIST", 20)])
@pytest.mark.parametrize("scale", ["quick", "paper"])
def test_there_are_enough_examples_of_the_class_that_everybody_holds(data, clients, scale):
    base = Federation(data, clients, "classimbalance").base(scale, 0)
    number = base.data.limit or {"MNIST": 60_000, "CIFAR-10": 50_000}[data]
    labels = torch.arange(number) % 10
    parts = base.partition.split(labels, clients, numpy_generator(0, "partition"))
    assert len({len(part) for part in parts}) == 1
    classes = [len(labels[part].unique()) for part in parts]
    assert (classes[0], classes[-1]) == (1, 10)
    assert classes == sorted(classes)
    if clients == 5:
        assert classes == [1, 3, 5, 7, 10]


def test_attackers_are_beside_the_honest(reproduction):
    for k in tables.ATTACKED:
        module = table(reproduction, k)
        split, attack, number = tables.ATTACKED[k]
        assert f"{number} {attack}" in module.title
        setting = reproduction.published.tables[f"table{k}"].setting
        assert f"({number})" in setting
        assert f"{split} split" in setting
        assert attack.split("-")[0] in setting
        for name, run in module.runs("quick", 0).items():
            assert run.attackers() == (frozenset() if STANDALONE in name else frozenset(range(10, 10 + number)))


@pytest.mark.parametrize(("number", "f", "m"), [(FEW, 2, 10), (MANY, 4, 17)])
def test_multi_krum_averages_four_fifths(number, f, m):
    rule = carried_out(MNIST, "Multi-Krum", "quick", 0, Enemy(RIDE, number)).algorithm.aggregate
    assert rule == MultiKrum(f=f, m=m)
    assert rule(torch.randn(10 + number, 3)).shape == (3,)


@pytest.mark.slow
def test_the_runs_are_those_of_the_records(reproduction):
    """A changed hyper-parameter is another run: the records that the documentation cites would not be of it."""
    records = {trace.identity for trace in Store(Path(__file__).parents[3] / "results/rffl").traces()}
    runs = set.union(*(identities(e.exhibit, seed=s) for e in reproduction.experiments.values() for s in range(3)))
    runs |= set.union(*(identities(claims, seed=seed) for seed in range(5)))
    for exhibit in (e.exhibit for e in reproduction.experiments.values()):
        at_size = [plan for seed in range(3) for plan in exhibit.runs("paper", seed).values()]
        runs |= {with_engine(plan, "compiled").identity for plan in at_size}
    assert records
    assert records <= runs


# What is read off the runs


def run_of(received, seed=0, *, byzantine=(), removed=(), **curves):
    one = trace([0.1, 0.9], seed, **curves)
    return replace(
        one,
        received_accuracy=dict(enumerate(received)),
        byzantine=byzantine,
        excluded=tuple(Excluded(i, step, f"reputation 0.01 < 0.03, excluded in {step}") for i, step in removed),
    )


def test_a_pair_by_hand():
    pair = Pair(run_of([0.5, 0.6, 0.7, 0.9]), run_of([0.7, 0.6, 0.9, 0.8]))
    assert pair.gain == pytest.approx((20 + 0 + 20 - 10) / 4)
    assert pair.gain_of_best == pytest.approx(20.0)  # participant 2
    assert pair.best_over_best == pytest.approx(0.0)
    assert pair.fairness == collaborative_fairness(pair.alone.received_accuracy, pair.run.received_accuracy)


def test_the_interval_of_one_run_is_fishers_and_that_of_several_is_narrower():
    one = Pair(run_of([0.5, 0.6, 0.7, 0.9, 0.8]), run_of([0.7, 0.6, 0.9, 0.8, 0.75])).fairness
    assert interval([one]) == f"{100 * one.low:.1f} to {100 * one.high:.1f}"
    low, high = map(float, interval([one] * 4).split(" to "))
    assert 100 * one.low < low < 100 * one.coefficient < high < 100 * one.high
    same = collaborative_fairness({0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4})
    assert interval([same]) == interval([]) == ""


def test_who_was_removed_in_words():
    quick = run_of([0.9] * 3, byzantine=(3, 4), removed=[(3, 2), (4, 5)])
    late = run_of([0.9] * 3, 1, byzantine=(3, 4), removed=[(3, 9), (0, 4)])
    assert attackers_removed([quick], "RFFL") == attackers_removed([quick, quick], FIXED) == "2 of 2 by round 5"
    assert attackers_removed([quick, late], OURS) == "2 of 2 by round 5, 1 of 2 by round 9"
    assert attackers_removed([quick], "Median") == "-"
    assert (signed([1.25]), signed([1.0, 3.0]), signed([])) == ("+1.2", "+2.0 ± 12.7", "-")
    assert (each([run_of([0.914, 0.926])]), each([run_of([0.1, 0.1])]), each([])) == ("91 93", "10 each", "-")


# What is rendered


def rows_of(module, records, context, column="method"):
    (shown,) = module.render(records, context).tables
    where = shown.columns.index(column)
    return {row[where]: dict(zip(shown.columns, row, strict=True)) for row in shown.rows}


def test_without_records_everything_is_missing(reproduction, context):
    for experiment in reproduction.experiments.values():
        for shown in experiment.exhibit.render({}, context).tables:
            compared = [c for row in shown.rows for c in row if isinstance(c, ComparedCell)]
            assert {c.text for c in compared} <= {"missing"}
            flat(shown)


def test_a_table_with_attackers_has_gains_removals_and_reasons(reproduction, context):
    enemy = Enemy(RIDE, FEW)
    records = {
        cell(MNIST, STANDALONE): [run_of([0.8, 0.9] * 5)],
        cell(MNIST, "RFFL", enemy): [run_of([0.85, 0.9] * 5, byzantine=(10, 11), removed=[(10, 2), (11, 3)])],
        cell(MNIST, "Median", enemy): [run_of([0.9] * 10, byzantine=(10, 11))],
    }
    rows = rows_of(table(reproduction, 13), records, context)
    assert list(rows) == list(ROBUST)
    rffl, median = rows["RFFL"], rows["Median"]
    assert (rffl["gain, points"], rffl["adversaries excluded"], rffl["honest excluded"]) == (
        "+2.5", "2 of 2 by round 3", "0",
    )  # fmt: skip
    assert rffl["mean accuracy, %"].ours.mean == pytest.approx(87.5)
    assert rffl["mean accuracy, %"].published.value == 92.5
    assert rffl["published for each, %"] == "92 93 94 92 93 93 91 92 93 92"
    assert (median["participants 1 to 10, %"], median["published for each, %"]) == ("90 each", "1 each")
    assert (median["gain, points"], median["adversaries excluded"]) == ("+5.0", "-")
    assert rows[OURS]["mean accuracy, %"].published is None
    assert rows[FIXED]["mean accuracy, %"].published.value == 92.5
    (shown,) = table(reproduction, 13).render(records, context).tables
    assert any("RFFL 92.5 %, Standalone 92.4 %" in note for note in shown.notes)
    assert f"Median: {REVERSED}" in shown.notes


def test_a_published_row_that_is_standalones_is_called_that(reproduction, context):
    individual = [k for k in tables.ATTACKED if k not in (5, 6, 14)]
    notes = {k: table(reproduction, k).render({}, context).tables[0].notes for k in individual}
    assert {k for k in individual if any(ALIKE in note for note in notes[k])} == set(individual) - {15, 16, 18}
    assert {k for k in individual if any(SMALL_ONES in note for note in notes[k])} == {15, 16, 18}


def test_the_table_of_label_flippers_has_three_figures(reproduction, context):
    curves = {"attack_success": (0.0, 0.004), "class_accuracy 1": (0.0, 0.97)}
    records = {
        cell(MNIST, STANDALONE): [run_of([0.8, 0.9] * 5)],
        cell(MNIST, "FedAvg", Enemy(FLIP, FEW)): [run_of([0.9, 0.92] * 5, byzantine=(10, 11), **curves)],
    }
    row = rows_of(table(reproduction, 5), records, context)["FedAvg"]
    figures = [row[f"{name}, %"] for name in ("max accuracy", "attack success", "target accuracy")]
    assert [c.ours.mean for c in figures] == pytest.approx([92.0, 0.4, 97.0])
    assert [c.published.value for c in figures] == [96.8, 0.2, 98.8]
    assert row["gain, points"] == "+6.0"


REMARKS = {  # where each of these stands, and nowhere else
    ("RFFL", TURNED): {20},
    ("RFFL", THEIRS): {21, 22},
    ("FedAvg", CONTRADICTION): {7, 15, 19},
    ("Multi-Krum", FAR): {7, 8, 9, 13, 16, 17, 18},
    ("Median", REVERSED): {5, 7, 9, 13, 14, 15, 16, 17, 18, 19, 22},
    ("SignSGD", UNTRAINED): set(tables.ATTACKED) - {8},
    ("FoolsGold", SUM): {5, 14},
    ("FoolsGold", NOVEL): {7, 9, 13, 17, 18, 21, 22},
    ("FoolsGold", LENGTH): {8, 20},
}


def test_numbers_that_cannot_be_have_their_reason(reproduction, context):
    shown = {k: table(reproduction, k).render({}, context).tables[0] for k in tables.ATTACKED}
    for (method, why), where in REMARKS.items():
        assert {k for k in tables.ATTACKED if f"{method}: {why}" in shown[k].notes} == where
    for k in tables.ATTACKED:
        label = "max accuracy" if k in (5, 6, 14) else "1"
        value = reproduction.published.of(f"table{k}", "Median", label).value
        assert (value <= 1) == (f"Median: {REVERSED}" in shown[k].notes), "every 1 % has its reason, nothing else"


def test_fairness_and_accuracy_come_from_the_same_runs(reproduction, context):
    alone, given = run_of([0.5, 0.6, 0.7, 0.8, 0.9]), run_of([0.6, 0.6, 0.8, 0.8, 0.9])
    records = {cell(MNIST, STANDALONE): [alone], cell(MNIST, "RFFL"): [given], cell(MNIST, OURS): [given]}
    fair = table(reproduction, 1).render(records, context).tables[0].rows[0]
    assert fair[:2] == ["MNIST, 10, uniform", "RFFL"]
    fairness = collaborative_fairness(alone.received_accuracy, given.received_accuracy)
    assert fair[2].ours.mean == pytest.approx(100 * fairness.coefficient)
    assert fair[2].published.value == 83.36
    assert fair[4:] == ["+4.0", "0"]
    rows = [
        row for row in table(reproduction, 3).render(records, context).tables[0].rows if row[0] == "MNIST, 10, uniform"
    ]
    assert [row[1] for row in rows] == ["RFFL", OURS, "FedAvg", "q-FFL", STANDALONE]
    assert (rows[0][2].ours.mean, rows[0][2].published.value) == (pytest.approx(90.0), 93.7)
    assert rows[0][3:] == ["74.0", "+0.0", "+4.0"]
    assert rows[1][2].published is None
    assert rows[4][3:] == ["70.0", "", ""]


def test_claims_hold_or_do_not(context):
    alone, given = [0.5, 0.6, 0.7, 0.8, 0.9], [0.55, 0.65, 0.75, 0.85, 0.95]
    federations = [f for f in claims.FEDERATIONS if f.split != "classimbalance"]
    records = {cell(f, STANDALONE): [run_of(alone, s) for s in (0, 1)] for f in federations}
    records |= {cell(f, "RFFL"): [run_of(given), run_of(given[::-1], 1, removed=[(0, 3)])] for f in federations}
    both = [run_of(given, s, byzantine=(5, 6), removed=[(5, 2), (6, 2 + 6 * s)]) for s in (0, 1)]
    records |= {cell(f, "RFFL", Enemy(RIDE, FEW)): both for f in federations}
    (shown,) = claims.render(records, context).tables
    told = {(row[0], row[2]): row[3:] for row in shown.rows}
    assert told["fairness above 95 %", "powerlaw"][1] == "in 1 of 2 seeds"
    assert told["fairness", "uniform"][1] == "-"
    assert told["the best participant gains", "uniform"] == ["+5.0, +45.0", "yes"]
    assert told["the best beats the best alone", "uniform"] == ["+5.0, +5.0", "yes"]
    assert told["nobody is excluded", "powerlaw"] == ["0, 1", "in 1 of 2 seeds"]
    asked = "free-riding: below the threshold within 5 rounds, nobody honest excluded"
    assert told[asked, "uniform"] == ["round 2, round 2; round 2, round 8", "in 1 of 2 seeds"]
    state = {"step": (1, 2, 3), "probation": ({}, {"6": 2}, {"6": 2})}
    records |= {cell(f, "RFFL", Enemy(RIDE, FEW)): [replace(run, state=state) for run in both] for f in federations}
    (shown,) = claims.render(records, context).tables
    told = {(row[0], row[2]): row[3:] for row in shown.rows}
    assert told[asked, "uniform"] == ["round 2, round 2; round 2, round 2", "yes"], "on probation since round 2"


def test_figure_1_claims_that_rffl_changes_less_in_the_second_half(context):
    f = figure1.FEDERATIONS[0]

    def best(values, seed=0):
        return trace(values, seed, best_client_accuracy=values)

    records = {cell(f, "RFFL"): [best((0.0, 0.9, 0.5, 0.51, 0.52, 0.52))], cell(f, STANDALONE): [best((0.1, 0.2), 1)]}
    records |= {cell(f, "FedAvg"): [best((0.0, 0.0, 0.5, 0.6, 0.5, 0.6)), best((0.1,), 1)]}
    (claim,) = figure1.render(records, context).claims
    assert claim.text.startswith(f"{f.split}: change between rounds")
    assert claim.text.endswith("FedAvg minus RFFL")
    assert claim.values == pytest.approx([10.0 - 0.5])


def test_figure_2_draws_everybody_until_it_is_removed(context):
    f = figure2.FEDERATIONS[0]
    steps, left = (1, 2, 3), {"0": 0.3, "1": 0.3, "2": 0.4}
    state = {"step": steps, "threshold": (0.08, 0.11, 0.11), "reputation": ({**left, "3": 0.05}, left, left)}
    one = replace(run_of([0.9] * 3, byzantine=(3,), removed=[(3, 2)]), state=state)
    canvas = figure2.drawn({cell(f, "RFFL", Enemy(RIDE, FEW)): [one]})
    lines = [list(zip(*map(list, line.get_data()), strict=True)) for line in canvas.axes[0].lines]
    assert lines[3] == [(0, 0.25), (1, 0.05), (2, 0.01)]
    assert lines[0] == [(0, 0.25), (1, 0.3), (2, 0.3), (3, 0.3)]
    assert len(lines) == 5, "four participants and the threshold"
