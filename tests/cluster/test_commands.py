"""`phalanx run` and `phalanx reproduce` on a Ray cluster, and the page that tells of them."""

import doctest
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jaxtyping
import pytest

pytest.importorskip("ray")

from cluster.conftest import TOYS
from phalanx.cli.main import main
from phalanx.experiments.trace import Trace
from phalanx.runs.record import Record

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
TOY = ["reproduce", "toy-paper", "figure1", "--package", "toy_papers", "--seeds", "2"]


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHALANX_DATA", raising=False)
    monkeypatch.setattr("sys.path", [*sys.path, str(TOYS)])


def traces(folder):
    return {path.name: replace(Trace.load(path), wall_seconds=0.0) for path in Path(folder).rglob("records/*.json")}


@pytest.mark.slow
def test_a_run_is_the_same_with_its_clients_on_a_cluster(two_workers, capsys):
    run = ["run", "--clients", "4", "--until.steps", "3", "--partition", "PowerLaw"]
    assert main([*run, "--folder", "there", "--ray", two_workers]) == 0
    assert main([*run, "--folder", "here"]) == 0
    there, here = Record.load(Path("there")), Record.load(Path("here"))
    assert there.history == here.history
    assert there.config == here.config, "where it was computed is no part of a run"


@pytest.mark.slow
def test_experiments_have_the_same_records_from_a_cluster(two_workers, capsys):
    assert main([*TOY, "--folder", "there", "--ray", two_workers]) == 0
    assert main([*TOY, "--folder", "here"]) == 0
    assert len(traces("there")) == 8
    assert traces("there") == traces("here")
    assert "8 of 8 records are in" not in capsys.readouterr().out
    assert main([*TOY, "--folder", "there", "--ray", two_workers]) == 0
    assert "8 of 8 records are in" in capsys.readouterr().out, "nothing is done twice"


# --- the page


@pytest.fixture
def _as_a_user_sees_it():
    """Without the checks of shapes that only tests have."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.mark.slow
@pytest.mark.usefixtures("two_workers", "_as_a_user_sees_it")
def test_what_the_page_shows_is_what_comes_out():
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (example,) = (block for block in blocks if ">>>" in block)
    told = []
    test = doctest.DocTestParser().get_doctest(example, {}, PAGE.name, str(PAGE), 0)
    assert not doctest.DocTestRunner(verbose=False).run(test, out=told.append).failed, "".join(told)


def commands(program):
    return [
        shlex.split(line) for line in re.findall(rf"^ {{4}}(?:\w+=0 )?({program} .*)$", PAGE.read_text(), re.MULTILINE)
    ]


def test_the_page_shows_commands_that_there_are(capsys):
    shown = commands("phalanx")
    assert [words[1] for words in shown] == ["reproduce", "run"]
    for _, action, *words in shown:
        with pytest.raises(SystemExit) as stop:
            main([action, "--help"])
        assert not stop.value.code
        help_ = capsys.readouterr().out
        assert [word for word in words if word.startswith("--") and word not in help_] == []


@pytest.mark.slow
def test_the_page_shows_options_that_ray_has():
    shown = commands("ray start")
    assert len(shown) == 2
    tool = [str(Path(sys.executable).parent / "ray"), "start", "--help"]
    known = subprocess.run(tool, capture_output=True, text=True, check=True, timeout=300).stdout
    options = {word.partition("=")[0] for words in shown for word in words if word.startswith("--")}
    assert {option for option in options if option not in known} == set()


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", PAGE.read_text()):
        assert (PAGE.parent / target).exists(), target
