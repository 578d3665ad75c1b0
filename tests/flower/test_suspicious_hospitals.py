"""Over Flower, under a rule by coordinate: trail, status, live view, report and metrics name the liar, nobody else."""

import dataclasses
import html
import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from flower.federations import KEYS, SMALL, at_nodes, coordinator, honest
from phalanx import Record, Run, Until, simulate
from phalanx.aggregators import TrimmedMean
from phalanx.algorithms import FedAvg
from phalanx.attacks import NonFinite, Rescale, Scheduled
from phalanx.cli.main import main
from phalanx.cli.terminal import complaints
from phalanx.core import ClientReport
from phalanx.engine.observer import Progress
from phalanx.flower import InProcessGrid, client_app, coordinate, participant_of
from phalanx.flower.audit import Audit, read
from phalanx.flower.live import in_words, lines, status, view
from phalanx.flower.metrics import PrometheusMetrics
from phalanx.flower.status import STANDINGS
from phalanx.models import MLP
from phalanx.report import render
from phalanx.runs.card import card
from phalanx.runs.federation import Federation
from phalanx.runs.files import AUDIT
from phalanx.runs.missing import SUSPENDED
from phalanx.runs.reports import fallen
from phalanx.runs.schema import StepRecord
from phalanx.training import Evaluation, LocalSGD

PLAN = dataclasses.replace(SMALL, algorithm=FedAvg(TrimmedMean(0.25)), until=Until(5))
LIAR = 2


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run in which client 2 sends its update times -100, and its metrics."""
    folder = tmp_path_factory.mktemp("run")
    federation = Federation(PLAN)
    apps = honest(PLAN, folder / "state", federation)
    liar = participant_of(PLAN, LIAR, KEYS[LIAR], folder / "liar", federation)
    liar = dataclasses.replace(liar, attack=Rescale(-100.0))
    metrics = PrometheusMetrics(lambda: dict.fromkeys(STANDINGS, 0), int)
    nodes = at_nodes({**apps, LIAR: client_app(liar)})
    with InProcessGrid(nodes) as grid:
        coordinate(grid, coordinator(PLAN, folder=folder, federation=federation, observers=[metrics]))
    return folder, metrics


def test_the_trail_names_the_liar_once_with_the_reason(run):
    folder, _ = run
    found = [entry for entry in read(folder / AUDIT) if entry.event == "suspicious"]
    assert [(entry.client, entry.name) for entry in found] == [(LIAR, f"clinic-{LIAR}")]
    assert "as long as those of others" in found[0].why
    assert found[0].score >= 100
    assert not any(entry.event in ("filtered", "excluded") for entry in read(folder / AUDIT)), "the rule judges nobody"


def test_the_trail_has_the_warnings_with_their_time(tmp_path):
    state = SimpleNamespace(version=0, verdicts={})
    Audit(tmp_path / AUDIT, lambda: 0.0, str)(Progress(0, 0.0, state, None, {}, {}, remarks=("Nothing is promised.",)))
    begun, warning = read(tmp_path / AUDIT)
    assert (begun.event, warning.event, warning.why) == ("begun", "warning", "Nothing is promised.")
    assert warning.time.endswith("Z")


def test_a_fall_of_reported_accuracy_is_an_event_with_its_time_once_also_after_a_resumption(tmp_path):
    def told(step, share):
        updates = SimpleNamespace(reports={1: ClientReport(59, 0.5, share)})
        return Progress(step, 0.0, SimpleNamespace(version=step, verdicts={}), updates, {}, {})

    def audit(**how):
        return Audit(tmp_path / AUDIT, lambda: 0.0, lambda i: "Lyon", **how)

    first = audit()
    for step, share in enumerate((0.9, 0.4, 0.3, 0.85, 0.5), 1):
        first(told(step, share))
    found = [entry for entry in read(tmp_path / AUDIT) if entry.event == "fallen"]
    assert [(entry.step, entry.client, entry.name) for entry in found] == [(2, 1, "Lyon"), (5, 1, "Lyon")]
    assert found[0].why.startswith("reports an accuracy of 40.0 % in step 2, after 90.0 % in step 1, where up to 17.6")
    assert found[0].time.endswith("Z")

    resumed = audit(resumed=True)
    shares = enumerate((0.9, 0.4, 0.3, 0.85, 0.5), 1)
    resumed.catch_up(
        [StepRecord(step=k, version=k, seconds=0.0, reports={1: ClientReport(59, 0.5, x)}) for k, x in shares]
    )
    resumed(told(6, 0.4))
    assert sum(entry.event == "fallen" for entry in read(tmp_path / AUDIT)) == 2, "it has fallen before"


def test_a_model_that_a_client_has_lost_by_is_exported_only_where_that_is_accepted(tmp_path, capsys):
    """The attacker begins in round 6, under the mean."""
    plan = Run(
        clients=4, model=MLP((8,)), algorithm=FedAvg(), training=LocalSGD(epochs=2, batch_size=16, lr=0.1),
        validation=0.3, evaluation=Evaluation(by_clients=True), attack=Scheduled(Rescale(-10.0), start=5), byzantine=1,
        until=Until(8),
    )  # fmt: skip
    record = simulate(plan, folder=tmp_path / "run")
    fell = [*fallen(record.history, {})]
    assert fell
    command = ["export", str(tmp_path / "run"), "--out", str(tmp_path / "model.safetensors")]
    assert main(command) == 2
    refused = " ".join(capsys.readouterr().err.split())
    assert fell[0] in refused
    assert "give --fallen" in refused
    assert not (tmp_path / "model.safetensors").exists()
    assert main([*command, "--fallen"]) == 0
    assert fell[0] in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "model.safetensors").exists()
    assert "reports an accuracy of" in (tmp_path / "run" / "model.md").read_text()


def test_history_card_report_and_terminal_say_who_was_suspended(tmp_path):
    federation = Federation(PLAN)
    liar = participant_of(PLAN, LIAR, KEYS[LIAR], tmp_path / "liar", federation)
    apps = {
        **honest(PLAN, tmp_path / "state", federation),
        LIAR: client_app(dataclasses.replace(liar, attack=NonFinite())),
    }
    with InProcessGrid(at_nodes(apps)) as grid:
        coordinate(grid, coordinator(PLAN, folder=tmp_path / "run", federation=federation))
    record = Record.load(tmp_path / "run")
    why = next(step.invalid[LIAR] for step in record.history if step.invalid.get(LIAR, "").endswith(SUSPENDED))
    said = f"Suspended: client {LIAR} (clinic-{LIAR}) in step 3, after: {why.removesuffix(SUSPENDED)}."
    assert "holds" in why
    assert said in card(record).replace("\\", "")
    assert said in complaints(record)
    assert html.escape(said) in render([record], "runs")


def test_status_view_report_and_card_say_the_same(run):
    folder, metrics = run
    (why,) = [entry.why for entry in read(folder / AUDIT) if entry.event == "suspicious"]
    told = status(folder)
    assert {i: client.suspicious for i, client in told.clients.items() if client.suspicious} == {LIAR: why}
    record = Record.load(folder)
    assert record.summary.clients[LIAR].suspicious.reason == why
    page = render([record], "runs")
    assert f"clinic-{LIAR}" in page
    assert why.split(";")[0] in page
    assert f"clinic-{LIAR}" in (folder / "model.md").read_text()
    assert sum(f"suspicious: {LIAR} ({why})" in in_words(step) for step in lines(folder)) == 1
    console = Console(width=200, file=io.StringIO())
    console.print(view(told, lines(folder), (200, 40)))
    assert f"suspicious: {why[:40]}" in console.file.getvalue()
    assert metrics.registry.get_sample_value("phalanx_outlying_updates_total") >= 5
