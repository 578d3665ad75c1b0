"""Provenance: what computed a run."""

import json
import subprocess
from dataclasses import replace

import pytest
import torch

from phalanx import Run
from phalanx.aggregators import Median
from phalanx.algorithms import FLAME, Catalyst, FedAvg, PerCluster
from phalanx.data import MNIST
from phalanx.runs import provenance as module
from phalanx.runs.provenance import NUMERICS, Provenance, checkout, counts_as, parts, provenance, sources
from phalanx.training import LocalSGD
from phalanx.weighting import Truncate


def package(folder, **files):
    """A package like this library, with those files."""
    inner = folder / "src" / "phalanx"
    for name, text in {"__init__": "", **files}.items():
        path = inner / f"{name.replace('__dot__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return inner


def git(folder, *arguments):
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


def test_it_says_what_computes_here():
    found = provenance("cpu")
    assert (found.numerics, found.torch, found.device) == (NUMERICS, torch.__version__, "cpu")
    assert found.threads == torch.get_num_threads()
    assert found.sources == sources()
    assert found.flower is None
    assert provenance("cpu", "1.2").flower == "1.2"
    assert found.outdated(Run()) == ""


def test_it_is_the_same_when_written_and_read_again():
    found = provenance("cpu")
    assert Provenance.read(json.loads(json.dumps(found.form))) == found


def test_an_older_record_knows_little_and_is_outdated():
    found = Provenance.read({"phalanx": "0.1.0", "threads": 1})
    assert found == Provenance(phalanx="0.1.0", threads=1)
    assert found.outdated(Run()) == f"its results are of numerics version 0, this is {NUMERICS}"


def test_a_record_stays_current_until_a_part_of_its_run_changes(monkeypatch):
    assert (counts_as(1, Run()), counts_as(1, Run(algorithm=FLAME(f=1)))) == (NUMERICS, NUMERICS)
    assert counts_as(1, Run(algorithm=FLAME(f=1, compare="models"))) == 1
    assert counts_as(1, Run(algorithm=PerCluster(FLAME(f=1, compare="models")))) == 1
    monkeypatch.setattr(
        module, "CHANGES", (None, frozenset({"Median"}), frozenset({"LocalTraining"}), frozenset({"Digits"}))
    )
    monkeypatch.setattr(module, "NUMERICS", 4)
    assert counts_as(1, Run(algorithm=FedAvg(Median()))) == 1
    assert counts_as(1, Run()) == 2  # each kind of local training has that base
    assert counts_as(3, Run()) == 3
    assert counts_as(3, Run(data=MNIST())) == 4
    assert [counts_as(version, Run(data=MNIST())) for version in (-5, 0, 9)] == [-5, 0, 9]
    assert Provenance(numerics=3).outdated(Run()) == "its results are of numerics version 3, this is 4"


def test_the_parts_of_a_run_are_its_classes_their_bases_and_its_texts():
    found = parts(Run(training=LocalSGD(engine="compiled"), algorithm=FedAvg(Median())))
    assert {"Run", "FedAvg", "Median", "LocalSGD", "LocalTraining", "LocalSGD.engine=compiled", "Digits"} <= found
    assert "Mean" not in found
    assert "LocalSGD.engine=loop" not in found


@pytest.mark.parametrize("form", [None, [], {"threads": "1"}, {"threads": True}, {"other": 1}, {"clean": 1}])
def test_what_is_no_provenance_is_refused(form):
    with pytest.raises(ValueError, match="its provenance"):
        Provenance.read(form)


def test_sources_change_with_the_files_that_numbers_depend_on(tmp_path):
    one = sources(package(tmp_path / "one", engine__dot__loop="1", report__dot__page="1"))
    assert one == sources(package(tmp_path / "two", engine__dot__loop="1", report__dot__page="2", wording="3"))
    assert one != sources(package(tmp_path / "three", engine__dot__loop="2", report__dot__page="1"))
    assert one != sources(package(tmp_path / "four", engine__dot__loops="1", report__dot__page="1"))


def test_commit_and_whether_its_code_is_as_committed(tmp_path):
    inner = package(tmp_path, core="1")
    (tmp_path / "papers").mkdir()
    git(tmp_path, "init", "-q")
    assert checkout(inner) == (None, None), "git does not track it"
    checkout.cache_clear()
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    commit, clean = checkout(inner)
    assert len(commit or "") == 40
    assert clean is True
    checkout.cache_clear()
    (tmp_path / "notes.md").write_text("no code")
    assert checkout(inner) == (commit, True)
    checkout.cache_clear()
    (tmp_path / "papers" / "new.py").write_text("")
    assert checkout(inner) == (commit, False)
    checkout.cache_clear()


def test_without_git_nothing_is_known_of_a_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError("git")))
    assert checkout(package(tmp_path)) == (None, None)


def test_a_change_of_two_parts_together_is_about_runs_that_have_both():
    """Version 4: a late answer of `Catalyst` never counts more than once, which it could for sizes of a cohort."""
    one_attacker = Catalyst(1, preprocess=Truncate(0.1, 0.4, scope="cohort"))
    assert counts_as(3, Run(algorithm=one_attacker)) == 3
    alone = Catalyst(1), FedAvg(preprocess=one_attacker.preprocess)
    for other in (*alone, replace(one_attacker, preprocess=Truncate(0.1, 0.4))):
        assert counts_as(3, Run(algorithm=other)) == NUMERICS
