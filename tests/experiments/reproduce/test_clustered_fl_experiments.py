"""The experiments of Sattler et al. 2019: the runs are the paper's, what is watched is right, verdicts can be no."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from made import trace

from papers.clustered_fl import figure5, figure6, figure7, figure8, figure9, setting, stages
from papers.clustered_fl.setting import Drawn
from papers.clustered_fl.watching import Alternating, Watched
from phalanx.algorithms import ClusteredFL
from phalanx.clustering import separation_gap
from phalanx.data import Dataset, Digits, InMemory, PermutedLabels, SwappedLabels
from phalanx.experiments.papers.experiment import SCALES, Context, reproductions
from phalanx.experiments.papers.output import flat
from phalanx.experiments.shown.plotting import styled
from phalanx.experiments.trace import Trace
from phalanx.models import MLP
from phalanx.numerics.linalg import cosine_similarity
from phalanx.runs.federation import Federation
from phalanx.runs.plan import Run
from phalanx.runs.session import simulate
from phalanx.training.local import LocalTask
from phalanx.training.sgd import LocalSGD, Trainer
from toys import updates

FIGURES = (figure5, figure6, figure7, figure8, figure9)
TWO = SwappedLabels(((0, 1), (2, 3)))  # clients 0 and 1 are of one group, 2 and 3 of the other


@pytest.fixture(scope="module")
def context() -> Context:
    return Context("quick", (0,), reproductions()["clustered-fl"].published)


# Runs


def test_all_figures_with_numbers_are_there():
    assert {f"figure{k}" for k in (3, 5, 6, 7, 8, 9)} <= reproductions()["clustered-fl"].experiments.keys()


@pytest.mark.parametrize("module", FIGURES, ids=lambda m: m.__name__.rpartition(".")[2])
@pytest.mark.parametrize("scale", SCALES)
def test_runs_differ_from_each_other_and_by_seed(module, scale):
    runs = [run for seed in (0, 7) for run in module.runs(scale, seed).values()]
    assert len({run.identity for run in runs}) == len(runs)
    assert {run.seed for run in runs} == {0, 7}


def test_the_paper_scale_is_the_papers():
    five = figure5.runs("paper", 0)
    held = {name: run.data.examples // run.clients for name, run in five.items() if "as it comes" in name}
    assert {f"{n}" for n in held.values()} == {name.rpartition(" ")[2] for name in held}
    for run in [*five.values(), *figure6.runs("paper", 0).values()]:
        assert (run.clients, run.groups.number, run.until.steps) == (20, 4, 100), "50 rounds, and 50 of gradients"
        assert (run.training.epochs, run.training.batch_size) == (3, 100)
    assert [run.until.steps for run in figure7.runs("paper", 0).values()][:2] == [1000, 1000]
    eight, nine = figure8.runs("paper", 0)["CFL"], figure9.runs("paper", 0)["CFL"]
    assert (eight.until.steps, eight.algorithm.algorithm.split_rounds) == (200, (50, 100, 150))
    assert (nine.until.steps, nine.algorithm.algorithm.split_rounds) == (100, (30, 60, 90))
    assert {type(run.data).__name__ for run in (eight, nine)} == {"CIFAR10", "AGNews"}
    assert {run.clients for run in (eight, nine)} == {20}


def test_figure_6_is_a_run_of_figure_5():
    assert figure6.runs("quick", 3)["MNIST"].identity == figure5.runs("quick", 3)["MNIST / as it comes / 100"].identity


# Data


def test_what_is_drawn_is_part_of_the_data_and_a_matter_of_the_seed():
    whole, tests = Digits().load()
    train, test = Drawn(Digits(), 50, 30, seed=1).load()
    assert (len(train), len(test)) == (50, 30)
    rows = {tuple(x.flatten().tolist()) for x in whole.x}
    assert all(tuple(x.flatten().tolist()) in rows for x in train.x)
    assert len(torch.unique(train.x.flatten(1), dim=0)) == 50
    assert Drawn(Digits(), 50, 30, seed=1).load()[0].fingerprint() == train.fingerprint()
    assert Drawn(Digits(), 50, 30, seed=2).load()[0].fingerprint() != train.fingerprint()
    assert Drawn(Digits(), 50).load()[1].fingerprint() == tests.fingerprint()


def test_balanced_is_as_many_of_each_class():
    train, _ = Drawn(Digits(), 70, balanced=True).load()
    assert train.label_counts().tolist() == [7] * 10
    dealt = replace(setting.swapped("MNIST", 20, 0, "balanced"), data=Drawn(Digits(), 400, 20, balanced=True))
    held = Federation(replace(dealt, model=MLP((4,)))).holdings
    assert held.tolist() == [[2] * 10] * 20


@pytest.mark.parametrize(("examples", "balanced"), [(0, False), (5000, False), (75, True), (5000, True)])
def test_what_cannot_be_drawn(examples, balanced):
    with pytest.raises(ValueError, match="cannot be drawn"):
        Drawn(Digits(), examples, balanced=balanced).load()


# What is watched


def watched(rows, algorithm=ClusteredFL(), **how):  # noqa: B008
    """Two rounds with the same updates."""
    watcher = Watched(algorithm, TWO, **how)
    state, _ = watcher.init(torch.zeros(2), dict.fromkeys(range(4), 10))
    first, _ = watcher.step(state, updates(rows))
    return first, watcher.step(first, updates(rows))[0]


def test_the_gap_of_the_true_groups_by_hand():
    """Two pairs at right angles; within a pair 0 and 30 degrees apart: cos 30 - cos 60, as 30 + 60 = 90."""
    angles = np.deg2rad([0, 0, 90, 120])
    rows = [[float(np.cos(a)), float(np.sin(a))] for a in angles]
    seen, _ = watched(rows)
    assert seen.gaps[0] == pytest.approx(np.cos(np.pi / 6) - 0.0, abs=1e-6)
    assert seen.correct == {0: True}
    assert (seen.kinds, seen.divided) == ({0: 2}, 0)
    mixed, _ = watched([rows[0], rows[2], rows[1], rows[3]])
    assert mixed.gaps[0] < 0
    assert mixed.correct == {0: False}


def test_what_is_watched_is_learned_as_if_nobody_watched():
    split = ClusteredFL(split_rounds=(1,), min_gap=0.0)
    rows = [[1.0, 0.1], [1.0, 0.2], [-1.0, 0.1], [-1.0, 0.2]]
    plain, _ = split.init(torch.zeros(2), dict.fromkeys(range(4), 10))
    for _ in range(2):
        plain, _ = split.step(plain, updates(rows))
    one, two = watched(rows, split)
    assert two.inner.clusters == plain.clusters == {1: (0, 1), 2: (2, 3)}
    assert all(torch.equal(two.inner.tree.nodes[v].model, plain.tree.nodes[v].model) for v in (1, 2))
    assert (one.kinds, two.kinds, two.divided) == ({1: 1, 2: 1}, {1: 1, 2: 1}, 0)
    assert two.gaps.keys() == {1, 2}
    wrong, _ = watched([rows[0], rows[2], rows[1], rows[3]], split)
    assert (wrong.kinds, wrong.divided) == ({1: 2, 2: 2}, 2)


def test_models_stand_still_while_gradients_are_measured():
    rows = [[1.0, 0.1], [1.0, 0.2], [-1.0, 0.1], [-1.0, 0.3]]
    first, second = watched(rows, gradients=True)
    assert (first.version, second.version, second.inner.version) == (1, 2, 1)
    assert torch.equal(first.model, second.model)
    assert first.gradient_gaps == {}
    groups = [[0, 1], [2, 3]]
    assert second.gradient_gaps == {0: separation_gap(cosine_similarity(torch.tensor(rows)), groups)}
    assert all(verdict.weight == 0 for verdict in second.verdicts.values())


def test_an_update_of_the_small_learning_rate_is_a_gradient():
    """Against autograd, on all examples at once."""
    federation = Federation(Run(data=Drawn(Digits(), 200, 20), clients=2, model=MLP((32,)), groups=PermutedLabels(2)))
    start, data = federation.start, federation.data[0]
    trainer = Trainer(federation.model, LocalSGD(epochs=3, batch_size=100, lr=Alternating(0.1)), 0)
    update = torch.empty_like(start)
    trainer.train(LocalTask(0, 0, 1, start, update), data)
    federation.model.load(start)
    federation.model.gradient.zero_()
    F.cross_entropy(federation.model.module(data.x), data.y).backward()
    assert torch.cosine_similarity(-federation.model.gradient, update[: len(federation.model.gradient)], 0) > 0.999
    trainer.train(LocalTask(0, 0, 2, start, update), data)
    assert torch.linalg.vector_norm(update) > 0.05


def test_alternating_needs_a_smaller_rate():
    assert [Alternating(0.1, 0.001)(version) for version in range(4)] == [0.1, 0.001, 0.1, 0.001]
    with pytest.raises(ValueError, match="least must be below lr"):
        Alternating(0.1, 0.1)


# What is rendered


def gaps_of(updates_, gradients, right, seed=0):
    """A run of `setting.swapped` that saw this."""
    columns = [[{"0": v} for v in values] for values in (updates_, gradients, right)]
    twice = [[v for value in column for v in (value, value)] for column in columns]
    names = ("gaps", "gradient_gaps", "correct")
    return replace(trace([0.1, 0.5], seed), state=dict(zip(names, map(tuple, twice), strict=True)))


def test_figure_5_judges_by_bi_partitions(context):
    fine = gaps_of([0.1] * 50, [-0.2] * 50, [True] * 50)
    poor = gaps_of([0.3] * 50, [-0.2] * 50, [False] * 50)
    records = {"MNIST / as it comes / 20": [fine], "MNIST / balanced / 50": [fine, poor]}
    with styled():
        rendering = figure5.render(records, context)
    rows = {tuple(row[1:3]): row[3:] for row in rendering.tables[0].rows}
    assert rows["as it comes", "20"] == ["0.10", "-0.20", "10 of 10"]
    assert rows["balanced", "50"] == ["0.20 ± 1.27", "-0.20 ± 0.00", "10 of 20"]
    assert rows["as it comes", "10"] == ["-", "-", "-"]
    assert not any(claim.values for claim in rendering.claims), "no seed has all numbers of examples"


def test_figure_5_claims_what_holds_from_enough_examples_on(context):
    few = gaps_of([-0.5] * 50, [-0.7] * 50, [False] * 50)
    fine, once = gaps_of([0.1] * 50, [-0.2] * 50, [True] * 50), gaps_of([0.1] * 50, [0.0] * 50, [True] * 49 + [False])
    records = {f"MNIST / {dealt} / {each}": [few if each == 10 else fine]
               for dealt in ("as it comes", "balanced") for each in (10, 20, 50, 100)}  # fmt: skip
    records["MNIST / balanced / 100"] = [once]
    claims = [claim.values for claim in figure5.render(records, context).claims]
    assert claims == [[True], pytest.approx([(0.2 + 3 * 0.3) / 4]), [False], pytest.approx([(0.2 + 2 * 0.3 + 0.1) / 4])]


def test_figure_6_says_from_when_on(context):
    right = [False] * 7 + [True] * 43
    records = {"MNIST": [gaps_of(np.linspace(-1, 1, 50).tolist(), [0.0] * 50, right)]}
    with styled():
        rendering = figure6.render(records, context)
    (row,) = rendering.tables[0].rows
    assert row[:5] == ["MNIST", "100", "0", "8", "41 of 41"]
    assert [claim.values for claim in rendering.claims] == [[True], pytest.approx([40 * 2 / 49])]
    records = {"MNIST": [gaps_of([0.5] * 50, [0.0] * 50, [True] * 45 + [False] * 5)]}
    with styled():
        rendering = figure6.render(records, context)
    assert rendering.tables[0].rows[0][3] == "never"
    assert [claim.values for claim in rendering.claims] == [[False], [0.0]]


def norms_of(most, seed=0):
    seen = tuple({"0": {"mean": m / 10, "max": m, "epsilon1": 1.0, "epsilon2": 1.0}} for m in most)
    return replace(trace([0.1], seed), state={"step": tuple(range(1, len(most) + 1)), "norms": seen})


def test_figure_7_tells_falling_from_staying(context):
    falls, stays = norms_of(np.geomspace(1, 0.01, 50)), norms_of([1.0] * 50)
    split = replace(trace([0.1]), state={"step": (1,), "born": ({"0": 0, "1": 23, "2": 23},)})
    whole = replace(trace([0.1], 1), state={"step": (1,), "born": ({"0": 0},)})
    records = {figure7.INCONGRUENT: [stays, falls], figure7.CONGRUENT: [falls]}
    records["20 clients, different digits"] = [split, whole]
    with styled():
        rendering = figure7.render(records, context)
    norms, clusters = (table.rows for table in rendering.tables)
    assert [row[-1] for row in norms] == ["1.00, 0.06", "0.06"]
    row = next(row for row in clusters if row[0] == "20 clients, different digits")
    assert row[1:] == ["1", "2, 1", "23, -"]
    mean_stays, mean_falls, stays_, falls_, _, _, digits, *_ = rendering.claims
    assert mean_stays.values == pytest.approx([0.0, 94.0], abs=0.5)
    assert stays_.values == pytest.approx([100.0, 6.0], abs=0.5)
    assert mean_falls.values == falls_.values == pytest.approx([94.0], abs=0.5)
    assert digits.values == [False, True]


def staged(end, kinds, gap, seed=0, first=0.3):
    """A run of `stages`: four groups at `first` until the round of the first split, and then at `end`."""
    steps = tuple(range(0, 61, 3))
    curve = tuple(first if step <= 15 else end for step in steps)
    state = {"step": tuple(range(1, 61)), "gaps": ({"0": 0.5},) * 45 + ({"3": gap},) * 15}
    state |= {"kinds": (kinds,) * 60, "divided": (0,) * 60}
    groups = {f"group_{name} {g}": curve for g in range(4) for name in ("accuracy", "loss")}
    return replace(trace(curve, seed, step=steps, worst_client_accuracy=curve, **groups), state=state)


def test_figure_8_judges_each_claim(context):
    four = {str(v): 1 for v in (3, 4, 5, 6)}
    good, fl = staged(0.9, four, -0.1), staged(0.31, {"0": 4}, 0.5)
    alone = {figure8.ALONE + stages.FEWER: [fl], figure8.ALONE + stages.CHOICE: [staged(0.2, four, 0.1)]}
    records = {stages.FL: [fl], stages.CFL: [good], stages.CHOICE: [good], stages.FEWER: [fl], **alone}
    with styled():
        rendering = figure8.render(records, context)
    assert [_borne_out(claim) for claim in rendering.claims] == [True] * 6 + [False]
    bad = {stages.FL: [staged(0.8, {"0": 4}, 0.5)], stages.CFL: [staged(0.3, {"1": 2, "2": 2}, 0.1)]}
    with styled():
        claims = figure8.render(bad, context).claims
    assert [_borne_out(claim) for claim in claims[:5]] == [False] * 5


def _borne_out(claim):
    (value,) = claim.values
    return bool(value) if claim.least is None else value > claim.least


def test_figure_9_compares_topics(context):
    four = {str(v): 1 for v in (3, 4, 5, 6)}
    records = {stages.FL: [staged(2.0, {"0": 4}, 0.5, first=3.0)], stages.CFL: [staged(1.0, four, 0.0, first=3.0)]}
    with styled():
        rendering = figure9.render(records, context)
    assert [row[1] for row in flat(rendering.tables[0]).rows] == ["7.4", "2.7"]
    assert [claim.values for claim in rendering.claims] == [[True], pytest.approx([2.718], abs=1e-3)]
    with styled():
        other = figure9.render({stages.FL: records[stages.CFL], stages.CFL: records[stages.FL]}, context).claims
    assert [claim.values for claim in other] == [[False], pytest.approx([1 / 2.718], abs=1e-3)]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("module", FIGURES, ids=lambda m: m.__name__.rpartition(".")[2])
def test_nothing_is_claimed_without_records(module, scale, context):
    with styled():
        rendering = module.render({}, replace(context, scale=scale))
    assert all("yes" not in row for table in map(flat, rendering.tables) for row in table.rows)
    assert len(rendering.plots) == 1


@pytest.mark.filterwarnings("ignore:Clients hold")
def test_a_run_from_end_to_end():
    """Three rounds of a small one: the trace has what the figures read."""
    train, test = Digits().load()
    few = InMemory(train.of(torch.arange(80)), Dataset(test.x[:20], test.y[:20], 10))
    of = stages.Stages(Run(data=few, clients=8, groups=PermutedLabels(4), model=MLP((8,))), 3, (1, 2, 3))
    plan = of.runs([stages.CHOICE], 5)[stages.CHOICE]
    told = Trace.of(plan, simulate(plan))
    assert stages.clusters(told)[0] == 4
    assert stages.by_group(told, "group_accuracy").keys() == {0, 1, 2, 3}
    assert all(len(curve) == 4 for curve in stages.by_group(told, "group_loss").values())
    assert 1 <= len(stages.last_gaps(told)) <= 3, "of the clusters of two or more at the beginning of the last round"
