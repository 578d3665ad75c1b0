"""The experiments of Portnoy et al.: their runs are the paper's, and what they render says what was published."""

from pathlib import Path

import numpy as np
import pytest
from made import trace

from papers.client_weighting import described, figure1, figure3, figure4, figure5, figure6, mnist, ties
from papers.client_weighting.populations import described_sizes, program_sizes
from phalanx.attacks.size import reported_size
from phalanx.experiments.papers.experiment import Context, reproductions
from phalanx.experiments.papers.output import flat
from phalanx.experiments.store import Store
from phalanx.weighting import truncation_bound


@pytest.fixture(scope="module")
def context() -> Context:
    return Context("quick", (0,), reproductions()["client-weighting"].published)


def test_all_figures_of_the_paper_are_there():
    found = reproductions()["client-weighting"].experiments
    assert {f"figure{k}" for k in range(1, 7)} <= found.keys()


@pytest.mark.parametrize("scale", ["quick", "paper"])
@pytest.mark.filterwarnings("ignore:Truncate:UserWarning")
def test_the_runs_are_those_of_the_paper(scale):
    grids = {figure5: 1, figure6: 4, described: 5}
    for module, attacks in grids.items():
        runs = module.runs(scale, 7)
        assert len(runs) == attacks * len(mnist.RULES) * len(mnist.WEIGHTS)
        assert len({run.identity for run in runs.values()}) == len(runs)
        assert {run.seed for run in runs.values()} == {7}
    federation = mnist.PROGRAM
    assert (federation.clients, federation.until.steps, federation.training.lr) == (75, 100, 0.05)
    assert [federation.training.examples(n) for n in (20158, 36, 5)] == [2015, 3, 1]
    assert [len(figure6.runs(scale, 0)[f"{a} / mean / declared"].attackers()) for a in mnist.ATTACKS] == [1, 7, 1, 7]
    assert [len(module.runs(scale, 0)) for module in (figure3, figure4)] == [12, 24]
    tenth = figure4.runs(scale, 0)["10 % / median / truncated"]
    assert (tenth.byzantine_per_round, round(tenth.participation * tenth.clients)) == (1, 10)
    assert tenth.algorithm.preprocess.scope == "cohort"


def test_the_runs_are_those_of_the_records():
    """A changed hyper-parameter is another run: the records that the documentation cites would not be of it."""
    records = {trace.identity for trace in Store(Path(__file__).parents[3] / "results/client-weighting").traces()}
    seeds = {figure5: 3, figure6: 3, ties: 3, described: 1, figure3: 1, figure4: 3}
    runs = [run for module, n in seeds.items() for seed in range(n) for run in module.runs("quick", seed).values()]
    assert {run.identity for run in runs} == records


def test_exact_and_noisy_copies_differ_in_the_noise_alone():
    runs = ties.runs("quick", 0)
    assert (
        runs["exact / median"].identity
        == figure6.runs("quick", 0)["model negation, 10 % / median / truncated"].identity
    )
    assert reported_size(runs["noisy / median"].attack, 5) == 1_000_000


def test_the_populations():
    program, described_ = program_sizes(), described_sizes(0)
    assert sum(program.values()) == sum(described_.values()) == 60_000
    assert sorted(program.values())[:-13:-1] == [20158, 15155, 4292, 3785, 3211, 2820, 2017, 1561, 756, 665, 611, 589]
    assert (len(program), np.median(list(program.values())), len(described_)) == (75, 36, 100)


def test_what_is_rendered_without_records(context):
    for module, cells, published in ((figure5, 12, 12), (figure6, 48, 48), (figure3, 12, 9), (figure4, 24, 18)):
        (table,) = module.render({}, context).tables
        compared = [cell for row in table.rows for cell in row if not isinstance(cell, str)]
        assert len(compared) == cells
        assert {cell.text for cell in compared} == {"missing"}
        assert sum(cell.published is not None for cell in compared) == published
    cells = {row[0]: row[1:] for row in figure5.render({}, context).tables[0].rows}
    assert [cell.published.value for cell in cells["median"]] == [84, 83.5, 55]


def test_what_sizes_are_worth_is_claimed_on_shared_seeds(context):
    made = {"declared": (0.84, 0.86), "truncated": (0.83, 0.86), "ignored": (0.80, 0.70)}
    records = {mnist.name("median", weights): [trace([end], seed) for seed, end in enumerate(ends)]
               for weights, ends in made.items()}  # fmt: skip
    records |= {mnist.name("mean", weights): [trace([0.8], 1)] for weights in made}
    claims = {claim.text: claim for claim in figure5.render(records, context).claims}
    assert claims["MNIST, median: declared sizes minus ignored ones"].values == pytest.approx([4.0, 16.0])
    assert claims["MNIST, cost of ignoring sizes: median minus mean"].values == pytest.approx([16.0])
    on_par = claims["MNIST, median: truncated sizes minus declared ones"]
    assert (on_par.values, on_par.least) == (pytest.approx([-1.0, 0.0]), -1.0)
    assert len(claims) == 3 + 2 + 3


@pytest.mark.parametrize(("figure", "cells"), [(figure4, 5 * 2), (figure6, 5 * 4)])
def test_under_attack_declared_sizes_are_devastating_and_truncation_is_stable(figure, cells, context):
    attack = next(iter(figure.runs("quick", 0))).partition(" / ")[0]
    records = {mnist.name("mean", "declared", attack): [trace([0.05]), trace([0.5], 1)]}
    records |= {mnist.name("median", "truncated", attack): [trace([0.77])]}
    claims = [claim for claim in figure.render(records, context).claims if f", {attack}: " in claim.text]
    assert [claim.values for claim in claims] == [pytest.approx([15.0, -30.0]), [], [], pytest.approx([77.0]), []]
    assert claims[3].least == figure.STABLE
    assert len(figure.render(records, context).claims) == cells


def test_the_trade_off_is_computed(context):
    rendering = figure1.render({}, context)
    rows = {row[0]: row[1:] for row in flat(rendering.tables[0]).rows}
    assert rows["10 %"][0] == f"{truncation_bound(program_sizes(), 0.1, 0.5):,}" == "875"
    assert rows["10 %"][1] == "8 of 75"
    assert len(rendering.plots) == 1
