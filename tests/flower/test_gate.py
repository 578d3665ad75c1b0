"""Nothing of a client's data, labels, paths or exceptions leaves it: a secret is looked for in every byte that does."""

import dataclasses
import json
import logging

import pytest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from flower.federations import KEYS, QUICK, SMALL, at_nodes, coordinator, honest
from phalanx import Until
from phalanx.cli.main import main
from phalanx.core import InfeasibleError
from phalanx.flower import InProcessGrid, coordinate
from phalanx.flower.client import ClientWorker
from phalanx.flower.codec import MalformedError
from phalanx.flower.gate import OTHER, REASONS, WithheldError, gated, reason_of, received

SECRET = "SMITH, Jane 1971-03-02"


def noted(error):
    error.add_note(SECRET)
    return error


def caused(error):
    error.__cause__ = ValueError(SECRET)
    return error


class NamedAfterItError(Exception):
    """An exception of the client's own."""


NamedAfterItError.__name__ = NamedAfterItError.__qualname__ = SECRET
FAILURES = {
    "a value": ValueError(f"could not convert string to float: '{SECRET}'"),
    "a key": KeyError(SECRET),
    "a file": FileNotFoundError(2, "No such file", f"/data/{SECRET}.csv"),
    "a full disk": OSError(28, "No space left on device", f"/data/{SECRET}"),
    "a codec": UnicodeDecodeError("utf-8", SECRET.encode(), 0, 1, SECRET),
    "memory": MemoryError(SECRET),
    "a package": ImportError(SECRET, name=SECRET, path=SECRET),
    "settings": InfeasibleError(SECRET),
    "a message": MalformedError(SECRET),
    "several": ExceptionGroup(SECRET, [ValueError(SECRET)]),
    "a note": noted(RuntimeError("no")),
    "a cause": caused(RuntimeError("no")),
    "a name": NamedAfterItError(SECRET),
    "an end": StopIteration(SECRET),
    "a reason with more": RuntimeError(f"{OTHER} {SECRET}"),
}


HONEST = 4


def forms(text):
    """The forms in which a text could travel."""
    return [text.encode(), text.encode("utf-16-le"), json.dumps(text)[1:-1].encode(), repr(text)[1:-1].encode()]


def tapped(app, sent):
    """An app whose every reply is noted, as Flower sends it."""

    def node(message, context):
        try:
            reply = app(message, context)
        except Exception as error:
            sent.append(f"{type(error)}:<'{error}'>".encode())
            raise
        sent.extend(value.deflate() for value in get_all_nested_objects(reply).values())
        return reply

    return node


def text_of(records):
    return "\n".join(logging.Formatter().format(record) for record in records).encode()


def test_no_byte_that_leaves_a_client_holds_its_secret(tmp_path, monkeypatch, caplog, capsys):
    """In messages, the log, the folder of the run and its report: of clients that fail in every way, twice each."""
    left, trained, sent = iter(FAILURES.values()), ClientWorker.train, []

    def train(self, content):
        if self.key in KEYS[:HONEST]:
            return trained(self, content)
        raise next(left)

    monkeypatch.setattr(ClientWorker, "train", train)
    plan = dataclasses.replace(SMALL, clients=len(KEYS), until=Until(2))
    assert len(FAILURES) <= 2 * (len(KEYS) - HONEST)
    apps = {i: tapped(app, sent) for i, app in honest(plan, tmp_path / f"clients of {SECRET}").items()}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "audit-of-an-older-version.jsonl").touch(0o644)
    with InProcessGrid(at_nodes(apps)) as grid, caplog.at_level(logging.DEBUG):
        coordinate(grid, coordinator(plan, folder=tmp_path / "run", timeouts=QUICK))
    assert next(left, None) is None, "each was raised"
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "run").rglob("*")} == {0}, "others read none of it"
    assert main(["report", str(tmp_path / "run")]) == 0
    own = [record for record in caplog.records if record.name == "phalanx.flower.client"]
    of_server = text_of(record for record in caplog.records if record.name != "phalanx.flower.client")
    written = {path.name: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {"audit.jsonl", "history.jsonl", "status.json", "summary.json", "report.html"} <= {*written}
    places = {
        **written,
        "log": of_server,
        "messages": b"".join(sent),
        "terminal": "".join(capsys.readouterr()).encode(),
    }
    assert [name for name, content in places.items() for form in forms(SECRET) if form in content] == []
    for reason in {*map(reason_of, FAILURES.values())}:
        assert all(reason.encode() in places[name] for name in ("audit.jsonl", "history.jsonl", "log", "messages"))
    assert text_of(own).count(SECRET.encode()) >= len(FAILURES), "the client's own log has all of it"


@pytest.mark.parametrize("how", FAILURES)
def test_nothing_of_an_exception_passes_the_gate(how, caplog):
    def fails():
        raise FAILURES[how]

    with pytest.raises(WithheldError) as passed:
        gated(fails)
    error = passed.value
    assert (str(error) in REASONS, str(error), error.args) == (True, reason_of(FAILURES[how]), (str(error),))
    assert (error.__cause__, error.__context__, getattr(error, "__notes__", None)) == (None, None, None)
    assert SECRET in caplog.text


@pytest.mark.parametrize("text", [SECRET, f"ValueError: {SECRET}", "", None, 5])
def test_the_server_keeps_reasons_only(text):
    assert received(text) == ""
    assert {received(f"<class 'E'>:<'{reason}: {text}'>") for reason in REASONS} == {*REASONS}
