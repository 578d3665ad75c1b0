"""Clients that see different data, and clients that come late, in whole runs."""

import dataclasses

import pytest
import torch

import phalanx
from phalanx import LocalSGD, Run, Until, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import RFFL, ClusteredFL, FedAvg, Permuted, Quorum
from phalanx.attacks import JoinLate, LabelFlip, ReportSize, Rescale, Together
from phalanx.core import Algorithm
from phalanx.data import PermutedLabels, SwappedLabels
from phalanx.engine import LoopSettings
from phalanx.engine.connection import Arrivals
from phalanx.models import MLP
from phalanx.runs.checkpoint import Checkpoint
from phalanx.runs.federation import Federation
from phalanx.runs.record import as_lines
from phalanx.simulation import Late
from phalanx.training.evaluation import evaluate, evaluate_each
from phalanx.weighting import Ignore
from toys import Scripted

GROUPED = Run(
    algorithm=ClusteredFL(split_rounds=(6,)),
    clients=4,
    groups=PermutedLabels(2),
    model=MLP((32,)),
    training=LocalSGD(epochs=3),
    until=Until(8),
)


def test_each_client_holds_and_is_tested_on_what_its_group_sees():
    federation, plain = Federation(GROUPED), Federation(dataclasses.replace(GROUPED, groups=None))
    for i in range(4):
        names = GROUPED.groups.permutations(10)[i // 2]
        assert torch.equal(federation.data[i].y, names[plain.data[i].y])
        assert torch.equal(federation.data[i].x, plain.data[i].x)
        assert torch.equal(federation.holdings[i][names], plain.holdings[i])
    state, _ = GROUPED.algorithm.init(federation.start, dict.fromkeys(range(4), 10))
    own = evaluate(federation.model, federation.start, federation.tests[1])
    other = evaluate(federation.model, federation.start, federation.tests[0])
    measured = federation.evaluate(state, range(4))
    assert measured.accuracy == pytest.approx((own.accuracy + other.accuracy) / 2)
    by_names = (federation.holdings[3] / federation.holdings[3].sum() * own.by_class).nansum()
    assert measured.client_accuracy[3] == pytest.approx(float(by_names), abs=1e-3)


def test_a_run_with_groups_splits_them_and_says_who_was_in_which():
    record = simulate(GROUPED)
    assert record.history[-1].state["clusters"] == {1: [0, 1], 2: [2, 3]}
    assert record.history[-1].accuracy > record.history[5].accuracy + 0.2
    assert [client.group for client in record.summary.clients.values()] == [0, 0, 1, 1]
    hidden = simulate(dataclasses.replace(GROUPED, algorithm=Permuted(GROUPED.algorithm, 3)))
    for one, other in zip(record.history, hidden.history, strict=True):
        assert one.metrics == other.metrics


def test_clients_that_are_served_the_same_are_evaluated_once_per_group(monkeypatch):
    federation = Federation(dataclasses.replace(GROUPED, algorithm=Permuted(FedAvg(), 3)))
    models = []

    def counted(model, vectors, *rest):
        models.extend(vectors)
        return evaluate_each(model, vectors, *rest)

    monkeypatch.setattr("phalanx.runs.federation.evaluate_each", counted)
    state, _ = federation.plan.algorithm.init(federation.start, dict.fromkeys(range(4), 10))
    federation.evaluate(state, range(4))
    assert len(models) == 2


def test_what_an_attacker_wants_is_measured_by_the_eyes_of_each_group():
    plan = dataclasses.replace(
        GROUPED, groups=SwappedLabels(((1, 7), (3, 5))), attack=LabelFlip(1, 2), byzantine=1, algorithm=FedAvg()
    )
    federation = Federation(plan)
    assert torch.equal(federation.goals[0].x, federation.test.of(federation.test.y == 7).x)
    assert torch.equal(federation.goals[1].x, federation.test.of(federation.test.y == 1).x)
    state, _ = FedAvg().init(federation.start, dict.fromkeys(range(4), 10))
    assert 0 <= federation.evaluate(state, range(4)).attack_success <= 1


def test_a_run_that_cannot_be_grouped_is_refused_at_once():
    with pytest.raises(ValueError, match="5 groups need at least 5 clients, got 4"):
        dataclasses.replace(GROUPED, groups=PermutedLabels(5))


# Late clients


def test_late_clients_find_their_group_in_a_run():
    plan = dataclasses.replace(
        GROUPED, clients=6, late=Late(1, after=7.0), algorithm=ClusteredFL(split_rounds=(5,)), until=Until(11)
    )
    (late,) = plan.late.times(6, plan.seed)
    record = simulate(plan)
    assert all(late not in line.verdicts for line in record.history[:8]), "was not there"
    verdict = record.history[8].verdicts[late]
    assert not verdict.accepted
    assert verdict.reason.startswith("new client joins cluster")
    assert record.history[9].verdicts[late].accepted
    clusters = record.history[-1].state["clusters"].values()
    assert sorted(sorted(c) for c in clusters) == [[0, 1, 2], [3, 4, 5]]


def test_late_clients_join_a_run_that_has_not_split_yet():
    plan = dataclasses.replace(GROUPED, late=Late(2, after=1.5), until=Until(4))
    lines = simulate(plan).history
    assert [len(line.verdicts) for line in lines] == [0, 2, 2, 4, 4]


def test_attackers_join_late_with_false_sizes_and_the_promise_counts_on_it():
    """Three of twelve join after five seconds, and report a million; a client without the attack comes on time."""
    attack = Together(JoinLate(5.0), Together(ReportSize(), Rescale(-5.0)))
    plan = Run(
        algorithm=Quorum(FedAvg(Median(), Ignore()), 7),
        attack=attack,
        byzantine=3,
        clients=12,
        model=MLP(()),
        until=Until(120),
    )
    record = simulate(plan)
    joined = [step.promise.clients for step in record.history if step.promise]
    assert (joined[0], joined[-1]) == (9, 12)
    assert {step.promise.f for step in record.history if step.promise} == {3}
    early = {client for step in record.history if step.seconds < 5 for client in step.verdicts}
    late = {client for step in record.history if step.seconds > 6 for client in step.verdicts}
    assert (len(early), len(late)) == (9, 12)
    assert late - early == plan.attackers()
    assert {Federation(plan).transport.reported[i] for i in plan.attackers()} == {1_000_000}


def test_a_run_with_late_clients_goes_on_from_a_checkpoint(tmp_path):
    plan = dataclasses.replace(GROUPED, late=Late(1, after=3.0), until=Until(6))
    whole = simulate(plan)

    def stop(progress):
        if progress.step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(plan, folder=tmp_path, observers=(stop,), checkpoint=Checkpoint(every_seconds=0))
    resumed = simulate(plan, folder=tmp_path, checkpoint=Checkpoint(every_seconds=0))
    assert as_lines(resumed.history) == as_lines(whole.history)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"algorithm": RFFL()}, "RFFL cannot take in clients that come late"),
        ({"algorithm": Permuted(RFFL())}, r"Permuted\(RFFL\) cannot take in clients that come late"),
        ({"algorithm": Quorum(RFFL(), k=3)}, r"Quorum\(RFFL\) cannot take in clients that come late"),
        ({"late": None, "attack": JoinLate(), "byzantine": 1, "algorithm": RFFL()}, "Leave JoinLate out, or choose"),
        ({"late": Late(4)}, "late.count must be below the number of clients, 4, got 4"),
    ],
)
def test_who_cannot_come_late(change, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(GROUPED, **{"late": Late(1), **change})


@pytest.mark.parametrize("make", [lambda: Late(0), lambda: Late(1, 0.0), lambda: Late(1, float("inf"))])
def test_late_out_of_range(make):
    with pytest.raises(ValueError, match="must be"):
        make()


class Growing(Scripted):
    """Client 1 joins while the first reply is awaited."""

    def enroll(self):
        return {0: 10}

    def receive(self, *, every):
        arrivals = super().receive(every=every)
        return arrivals._replace(joined=self.late if self.now == 1.0 else {})


def grown(late, algorithm=None, until=2):
    transport = Growing({0: [1.0], 1: [3.0]})
    transport.late = late
    seen = []
    state = phalanx.run(
        algorithm or ClusteredFL(),
        transport,
        torch.zeros(2),
        LoopSettings(until=Until.of(until)),
        observers=(seen.append,),
    )
    return state, transport, seen


@pytest.mark.parametrize("algorithm", [ClusteredFL(), FedAvg()], ids=lambda a: type(a).__name__)
def test_the_engine_lets_in_who_joins(algorithm):
    state, transport, _ = grown({1: 10}, algorithm)
    assert [set(sent) for sent in transport.sent] == [{0}, {0, 1}]
    assert state.model.tolist() == [3.0, 3.0], "1, and then the mean of 1 and 3"


def test_the_engine_refuses_who_declares_nonsense_and_goes_on():
    state, transport, seen = grown({1: -5})
    assert [set(sent) for sent in transport.sent] == [{0}, {0}]
    assert "reports -5 examples" in seen[1].invalid[1]
    assert state.clusters == {0: (0,)}


def test_an_algorithm_that_cannot_take_in_anybody_says_so():
    state, _, seen = grown({1: 10}, RFFL())
    assert "RFFL cannot take in client 1, which came after the run had begun" in seen[1].invalid[1]
    assert (state.version, state.reputation.keys()) == (2, {0})
    assert Arrivals().joined == {}
    assert not FedAvg().traits.remembers
    assert not Permuted(FedAvg()).traits.remembers
    assert issubclass(ClusteredFL, Algorithm)
