"""The experiments of Sattler et al. 2020: the runs are the paper's, and verdicts can be no."""

from dataclasses import replace

import pytest
from made import trace

from papers.byzantine_cfl import figure2, figure3, setting, tables
from phalanx.experiments.papers.experiment import SCALES, Context, reproductions
from phalanx.experiments.papers.output import flat
from phalanx.experiments.shown.plotting import styled
from phalanx.experiments.trace import Excluded
from phalanx.runs.session import simulate

table1, table2 = tables.EXPERIMENTS.values()
MODULES = {table1: 100, table2: 10, figure2: 100}
every_module = pytest.mark.parametrize("module", MODULES, ids=("table1", "table2", "figure2"))


@pytest.fixture(scope="module")
def context() -> Context:
    return Context("quick", (0,), reproductions()["byzantine-cfl"].published)


def test_both_tables_and_figures_are_there():
    assert reproductions()["byzantine-cfl"].experiments.keys() == {"figure2", "figure3", "table1", "table2"}


@every_module
@pytest.mark.parametrize("scale", SCALES)
def test_the_runs_are_those_of_the_paper(module, scale):
    runs = module.runs(scale, 3)
    clients = MODULES[module]
    assert len({run.identity for run in runs.values()}) == len(runs)
    for name, run in runs.items():
        data, _, scenario = name.split(" / ")
        assert (run.clients, run.seed) == (clients, 3)
        assert len(run.attackers()) == (0 if scenario == "clean" else 0.3 * clients)
        if scale == "paper":
            lr, momentum = run.training.lr, run.training.momentum
            assert (lr, momentum, run.training.batch_size) == (0.01, 0.9 if data == "CIFAR-10" else 0.0, 100)
            assert run.until.steps == 200
    assert {name.split(" / ")[0] for name in runs} == set(setting.SHOWN[scale])


def test_the_figure_shows_runs_of_the_first_table():
    first = {run.identity for run in table1.runs("quick", 0).values()}
    assert {run.identity for run in figure2.runs("quick", 0).values()} <= first


def removed(clients, byzantine=(0, 1, 2), seed=0, value=0.9, step=4):
    """A run of ten clients in which those were removed, all in one round."""
    told = tuple(Excluded(i, step, "cosine cluster") for i in clients)
    state = {"step": tuple(range(1, 7)), "alpha_cross": (None, 0.3, 0.2, 0.01, 0.2, 0.3)}
    return replace(trace([0.1, value], seed), excluded=told, byzantine=tuple(byzantine), state=state)


def test_who_was_removed_is_judged_seed_by_seed(context):
    records = {
        "MNIST / CFL / noisy": [removed([0, 1, 2]), removed([0, 1, 2], seed=1)],
        "MNIST / CFL / byzantine": [removed([0, 1]), removed([0, 1, 2, 5], seed=1)],
        "MNIST / CFL / clean": [removed([], ()), removed([7], (), seed=1)],
    }
    with styled():
        table = figure2.render(records, context).tables[0]
    rows = {row[2]: row[3:] for row in table.rows}
    assert rows["noisy"] == ["3, 3", "0, 0", "4, 4", "yes"]
    assert rows["byzantine"] == ["2, 3", "0, 1", "4, 4", "in 0 of 2 seeds"]
    assert rows["clean"] == ["0, 0", "0, 1", "-, 4", "in 1 of 2 seeds"]


def test_rounds_of_separation_and_the_least_similarity_are_claimed(context):
    def gone(rounds, byzantine=(0, 1), cross=(0.5, 0.03)):
        one = removed(range(len(rounds)), byzantine)
        told = tuple(replace(e, step=step) for e, step in zip(one.excluded, rounds, strict=True))
        return replace(one, excluded=told, state={"step": (1, 2), "alpha_cross": cross})

    records = {
        "MNIST / CFL / byzantine": [gone([2, 34]), gone([2, 35]), gone([2])],
        "MNIST / CFL / noisy": [gone([3, 3]), gone([3, 4])],
        "MNIST / CFL / clean": [gone([], ()), gone([], (), cross=(0.5, 0.01))],
    }
    claims = [claim.values for claim in figure2.claims(records, context)]
    assert claims == [[True, False, False], [True, False], [], [0.03, 0.01]]


def test_toys_are_claimed_to_be_too_much_for_one_model(context):
    records = {"XOR / FL": [trace([0.5])], "XOR / CFL": [trace([1.0])], "contradiction / FL": [trace([0.9])]}
    with styled():
        claims = [claim.values for claim in figure3.render(records, context).claims]
    assert claims == [pytest.approx([30.0]), pytest.approx([100.0]), pytest.approx([-10.0]), []]


def test_published_numbers_stand_beside_ours(context):
    records = {"MNIST / CFL / noisy": [removed([0, 1, 2], value=0.95)]}
    for module, published in ((table1, "97.4"), (table2, "98.4")):
        with styled():
            rows = {(row[0], row[1]): row[2:] for row in flat(module.render(records, context).tables[0]).rows}
        difference = 95 - float(published)
        assert rows["MNIST", "CFL"][1] == f"95.0 ({published}, {difference:+.1f})"
        assert rows["MNIST", "FL"][1] == f"missing ({96.9 if module is table1 else 98.1:g})"
        assert rows["MNIST", setting.STABLE][1:] == ["", "", ""]


def test_cfl_has_to_be_ahead_but_for_a_point_where_nobody_attacks(context):
    records = {
        "MNIST / FL / noisy": [removed([], value=0.90), removed([], seed=1, value=0.90)],
        "MNIST / CFL / noisy": [removed([], value=0.91), removed([], seed=1, value=0.89)],
        "MNIST / FL / clean": [removed([], (), value=0.900)],
        "MNIST / CFL / clean": [removed([], (), value=0.895)],
    }
    with styled():
        claims = {claim.text: claim for claim in table2.render(records, context).claims}
    noisy, clean = (claims[f"MNIST, {scenario}: CFL minus FL"] for scenario in ("noisy", "clean"))
    assert (noisy.values, noisy.least) == ([pytest.approx(1.0), pytest.approx(-1.0)], 0.0)
    assert (clean.values, clean.least) == ([pytest.approx(-0.5)], -1.0)
    assert "published +" in noisy.claimed


@every_module
@pytest.mark.parametrize("scale", SCALES)
def test_nothing_is_claimed_without_records(module, scale, context):
    with styled():
        rendering = module.render({}, replace(context, scale=scale))
    assert all("yes" not in row for table in map(flat, rendering.tables) for row in table.rows)
    assert len(rendering.plots) == 1


@pytest.mark.parametrize("problem", ["XOR", "contradiction"])
def test_toy_problems_are_easy_for_each_cluster_and_for_no_line(problem):
    train, test = figure3.Toy(problem).load()
    for data in (train, test):
        first = data.owners % 2 == 0
        right, above = data.x[:, 0] > 0, data.x[:, 1] > 0
        one_for_right = data.y[first & right].float().mean(), data.y[~first & right].float().mean()
        assert one_for_right == ((0.0, 1.0) if problem == "XOR" else (1.0, 0.0))
        assert bool((data.y[first & ~right] == data.y[~first & right].unique()).all())
        assert bool((above == first).all()) == (problem == "XOR")
    assert len(train) == 800
    assert train.owners.bincount().tolist() == [40] * 20


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Clients hold 40 examples")
def test_toys_are_learned_by_two_models_and_not_by_one():
    runs = figure3.runs("quick", 0)
    short = {name: replace(run, until=replace(run.until, steps=30)) for name, run in runs.items()}
    final = {name: simulate(run).summary.final.accuracy for name, run in short.items()}
    assert final["XOR / FL"] < 0.8
    assert final["contradiction / FL"] < 0.8
    assert final["XOR / CFL"] == final["contradiction / CFL"] == 1.0
