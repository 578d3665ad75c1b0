"""Figures of studies: the accuracy of what honest clients are served, metrics of a task, whether groups are found."""

from dataclasses import replace

import pytest

from phalanx import InfeasibleError, Run, Study, Until, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import FedAvg, PerCluster
from phalanx.attacks import SignFlip
from phalanx.data import PermutedLabels
from phalanx.experiments.results import METRICS, Results, Row
from phalanx.experiments.shown import study_page, study_tables
from phalanx.experiments.trace import Trace
from phalanx.models import MLP
from phalanx.training import Classification, Evaluation, LocalSGD


def test_it_is_the_mean_over_honest_clients_and_absent_where_a_record_does_not_say_it():
    plan = Run(clients=4, byzantine=1, attack=SignFlip(), until=Until(1))
    trace = Trace.of(plan, simulate(plan))
    assert len(trace.received_accuracy) == 3
    known = replace(trace, received_accuracy={0: 0.5, 2: 1.0})
    assert Row({}, known).value("received_accuracy") == 0.75
    assert Row({}, replace(trace, received_accuracy={})).value("received_accuracy") is None
    assert METRICS["received_accuracy"].scale == 100


def test_other_metrics_of_a_task_stand_in_tables(tmp_path):
    base = Run(clients=4, byzantine=1, attack=SignFlip(), until=Until(2))
    tasks = {"with": Classification(metrics=("AUROC",)), "without": Classification()}
    results = Study(base, {"task": tasks}, seeds=2).run(tmp_path)
    final = simulate(replace(base, task=tasks["with"])).history[-1].metrics
    table = results.table("task", metric="AUROC")
    (first, *_) = [row for row in results.rows if row.labels["task"] == "with" and row.trace.seed == 0]
    assert first.value("AUROC") == final.extra["AUROC"]
    assert (table["with"]["AUROC"].n, table["without"]["AUROC"].n) == (2, 0)
    assert "AUROC at the end" in repr(table)
    assert [row["AUROC"] is None for row in results.records()] == [False, False, True, True]
    assert "AUROC" in study_tables.tables_csv(results)
    assert "AUROC at the end" in study_page.html(results, [], "")
    with pytest.raises(InfeasibleError, match=r"There is no metric F1Score. There are: accuracy, .*, AUROC"):
        results.table("task", metric="F1Score")


def test_whether_clusters_are_the_groups_is_a_figure(tmp_path):
    base = Run(
        clients=8, groups=PermutedLabels(2), model=MLP((32,)), training=LocalSGD(epochs=3), until=Until(15),
        attack=SignFlip(), byzantine=1, evaluation=Evaluation(every=15),
    )  # fmt: skip
    grid = {"algorithm": {"clusters": PerCluster(FedAvg(Median())), "one": FedAvg()}, "attack": [None, SignFlip()]}
    results, of = Study(base, grid, seeds=2).run(tmp_path), PermutedLabels(2).of(8)
    for row in results.rows:
        trace = row.trace
        assert trace.groups == dict(enumerate(of))
        assert trace.client_accuracy.keys() == {*range(8)} - {*trace.byzantine}
        if row.labels["algorithm"] == "one":
            assert trace.clusters == ()
            assert row.value("groups_found") is row.value("rand_index") is None
            continue
        honest = {frozenset(members) - {*trace.byzantine} for members in trace.clusters} - {frozenset()}
        right = honest == {frozenset(i for i in range(8) if of[i] == g) - {*trace.byzantine} for g in range(2)}
        assert row.value("groups_found") == right
        assert (row.value("rand_index") == 1) == right
    assert results.table("algorithm", "attack", "groups_found")["clusters"]["none"].mean == 1
    assert "Runs whose clusters are the groups, %" in study_page.html(results, [], "")
    table = results.table("attack", "algorithm", "groups_found")
    assert table["none"]["one"].text() == "–", "a run without clusters has not failed"
    failed = replace(results, rows=[replace(r, trace=replace(r.trace, status="failed")) for r in results.rows])
    assert failed.table("attack", "algorithm", "groups_found")["none"]["one"].text() == "failed (2)"
    again = Trace.load(tmp_path / "records" / f"{results.rows[0].trace.identity}.json")
    assert again == results.rows[0].trace


def test_a_figure_that_was_measured_and_is_not_finite_has_failed_and_one_of_another_kind_of_run_has_not():
    plan = Run(clients=4, byzantine=1, attack=SignFlip(), until=Until(1))
    trace = Trace.of(plan, simulate(plan))
    lost = replace(trace, curves={name: (None,) * len(column) for name, column in trace.curves.items()})
    results = Results("x", {}, [Row({}, lost)])
    for metric in ("accuracy", "best_accuracy", "loss", "worst_client_accuracy"):
        assert results.estimate(results.rows, metric).failed == 1, metric
    for metric in ("attack_success", "groups_found", "rand_index"):
        found = results.estimate(results.rows, metric)
        assert (found.n, found.failed) == (0, 0), metric
