"""`phalanx reproduce` as a user meets it, in process; `test_reproduce_process.py` starts the real thing."""

import csv
import importlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pandas
import pytest

from phalanx.cli.main import main
from phalanx.core import InfeasibleError
from phalanx.experiments.papers import Trace, experiment, needed
from phalanx.experiments.papers.experiment import chosen, reproductions
from phalanx.experiments.papers.published import published
from phalanx.experiments.papers.scoreboard import with_verdicts
from phalanx.runs.provenance import NUMERICS, commit_date

PACKAGE = "toy_papers"
ROOT = Path(__file__).parents[3]
PAGES = {  # of the documentation
    "byzantine-cfl": "byzantine-cfl.md", "catalyst": "catalyst.md", "client-weighting": "weighting.md",
    "clustered-fl": "clustered-fl.md", "rffl": "rffl.md",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHALANX_DATA", raising=False)
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "160")


def reproduce(capsys, command):
    try:
        words = command.split() if isinstance(command, str) else command
        status = main(["reproduce", *words, *([] if "--package" in command else ["--package", PACKAGE])])
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    return status, out, err


def traces(folder):
    """The traces of a folder by identity, without the one thing that no two runs share."""
    return {path.stem: replace(Trace.load(path), wall_seconds=0.0) for path in Path(folder).rglob("records/*.json")}


# --- finding


def test_experiments_are_found_by_looking():
    found = reproductions(PACKAGE)
    assert set(found) == {"other", "toy-paper"}
    assert list(found["toy-paper"].experiments) == ["figure1", "figure10", "table2"]
    assert found["toy-paper"].experiments["figure10"].title == "toy-paper figure10"
    assert found["other"].experiments == {}
    assert found["other"].published.tables == {}
    reproduction, all_of_it = chosen(found, "toy-paper", "all")
    assert [e.name for e in all_of_it] == ["figure1", "figure10", "table2"]
    assert reproduction.paper.title == "On Toys"


def test_those_of_the_library_are_found_without_being_named():
    assert all(reproduction.paper.name == name for name, reproduction in reproductions().items())


PAPER = 'from phalanx.experiments.papers import Paper\nPAPER = Paper("p", "P", "P, 2020")\n'
WHOLE = (
    'TITLE = CLAIM = "x"\nMINUTES = {"quick": 1, "paper": 1}\ndef runs(scale, seed): return {}\ndef render(r, c): ...\n'
)


@pytest.mark.parametrize(
    ("paper", "module", "why"),
    [
        ("", WHOLE, r"must say which paper it is about: PAPER = Paper\(...\)"),
        (PAPER, WHOLE.replace("def render(r, c): ...\n", ""), r"p.figure1 is no experiment: it lacks render\."),
        (PAPER, "def render(r, c): ...", r"it lacks TITLE, CLAIM, MINUTES, runs\."),
        (PAPER, WHOLE.replace('"paper": 1', '"large": 1'), r"MINUTES of figure1 must have each scale, paper missing\."),
    ],
)
def test_a_module_that_is_half_an_experiment_is_an_error(tmp_path, monkeypatch, paper, module, why):
    package = f"half_{abs(hash((paper, module)))}"
    (tmp_path / package / "p").mkdir(parents=True)
    (tmp_path / package / "__init__.py").touch()
    (tmp_path / package / "p" / "__init__.py").write_text(paper)
    (tmp_path / package / "p" / "figure1.py").write_text(module)
    (tmp_path / package / "p" / "shared.py").write_text("RULES = 3")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(InfeasibleError, match=why):
        reproductions(package)


@pytest.fixture
def _from_a_wheel(tmp_path, monkeypatch):
    """The library as installed, far from its repository, in an empty working directory."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "papers"]:
        monkeypatch.delitem(sys.modules, name)
    here = Path(__file__).parents[3]
    monkeypatch.setattr(sys, "path", [path for path in sys.path if Path(path).resolve() != here])
    monkeypatch.setattr(experiment, "REPOSITORY", tmp_path / "lib" / "python3.11")
    importlib.invalidate_caches()
    published.cache_clear()
    yield
    published.cache_clear()


@pytest.mark.usefixtures("_from_a_wheel")
def test_without_the_papers_it_is_said_how_to_get_them(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "rffl"]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert (
        "There is no package papers. The experiments of the papers are not installed with the library. Get them with "
        "`git clone https://github.com/phalanx-fl/phalanx`, and run the command in the folder that it makes." in err
    )


@pytest.mark.usefixtures("_from_a_wheel")
def test_papers_of_a_clone_are_found_from_within(tmp_path, monkeypatch):
    clone = tmp_path / "clone" / "papers"
    (clone / "p").mkdir(parents=True)
    (clone / "__init__.py").touch()
    (clone / "published.yaml").write_text("{}")
    (clone / "p" / "__init__.py").write_text(PAPER)
    (clone / "p" / "figure1.py").write_text(WHOLE)
    monkeypatch.chdir(clone.parent)
    assert reproductions()["p"].experiments.keys() == {"figure1"}
    for name in ("papers.p.figure1", "papers.p", "papers"):
        sys.modules.pop(name)


def test_the_papers_are_in_the_source_distribution_and_not_in_the_wheel():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    targets = project["tool"]["hatch"]["build"]["targets"]
    assert targets["wheel"]["packages"] == ["src/phalanx"]
    assert {"/src", "/papers"} <= set(targets["sdist"]["include"])
    assert project["project"]["urls"]["Repository"] == experiment.URL


SEVERAL = """
from phalanx.experiments.papers import Exhibit
def exhibit(title): return Exhibit(title, "x", {"quick": 1, "paper": 1}, lambda scale, seed: {}, lambda r, c: None)
EXPERIMENTS = {"table10": exhibit("ten"), "table-2": exhibit("two")}
"""


def test_a_module_can_hold_several_experiments_each_with_a_name_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "several" / "p").mkdir(parents=True)
    (tmp_path / "several" / "__init__.py").touch()
    (tmp_path / "several" / "p" / "__init__.py").write_text(PAPER)
    (tmp_path / "several" / "p" / "tables.py").write_text(SEVERAL)
    (tmp_path / "several" / "p" / "figure_1.py").write_text(WHOLE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    found = reproductions("several")["p"].experiments
    assert {name: e.exhibit.title for name, e in found.items()} == {"figure-1": "x", "table-2": "two", "table10": "ten"}
    assert [e.name for e in found.values()] == list(found)


def test_two_experiments_of_one_name_are_an_error(tmp_path, monkeypatch):
    (tmp_path / "twice" / "p").mkdir(parents=True)
    (tmp_path / "twice" / "__init__.py").touch()
    (tmp_path / "twice" / "p" / "__init__.py").write_text(PAPER)
    (tmp_path / "twice" / "p" / "tables.py").write_text(SEVERAL)
    (tmp_path / "twice" / "p" / "table10.py").write_text(WHOLE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(InfeasibleError, match=r"twice\.p has several experiments named table10\. Rename all but one\."):
        reproductions("twice")


# --- what is wrong, in a sentence


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("toy-papr", "There is no paper 'toy-papr'. There are: toy-paper, other."),
        ("otter figure1", "There is no paper 'otter'. There are: other, toy-paper."),
        ("toy-paper tabel2", "There is no experiment of toy-paper 'tabel2'. There are: table2, "),
        ("toy-paper figure_10", "There is no experiment of toy-paper 'figure_10'. There are: figure10, "),
        ("toy-paper figure1 --scale big", "--scale must be quick or paper, got big."),
        ("toy-paper figure1 --seeds 0", "--seeds must be at least 1, got 0."),
        ("toy-paper figure1 --seeds many", "seeds must be an integer, got many."),
        ("toy-paper figure1 --jobs -1", "--jobs must be at least 1, got -1."),
        ("toy-paper figure1 --sceds 2", "There is no option --sceds. Did you mean --seeds?"),
        (
            "toy-paper figure1 --no_training",
            "manifest.json holds no quick page of figure1. Leave out --no_training to make it, or give --seeds.",
        ),
        (
            "toy-paper figure1 --no_training --seeds 1",
            "holds none of the records. Leave out --no_training to make them.",
        ),
        ("toy-paper figure1 --within 3", "--within limits which records --verify draws: give --verify as well."),
        ("toy-paper --verify 0", "--verify must be at least 1, got 0."),
        ("toy-paper --verify 2 --again", "--verify changes no page: leave out --no_training, --again and --only."),
        ("toy-paper --verify 2", "results holds no such record of a run that took at most inf s."),
        ("toy-paper figure1 --no_training --again", "--no_training renders what is there, --again repeats it"),
        (
            "toy-paper figure1 --only mode*",
            "No cell has a name like 'mode*'. There are: mean, none; mean, noise; median",
        ),
        ("toy-paper figure1 --folder file", "--folder file: file is a file."),
        (
            "toy-paper figure1 --engine fast",
            "argument --engine: invalid choice: 'fast' (choose from 'compiled')",
        ),
        ("--package nowhere.at_all", "There is no package nowhere.at_all."),
        ("--package phalanx.core", "phalanx.core is a module. Give the import path of a package"),
        ("--package toy_papers.other", "toy_papers.other holds no papers."),
    ],
)
def test_what_is_wrong_is_said_with_what_would_have_been_right(capsys, tmp_path, command, why):
    (tmp_path / "file").touch()
    status, _, err = reproduce(capsys, command)
    assert status == 2
    assert why in err
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_help_names_no_internals(capsys):
    status, out, _ = reproduce(capsys, "--help")
    assert status == 0
    assert "<class" not in out
    assert "phalanx reproduce PAPER EXPERIMENT|all" in out


# --- what there is


def test_the_list_tells_what_there_is_what_it_costs_and_how_much_is_there(capsys):
    _, out, _ = reproduce(capsys, "--seeds 2")
    words = " ".join(out.split())
    assert 'toy-paper: A. Toy, "On Toys", Journal of Toys, 2020' in words
    assert (
        "figure1 Accuracy over rounds, two rules without and with noise 8 runs, 2.4 s, 0 done 8 runs, 6.0 s, 0 done"
        in words
    )
    assert "figure10 A line no training no training" in words
    assert "(no experiments)" in words
    assert "The median withstands" not in words
    _, out, _ = reproduce(capsys, "toy-paper")
    assert "figure1: The median withstands noise that ruins the mean." in out
    assert "table2: Steps that are too long ruin everything." in out
    assert "other" not in out


# --- carrying out


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder in which `toy-paper all` was carried out for two seeds by one process; the folder and what was said."""
    folder = tmp_path_factory.mktemp("finished") / "results"
    command = f"reproduce toy-paper all --package {PACKAGE} --seeds 2 --folder {folder}"
    done = subprocess.run(
        [str(Path(sys.executable).with_name("phalanx")), *command.split()], cwd=Path(__file__).parent,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    return folder, done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_failed_run_is_named_and_the_others_go_on(finished):
    folder, status, said = finished
    assert status == 1, said
    assert "2 runs failed: table2: breaks (seed 0); table2: breaks (seed 1)." in said
    assert "Nobody brings the update for step 1" in said
    assert re.search(r"breaks\s+failed", said)
    assert {trace.status for trace in traces(folder).values()} == {"finished", "failed"}
    assert re.search(r"10 of 10: .*(accuracy|failed)", said)


def test_the_same_run_in_two_experiments_is_carried_out_once(finished):
    folder, _, said = finished
    assert "0 of 10 records are in" in said
    assert len(traces(folder)) == 10


def test_the_files(finished):
    folder, _, said = finished
    names = {path.name for path in (folder / "toy-paper").iterdir() if path.is_file()}
    assert names == {
        "figure1-quick.md", "figure1-quick.csv", "figure1-quick.svg", "figure1-quick.png",
        "figure10-quick.md", "figure10-quick-line.svg", "figure10-quick-line.png",
        "table2-quick.md", "table2-quick.csv", "manifest.json",
    }  # fmt: skip
    assert all(name in said for name in names - {"manifest.json"})


def test_the_numbers_of_the_table_are_those_of_the_records(finished):
    folder, _, _ = finished
    frame = pandas.read_csv(folder / "toy-paper" / "figure1-quick.csv")
    row = frame[(frame["rule"] == "median") & (frame["attack"] == "noise")].iloc[0]
    values = sorted(
        100 * trace.final()
        for trace in traces(folder).values()
        if trace.settings.get("attack") and trace.name.startswith("FedAvg(Median)")
    )
    assert len(values) == 2
    mean = sum(values) / 2
    assert row["mean"] == pytest.approx(mean)
    assert row["sd"] == pytest.approx((values[1] - values[0]) / 2**0.5)
    assert row["n"] == 2
    assert math.isnan(row["published"]), "of another size"
    assert "Smaller runs are not compared" in (folder / "toy-paper" / "figure1-quick.md").read_text()


def test_the_page_says_where_its_numbers_are_from(finished):
    page = (finished[0] / "toy-paper" / "table2-quick.md").read_text()
    assert "phalanx reproduce toy-paper table2 --scale quick --seeds 2` from 4 runs" in page
    assert "Failed: breaks (seed 1): Nobody brings the update for step 1" in page
    assert "| breaks | failed |" in page
    assert "The paper: Steps that are too long ruin everything." in page
    assert (
        "![Test accuracy over rounds.](figure1-quick.svg)"
        in (finished[0] / "toy-paper" / "figure1-quick.md").read_text()
    )


def copied(finished, tmp_path):
    return shutil.copytree(finished[0], tmp_path / "results")


def test_rendering_again_gives_the_same_bytes_and_trains_nothing(capsys, finished, tmp_path):
    folder = copied(finished, tmp_path)
    before = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    stamps = {path: path.stat().st_mtime_ns for path in folder.rglob("records/*")}
    for command, expected in (("toy-paper all --seeds 2", 1), ("toy-paper all --seeds 2 --no_training", 0)):
        status, out, _ = reproduce(capsys, command)
        assert (status, "10 of 10 records are in results/toy-paper/records." in out) == (expected, True)
        assert {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("records/*")} == stamps


def test_without_training_what_is_missing_is_told(capsys, finished, tmp_path):
    folder = copied(finished, tmp_path)
    status, out, _ = reproduce(capsys, "toy-paper figure1 --seeds 3 --no_training")
    assert status == 0
    assert "8 of 12 records are in" in out
    assert "Missing: 4 runs: figure1: mean, none (seed 2); figure1: mean, noise (seed 2); " in out
    assert "Missing: figure1: mean, none (seed 2)" in (folder / "toy-paper" / "figure1-quick.md").read_text()
    assert "over 2 seeds" in out


def test_cells_without_any_record_are_missing_in_the_table(capsys, finished, tmp_path):
    folder = copied(finished, tmp_path)
    for path in folder.rglob("records/*.json"):
        if Trace.load(path).settings.get("attack"):
            path.unlink()
    status, out, _ = reproduce(capsys, "toy-paper figure1 --seeds 2 --no_training")
    assert status == 0
    assert re.search(r"median\s+noise\s+missing", out)


def test_a_damaged_record_stops_before_any_work(capsys, finished, tmp_path):
    folder = copied(finished, tmp_path)
    path = min(folder.rglob("records/*.json"))
    path.write_text(path.read_text()[:-5])
    for command in ("toy-paper all --seeds 2", "toy-paper all --seeds 2 --no_training"):
        status, _, err = reproduce(capsys, command)
        assert status == 2
        assert f"{path.relative_to(tmp_path)} is not the record of a run" in err
        assert "Delete the file" in err
    status, out, _ = reproduce(capsys, "toy-paper --seeds 2")
    assert (status, "1 damaged" in " ".join(out.split())) == (0, True)


def of_another_numerics_version(paths):
    """Change records to those of another numerics version."""
    for path in paths:
        trace = Trace.load(path)
        replace(trace, provenance=replace(trace.provenance, numerics=0)).save(path)


def test_records_of_another_numerics_version_are_shown_with_a_warning(capsys, finished, tmp_path, monkeypatch):
    folder = copied(finished, tmp_path)
    of_another_numerics_version(folder.rglob("records/*.json"))
    monkeypatch.setattr("phalanx.__version__", "99.0")
    status, out, _ = reproduce(capsys, "toy-paper figure1 --seeds 2 --no_training")
    assert status == 0
    assert "8 of 8 records are in results/toy-paper/records." in out
    assert f"Warning: 8 records of numerics version 0, this is {NUMERICS}: this code may give other" in out
    assert "numerics version 0" in (folder / "toy-paper" / "figure1-quick.md").read_text()


def test_numerics_versions_are_mixed_only_on_request(capsys, finished, tmp_path):
    folder = copied(finished, tmp_path)
    page = folder / "toy-paper" / "figure1-quick.md"
    before = page.read_text()
    figure = reproductions(PACKAGE)["toy-paper"].experiments["figure1"].exhibit.runs("quick", 0)
    of_another_numerics_version(
        [folder / "toy-paper" / "records" / f"{plan.identity}.json" for plan in figure.values()]
    )
    status, _, err = reproduce(capsys, "toy-paper figure1 --seeds 2 --no_training")
    assert status == 2
    assert f"several numerics versions together: 4 of version 0, 4 of version {NUMERICS}." in err
    assert "Give --again to compute all of them with this version, or --mixed to show them together" in err
    assert page.read_text() == before
    status, _, _ = reproduce(capsys, "toy-paper figure1 --seeds 2 --no_training --mixed")
    assert status == 0
    assert re.search(
        rf"4 runs with phalanx .*, numerics version 0, .*; 4 runs with .* version {NUMERICS},",
        page.read_text(),
    )


def test_what_is_missing_is_not_computed_to_be_mixed(capsys, finished, tmp_path):
    folder = copied(finished, tmp_path)
    of_another_numerics_version(folder.rglob("records/*.json"))
    status, _, err = reproduce(capsys, "toy-paper figure1 --seeds 3")
    assert status == 2
    assert f"8 of version 0, 4 of version {NUMERICS}." in err
    assert len(traces(folder)) == len(traces(finished[0]))


# --- the manifest


def test_without_training_and_seeds_the_page_is_that_of_the_manifest(capsys, finished, tmp_path):
    folder = copied(finished, tmp_path) / "toy-paper"
    before = {path.name: path.read_bytes() for path in folder.glob("*.*")}
    assert json.loads(before["manifest.json"])["figure1-quick"]["seeds"] == [0, 1]
    for path in folder.glob("*.[mcsp][dsvn]*"):
        path.unlink()
    status, _, _ = reproduce(capsys, "toy-paper all --no_training")
    assert status == 0, "one of the runs failed, as its record says; drawing it has not"
    assert {path.name: path.read_bytes() for path in folder.glob("*.*")} == before


@pytest.mark.slow
def test_a_record_that_came_later_is_not_on_the_page_of_the_manifest(capsys, finished, tmp_path):
    folder = copied(finished, tmp_path) / "toy-paper"
    plan = reproductions(PACKAGE)["toy-paper"].experiments["figure1"].exhibit.runs("quick", 1)["median, noise"]
    later = folder / "records" / f"{plan.identity}.json"
    form = later.read_text()
    later.unlink()
    assert reproduce(capsys, "toy-paper figure1 --seeds 2 --no_training")[0] == 0
    page = (folder / "figure1-quick.md").read_bytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    known = manifest["figure1-quick"]
    assert (known["seeds"], known["without"]) == ([0, 1], {"median, noise": [1]})
    later.write_text(form)
    assert reproduce(capsys, "toy-paper figure1 --no_training")[0] == 0
    assert (folder / "figure1-quick.md").read_bytes() == page
    assert reproduce(capsys, "toy-paper figure1 --no_training --seeds 2")[0] == 0
    assert (folder / "figure1-quick.md").read_bytes() != page


@pytest.mark.slow
def test_another_engine_has_records_and_pages_of_its_own(capsys, finished, tmp_path):
    folder = copied(finished, tmp_path) / "toy-paper"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"}
    command = "toy-paper figure1 --engine compiled"
    status, out, _ = reproduce(capsys, f"{command} --no_training")
    assert status == 2
    status, out, _ = reproduce(capsys, command)
    assert (status, "0 of 4 records are in" in out) == (0, True), out
    page = (folder / "figure1-quick-compiled.md").read_text()
    assert "figure1 --scale quick --seeds 1 --engine compiled` from 4 runs, 4 of them by the engine compiled," in page
    assert "(figure1-quick-compiled.svg)" in page
    assert {path: path.read_bytes() for path in before} == before
    new = {path.stem: Trace.load(path) for path in folder.glob("records/*.json") if path not in before}
    assert [trace.provenance.engine for trace in new.values()] == ["compiled"] * 4
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [manifest[name]["seeds"] for name in ("figure1-quick", "figure1-quick-compiled")] == [[0, 1], [0]]

    status, out, _ = reproduce(capsys, f"{command} --no_training")
    assert (status, "4 of 4 records are in" in out) == (0, True)
    assert (folder / "figure1-quick-compiled.md").read_text() == page
    status, out, _ = reproduce(capsys, "toy-paper --engine compiled")
    assert re.search(r"figure1 .*4 runs, [^,]*, 4 done", out)
    status, out, _ = reproduce(capsys, "toy-paper figure1 --engine compiled --verify 4")
    assert (status, "4 of 4 records came out again to the bit." in out) == (0, True)


def test_where_no_network_has_the_engine_the_runs_are_those_of_the_loop(capsys, finished, tmp_path, monkeypatch):
    folder = copied(finished, tmp_path) / "toy-paper"
    monkeypatch.setattr("phalanx.cli.reproduce.can_begin", lambda *_: False)
    status, out, _ = reproduce(capsys, "toy-paper figure1 --seeds 2 --engine compiled")
    assert (status, "8 of 8 records are in" in out) == (0, True)
    assert "from 8 runs, 0 of them by the engine compiled," in (folder / "figure1-quick-compiled.md").read_text()


@pytest.mark.parametrize(
    "form", ['{"seeds": 3}', '{"seeds": [0, 1], "date": "soon"}', '{"seeds": [0, 1], "date": [1]}']
)
def test_a_damaged_manifest_is_named(capsys, finished, tmp_path, form):
    path = copied(finished, tmp_path) / "toy-paper" / "manifest.json"
    path.write_text(f'{{"figure1-quick": {form}}}')
    status, _, err = reproduce(capsys, "toy-paper figure1 --no_training")
    assert (status, "manifest.json is not a manifest of pages" in err) == (2, True)


# --- whether records come out again


def test_stored_records_come_out_again_to_the_bit(capsys, finished, tmp_path):
    folder = copied(finished, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    status, out, _ = reproduce(capsys, "toy-paper --verify 2 --within 60")
    assert (status, "2 of 2 records came out again to the bit." in out) == (0, True)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.slow
@pytest.mark.parametrize(("version", "status"), [(NUMERICS, 1), (0, 0)])
def test_a_record_that_does_not_come_out_again_is_named_with_the_difference(
    capsys, finished, tmp_path, version, status
):
    folder = copied(finished, tmp_path)
    plan = reproductions(PACKAGE)["toy-paper"].experiments["figure1"].exhibit.runs("quick", 0)["median, noise"]
    for path in folder.rglob("records/*.json"):
        trace = Trace.load(path)
        if trace.identity != plan.identity:
            path.unlink()
            continue
        loss = tuple(value + 0.5 for value in trace.curves["loss"])
        made = replace(trace.provenance, numerics=version)
        replace(trace, curves=trace.curves | {"loss": loss}, provenance=made).save(path)
    found, out, _ = reproduce(capsys, "toy-paper figure1 --verify 5")
    assert found == status
    assert "differs in loss by up to 0.5" in " ".join(out.split())
    assert "0 of 1 record came out again to the bit." in out
    assert (f"1 record of numerics version {NUMERICS} differ" in out) == bool(status)


@pytest.mark.slow
def test_two_processes_give_the_same_bits_as_one(capsys, finished, tmp_path):
    status, _, _ = reproduce(capsys, "toy-paper all --seeds 2 --jobs 2 --folder two")
    assert status == 1
    assert traces(tmp_path / "two") == traces(finished[0])
    for name in ("figure1-quick.csv", "figure1-quick.svg", "figure1-quick.png", "table2-quick.csv"):
        assert (tmp_path / "two" / "toy-paper" / name).read_bytes() == (finished[0] / "toy-paper" / name).read_bytes()


@pytest.mark.slow
def test_again_repeats_what_is_there(capsys, finished, tmp_path):
    folder = copied(finished, tmp_path)
    before, stamps = traces(folder), {path: path.stat().st_mtime_ns for path in folder.rglob("records/*")}
    status, out, _ = reproduce(capsys, "toy-paper table2 --again")
    assert (status, "0 of 2 records" in out) == (1, True)
    changed = [path for path, stamp in stamps.items() if path.stat().st_mtime_ns != stamp]
    assert len(changed) == 2
    assert traces(folder) == before


@pytest.mark.slow
def test_only_some_cells_are_carried_out(capsys, tmp_path):
    status, out, _ = reproduce(capsys, ["toy-paper", "figure1", "--only", "median, n*"])
    assert status == 0
    assert "Missing: 2 runs: figure1: mean, none (seed 0); figure1: mean, noise (seed 0)." in out
    assert len(traces(tmp_path)) == 2


def test_data_that_are_not_there_stop_before_any_work(capsys, tmp_path, monkeypatch):
    package = tmp_path / "wants_data"
    (package / "p").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "p" / "__init__.py").write_text(PAPER)
    runs = "from phalanx.data import MNIST\nfrom phalanx import Run\n"
    (package / "p" / "figure1.py").write_text(
        runs + WHOLE.replace("return {}", "return {'a': Run(data=MNIST(), seed=seed)}")
    )
    status, _, err = reproduce(capsys, "p figure1 --package wants_data --data_dir nowhere")
    assert status == 2
    assert "nowhere" in err
    assert not (tmp_path / "results").exists()


def test_what_the_record_says_is_what_was_asked_for(finished):
    module = reproductions(PACKAGE)["toy-paper"].experiments["figure1"].exhibit
    plans = {plan.identity: plan for seed in (0, 1) for plan in module.runs("quick", seed).values()}
    found = traces(finished[0])
    assert plans.keys() <= found.keys()
    for identity, plan in plans.items():
        assert found[identity].settings == json.loads(json.dumps(plan.settings))
        assert found[identity].provenance.threads == 1


def test_all_papers_are_drawn_from_their_records_with_a_scoreboard(capsys, finished, tmp_path):
    folder = copied(finished, tmp_path)
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "reproduction.md"
    page.write_text("Before\n<!-- scoreboard -->\nAn earlier one\n<!-- end of the scoreboard -->\nAfter\n")
    before = {path: path.read_bytes() for path in folder.rglob("*-quick.md")}
    for path in before:
        path.unlink()
    status, _, _ = reproduce(capsys, "all --no_training")
    assert status == 0
    assert {path: path.read_bytes() for path in before} == before
    board = (folder / "scoreboard.md").read_text()
    assert "2 pages from runs" in board
    text = page.read_text()
    assert text.startswith("Before\n<!-- scoreboard -->\n\n* At the papers' own size: ")
    assert text.endswith("<!-- end of the scoreboard -->\nAfter\n")
    assert "earlier" not in text
    assert "[All claims](../results/scoreboard.md)" in text


@pytest.mark.parametrize(("paper", "page"), sorted(PAGES.items()))
def test_the_page_of_a_paper_has_the_verdicts_of_the_scoreboard(paper, page):
    text, table = (ROOT / "docs" / page).read_text(), (ROOT / "results" / "scoreboard.csv").read_text()
    assert with_verdicts(text, table) == text, "phalanx reproduce all --no_training"
    for title in ("promises", "use it when", "what breaks it", "ours differs"):
        assert f"\n| {title} | " in text
    between = text.partition(f"<!-- verdicts of {paper} -->")[2].partition("<!-- end of the verdicts -->")[0]
    rows = [row for row in csv.DictReader(table.splitlines()) if row["paper"] == paper]
    assert rows
    counted = [int(number) for number in re.findall(r"(\d+) (?:hold|fail|open)", between)]
    assert sum(counted) == len(rows)
    failing = {row["claim"] for row in rows if row["verdict"] == "fails"}
    assert all(claim in between for claim in failing)


def test_the_page_of_all_papers_has_the_claims_that_are_decided():
    rows = csv.DictReader((ROOT / "results" / "scoreboard.csv").read_text().splitlines())
    decided = [
        (row["claim"], row["verdict"])
        for row in rows
        if row["verdict"] == "fails" or (row["verdict"] == "holds" and row["size"] == "the paper's")
    ]
    page = (ROOT / "docs" / "reproduction.md").read_text().partition("<!-- end of the scoreboard -->")[0]
    assert sorted(re.findall(r"^\| (.*?) \| (holds|fails|open) \|", page, re.MULTILINE)) == sorted(decided)
    assert len(decided) > 40


def test_each_paper_has_a_page():
    assert PAGES.keys() == reproductions("papers").keys()


def test_all_papers_are_not_computed_by_one_command(capsys):
    status, _, err = reproduce(capsys, "all")
    assert status == 2
    assert "Give --no_training" in err


@pytest.mark.slow
def test_records_are_checked_item_by_item_and_it_goes_on(capsys, finished, tmp_path):
    folder = copied(finished, tmp_path)
    status, out, _ = reproduce(capsys, "toy-paper --check --hours 0.0001")
    few = int(re.search(r"(\d+) of 10 records checked", out)[1])
    assert (status, few < 10) == (0, True)
    status, out, _ = reproduce(capsys, "all --check")
    assert status == 0
    assert "10 of 10 records checked: 10 to the bit, 0 within tolerance, 0 differs." in out
    assert f"{10 - few} of {10 - few}: " in out
    other, *_ = (t for t in traces(folder).values() if not t.failed)
    path = folder / "toy-paper" / "records" / f"{other.identity}.json"
    changed = {"accuracy": tuple(value / 2 for value in other.curves["accuracy"])}
    replace(other, curves={**other.curves, **changed}).save(path)
    status, out, _ = reproduce(capsys, "all --check")
    assert status == 1
    assert "9 to the bit, 0 within tolerance, 1 differs." in out
    badges = [json.loads(path.read_text()) for path in (folder / "check" / "badges").iterdir()]
    assert {"brightgreen", "red"} == {badge["color"] for badge in badges}
    assert any("1 differs" in badge["message"] for badge in badges)


@pytest.mark.parametrize("words", ["--check --again", "--check --no_training", "--hours 2", "--check --hours 0"])
def test_a_check_changes_no_page(capsys, words):
    status, _, err = reproduce(capsys, f"toy-paper all {words}")
    assert status == 2
    assert "--check" in err


def test_the_day_of_a_page_is_that_of_its_newest_commit_and_stays_where_git_knows_none(
    capsys, finished, tmp_path, monkeypatch
):
    folder = copied(finished, tmp_path)
    path = folder / "toy-paper" / "manifest.json"

    def day(known, seeds=""):
        monkeypatch.setattr(needed, "commit_date", lambda commit: known)
        status, *_ = reproduce(capsys, f"toy-paper figure1 --no_training {seeds}")
        assert status == 0
        return json.loads(path.read_text())["figure1-quick"].get("date")

    assert [day("2026-01-02"), day(None), day("2026-03-04")] == ["2026-01-02", "2026-01-02", "2026-03-04"]
    before = path.read_bytes()
    assert day(None) == day(None, "--seeds 2") == "2026-03-04"
    assert path.read_bytes() == before


def test_the_day_of_a_commit_is_that_of_git():
    command = ["git", "log", "-1", "--format=%H %cs"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    commit, _, day = done.stdout.strip().partition(" ")
    if not commit:
        pytest.skip("no checkout")
    assert commit_date(commit) == day
    assert commit_date("0" * 40) is commit_date("--help") is commit_date("HEAD") is None
