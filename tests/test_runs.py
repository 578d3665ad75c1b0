"""Whole runs: what the paper claims on a small federation, what a user relies on."""

import dataclasses
import itertools
import json

import pytest
import torch

from phalanx import LocalSGD, Run, Until, demo, simulate
from phalanx.aggregators import Median, TrimmedMean
from phalanx.algorithms import ByzantineCFL, FedAsync, FedAvg
from phalanx.attacks import AllLabelsTo, Gaussian, NonFinite, Rescale
from phalanx.core import Infeasible
from phalanx.data import MNIST, Dirichlet, Shards
from phalanx.evaluation import Evaluation
from phalanx.models import MLP, SattlerCNN, TorchModule
from phalanx.runs import Federation, detection
from phalanx.simulation import Lognormal

SHORT = Run(clients=6, until=Until(3))


def lines(record):
    return json.dumps(record.history)


@pytest.mark.parametrize(
    "plan",
    [
        SHORT,
        dataclasses.replace(SHORT, model=MLP((16,), dropout=0.3), attack=Gaussian(), byzantine=2, participation=0.5),
        dataclasses.replace(SHORT, algorithm=FedAsync(), latency=Lognormal(), until=Until(12)),
    ],
)
def test_the_same_run_gives_the_same_bits_and_another_seed_others(plan):
    first, second = Federation(plan), Federation(plan)
    assert torch.equal(first.start, second.start)
    assert lines(simulate(plan)) == lines(simulate(plan))
    assert lines(simulate(plan)) != lines(simulate(dataclasses.replace(plan, seed=1)))


def test_evaluating_disturbs_nothing():
    often = simulate(SHORT)
    seldom = simulate(dataclasses.replace(SHORT, evaluation=Evaluation(every=10)))
    assert often.history[-1] == seldom.history[-1]
    assert ["accuracy" in line for line in seldom.history] == [True, False, False, True]


@pytest.mark.parametrize("rule", [FedAvg(), FedAvg(Median()), FedAvg(TrimmedMean(0.1)), ByzantineCFL(threshold=-0.99)])
@pytest.mark.filterwarnings("ignore:threshold")
def test_nan_senders_change_no_bit_for_the_others(rule):
    """Attackers that send NaN and attackers that are not there: the same model for everybody else."""
    plan = dataclasses.replace(SHORT, algorithm=rule, attack=NonFinite(), byzantine=2)
    present = simulate(plan)
    attackers = plan.attackers()
    assert all(line["refused"].keys() == {str(i) for i in attackers} for line in present.history[1:])
    federation = Federation(plan)
    honest = federation.transport
    honest.declared = {i: size for i, size in honest.declared.items() if i not in attackers}
    import phalanx

    absent = phalanx.run(rule, honest, federation.start, until=plan.until)
    measured = federation.worth(absent)
    assert present.summary["final"]["loss"] == measured["loss"]


def test_byzantine_clients_are_counted_and_drawn_by_seed():
    assert len(dataclasses.replace(SHORT, clients=10, byzantine=0.3, attack=Gaussian()).attackers()) == 3
    assert len(dataclasses.replace(SHORT, clients=11, byzantine=0.3, attack=Gaussian()).attackers()) == 3
    plans = [dataclasses.replace(SHORT, clients=20, byzantine=6, attack=Gaussian(), seed=s) for s in range(5)]
    assert len({p.attackers() for p in plans}) > 1
    assert SHORT.attackers() == frozenset()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"clients": 0}, "clients must be at least 1"),
        ({"byzantine": 2}, "attack is not set"),
        ({"byzantine": 6, "attack": Gaussian()}, "a number of clients below 6"),
        ({"byzantine": -1, "attack": Gaussian()}, "byzantine must be"),
        ({"byzantine": 1.5, "attack": Gaussian()}, "byzantine must be"),
        ({"participation": 0.0}, "participation must lie"),
    ],
)
def test_settings_out_of_range(change, why):
    with pytest.raises(ValueError, match=why):
        dataclasses.replace(SHORT, **change)


def test_what_cannot_begin_is_an_error_not_a_record(tmp_path):
    with pytest.raises(ValueError, match="takes examples of shape"):
        simulate(dataclasses.replace(SHORT, model=SattlerCNN()))
    with pytest.raises(Infeasible, match="asynchronous"):
        simulate(dataclasses.replace(SHORT, algorithm=FedAsync(), participation=0.5))
    with pytest.raises(ValueError, match="buffers"):
        simulate(dataclasses.replace(SHORT, model=TorchModule("torch.nn.BatchNorm1d", {"num_features": 8})))
    with pytest.raises(FileNotFoundError, match="train-images"):
        simulate(dataclasses.replace(SHORT, data=MNIST()), data_dir=tmp_path)


def test_a_run_that_has_to_stop_keeps_its_history_and_says_why(tmp_path):
    plan = dataclasses.replace(SHORT, training=LocalSGD(lr=1e30))
    record = simulate(plan, folder=tmp_path)
    assert record.summary["status"] == "failed"
    assert "all 6 clients that can be asked were refused or lost" in record.summary["error"]
    assert record.history[-1]["refused"].keys() == {str(i) for i in range(6)}
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == len(record.history)


def test_summary_of_an_attacked_run():
    plan = dataclasses.replace(SHORT, algorithm=ByzantineCFL(), attack=AllLabelsTo(0), byzantine=2, clients=8)
    summary = simulate(plan).summary
    attackers = {str(i) for i in plan.attackers()}
    assert {i for i, c in summary["clients"].items() if c["byzantine"]} == attackers
    assert sum(c["size"] for c in summary["clients"].values()) == summary["data"]["train"]
    assert all(sum(c["classes"]) == c["size"] for c in summary["clients"].values())
    assert 0 <= summary["final"]["attack_success"] <= 1
    assert summary["identity"] == plan.identity
    assert summary["environment"]["torch"] == torch.__version__


def test_detection_by_hand():
    assert detection({1, 2, 3}, {2, 3, 4, 5}) == {
        "true_positives": 2,
        "false_positives": 1,
        "false_negatives": 2,
        "precision": 2 / 3,
        "recall": 0.5,
    }
    nothing = detection(set(), set())
    assert (nothing["precision"], nothing["recall"]) == (None, None)


@pytest.mark.parametrize("partition", [Dirichlet(0.1), Shards(1)])
def test_the_worst_client_of_a_skewed_federation_is_below_the_mean(partition):
    final = simulate(dataclasses.replace(SHORT, partition=partition)).summary["final"]
    assert final["worst_client_accuracy"] < final["accuracy"]


def test_asynchronous_training_learns():
    plan = Run(algorithm=FedAsync(), latency=Lognormal(), until=Until(200), evaluation=Evaluation(200))
    record = simulate(plan)
    assert record.summary["final"]["accuracy"] > 0.6
    seconds = [line["seconds"] for line in record.history]
    assert all(a <= b for a, b in itertools.pairwise(seconds))


def test_the_demo_shows_what_it_promises():
    """FedAvg fails, Byzantine CFL stays within 2 points of its clean run, and removes the six attackers only."""
    records = {name: simulate(plan) for name, plan in demo.runs().items()}
    final = {name: record.summary["final"]["accuracy"] for name, record in records.items()}
    assert final["FedAvg, clean"] > 0.85
    assert final["FedAvg, attacked"] < 0.2
    assert final["Byzantine CFL, attacked"] > final["Byzantine CFL, clean"] - 0.02
    assert final["FedAvg, attacked"] < final["median, attacked"] < final["Byzantine CFL, attacked"]
    found = records["Byzantine CFL, attacked"].summary["detection"]
    assert (found["precision"], found["recall"]) == (1.0, 1.0)
    assert records["Byzantine CFL, clean"].summary["detection"]["false_positives"] == 0


def test_rescaled_updates_are_removed_within_five_rounds():
    record = simulate(Run(algorithm=ByzantineCFL(), attack=Rescale(), byzantine=6, until=Until(5)))
    removed = {int(i) for i, c in record.summary["clients"].items() if c["removed"]}
    assert removed == Run(attack=Rescale(), byzantine=6).attackers()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"in_features": 64, "out_features": 10}, "cannot take examples of shape"),
        ({"in_features": 8, "out_features": 10}, r"must give 10 scores for each of 2 examples, gave \(2, 1, 8, 10\)"),
    ],
)
def test_a_module_that_does_not_fit_the_data_is_an_error_in_words(arguments, why):
    with pytest.raises(ValueError, match=why):
        simulate(dataclasses.replace(SHORT, model=TorchModule("torch.nn.Linear", arguments)))


def test_a_stopped_run_has_its_last_state_measured():
    plan = dataclasses.replace(SHORT, training=LocalSGD(lr=1e30), evaluation=Evaluation(every=100))
    assert "accuracy" in simulate(plan).history[-1]
