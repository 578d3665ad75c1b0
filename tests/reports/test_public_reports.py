"""Reports of users, each in a folder of its own: what was done with which files, and what is right.

README.md says what a folder holds.  A test is one case of one folder, carried out in this process in a copy of it.
"""

import json
import runpy
import shlex
import shutil
import sys
import traceback
import warnings
from pathlib import Path

import pytest
import yaml
from jaxtyping import config

from commandline import said

HERE = Path(__file__).parent
FILE = "report.yaml"
KINDS = sorted(path.parent.name for path in HERE.glob(f"*/{FILE}"))
REPORTS = {kind: yaml.safe_load((HERE / kind / FILE).read_text(encoding="utf-8")) for kind in KINDS}
CASES = [(kind, case) for kind in KINDS for case in REPORTS[kind]["cases"]]
MEMBERS = {"kind", "sources", "needs", "cases"}
WORDS = {"run", "refused", "says", "lacks", "values"}


def script(capsys, name, *arguments):
    """Carry out a script as `python` would; return its status, its output, and its error."""
    status, error, before = 0, "", sys.argv
    sys.argv = [name, *arguments]
    try:
        runpy.run_path(name, run_name="__main__")
    except Exception as raised:
        where = traceback.extract_tb(raised.__traceback__)[-1].filename
        if "/phalanx/" not in where:
            pytest.fail(f"an exception of {where}: {raised!r}")
        status, error = 1, f"{raised}"
    finally:
        sys.argv = before
    out, err = capsys.readouterr()
    return status, out, f"{err}\n{error}"


def carried_out(capsys, line):
    """Carry out a line of a report; return its status, its output and what it says besides."""
    program, *arguments = shlex.split(line)
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always")
        status, out, err = said(capsys, *arguments) if program == "phalanx" else script(capsys, *arguments)
    return status, out, "\n".join([err, *(str(each.message) for each in noticed)])


def found(place, out):
    """Return the value at FILE:MEMBER.MEMBER..., of a file of JSON or of the output ("-")."""
    name, _, members = place.partition(":")
    value = json.loads(out if name == "-" else Path(name).read_text(encoding="utf-8"))
    for member in members.split("."):
        value = value[int(member)] if isinstance(value, list) else value[member]
    return value


@pytest.fixture
def as_users_run_it():
    """The library without the checks of types that its own tests add, whose exceptions no user sees."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(("kind", "case"), CASES, ids=[f"{kind}-{case}" for kind, case in CASES])
def test_a_report(kind, case, tmp_path, monkeypatch, capsys, one_thread, as_users_run_it):
    for package in REPORTS[kind].get("needs", ()):
        pytest.importorskip(package)
    wanted = REPORTS[kind]["cases"][case]
    shutil.copytree(HERE / kind, tmp_path / kind)
    monkeypatch.chdir(tmp_path / kind)
    monkeypatch.setenv("COLUMNS", "500")
    lines = [wanted["run"]] if isinstance(wanted["run"], str) else wanted["run"]
    for line in lines[:-1]:
        status, out, err = carried_out(capsys, line)
        assert status == 0, f"{line}: {out}{err}"
    status, out, err = carried_out(capsys, lines[-1])
    text = " ".join(f"{out}\n{err}".split())
    assert "Traceback" not in text
    assert bool(status) == ("refused" in wanted), text
    for part in [*_listed(wanted.get("refused", ())), *_listed(wanted.get("says", ()))]:
        assert part in text, text
    for part in _listed(wanted.get("lacks", ())):
        assert part not in text, text
    for place, right in wanted.get("values", {}).items():
        value = found(place, out)
        if isinstance(right, list) and len(right) == 2 and not isinstance(value, list):
            assert value is not None, place
            assert right[0] <= value <= right[1], f"{place} is {value}"
        else:
            assert value == right, f"{place} is {value}"


def _listed(value):
    return [value] if isinstance(value, str) else [*value]


@pytest.mark.parametrize("kind", KINDS)
def test_the_form_of_a_report(kind):
    report = REPORTS[kind]
    assert report.keys() <= MEMBERS, f"known: {MEMBERS}"
    assert all(report[member] for member in ("kind", "sources", "cases"))
    lines = []
    for case, wanted in report["cases"].items():
        assert wanted.keys() <= WORDS, f"{case}: known: {WORDS}"
        assert wanted.keys() - {"run"}, f"{case} says nothing of what is right"
        lines += _listed(wanted["run"])
    files = {path.name for path in (HERE / kind).iterdir() if path.is_file()} - {FILE}
    text = "\n".join(lines)
    scripts = "\n".join(path.read_text(encoding="utf-8") for path in (HERE / kind).glob("*.py"))
    assert {
        name for name in files if name not in text and Path(name).stem not in text and name not in scripts
    } == set(), "files of no case"


def test_every_folder_is_a_report():
    folders = {path.name for path in HERE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {*KINDS}
    assert len(KINDS) > 25
