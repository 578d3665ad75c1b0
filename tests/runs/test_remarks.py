"""What a run says of its guarantees, in record and report; and clients that train on their truncated number only."""

import dataclasses
import re

import pytest
import torch

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.aggregators import Krum, Median, TrimmedMean
from phalanx.algorithms import AboveNoise, ByzantineCFL, Catalyst, FedAvg, PerCluster, Quorum
from phalanx.attacks import LabelFlip, ReportSize, Together
from phalanx.cli.terminal import complaints
from phalanx.core import InfeasibleError
from phalanx.data import PowerLaw
from phalanx.engine import LostRounds
from phalanx.models import MLP
from phalanx.report import write
from phalanx.runs.card import card
from phalanx.runs.federation import Federation
from phalanx.runs.missing import lost_rounds
from phalanx.runs.record import Record
from phalanx.simulation import Deadline, Late, Lognormal
from phalanx.weighting import Truncate, truncation_bound

SMALL = Run(clients=12, model=MLP((8,)), training=LocalSGD(batch_size=50), until=Until(3))
THRESHOLD = {FedAvg: {}, ByzantineCFL: {"threshold": AboveNoise()}}
LIE = Together(ReportSize(10**6), LabelFlip(0, 1))


@pytest.mark.filterwarnings("ignore:Truncate")
def test_the_record_and_the_report_repeat_what_the_run_said(tmp_path):
    algorithm = Catalyst(3, aggregate=TrimmedMean(0.4), preprocess=Truncate.as_published(0.25, 0.4))
    plan = dataclasses.replace(SMALL, algorithm=algorithm, until=Until(20))
    with pytest.warns(UserWarning, match="not of a quorum of 7: there 3 attackers can hold") as caught:
        record = simulate(plan, folder=tmp_path)
    said = (str(caught[-1].message),)
    assert record.summary.remarks == record.history[0].remarks == said
    assert not any(step.remarks for step in record.history[1:])
    assert Record.load(tmp_path) == record
    page = write([record], tmp_path / "report.html", "A run").read_text()
    assert "Warning: Truncate(0.25, 0.4, population) bounds what attackers hold of all 12 clients" in page
    quiet = simulate(dataclasses.replace(SMALL, algorithm=FedAvg(Median(), Truncate(0.25, 0.4))), folder=tmp_path)
    assert quiet.summary.remarks == ()
    assert '"remarks"' not in (tmp_path / "summary.json").read_text()
    assert quiet.summary.promise.f == 3
    assert quiet.summary.promise.calls == 3, "one a round"
    assert 0.25 <= quiet.summary.promise.largest <= 0.4


def test_a_mean_of_one_client_says_in_record_report_and_terminal_that_it_promises_nothing(tmp_path):
    plan = dataclasses.replace(SMALL, participation=0.1, attack=LIE, byzantine=2, until=Until(2))
    record = simulate(plan, folder=tmp_path)
    said = record.summary.promise.text[0]
    assert said.startswith("Promises nothing: a mean tolerates no attacker")
    assert said in write([record], tmp_path / "report.html", "A run").read_text()
    assert "Promises nothing" in card(record)
    assert record.history[0].promise.f == record.summary.promise.f == 0


@pytest.mark.parametrize("then", ["skip", "wait"])
@pytest.mark.filterwarnings("ignore:If 3 of 12")
def test_virtual_time_passes_in_lost_rounds(then):
    """Rounds end after two seconds; Krum asks for 9 of 12 answers."""
    plan = dataclasses.replace(
        SMALL,
        algorithm=FedAvg(Krum(f=3)),
        latency=Lognormal(median=1.0, sigma=1.0, each_turn=True),
        deadline=Deadline(2.0),
        lost_rounds=LostRounds(then, 50),
        until=Until(8),
    )
    record = simulate(plan)
    lost = [s for s in record.history if any("round lost" in v.reason for v in s.verdicts.values())]
    lost += [s for s in record.history if any("round lost" in why for why in s.lost.values())]
    seconds = [step.seconds for step in record.history]
    assert seconds == sorted(set(seconds)), "every wait takes time"
    assert record.summary.steps == 8
    assert lost
    assert record.history[-1].version == (8 - len(lost) if then == "skip" else 8)


NEEDS = "needs the answers of at least 5 of 12 clients. If fewer come, raise the deadline, let late answers count by"


@pytest.mark.filterwarnings("ignore:A (benign )?cluster of fewer than 5 is lost")
@pytest.mark.parametrize("kind", [FedAvg, ByzantineCFL])
def test_a_run_that_loses_its_rounds_says_how_many_answers_its_promise_needs(kind):
    """Some 3 of 12 honest clients answer in time, and two attackers could hold too much of fewer than 5."""
    plan = dataclasses.replace(
        SMALL,
        algorithm=kind(aggregate=Median(), preprocess=Truncate(2 / 12, 0.4), **THRESHOLD[kind]),
        latency=Lognormal(each_turn=True),
        deadline=Deadline(0.7),
        until=Until(40),
    )
    said = " ".join(Federation(plan).promise.text)
    assert "Sets of fewer than 5 are not aggregated." in said, "before it"
    assert NEEDS in said
    record = simulate(plan)
    assert record.summary.status == "failed"
    assert record.summary.promise.text == Federation(plan).promise.text
    (remark,) = [remark for remark in record.summary.remarks if remark.startswith("5 rounds in a row were lost. ")]
    assert NEEDS in remark
    assert NEEDS in record.summary.error
    late = simulate(dataclasses.replace(plan, deadline=Deadline(0.7, grace=1)))
    assert late.summary.status == "finished"
    assert record.history[-1].version < 3
    assert late.history[-1].version > 20
    assert late.summary.promise.f == record.summary.promise.f == 2


@pytest.mark.filterwarnings("ignore:A cluster of fewer than 5 is lost")
def test_clusters_that_are_too_small_without_a_deadline_need_more_clients_in_a_round():
    algorithm = PerCluster(FedAvg(Median(), Truncate(2 / 12, 0.4)))
    plan = dataclasses.replace(SMALL, algorithm=algorithm, participation=0.5)
    needs = Federation(plan).promise.needs
    assert needs == (
        "A cluster needs the answers of at least 5 of 6 clients. "
        "If fewer come, raise min_part_size, and have all clients take part in each round."
    )
    full = dataclasses.replace(SMALL, algorithm=FedAvg(Median(), Truncate(2 / 12, 0.4)))
    assert Federation(full).promise.needs == "", "nobody is missing"


def test_what_can_never_begin_is_refused():
    with pytest.raises(InfeasibleError, match="No quorum can be weighed"):
        simulate(dataclasses.replace(SMALL, algorithm=Catalyst(3, preprocess=Truncate(0.25, 0.4, "subset"))))
    with pytest.raises(InfeasibleError, match=r"needs at least 2f \+ 3 = 13 rows, got 12"):
        simulate(dataclasses.replace(SMALL, algorithm=FedAvg(Krum(f=5))))
    with pytest.raises(ValueError, match=r"drawn is 6, and more clients are drawn for a round when others come late"):
        Run(FedAvg(preprocess=Truncate(scope="subset", drawn=6)), late=Late(count=2), participation=0.3)


# Portnoy et al. 2020, Section 3.4

TRUNCATED = dataclasses.replace(
    SMALL,
    algorithm=FedAvg(Median(), Truncate(0.25, 0.4)),
    partition=PowerLaw(),
    attack=LIE,
    byzantine=2,
    train_truncated=True,
)


def test_honest_clients_train_on_their_truncated_number_of_examples():
    federation = Federation(TRUNCATED)
    reported = federation.transport.reported
    U = truncation_bound(reported, 0.25, 0.4)
    assert max(len(held) for held in federation.data) > U
    for client, held in enumerate(federation.data):
        trained = federation.transport.data[client]
        if client in federation.byzantine:
            assert reported[client] == 10**6
            assert len(trained) == len(held), "an attacker does as it likes"
            continue
        assert reported[client] == len(held), "the size that is reported is the true one"
        assert len(trained) == min(len(held), U)
        rows = {tuple(row) for row in held.x.flatten(1).tolist()}
        assert all(tuple(row) in rows for row in trained.x.flatten(1).tolist())


def test_the_examples_are_drawn_once_and_at_random():
    one, two = Federation(TRUNCATED), Federation(TRUNCATED)
    cut = [i for i in one.honest if len(one.transport.data[i]) < len(one.data[i])]
    assert cut
    for i in cut:
        assert torch.equal(one.transport.data[i].x, two.transport.data[i].x)
        first = one.data[i].x[: len(one.transport.data[i])]
        assert not torch.equal(one.transport.data[i].x, first)
    other = Federation(dataclasses.replace(TRUNCATED, seed=1))
    assert other.transport.data[cut[0]].x.shape != one.transport.data[cut[0]].x.shape or not torch.equal(
        other.transport.data[cut[0]].x, one.transport.data[cut[0]].x
    )


def test_it_is_off_by_default_and_changes_the_run():
    off = dataclasses.replace(TRUNCATED, train_truncated=False)
    assert "train_truncated" not in off.settings
    assert off.identity != TRUNCATED.identity
    assert all(len(off_) >= len(on) for off_, on in zip(*_trained(off, TRUNCATED), strict=True))
    assert simulate(off).history != simulate(TRUNCATED).history


def _trained(*plans):
    return [list(Federation(plan).transport.data.values()) for plan in plans]


def test_of_a_quorum_the_bound_is_that_of_the_quorum():
    algorithm = Quorum(FedAvg(Median(), Truncate(0.1, 0.4, "subset")), k=6)
    federation = Federation(dataclasses.replace(TRUNCATED, algorithm=algorithm))
    U = algorithm.algorithm.preprocess.bound(federation.transport.reported, 6)
    honest = [len(federation.transport.data[i]) for i in federation.honest]
    assert max(honest) == U < max(len(federation.data[i]) for i in federation.honest)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"algorithm": FedAvg()}, r"FedAvg has AsReported\(\)\. Choose an algorithm with preprocess = Truncate"),
        ({"algorithm": ByzantineCFL()}, r"ByzantineCFL has Ignore\(\)"),
        ({"algorithm": FedAvg(preprocess=Truncate(scope="cohort"))}, 'a scope other than "cohort"'),
        ({"late": Late(count=1)}, "clients that come late change it"),
    ],
)
def test_without_a_fixed_bound_it_is_refused(changes, why):
    with pytest.raises(ValueError, match=why):
        dataclasses.replace(TRUNCATED, **changes)


@pytest.mark.parametrize("then", ["skip", "wait"])
@pytest.mark.filterwarnings("ignore:If 3 of 12")
def test_terminal_and_report_count_lost_rounds(then, tmp_path):
    plan = dataclasses.replace(
        SMALL,
        algorithm=FedAvg(Krum(f=3)),
        latency=Lognormal(median=1.0, sigma=1.0, each_turn=True),
        deadline=Deadline(2.0),
        lost_rounds=LostRounds(then, 50),
        until=Until(8),
    )
    record = simulate(plan)
    said = lost_rounds(record.history)
    assert re.fullmatch(
        r"\d+ rounds? lost, the first one because Krum\(f=3.*\) needs at least 2f \+ 3 = 9 rows.*", said
    )
    assert said in complaints(record)
    assert said.split(" because ")[0] in write([record], tmp_path / "report.html", "A run").read_text()
    assert lost_rounds(simulate(SMALL).history) == ""
