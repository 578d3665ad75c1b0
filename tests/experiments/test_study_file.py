"""Studies in YAML: what a newcomer writes, and what is wrong with it."""

import sys
from pathlib import Path

import pytest

from phalanx.aggregators import Krum
from phalanx.attacks import ALIE, Scheduled
from phalanx.cli.main import main
from phalanx.cli.study_file import called, read_study

GOOD = """
base: {clients: 8, byzantine: 2, until: {steps: 2}}
grid:
  algorithm.aggregate: [Mean, Krum(f=2)]
  attack: {none: null, alie: ALIE, late: "Scheduled(attack=ALIE, start=1)"}
  skew:
    iid: {partition: Uniform}
    skewed: {partition: Dirichlet, partition.alpha: 0.3}
exclude: [{attack: none, algorithm.aggregate: Krum(f=2)}]
seeds: [0, 7]
target: 0.7
"""


def read(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return read_study(path)


def test_a_study_of_each_kind_of_axis(tmp_path):
    study = read(tmp_path, GOOD)
    assert (study.name, study.seeds, study.target) == ("mine", (0, 7), 0.7)
    assert len(study.planned) == (2 * 3 - 1) * 2 * 2
    last = study.planned[-1].plan
    assert (last.algorithm.aggregate, last.attack, last.byzantine) == (Krum(f=2), Scheduled(ALIE(), start=1), 2)
    assert (last.partition.alpha, last.seed) == (0.3, 7)
    assert study.planned[0].plan.byzantine == 0


def test_fields_of_a_class_that_another_axis_chooses(tmp_path):
    study = read(tmp_path, "grid:\n  algorithm: [FedBuff]\n  algorithm.size: [2, 3]\nseeds: 1\n")
    assert [one.plan.algorithm.size for one in study.planned] == [2, 3]


def test_classes_as_calls():
    assert called("Krum(f=2)") == {"class_path": "Krum", "init_args": {"f": 2}}
    nested = called("my.Own(attack=ALIE(z='grid'), on=true, values=[-1, 2.5])")
    inner = {"class_path": "ALIE", "init_args": {"z": "grid"}}
    assert nested == {"class_path": "my.Own", "init_args": {"attack": inner, "on": True, "values": [-1, 2.5]}}
    assert called(["a (b)", "x", 3]) == ["a (b)", "x", 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grids: {}", "A study has no option 'grids'. Did you mean grid? It has: name, base, grid, seeds"),
        ("grid: [Mean]", "grid must be a mapping"),
        ("base: 3", "base must be a mapping"),
        ("grid: {attack: SignFlip}", "grid.attack must be a list of values, or a mapping of names to them, got Sign"),
        ("grid: {attack: [SignFlap]}", "grid.attack, SignFlap: attack must be one of"),
        ("grid: {attack: [SignFlip]}", "byzantine is 0"),
        ("grid: {data: [CSV]}", "grid.data, CSV: data: CSV needs path"),
        ("grid: {attack: [Scheduled(attack=ALIE, start=1)]}", "Scheduled(attack=ALIE lacks a bracket"),
        ("grid: {algorithm.aggregate: [Krum(2)]}", "give each option of a class by its name, as `Krum(f=6)`"),
        ("grid: {algorithm.aggregate: [Krum(f=1+g)]}", "the value 1 + g is not read"),
        ("grid: {algorithm.aggregate: [Median, Median]}", "two values named alike"),
        ("grid: {algorithm.aggregate: [TrimmedMean(beta=0.7)]}", "TrimmedMean(beta=0.7): beta"),
        ("grid: {clints: [3]}", "clints is no field of a run"),
        ("grid: {clients: [{a: 3}]}", "A value that is a mapping needs a name"),
        ("base: {clinets: 3}", "Did you mean clients?"),
        ("seeds: many", "seeds must be how many, as 5, or integers"),
        ("seeds: 0", "seeds must be a number of at least 1"),
        ("target: high", "target must be an accuracy from 0 to 1"),
        ("exclude: {attack: x}", "exclude must be a list of mappings"),
        ("grid: {clients: [4]}\nexclude: [{client: 4}]", "exclude names the axis client, which there is not"),
        ("grid: {clients: [4, 5]\n", "is not valid YAML"),
        ("- 1", "A configuration file must be a mapping"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_in_a_sentence(tmp_path, capsys, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.yaml").write_text(text)
    assert main(["study", "wrong.yaml", "--estimate"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert not (tmp_path / "studies").exists()


OWN_STUDY = """
from phalanx import Run, Study, Until
from phalanx.models import MLP

def lines(record):
    return len(record.history)

BASE = Run(clients=3, model=MLP((4,)), until=Until(2))
RATES = Study(BASE, {"training.lr": [0.1, 0.2]}, seeds=1, name="rates", measures={"lines": lines})
"""


def test_a_study_of_a_python_file_is_carried_out_and_shown_with_its_own_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("rates_of_mine.py").write_text(OWN_STUDY)
    assert main(["study", "rates_of_mine.py:RATES", "--estimate"]) == 0
    assert "rates: 2 runs, 0 done" in capsys.readouterr().out
    assert main(["study", "rates_of_mine.py:RATES"]) == 0
    shown = capsys.readouterr().out
    assert "lines, by training.lr" in shown
    page = Path("studies/rates/study.md").read_text()
    assert "Made by `phalanx study rates_of_mine.py:RATES`" in page
    assert "| 0.1 | 3.0 |" in page.split("**lines, by training.lr**")[1].split("**")[0], page
    assert main(["study", "rates_of_mine.py:RATES", "--no_training"]) == 0


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("not_there.py:RATES", "not_there.py:RATES: there is no file not_there.py."),
        ("wrong_name.py", "wrong_name.py names no study. wrong_name.py has RATES. Write wrong_name.py:NAME."),
        ("wrong_name.py:BASE", "wrong_name.py:BASE names no study. wrong_name.py has RATES."),
        ("wrong_name.py:LATER", "wrong_name.py:LATER names no study. wrong_name.py has RATES."),
        ("wrong-name.py:RATES", "wrong-name.py is no name of a module."),
        ("ends_at_once.py:RATES", "ends_at_once.py cannot be imported: SystemExit: 3."),
    ],
)
def test_what_is_no_study_of_a_python_file_is_refused_in_a_sentence(named, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "wrong_name", raising=False)
    for name in ("wrong_name.py", "wrong-name.py"):
        Path(name).write_text(OWN_STUDY)
    Path("ends_at_once.py").write_text("raise SystemExit(3)")
    assert main(["study", named, "--estimate"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
