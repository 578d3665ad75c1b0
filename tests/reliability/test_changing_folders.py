"""A folder that another process changes while it is read: what is used is what was compared with the seal."""

import json
import os
import shutil
import sys

import pytest

from phalanx import Record, Run, Until, simulate
from phalanx.data import CSV
from phalanx.models import MLP
from phalanx.runs.files import write_inside
from phalanx.runs.models import SavedModels
from phalanx.runs.seal import SealError


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A sealed run on a table, with all that a record can be read from."""
    folder = tmp_path_factory.mktemp("changing")
    rows = "".join(f"{k % 7},{k % 5},{'no' if k % 3 else 'yes'}\n" for k in range(60))
    (folder / "t.csv").write_text(f"a,b,y\n{rows}")
    plan = Run(clients=3, data=CSV(str(folder / "t.csv"), "y"), model=MLP(()), until=Until(steps=1))
    simulate(plan, folder=folder / "run", models=SavedModels(best=True))
    return folder / "run"


@pytest.fixture
def received(done, tmp_path):
    return shutil.copytree(done, tmp_path / "run")


def changing(monkeypatch, path, content, number):
    """Have another process write a file just before it is opened for a time of that number."""
    opened, times = open, []

    def meanwhile(file, *rest, **how):
        if os.fspath(file) == str(path):
            times.append(file)
            if len(times) == number:
                content(path)
        return opened(file, *rest, **how)

    monkeypatch.setattr("phalanx.reading.open", meanwhile, raising=False)


def other(path):
    """Another content of the same meaning: a forger has what fits together."""
    if path.suffix == ".safetensors":
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    elif path.suffix == ".jsonl":
        path.write_bytes(path.read_bytes().replace(b'"step":1', b'"step": 1'))
    else:
        path.write_text(json.dumps(json.loads(path.read_text())))


def a_link(path):
    """A link to a file elsewhere that holds the same, but for a space."""
    elsewhere = path.parent.parent / f"elsewhere{path.suffix}"
    shutil.copy(path, elsewhere)
    other(elsewhere)
    path.unlink()
    path.symlink_to(elsewhere)


READ = ("run.json", "summary.json", "history.jsonl", "model.json", "schema.json", "model.safetensors",
        "best/model.json", "best/schema.json", "best/model.safetensors")  # fmt: skip


@pytest.mark.parametrize("how", [other, a_link])
@pytest.mark.parametrize("name", READ)
def test_what_is_read_is_what_was_compared(name, how, received, monkeypatch):
    changing(
        monkeypatch, received / name, how, 3 if name == "history.jsonl" else 2
    )  # a history is compared in two goes
    with pytest.raises(SealError, match=f"{name} was changed while it was read"):
        read(received)
    monkeypatch.undo()
    with pytest.raises(SealError, match="is not as its run left it"):
        read(received)


def read(folder):
    record = Record.load(folder)
    record.model()
    record.model(best=True)


def test_what_was_found_changed_and_is_read_all_the_same_may_change(received):
    other(received / "run.json")
    assert Record.load(received, unsealed=True).seal.findings


def test_a_model_that_is_cut_while_it_is_read_ends_nothing(received, monkeypatch):
    """A file that is mapped into memory and cut ends the process without a word."""
    record = Record.load(received)
    changing(monkeypatch, received / "model.safetensors", lambda path: os.truncate(path, 100), 2)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        assert [record.model() for _ in range(2)]


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
@pytest.mark.parametrize("name", ["report.html", "models/0.safetensors"])
def test_a_link_that_is_put_there_after_names_were_looked_at_is_not_written_through(name, tmp_path, monkeypatch):
    (tmp_path / "run" / "models").mkdir(parents=True)
    (tmp_path / "mine").write_text("mine")
    real = os.path.realpath

    def then(path, *rest, **how):
        found = real(path, *rest, **how)
        if os.fspath(path) == str(tmp_path / "run" / name) and not os.path.lexists(path):
            os.symlink(tmp_path / "mine", path)
        return found

    monkeypatch.setattr(os.path, "realpath", then)
    write_inside(tmp_path / "run", name, b"page")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "run" / name).read_bytes() == b"page"
