"""Over Flower, under a rule by coordinate: trail, status, live view, report and metrics name the liar, nobody else."""

import dataclasses
import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from flower.federations import KEYS, SMALL, at_nodes, coordinator, honest
from phalanx import Record, Until
from phalanx.aggregators import TrimmedMean
from phalanx.algorithms import FedAvg
from phalanx.attacks import Rescale
from phalanx.engine.observer import Progress
from phalanx.flower import InProcessGrid, client_app, coordinate, participant_of
from phalanx.flower.audit import Audit, read
from phalanx.flower.live import in_words, lines, status, view
from phalanx.flower.metrics import PrometheusMetrics
from phalanx.flower.status import STANDINGS
from phalanx.report import render
from phalanx.runs.federation import Federation
from phalanx.runs.files import AUDIT

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
