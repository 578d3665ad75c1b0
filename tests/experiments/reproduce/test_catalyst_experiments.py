"""The experiments of Cox et al.: their runs are the paper's, and what they render says what was published."""

import math
from pathlib import Path

import pytest
from made import trace

from papers.catalyst import figure1, figure2, figure3, grid, late_labels, rare, setting, shares, table1, table2
from phalanx.algorithms import BASGD, Catalyst, FedAsync, Kardam
from phalanx.algorithms.staleness import Polynomial
from phalanx.attacks import Rescale
from phalanx.experiments.papers.comparison import ComparedCell
from phalanx.experiments.papers.experiment import SCALES, Context, reproductions
from phalanx.experiments.papers.output import flat
from phalanx.experiments.store import Store
from phalanx.simulation import Normal
from phalanx.simulation.latency import Workload

CURVES = {
    "loss": (2.0, 1.0, 1.5),
    "attack_success": (0.0, 0.3, 0.1),
    "group_accuracy 0": (0.1, 0.7, 0.6),
    "group_accuracy 1": (0.1, 0.6, 0.5),
}
table1_mnist, table1_cifar10, table1_wikitext2, figure4, figure5, figure6 = table1.EXPERIMENTS.values()
figure7, figure8 = shares.EXPERIMENTS.values()
BLOCKS = {table1_mnist: "MNIST", table1_cifar10: "CIFAR-10", table1_wikitext2: "WikiText-2"}


@pytest.fixture(scope="module")
def context() -> Context:
    return Context("quick", (0,), reproductions()["catalyst"].published)


def test_all_tables_and_figures_of_the_paper_are_there():
    """Table 1 has a name for each data set; Table 3 compares assumptions, and is a page of the documentation."""
    found = reproductions()["catalyst"].experiments
    assert {f"figure{k}" for k in range(1, 9)} | {"table2"} <= found.keys()
    assert {"table1-mnist", "table1-cifar10", "table1-wikitext2", "late-labels"} <= found.keys()


# Settings


@pytest.mark.parametrize("scale", ["quick", "paper"])
def test_mnist_has_the_papers_clients_and_times_at_both_scales(scale):
    runs = table1_mnist.runs(scale, 7)
    assert len(runs) == 3 * 4 * 2 + 3
    assert {run.seed for run in runs.values()} == {7}
    assert {run.until.seconds for run in runs.values()} == {750.0}
    assert {run.training.lr for run in runs.values()} == {0.05}
    assert {run.population for run in runs.values()} == {40}
    assert {len(run.attackers()) for name, run in runs.items() if setting.NONE in name or setting.COST in name} == {0}
    assert {len(run.attackers()) for name, run in runs.items() if "inversion" in name} == {10}
    assert runs["gradient inversion / Catalyst / ours"].attack == Rescale(-10.0)


def test_mnist_is_small_at_quick_scale_and_whole_at_the_papers():
    quick, paper = setting.mnist("quick", 3), setting.mnist("paper", 3)
    assert (quick.run.data.examples, quick.run.data.seed, quick.run.training.batch_size) == (6000, 3, 10)
    assert (paper.run.data.limit, paper.run.training.batch_size, paper.run.training.momentum) == (None, 50, 0.5)
    assert paper.run.training.clip_norm == 5.0


def test_the_methods_are_those_of_the_paper_and_of_its_program():
    made = {(m, form): setting.algorithm(m, form, 10, 0.05) for m in setting.METHODS for form in setting.FORMS}
    assert made["FedAsync", "authors"] == FedAsync(0.05, Polynomial(1.0))
    assert made["FedAsync", "ours"] == FedAsync()
    assert made["Kardam", "authors"] == Kardam.as_in_catalyst(10)
    assert made["BASGD", "authors"] == BASGD.as_in_catalyst(10)
    assert (made["BASGD", "ours"].buffers, made["BASGD", "ours"].server_lr) == (21, 1.0)
    assert made["Catalyst", "authors"] == Catalyst.as_published(10)
    assert (made["Catalyst", "ours"], made["Catalyst", "ours"].window) == (Catalyst(10), 5)
    assert made["Catalyst", "ours"].needed == 21
    alone = setting.algorithm("BASGD", "ours", 0, 0.05)
    assert (alone.buffers, alone.server_lr) == (1, 0.1)
    with pytest.raises(KeyError, match="Krum"):
        setting.algorithm("Krum", "ours", 0, 0.05)


def test_nobody_is_suspected_without_an_attack_but_where_the_cost_is_asked_for():
    runs = table1_mnist.runs("quick", 0)
    told = {m: runs[setting.name(setting.NONE, m, "ours")].algorithm for m in setting.METHODS[1:]}
    assert (told["Kardam"].f, told["BASGD"].buffers, told["Catalyst"].needed) == (0, 1, 2)
    cost = {m: runs[setting.name(setting.COST, m, "ours")].algorithm for m in setting.METHODS[1:]}
    assert (cost["Kardam"].f, cost["BASGD"].buffers, cost["Catalyst"].needed) == (10, 21, 21)


def test_figures_share_the_runs_of_table_1():
    def identities(module, scale="quick"):
        return {run.identity for run in module.runs(scale, 0).values()}

    for figure, table in ((figure4, table1_mnist), (figure5, table1_cifar10), (figure6, table1_wikitext2)):
        assert identities(figure) < identities(table)
    assert identities(figure5, "paper") < identities(table1_cifar10, "paper")
    assert {run.until.seconds for run in figure4.runs("paper", 0).values()} == {3000.0}
    assert len(identities(figure2) - identities(table1_mnist)) == 1


def test_quick_blocks_are_small_and_have_the_papers_proportions():
    for block, module in ((table1.CIFAR, table1_cifar10), (table1.WIKITEXT, table1_wikitext2)):
        quick, paper = block.task("quick", 0), block.task("paper", 0)
        assert (quick.honest, quick.byzantine, quick.run.clients) == (15, 5, 20)
        assert (paper.honest, paper.byzantine, paper.run.clients) == (30, 10, 40)
        assert all(len(module.runs(scale, 0)) == 24 for scale in ("quick", "paper"))
    assert (table1.CIFAR.task("paper", 0).lr, table1.WIKITEXT.task("paper", 0).lr) == (0.25, 1.0)


def test_pages_name_the_seconds_that_the_runs_last():
    for block in (table1.MNIST, table1.MNIST_LONG, table1.CIFAR, table1.WIKITEXT):
        assert block.seconds == {scale: block.task(scale, 0).run.until.seconds for scale in SCALES}


def test_populations_of_figures_7_and_8():
    assert shares.CLIENTS.pairs["paper"] == [(n, 3 * n // 10) for n in range(10, 101, 10)]
    assert [f for _, f in shares.BYZANTINE.pairs["paper"]] == list(range(0, 28, 3))
    assert set(shares.CLIENTS.pairs["quick"]) < set(shares.CLIENTS.pairs["paper"])
    assert set(shares.BYZANTINE.pairs["quick"]) < set(shares.BYZANTINE.pairs["paper"])
    runs = figure8.runs("paper", 0)
    assert len(runs) == 10 * 3 * 2
    most = {form: runs[shares.name(60, 27, "Kardam", form)].algorithm.f for form in setting.FORMS}
    assert most == {"authors": 19, "ours": 19}
    assert runs[shares.name(60, 27, "Catalyst", "ours")].algorithm.f == 27
    assert runs[shares.name(60, 0, "BASGD", "ours")].attack is None


def test_four_of_ten_have_a_backdoor():
    runs = table2.runs("quick", 0)
    assert len(runs) == 1 + 2 * (1 + 4 * 2)
    assert {len(run.attackers()) for name, run in runs.items() if name != table2.NOBODY} == {4}
    assert len(runs[table2.NOBODY].attackers()) == 0
    assert {run.population for run in runs.values()} == {10}
    trigger = runs[setting.name(table2.STRONG, "Catalyst", "ours")].attack
    assert (trigger.source, trigger.target) == (3, 1)
    assert runs[setting.name(table2.STRONG, "Kardam", "ours")].algorithm.f == 3
    assert runs[setting.name(table2.STRONG, "Catalyst", "ours")].algorithm.needed == 9


def test_late_clients_alone_hold_two_labels_with_and_without_the_late_path():
    runs = late_labels.runs("quick", 4)
    both = runs[rare.LATE_PATH], runs[rare.NO_PATH]
    assert [run.algorithm for run in both] == [Catalyst(5), Catalyst(5, window=1)]
    assert {run.attack for run in runs.values()} == {None}
    for run in both:
        assert run.partition.holders == run.groups.holders == run.latency.late == 28
        assert run.partition.rare == run.groups.rare == (8, 9)
        assert run.algorithm.needed <= run.clients - run.latency.late  # the fast ones are a quorum
    small = figure3.runs("quick", 4)
    assert small["f = 2 / Catalyst"].algorithm == Catalyst(2)
    shared = {run.identity for run in small.values()} & {run.identity for run in runs.values()}
    assert len(shared) == 3


def test_the_records_are_those_of_the_runs():
    """A changed setting is another run: the records that the documentation cites would not be of it."""
    records = {trace.identity for trace in Store(Path(__file__).parents[3] / "results/catalyst").traces()}
    seeds = {table1_mnist: 3, figure2: 3, figure3: 3, late_labels: 5, table1_cifar10: 1, table2: 1, figure7: 1}
    cited = {run.identity for m, n in seeds.items() for seed in range(n) for run in m.runs("quick", seed).values()}
    assert cited <= records
    others = ((table1_mnist, "paper", 3), (table1_wikitext2, "quick", 3), (table1_cifar10, "quick", 3),
              (table2, "quick", 3), (figure7, "quick", 3), (figure8, "quick", 3))  # fmt: skip
    begun = {run.identity for m, scale, n in others for seed in range(n) for run in m.runs(scale, seed).values()}
    assert records <= cited | begun


# Figure 1, the schedule


@pytest.mark.parametrize("seed", [0, 1])
def test_the_published_factors_are_those_of_a_spread_of_4_percent(seed):
    """1.00, 1.08, 1.15, 1.26, 1.70, 2.00 are one draw each; means of 60 federations are within 7 % of them."""
    mean = figure1.factors(0.04, 60, seed).mean(axis=0)
    assert mean == pytest.approx([1.0, 1.08, 1.15, 1.26, 1.70, 2.00], rel=0.07)
    wide = figure1.factors(0.20, 60, seed).mean(axis=0)
    assert wide == pytest.approx([1.0, 1.33, 1.68, 1.99, 3.34, 4.67], rel=0.05)


def test_a_clients_time_is_drawn_once_whatever_the_spread():
    once = figure1.times(0.04, 2, 5)
    thrice = [Normal(100.0, 12.0).seconds(Workload(i), 5) for i in range(2 * figure1.CLIENTS)]
    assert (100 + 3 * (once.ravel() - 100)).tolist() == pytest.approx(thrice)


def test_a_round_lasts_as_long_as_the_expected_maximum():
    """The largest of 100 normal numbers is 2.508 deviations above the mean in expectation."""
    relative = figure1.factors(0.04, 100, 3).mean(axis=0)
    expected = [(1 + 0.04 * k * 2.508) / (1 + 0.04 * 2.508) for k in figure1.SPREADS]
    assert relative == pytest.approx(expected, rel=0.01)
    assert relative[0] == pytest.approx(1.0, abs=1e-12)


def test_figure_1_says_which_spread_fits(context):
    rendering = figure1.render({}, context)
    (table,) = rendering.tables
    assert [row[2] for row in table.rows] == ["1.00", "1.08", "1.15", "1.26", "1.70", "2.00"]
    assert table.rows[0][1].startswith("1.00")
    assert max(abs(float(row[3])) for row in table.rows) < 0.15
    assert not figure1.runs("quick", 0)
    assert len(rendering.plots) == 1


# What is rendered


@pytest.mark.parametrize("module", BLOCKS)
def test_a_block_without_records_shows_what_is_published(module, context):
    (table,) = module.render({}, context).tables
    cells = [row[-1] for row in table.rows]
    assert len(cells) == 24
    assert {cell.text for cell in cells} == {"missing"}
    for attack, method, form, cell in table.rows:
        assert cell.published == context.published.of("table1", attack, method, BLOCKS[module]), form
    assert any("Starred" in cell.remark for cell in cells)
    notes = " ".join(table.notes)
    for artefact in ("one buffer", "no upper bound", "starred number", "Lipschitz", "lr / (age + 1)"):
        assert artefact in notes


def test_a_block_shows_final_and_best_of_each_form(context):
    records = {
        setting.name(setting.NONE, "Catalyst", "ours"): [trace([0.1, 0.92, 0.9]), trace([0.1, 0.9, 0.88], seed=1)],
        setting.name(setting.NONE, "Catalyst", "authors"): [trace([0.1], failed=True)],
        setting.name(setting.COST, "BASGD", "ours"): [trace([0.1, 0.5])],
    }
    rendering = table1_mnist.render(records, context)
    (table,) = rendering.tables
    cells = {tuple(row[:3]): row[3] for row in table.rows}
    ours = cells[setting.NONE, "Catalyst", "ours"]
    assert (ours.text, ours.best.text()) == ("89.0 ± 12.7", "91.0 ± 12.7")
    assert ours.difference == pytest.approx(89.0 - 89.4)
    assert cells[setting.NONE, "Catalyst", "authors"].text == "failed"
    assert cells[setting.COST, "BASGD", "ours"].text == "50.0"
    assert cells[setting.COST, "BASGD", "ours"].published is None
    assert len(rendering.plots) == 1
    header = flat(table).columns
    assert header[3:6] == ["accuracy, %: ours", "best", "published"]


def test_perplexities_are_exponentials_of_losses(context):
    cell = setting.name(setting.NONE, "BASGD", "ours")
    records = {cell: [trace([0.0] * 3, loss=(9.0, math.log(200.0), math.log(400.0))),
                      trace([0.0] * 3, seed=1, loss=(9.0, 8.0, 1e9))]}  # fmt: skip
    (table,) = table1_wikitext2.render(records, context).tables
    shown = {tuple(row[:3]): row[3] for row in table.rows}[setting.NONE, "BASGD", "ours"]
    assert shown.ours.mean == pytest.approx(400.0)
    assert (shown.ours.n, shown.failed) == (1, 1)
    assert min(shown.best.mean, 1e4) == pytest.approx((200.0 + math.exp(8.0)) / 2)


def test_rare_accuracy_is_what_the_common_labels_leave(context):
    """Of 10,000 test images 8,017 are of common labels: 0.9 of these and 0.2 of the others are 0.7612 of all."""
    curves = {"group_accuracy 0": (0.9, 0.9), "group_accuracy 1": (0.7612, 0.9 * 0.8017)}
    found = rare.with_rare(trace([0.0, 0.0], **curves))
    assert found.curves["rare"] == pytest.approx((0.2, 0.0), abs=1e-3)
    (table,) = late_labels.render({rare.LATE_PATH: [trace([0.0, 0.0], **curves)]}, context).tables
    row = {row[0]: row[1:] for row in table.rows}[rare.LATE_PATH]
    assert [cell.text for cell in row] == ["0.0", "72.2", "90.0"]
    assert [cell.best.text() for cell in row] == ["20.0", "76.1", "90.0"]


def test_what_the_late_path_brings_is_told_seed_by_seed(context):
    def ends(seed, common, everything, **told):
        return trace([0.0], seed, **{"group_accuracy 0": (common,), "group_accuracy 1": (everything,)}, **told)

    records = {
        rare.LATE_PATH: [ends(0, 0.9, 0.9), ends(1, 0.9, 0.9), ends(2, 0.9, 0.9, failed=True)],
        rare.NO_PATH: [ends(0, 0.9, 0.9 * 0.8017), ends(2, 0.9, 0.8)],
    }
    claims = late_labels.render(records, context).claims
    assert [claim.values for claim in claims] == [pytest.approx([90.0], abs=0.1), pytest.approx([17.85], abs=0.01)]


def test_figure_3_claims_the_lead_over_both_forms_of_flame(context):
    def ends(everything, seed=0):
        return trace([0.0], seed, **{"group_accuracy 0": (0.9,), "group_accuracy 1": (everything,)})

    records = {"f = 2 / Catalyst": [ends(0.8), ends(0.7, 1)], "f = 2 / no late updates": [ends(0.5), ends(0.9, 2)]}
    claims = {claim.text: claim.values for claim in figure3.render(records, context).claims}
    assert claims.pop("f = 2, quorum of 5: Catalyst minus FLAME, drops late, all labels") == pytest.approx([30.0])
    assert len(claims) == 3
    assert not any(claims.values())


def test_the_backdoor_is_judged_at_its_largest_and_the_main_task_at_the_end(context):
    def seen(success, accuracy, seed=0):
        return trace(accuracy, seed, attack_success=success)

    name, strong = setting.name, table2.STRONG
    records = {
        table2.NOBODY: [seen((0.0, 0.0), (0.5, 0.98))],
        name(strong, "Catalyst", "authors"): [seen((0.005, 0.0), (0.99, 0.97)), seen((0.02, 0.0), (0.9, 0.9), 1)],
        name(strong, "Kardam", "authors"): [seen((0.3, 0.1), (0.9, 0.9))],
    }
    claims = [claim.values for claim in table2.render(records, context).claims]
    assert claims[:4] == [[True, False], pytest.approx([29.5]), [], pytest.approx([-1.0])]
    assert not any(claims[4:]), "nothing is known of our form"


def test_the_curves_of_populations_are_judged_where_the_paper_judges_them(context):
    def largest(n, f, **accuracies):
        return {shares.name(n, f, method, "authors"): [trace((a, a / 2))] for method, a in accuracies.items()}

    found = largest(10, 3, Catalyst=0.9, BASGD=0.86, Kardam=0.5)
    first = [(claim.values, claim.least) for claim in shares.of_clients(found, [(10, 3)])]
    assert first == [(pytest.approx([86.0]), 85.0), (pytest.approx([4.0]), 0.0), (pytest.approx([36.0]), 0.0)]
    found = largest(60, 0, Catalyst=0.9, BASGD=0.8, Kardam=0.9) | largest(60, 27, Catalyst=0.88, BASGD=0.1, Kardam=0.2)
    claims = shares.of_shares(found, [(60, 0), (60, 6), (60, 27)])
    assert [claim.values[0] for claim in claims] == pytest.approx([-2.0, 70.0, 10.0, 78.0])
    assert [claim.least for claim in claims] == [-3.0, 0.0, 0.0, 0.0]


def test_curves_are_read_at_a_time():
    one = trace([0.1, 0.2, None, 0.4])  # at 0, 10, 20 and 30 s
    assert [grid.at(one, "accuracy", time) for time in (0.0, 9.0, 25.0, 30.0)] == [0.1, 0.1, 0.2, 0.4]
    assert grid.at(one, "accuracy", -1.0) is None
    assert grid.at(one, "loss", 10.0) is None
    assert [figure2.reached(one, level) for level in (0.15, 0.4, 0.5)] == [10.0, 30.0, None]


@pytest.mark.parametrize("module", [figure2, figure3, figure4, figure5, figure6, figure7, figure8, late_labels, table2])
def test_everything_renders_with_and_without_records(module, context):
    made = {
        cell: [trace([0.1, 0.6, 0.5], seed, loss=(2.0, 1.0, 1.5), attack_success=(0.0, 0.3, 0.1)) for seed in range(2)]
        for cell in module.runs("quick", 0)
    }
    for records in ({}, made):
        rendering = module.render(records, context)
        assert rendering.tables
        assert flat(rendering.tables[0]).rows


def test_figures_7_and_8_tell_the_largest_and_the_last(context):
    runs = figure7.runs("quick", 0)
    (table,) = figure7.render({cell: [trace([0.1, 0.7, 0.4])] for cell in runs}, context).tables
    assert {tuple(row[3:]) for row in table.rows} == {("70.0", "40.0", "70.0", "40.0")}
    broken = {cell: [trace([0.1, 0.7], failed=True)] for cell in runs}
    (table,) = figure7.render(broken, context).tables
    assert {row[3] for row in table.rows} == {"failed (1 of 1 failed)"}


def test_the_backdoor_stands_beside_the_published_numbers(context):
    cell = setting.name(table2.STRONG, "Catalyst", "ours")
    made = [trace([0.1, 0.9, 0.8], seed, attack_success=(0.0, 0.5, b)) for seed, b in ((0, 0.1), (1, 0.3))]
    (table,) = table2.render({cell: made}, context).tables
    rows = {tuple(row[:3]): row[3:] for row in table.rows}
    ba, ba_largest, ma, ma_largest = rows[table2.STRONG, "Catalyst", "ours"]
    assert (ba.ours.mean, ba_largest.ours.mean) == pytest.approx((20.0, 50.0))
    assert (ma.ours.mean, ma_largest.ours.mean) == pytest.approx((80.0, 90.0))
    assert (ba.published.value, ma.published.value) == (0.5, 96.95)
    nobody = rows["-", table2.NOBODY, "-"]
    assert [cell.published.value if isinstance(cell, ComparedCell) and cell.published else None for cell in nobody][
        2:
    ] == [97.8, 97.8]


def test_shares_of_failed_runs_are_left_out():
    assert shares.values([trace([0.2, 0.4, 0.3]), trace([0.9], failed=True)], best=True) == [0.4]
    assert shares.values([trace([0.2, 0.4, None])], best=False) == []
