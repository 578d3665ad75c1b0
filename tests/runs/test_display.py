"""Records as tables, pictures and cards."""

import dataclasses
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from phalanx import Run, Until, simulate
from phalanx.algorithms import RFFL, FedAsync
from phalanx.attacks import Rescale
from phalanx.core import Verdict
from phalanx.models import MLP
from phalanx.runs.display import curve
from phalanx.runs.record import Record
from phalanx.runs.schema import Exclusion, StepRecord
from phalanx.simulation import Lognormal
from phalanx.training.evaluation import Metrics
from summaries import summary

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
PLAN = Run(clients=6, model=MLP(()), attack=Rescale(-10.0), byzantine=1, algorithm=RFFL(), until=Until(4))


def made():
    history = [
        StepRecord(step=0, version=0, seconds=0.0, metrics=Metrics(accuracy=0.1, received_accuracy={0: 0.1, 1: 0.1})),
        StepRecord(step=0, version=0, seconds=0.5, invalid={2: "NaN"}, lost={3: "left"}),
        StepRecord(
            step=1, version=1, seconds=1.0,
            verdicts={
                0: Verdict(True, 0.5, 0.9, ""), 1: Verdict(False, 0.0, -0.2, "odd"),
                2: Verdict(False, 0.0, None, "", waits=True),
            },
            invalid={3: "too large"},
        ),
        StepRecord(step=1, version=1, seconds=1.0, metrics=Metrics(accuracy=0.4, received_accuracy={0: 0.5, 1: 0.3})),
    ]  # fmt: skip
    return Record({}, history, summary())


def test_a_row_for_each_step():
    table = made().frame().set_index("step")
    assert [*table.index] == [0, 1]
    assert [*table["accuracy"]] == [0.1, 0.4]
    assert [*table["seconds"]] == [0.5, 1.0]
    expected = {"used": [0, 1], "filtered": [0, 1], "waits": [0, 1], "invalid": [1, 1], "lost": [1, 0]}
    assert {name: [*table[name]] for name in expected} == expected


def test_a_row_for_each_client_and_line():
    table = made().frame(by="client")
    rows = [(row.step, row.client, row.fate, row.reason) for row in table.itertuples() if isinstance(row.fate, str)]
    assert rows == [
        (0, 2, "invalid", "NaN"), (0, 3, "lost", "left"), (1, 0, "used", ""), (1, 1, "filtered", "odd"),
        (1, 2, "waits", ""), (1, 3, "invalid", "too large"),
    ]  # fmt: skip
    used = table[table["fate"] == "used"].iloc[0]
    assert (used["weight"], used["accepted"], used["score"]) == (0.5, True, 0.9)
    assert [*table[table["accuracy"].notna()]["accuracy"]] == [0.1, 0.1, 0.5, 0.3]
    assert table[table["fate"] == "invalid"]["weight"].isna().all()


@pytest.mark.parametrize("algorithm", [RFFL(), FedAsync()], ids=["rounds", "arrivals"])
def test_the_table_agrees_with_the_record(algorithm):
    record = simulate(dataclasses.replace(PLAN, algorithm=algorithm, latency=Lognormal()))
    table = record.frame("client")
    measured = table[table["accuracy"].notna()]
    for step in record.history:
        if step.metrics is not None:
            found = measured[measured["step"] == step.step].set_index("client")["accuracy"].to_dict()
            assert found == step.metrics.received_accuracy
    assert (table["fate"].notna()).sum() == sum(
        len(step.verdicts | step.invalid | step.lost) for step in record.history
    )
    assert [*record.frame()["accuracy"]][-1] == record.summary.final.accuracy


def test_other_rows_and_a_missing_package_are_refused(monkeypatch):
    with pytest.raises((ValueError, TypeError)):
        made().frame(by="class")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"Record.frame needs the package pandas. Install it: pip install"):
        made().frame()


def test_a_picture_has_what_was_measured(tmp_path):
    record = simulate(PLAN)
    figure = record.plot("accuracy", "loss")
    for axes, name in zip(figure.axes, ("accuracy", "loss"), strict=True):
        (line,) = axes.lines
        assert [*zip(line.get_xdata(), line.get_ydata(), strict=True)] == curve(record.history, name)
        assert axes.get_ylabel() == name
    figure.savefig(tmp_path / "picture.png")
    assert figure._repr_png_().startswith(b"\x89PNG"), "a notebook shows it, also one that has not imported pyplot"
    assert len(record.plot().axes) == 2
    with pytest.raises(ValueError, match=r"metrics must be among accuracy, loss, .*, got 'f1'"):
        record.plot("f1")


class Tags(HTMLParser):
    """Checks that each element that is opened is closed, and collects the names."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def tags(text):
    parser = Tags()
    parser.feed(text)
    assert not parser.open
    return parser.seen


def test_the_card_of_a_notebook_is_short_and_says_the_outcome():
    record = simulate(dataclasses.replace(PLAN, until=Until(60)))
    text = record._repr_html_()
    assert len(text) < 4000
    assert {"table", "svg", "b"} <= tags(text)
    (bad,) = (i for i, client in record.summary.clients.items() if client.excluded)
    assert f">1: {bad}<" in text
    assert f"{100 * record.summary.final.accuracy:.1f} %" in text
    points = re.search(r'points="([^"]*)"', text)[1].split()
    assert (points[0].split(",")[0], points[-1].split(",")[0]) == ("0", "200")
    assert repr(record).startswith("Record('RFFL, Rescale x 1', finished after 60 steps, accuracy ")
    assert len(repr(record)) < 200


def test_a_summary_is_printed_in_a_few_lines():
    found = simulate(dataclasses.replace(PLAN, until=Until(60))).summary
    lines = str(found).splitlines()
    assert lines[:2] == ["RFFL, Rescale x 1", "  outcome         finished after 60 steps"]
    (bad,) = (i for i, client in found.clients.items() if client.excluded)
    assert f"  excluded        1: {bad}" in lines
    assert len(lines) < 15
    assert str(summary(name="a\nb", status="stopped", error="x" * 999)).splitlines()[0] == "a\\nb"
    assert max(map(len, str(summary(status="stopped", error="x" * 999)).splitlines())) < 200


def test_what_clients_and_authors_of_runs_write_is_only_text_in_the_card():
    hostile = "<script>alert(1)</script>" + "x" * 10_000
    clients = {
        i: msgspec.structs.replace(c, excluded=Exclusion(step=1, reason=hostile)) for i, c in summary().clients.items()
    }
    text = Record(
        {}, [], summary(name=hostile, status="stopped", error=hostile, remarks=(hostile,), clients=clients)
    )._repr_html_()
    assert "script" not in tags(text)
    assert len(text) < 4000


def test_a_long_history_is_not_all_looked_at():
    record = made()
    many = [msgspec.structs.replace(record.history[0], step=k) for k in range(10_000)]
    text = Record({}, many, summary())._repr_html_()
    assert len(text) < 4000


def test_the_cells_of_the_example_show_a_card_a_picture_and_a_table():
    names = {}
    cells = ["".join(cell["source"]).splitlines() for cell in json.loads(NOTEBOOK.read_text())["cells"]]
    shown = []
    for *lines, last in cells:
        exec("\n".join(lines), names)
        shown.append(eval(last, names))
    card, picture, table = shown
    assert re.search(r">accuracy</th><td[^>]*>8\d\.\d % \(best", card._repr_html_())
    assert picture._repr_png_().startswith(b"\x89PNG")
    assert list(table["step"]) == [28, 29, 30]
