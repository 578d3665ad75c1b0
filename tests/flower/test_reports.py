"""What clients measure and report: the same numbers over Flower as in a simulation, signed, on record by client."""

import dataclasses

import pytest
import torch
from flwr.app import ConfigRecord, MetricRecord

import phalanx
from flower.federations import KEYS, QUICK, SMALL, Stepwise, at_nodes, attacked, honest, roster_of
from phalanx import Until, simulate
from phalanx.algorithms import FedAvg, Private
from phalanx.attacks import Rescale
from phalanx.core import ClientReport, InfeasibleError
from phalanx.engine import LoopSettings
from phalanx.engine.participation import everyone
from phalanx.flower import codec, participant_of
from phalanx.flower.codec import REPORT, AnswerMessage, MalformedError
from phalanx.flower.in_process import InProcessGrid
from phalanx.runs.checkpoint import Checkpoint
from phalanx.runs.federation import Federation
from phalanx.training import Evaluation
from phalanx.training.evaluation import evaluate

PLAN = dataclasses.replace(
    SMALL, algorithm=FedAvg(), validation=0.4, until=Until(3), evaluation=Evaluation(by_clients=True)
)


def over_flower(folder, change=lambda apps: apps):
    federation, seen = Federation(PLAN), []
    grid = InProcessGrid(at_nodes(change(honest(PLAN, folder, federation))), stepwise=True)
    made = Stepwise(grid, roster_of(PLAN.clients), timeouts=QUICK, update_size=len(federation.start))
    with grid, made as transport:
        phalanx.run(
            FedAvg(),
            transport,
            federation.start,
            LoopSettings(until=Until(3)),
            sample=everyone,
            observers=[seen.append],
        )
    return seen


def test_reports_are_what_clients_measure_of_what_they_are_sent(tmp_path):
    """Each by hand, and over Flower as in the simulation."""
    simulated = [step.reports for step in simulate(PLAN).history if step.verdicts]
    federation, seen = Federation(PLAN), over_flower(tmp_path)
    steps = [progress for progress in seen if progress.updates is not None]
    assert len(steps) == 3
    model = federation.start
    for step, found in zip(steps, simulated, strict=True):
        assert step.updates.reports == found
        assert sorted(found) == list(range(PLAN.clients))
        for client, report in found.items():
            score = evaluate(federation.model, model, federation.kept[client])
            assert report == ClientReport(len(federation.kept[client]), score.loss, score.accuracy)
        model = step.state.model
    assert simulated[0] != simulated[2]


def test_a_report_that_somebody_changes_is_no_report_and_the_answer_is_invalid(tmp_path):
    def flatters(message, reply, context):
        reply.content[REPORT]["accuracy"] = 1.0
        return reply

    def change(apps):
        return apps | {1: attacked(apps[1], flatters)}

    first = next(progress for progress in over_flower(tmp_path, change) if progress.updates is not None)
    assert sorted(first.updates.reports) == [i for i in range(PLAN.clients) if i != 1]
    assert "its signature is not valid" in first.invalid[1]


def test_the_record_says_who_reported_what_also_after_a_kill(tmp_path):
    plan = dataclasses.replace(PLAN, attack=Rescale(-30.0), byzantine=1, until=Until(6))

    def kill(progress):
        if progress.step == 4:
            raise KeyboardInterrupt

    whole = simulate(plan)
    with pytest.raises(KeyboardInterrupt):
        simulate(plan, folder=tmp_path, observers=[kill], checkpoint=Checkpoint(0))
    assert list(simulate(plan, folder=tmp_path, checkpoint=Checkpoint(0)).history) == list(whole.history)
    rows = whole.frame("client")
    rows = rows[rows.reported_examples.notna()]
    assert len(rows) == 6 * plan.clients
    assert rows.reported_loss.iloc[-1] > 2 * rows.reported_loss.iloc[0], "clients see what the attack does"


def test_without_the_option_nobody_measures_and_identities_stay():
    plain = dataclasses.replace(PLAN, evaluation=Evaluation())
    assert "by_clients" not in str(plain.settings)
    assert not any(step.reports for step in simulate(plain).history)


def test_settings_that_exclude_each_other():
    with pytest.raises(ValueError, match="validation is 0"):
        dataclasses.replace(PLAN, validation=0.0)
    private = dataclasses.replace(PLAN, algorithm=Private(FedAvg(), clip=1.0, noise_multiplier=1.0))
    made = participant_of(private, 0, KEYS[0])  # noise of the stream protects nothing
    with pytest.raises(InfeasibleError, match="reveals what the noise of Private or PrivateSGD hides"):
        dataclasses.replace(made, noise="system")


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (ConfigRecord({"examples": 3}), "is a ConfigRecord, expected a MetricRecord"),
        (MetricRecord({"loss": 1.0}), "holds 'loss', expected examples"),
        (MetricRecord({"examples": 3, "f1": 1.0}), "holds 'examples', 'f1'"),
        (MetricRecord({"examples": 3.0}), "examples is a float, expected int"),
        (MetricRecord({"examples": -1}), "examples is -1, which cannot be"),
        (MetricRecord({"examples": 10**13}), "which cannot be"),
        (MetricRecord({"examples": 3, "accuracy": 1.01}), "accuracy is 1.01, which cannot be"),
        (MetricRecord({"examples": 3, "loss": float("nan")}), "loss is nan, which cannot be"),
        (MetricRecord({"examples": 3, "loss": [1.0]}), "loss is a list, expected float"),
    ],
)
def test_what_is_no_report_is_refused(record, why):
    answer = AnswerMessage(bytes(32), bytes(32), 7, 0.5, b"")
    content = codec.answer_content(answer, codec.encode(torch.ones(3)))
    assert codec.read_update(content, "float32", torch.empty(3)) is None
    content[REPORT] = record
    with pytest.raises(MalformedError, match=why):
        codec.read_update(content, "float32", torch.empty(3))


@pytest.mark.parametrize("report", [ClientReport(4, 0.5, 0.25), ClientReport(1, -2.0), ClientReport(0)])
def test_a_report_arrives_as_it_was_sent(report):
    answer = AnswerMessage(bytes(32), bytes(32), 7, 0.5, b"")
    content = codec.answer_content(answer, codec.encode(torch.ones(3)), report)
    assert codec.read_update(content, "float32", torch.empty(3)) == report
