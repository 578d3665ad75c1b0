"""A sample of the alterations of `alterations.py`: each is found and located."""

import json
import random
import shutil

import pytest

from phalanx.cli.main import main
from phalanx.runs.seal import chain_of, file_hash, files_of_end, seal, split
from phalanx.runs.verification import verify
from reliability.alterations import Bench, alterations, forged, of_seal

SAMPLE = 160


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("altered"))


@pytest.fixture
def folder(bench, tmp_path):
    return shutil.copytree(bench.run, tmp_path / "run")


def test_a_run_that_nobody_touched_is_intact(bench):
    found = verify(bench.folder, bench.lists)
    assert (found.findings, found.status, found.proves) == ((), 0, True)
    forged(bench.folder)
    assert verify(bench.folder, bench.lists).status == 0, "a forger who alters nothing leaves no trace"


@pytest.mark.slow
def test_alterations_of_every_kind_are_found_and_located(bench):
    every = [(one, forger) for one in alterations(bench.run, bench.other) for forger in (False, True)]
    every += [(one, False) for one in of_seal(bench.run)]
    assert len(every) > 10_000
    rng = random.Random(0)
    one_of_each = {(one.kind, one.file, forger): (one, forger) for one, forger in rng.sample(every, len(every))}
    chosen = rng.sample([*one_of_each.values()], min(SAMPLE, len(one_of_each)))
    said = {(one.kind, one.file, forger): bench.tried(one, forger=forger) for one, forger in chosen}
    assert [what for what in said.items() if what[1]] == []
    assert sum(why == "" for why in said.values()) > 0.8 * len(chosen)


@pytest.mark.parametrize("what", ["evidence", "trail", "trail and witnesses", "signatures"])
def test_without_evidence_nothing_is_proven(folder, what, capsys):
    """Somebody removes all evidence, or all signatures, and writes chain and seal again."""
    path, witnesses = folder / "audit.jsonl", folder / "witnesses.json"
    if what in ("evidence", "signatures"):
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        for line in lines:
            if what == "evidence":
                line.pop("evidence", None)
            elif "evidence" in line:
                for field in ("updates", "signed", "coordinator", "session", "kept"):
                    line["evidence"].pop(field, None)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        path.unlink()
    if what != "trail":
        witnesses.unlink()
    shutil.rmtree(folder / "updates")
    forged(folder) if path.exists() else seal(folder, {})
    found = verify(folder)
    assert found.proves is False
    assert found.status == (1 if what == "trail" else 2), "with its witnesses, a trail that is gone is missed"
    assert found.integrity == "unknown"
    assert main(["verify", str(folder)]) == found.status
    assert "Integrity: not known. Nothing is proven" in capsys.readouterr().out


def test_a_run_of_which_only_the_beginning_is_left_proves_nothing(folder):
    """Before the first step no client has signed anything, so that a forger needs no key for that."""
    lines = [json.loads(line) for line in (folder / "audit.jsonl").read_bytes().splitlines()]
    begun, start = (next(line for line in lines if line["event"] == event) for event in ("begun", "recorded"))
    ended, (first, *_) = lines[-1], split((folder / "history.jsonl").read_bytes())
    (folder / "history.jsonl").write_bytes(first)
    (folder / "model.safetensors").write_bytes(b"forged")
    shutil.rmtree(folder / "updates")
    (folder / "witnesses.json").unlink()
    del start["evidence"]["kept"]
    ended["evidence"]["history"] = list(chain_of([first]).mark)
    ended["evidence"]["files"] = {name: file_hash(folder / name) for name in files_of_end(folder)}
    (folder / "audit.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (begun, start, ended)))
    forged(folder)
    found = verify(folder)
    assert (found.findings, found.proves, found.integrity, found.status) == ((), False, "unknown", 2)


def test_co_signatures_that_were_removed_are_missed(folder):
    (folder / "witnesses.json").unlink()
    seal(folder, {})
    (finding,) = verify(folder).findings
    assert (finding.file, finding.kind) == ("witnesses.json", "missing")
