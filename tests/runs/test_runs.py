"""Whole runs: what the paper claims on a small federation, what a user relies on."""

import dataclasses
import itertools
import json

import msgspec
import pytest
import torch

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.aggregators import Krum, Median, TrimmedMean
from phalanx.algorithms import FLAME, RFFL, ByzantineCFL, FedAsync, FedAvg, Permuted, Quorum
from phalanx.attacks import AllLabelsTo, Gaussian, NonFinite, ReportSize, Rescale
from phalanx.cli import demo
from phalanx.core import InfeasibleError
from phalanx.data import MNIST, Dirichlet, Shards
from phalanx.engine.guard import Guard
from phalanx.models import MLP, SattlerCNN, TorchModule
from phalanx.runs.engine_choice import named
from phalanx.runs.federation import Federation
from phalanx.runs.models import ModelKeeper
from phalanx.runs.record import Record, as_lines
from phalanx.runs.schema import DetectionCounts, FilteredShares
from phalanx.runs.summary import detection
from phalanx.simulation import Lognormal
from phalanx.training.evaluation import Evaluation

SHORT = Run(clients=6, until=Until(3))


def lines(record):
    return as_lines(record.history)


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
    assert [line.metrics is not None for line in seldom.history] == [True, False, False, True]


def test_measuring_what_liars_could_have_done_changes_no_other_number():
    plain = dataclasses.replace(SHORT, algorithm=FedAvg(Median()))
    measured = dataclasses.replace(plain, influence=2)
    first, second = simulate(plain), simulate(measured)
    influences = [step.influences for step in second.history]
    assert [len(found) for found in influences] == [0, 1, 1, 1]
    assert all(found[0].kind == "bound" and found[0].value > 0 and found[0].length > 0 for found in influences[1:])
    without = [msgspec.structs.replace(step, influences=()) for step in second.history]
    assert without == list(first.history)
    assert plain.identity != measured.identity
    assert dataclasses.replace(plain, influence=None).identity == plain.identity


@pytest.mark.parametrize("liars", [0, 7])
def test_more_liars_than_clients_or_none_are_refused(liars):
    with pytest.raises(ValueError, match=f"influence must .*, got {liars}"):
        dataclasses.replace(SHORT, influence=liars)


@pytest.mark.parametrize("rule", [FedAvg(), FedAvg(Median()), FedAvg(TrimmedMean(0.1)), ByzantineCFL(threshold=-0.99)])
@pytest.mark.filterwarnings("ignore:threshold")
def test_nan_senders_change_no_bit_for_the_others(rule):
    """Attackers that send NaN and attackers that are not there: the same model for everybody else."""
    plan = dataclasses.replace(SHORT, algorithm=rule, attack=NonFinite(), byzantine=2)
    present = simulate(plan)
    attackers = plan.attackers()
    assert all(line.invalid.keys() == attackers for line in present.history[1:])
    federation = Federation(plan)
    honest = federation.transport
    honest.reported = {i: size for i, size in honest.reported.items() if i not in attackers}
    import phalanx

    absent = phalanx.run(rule, honest, federation.start, plan)
    measured = federation.evaluate(absent, range(6))
    assert present.summary.final.loss == measured.loss


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
        ({"byzantine": 6, "attack": Gaussian()}, "an integer below the 6 clients"),
        ({"byzantine": -1, "attack": Gaussian()}, "byzantine must be"),
        ({"byzantine": 1.5, "attack": Gaussian()}, "byzantine must be"),
        ({"participation": 0.0}, "participation must lie"),
        (
            {"attack": Gaussian()},
            r"byzantine is 0: nobody would attack\. Set byzantine to a number from 1 to 5, or a sh",
        ),
        ({"byzantine": 0.1, "attack": Gaussian()}, r"0\.1, which is 0\.6 of 6 clients, rounded down to nobody"),
        (
            {"clients": 1, "byzantine": 0.5, "attack": Gaussian()},
            r"Set clients to more than 1; or leave the attack out",
        ),
    ],
)
def test_settings_out_of_range(change, why):
    with pytest.raises(ValueError, match=why):
        dataclasses.replace(SHORT, **change)


def test_what_cannot_begin_is_an_error_not_a_record(tmp_path):
    with pytest.raises(ValueError, match="takes examples of shape"):
        simulate(dataclasses.replace(SHORT, model=SattlerCNN()))
    with pytest.raises(InfeasibleError, match="asynchronous"):
        simulate(dataclasses.replace(SHORT, algorithm=FedAsync(), participation=0.5))
    with pytest.raises(
        InfeasibleError, match=r"ByzantineCFL excludes nobody unless .* Have more than half of the clients take"
    ):
        dataclasses.replace(SHORT, algorithm=ByzantineCFL(), participation=0.5)
    with pytest.raises(InfeasibleError, match=r"FLAME needs at least 2f \+ 1 = 5 clients in a round, got"):
        dataclasses.replace(SHORT, algorithm=FLAME(f=2), participation=0.1)
    with pytest.raises(ValueError, match="buffers"):
        simulate(dataclasses.replace(SHORT, model=TorchModule("torch.nn.BatchNorm1d", {"num_features": 8})))
    with pytest.raises(FileNotFoundError, match="train-images"):
        simulate(dataclasses.replace(SHORT, data=MNIST()), data_dir=tmp_path)


def test_a_run_that_has_to_stop_keeps_its_history_and_says_why(tmp_path):
    plan = dataclasses.replace(SHORT, training=LocalSGD(lr=1e30))
    record = simulate(plan, folder=tmp_path)
    assert record.summary.status == "failed"
    assert "the answers of all 6 clients that are available were invalid or lost" in record.summary.error
    assert record.history[-1].invalid.keys() == set(range(6))
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == len(record.history)


def test_summary_of_an_attacked_run():
    plan = dataclasses.replace(SHORT, algorithm=ByzantineCFL(), attack=AllLabelsTo(0), byzantine=2, clients=8)
    summary = simulate(plan).summary
    attackers = plan.attackers()
    assert {i for i, c in summary.clients.items() if c.byzantine} == attackers
    assert sum(c.size for c in summary.clients.values()) == summary.data.train
    assert all(sum(c.classes) == c.size for c in summary.clients.values())
    assert 0 <= summary.final.attack_success <= 1
    assert summary.identity == plan.identity
    assert summary.provenance.torch == torch.__version__


def test_detection_by_hand():
    assert detection({1, 2, 3}, {2, 3, 4, 5}) == DetectionCounts(
        true_positives=2, false_positives=1, false_negatives=2, precision=2 / 3, recall=0.5
    )
    nothing = detection(set(), set())
    assert (nothing.precision, nothing.recall) == (None, None)


@pytest.mark.parametrize("partition", [Dirichlet(0.1), Shards(1)])
def test_the_worst_client_of_a_skewed_federation_is_below_the_mean(partition):
    final = simulate(dataclasses.replace(SHORT, partition=partition)).summary.final
    assert final.worst_client_accuracy < final.accuracy


def test_asynchronous_training_learns():
    plan = Run(algorithm=FedAsync(), latency=Lognormal(), until=Until(200), evaluation=Evaluation(200))
    record = simulate(plan)
    assert record.summary.final.accuracy > 0.6
    seconds = [line.seconds for line in record.history]
    assert all(a <= b for a, b in itertools.pairwise(seconds))


@pytest.mark.slow
def test_the_demo_shows_what_it_promises():
    """FedAvg fails, Byzantine CFL stays within 2 points of its clean run, and removes the six attackers only."""
    records = {name: simulate(plan) for name, plan in demo.runs().items()}
    final = {name: record.summary.final.accuracy for name, record in records.items()}
    assert final["FedAvg, clean"] > 0.85
    assert final["FedAvg, attacked"] < 0.2
    assert final["Byzantine CFL, attacked"] > final["Byzantine CFL, clean"] - 0.02
    assert final["FedAvg, attacked"] < final["median, attacked"] < final["Byzantine CFL, attacked"]
    found = records["Byzantine CFL, attacked"].summary.detection
    assert (found.precision, found.recall) == (1.0, 1.0)
    assert records["Byzantine CFL, clean"].summary.detection.false_positives == 0


def test_who_rescales_is_excluded_within_five_rounds():
    record = simulate(Run(algorithm=ByzantineCFL(), attack=Rescale(), byzantine=6, until=Until(5)))
    excluded = {i for i, c in record.summary.clients.items() if c.excluded}
    assert excluded == Run(attack=Rescale(), byzantine=6).attackers()


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
    assert simulate(plan).history[-1].metrics is not None


# --- excluded, filtered, invalid


def test_attackers_with_invalid_updates_are_not_excluded():
    summary = simulate(dataclasses.replace(SHORT, attack=NonFinite(), byzantine=2)).summary
    bad = [c for c in summary.clients.values() if c.byzantine]
    assert [c.excluded for c in bad] == [None, None]
    assert all(c.invalid.times == 3 and "NaN" in c.invalid.reason for c in bad)
    found = summary.detection
    assert (found.true_positives, found.precision, found.recall) == (0, None, 0.0)
    assert summary.filtered == FilteredShares(byzantine=1.0, honest=0.0)


def test_what_a_rule_leaves_out_is_filtered_and_nobody_is_excluded():
    plan = dataclasses.replace(SHORT, clients=8, algorithm=FedAvg(Krum(2)), attack=Gaussian(), byzantine=2)
    summary = simulate(plan).summary
    assert not any(c.excluded or c.invalid for c in summary.clients.values())
    assert summary.detection.true_positives == summary.detection.false_positives == 0
    assert summary.filtered == FilteredShares(byzantine=1.0, honest=5 / 6)


def test_a_clean_run_has_no_byzantine_updates():
    assert simulate(SHORT).summary.filtered == FilteredShares(honest=0.0)


def test_a_client_without_data_never_took_part():
    plan = dataclasses.replace(SHORT, partition=Dirichlet(0.01, allow_empty=True), clients=20)
    clients = simulate(plan).summary.clients.values()
    empty = [c for c in clients if c.size == 0]
    assert empty
    assert all(c.not_enrolled.startswith("reports 0 examples") for c in empty)
    assert all(c.excluded is None and c.invalid is None for c in clients)
    assert all(c.not_enrolled is None for c in clients if c.size)


@pytest.mark.parametrize("algorithm", [RFFL(), Permuted(RFFL()), Quorum(RFFL(), k=3)], ids=lambda a: a.title)
@pytest.mark.parametrize(
    "changes",
    [
        {"partition": Dirichlet(0.01, allow_empty=True), "clients": 20},
        {"attack": ReportSize(5000), "byzantine": 2, "guard": Guard(max_size=1000)},
        {"partition": Dirichlet(0.5), "guard": Guard(max_size=250)},
    ],
    ids=["no examples", "an attacker beyond max_size", "honest clients beyond max_size"],
)
def test_who_is_not_enrolled_has_no_model_and_does_no_harm(changes, algorithm):
    seen = []
    plan = dataclasses.replace(SHORT, algorithm=algorithm, **changes)
    record = simulate(plan, observers=[seen.append])
    assert (record.summary.status, record.summary.error) == ("finished", None)
    absent = {i for i, c in record.summary.clients.items() if c.not_enrolled}
    assert absent
    everybody = set(range(plan.population))
    assert {p.enrolled for p in seen} == {frozenset(everybody - absent)}
    honest = everybody - plan.attackers()
    assert all(line.metrics.received_accuracy.keys() == honest - absent for line in record.history)


def test_a_run_without_any_honest_client_is_not_measured():
    plan = dataclasses.replace(SHORT, attack=ReportSize(5), byzantine=2, guard=Guard(max_size=10))
    record = simulate(plan)
    assert record.summary.status == "finished"
    assert all(line.metrics is None for line in record.history)


# --- runs that are stopped, and mistakes


def at_step(number, error):
    def observer(progress):
        if progress.step == number:
            raise error

    return observer


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [(KeyboardInterrupt(), "stopped", None), (ZeroDivisionError("oh"), "failed", "ZeroDivisionError: oh")],
)
def test_a_run_that_is_interrupted_leaves_a_record_and_the_error_goes_on(error, status, says, tmp_path):
    with pytest.raises(type(error)) as raised:
        simulate(SHORT, folder=tmp_path, observers=[at_step(2, error)], checkpoint=None)
    assert raised.value.__notes__ == [f"What was done until then is in {tmp_path}; phalanx report {tmp_path} shows it."]
    record = Record.load(tmp_path)
    assert (record.summary.status, record.summary.error, record.summary.steps) == (status, says, 2)
    assert [line.step for line in record.history] == [0, 1, 2]
    assert record.config == named(SHORT).config


def test_a_value_error_after_the_first_step_is_a_failure_with_a_record(tmp_path):
    record = simulate(SHORT, folder=tmp_path, observers=[at_step(1, ValueError("too few rows"))])
    assert record == Record.load(tmp_path)
    assert (record.summary.status, record.summary.error) == ("failed", "ValueError: too few rows")


def test_a_new_run_that_is_killed_leaves_no_mixture_of_two(tmp_path, monkeypatch):
    simulate(SHORT, folder=tmp_path)
    monkeypatch.setattr(Record, "save", lambda *_: None)  # nothing is written any more, as after kill -9
    monkeypatch.setattr(ModelKeeper, "keep", lambda _: None)
    monkeypatch.setattr("phalanx.runs.session.seal", lambda *_: None)
    other, stop = dataclasses.replace(SHORT, seed=1), at_step(1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        simulate(other, folder=tmp_path, observers=[stop], checkpoint=None)
    assert {f.name for f in tmp_path.iterdir()} == {"run.json", "history.jsonl", "unsealed"}
    assert json.loads((tmp_path / "run.json").read_text())["seed"] == 1
    with pytest.raises(FileNotFoundError, match=r"summary\.json missing"):
        Record.load(tmp_path)


@pytest.mark.parametrize("change", [{"model": SattlerCNN()}, {"algorithm": FedAsync(), "participation": 0.5}])
def test_a_run_that_cannot_begin_touches_nothing(change, tmp_path):
    record = simulate(SHORT, folder=tmp_path)
    with pytest.raises(ValueError, match=r"shape|asynchronous"):
        simulate(dataclasses.replace(SHORT, **change), folder=tmp_path)
    assert Record.load(tmp_path) == record


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"byzantine_per_round": 3}, r"must lie in 0\.\.2, where 5 of 10 clients take part in a round and 2 are Byz"),
        ({"byzantine_per_round": -1}, r"must lie in 0\.\.2.*got -1"),
        ({"byzantine_per_round": 1, "participation": 1.0}, "needs participation < 1"),
        ({"byzantine_per_round": 1, "participation": 0.1}, r"must lie in 0\.\.0, where 1 of 10"),
    ],
    ids=str,
)
def test_impossible_numbers_of_attackers_per_round(changed, message):
    plan = {"clients": 10, "attack": Gaussian(), "byzantine": 2, "participation": 0.5}
    assert Run(**plan, byzantine_per_round=2).byzantine_per_round == 2
    with pytest.raises(ValueError, match=message):
        Run(**plan | changed)
