"""The seal of a run's folder: what was changed is found and located, and refused by whoever reads the folder."""

import json
import random
import shutil
import time
from collections import Counter
from dataclasses import replace

import pytest
import torch

import phalanx
from phalanx import LocalSGD, Record, Run, StopRunError, Until, simulate
from phalanx.algorithms import Standalone
from phalanx.cli.main import main
from phalanx.data import Dataset, InMemory
from phalanx.flower.audit import Audit, Note
from phalanx.models import MLP
from phalanx.rng import generator
from phalanx.runs import seal as seals
from phalanx.runs.checkpoint import Checkpoint
from phalanx.runs.models import SavedModels
from phalanx.runs.record import as_lines
from phalanx.runs.seal import SEAL, UNSEALED, Mark, SealError, breaks, chain_of, examine, members, seal, split
from phalanx.runs.verification import verify
from phalanx.training import Regression
from phalanx.wording import plural

PLAN = Run(clients=3, algorithm=Standalone(), model=MLP(()), until=Until(steps=7))
STEPS, OFTEN = 7, Checkpoint(every_seconds=0)


def audit_of(path, events):
    audit = Audit(path, lambda: 1.0, lambda client: f"site {client}")
    audit(phalanx.Progress(0, 0.0, State(), None, {}, {}))
    for k in range(events):
        audit.note(Note("lost", k % 3, f"no answer to task {k}"))
    audit.end("finished")
    return audit


class State:
    version, verdicts = 0, {}


def made(folder, seed):
    """A sealed folder with all kinds of files that a record has."""
    plan = Run(clients=3, algorithm=Standalone(), model=MLP(()), until=Until(steps=STEPS), seed=seed)
    simulate(plan, folder=folder, models=SavedModels(best=True))
    audit = audit_of(folder / "audit.jsonl", 6)
    (folder / "asked.jsonl").write_text("[0, 1]\n[0, 2]\n[1, 2]\n")
    (folder / "report.html").write_text("not of the record")
    seal(folder, {"audit.jsonl": audit.mark})
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    at = tmp_path_factory.mktemp("sealed")
    return made(at / "one", 0), made(at / "other", 1)


@pytest.fixture
def copy(runs, tmp_path):
    return shutil.copytree(runs[0], tmp_path / "run")


def test_a_folder_is_as_its_run_left_it(runs):
    for folder in runs:
        assert examine(folder).sentence == ""
        found = verify(folder)
        # The trail here has no evidence, so that whether real clients did what it says is not known.
        assert (found.findings, found.proves, found.integrity, found.status) == ((), False, "unknown", 2)
        assert found.others == ("report.html",)
    names = members(runs[0])
    assert {"models", "best"} < {name.split("/")[0] for name in names}
    assert {path.name for path in runs[0].iterdir()} - {"models", "best", "report.html", SEAL} <= {*names}


# Alterations: each function changes a folder, and returns the file, the lines that a finding may name, and its verdict


def line_files(folder):
    return [folder / name for name in members(folder) if name.endswith(".jsonl")]


def other_files(folder):
    return [folder / name for name in members(folder) if not name.endswith(".jsonl")]


def edit_a_byte_of_a_line(folder, other, rng):
    path = rng.choice(line_files(folder))
    lines = split(path.read_bytes())
    k = rng.randrange(len(lines))
    at = rng.randrange(len(lines[k]) - 1)
    lines[k] = lines[k][:at] + bytes([lines[k][at] ^ 1]) + lines[k][at + 1 :]
    if b"\n" in lines[k][:-1]:
        return None
    path.write_bytes(b"".join(lines))
    return path, {k + 1}, "integrity"


def edit_a_value(folder, other, rng):
    path = folder / "history.jsonl"
    lines = split(path.read_bytes())
    k = rng.randrange(1, len(lines))
    form = json.loads(lines[k])
    form["seconds"] += rng.random()
    lines[k] = json.dumps(form, separators=(",", ":")).encode() + b"\n"
    path.write_bytes(b"".join(lines))
    return path, {k + 1}, "integrity"


def write_a_line_in_another_form(folder, other, rng):
    path = rng.choice(line_files(folder))
    lines = split(path.read_bytes())
    k = rng.randrange(len(lines))
    lines[k] = rng.choice([lines[k][:-1] + b"\r\n", b" " + lines[k], lines[k][:-1] + b" \n"])
    path.write_bytes(b"".join(lines))
    return path, {k + 1}, "integrity"


def swap_lines(folder, other, rng):
    path = rng.choice(line_files(folder))
    lines = split(path.read_bytes())
    i, j = sorted(rng.sample(range(len(lines)), 2))
    lines[i], lines[j] = lines[j], lines[i]
    path.write_bytes(b"".join(lines))
    return path, {*range(i + 1, j + 2)}, "integrity"


def delete_lines(folder, other, rng):
    path = rng.choice(line_files(folder))
    lines = split(path.read_bytes())
    i = rng.randrange(len(lines))
    j = rng.randrange(i + 1, len(lines) + 1)
    path.write_bytes(b"".join(lines[:i] + lines[j:]))
    return path, {*range(i + 1, j + 1)}, "completeness"


def cut_the_tail(folder, other, rng):
    path = rng.choice(line_files(folder))
    lines = split(path.read_bytes())
    k = rng.randrange(len(lines))
    path.write_bytes(b"".join(lines[:k]))
    return path, {*range(k + 1, len(lines) + 1)}, "completeness"


def cut_within_the_last_line(folder, other, rng):
    path = rng.choice(line_files(folder))
    text = path.read_bytes()
    lines = split(text)
    path.write_bytes(text[: -rng.randrange(1, len(lines[-1]))])
    return path, {len(lines)}, "integrity"


def duplicate_a_line(folder, other, rng):
    path = rng.choice(line_files(folder))
    lines = split(path.read_bytes())
    k, at = rng.randrange(len(lines)), rng.randrange(len(lines) + 1)
    lines.insert(at, lines[k])
    path.write_bytes(b"".join(lines))
    return path, {at + 1, at, k + 1, k + 2}, "integrity"  # of two equal lines, either is the copy


def append_a_line(folder, other, rng):
    path = rng.choice(line_files(folder))
    lines = split(path.read_bytes())
    path.write_bytes(b"".join(lines) + rng.choice([b"{}\n", b"{}", b"\n", split((other / path.name).read_bytes())[-1]]))
    return (path, {len(lines) + 1}, "integrity") if path.name != "asked.jsonl" else None


def insert_a_line(folder, other, rng):
    path = rng.choice(line_files(folder))
    lines = split(path.read_bytes())
    at = rng.randrange(len(lines) + 1)
    lines.insert(at, b'{"step": 3}\n')
    path.write_bytes(b"".join(lines))
    return path, {at + 1}, "integrity"


def take_a_line_of_another_run(folder, other, rng):
    path = folder / rng.choice(["history.jsonl", "audit.jsonl"])
    lines, others = (split((at / path.name).read_bytes()) for at in (folder, other))
    k = rng.randrange(1, len(lines))
    if others[k] == lines[k]:
        return None
    lines[k] = others[k]
    path.write_bytes(b"".join(lines))
    return path, {k + 1}, "integrity"


def flip_a_bit(folder, other, rng):
    path = rng.choice(other_files(folder))
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return path, None, "integrity"


def flip_a_bit_of_a_model(folder, other, rng):
    path = rng.choice([path for path in other_files(folder) if path.suffix == ".safetensors"])
    data = bytearray(path.read_bytes())
    data[-rng.randrange(1, 1000)] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return path, None, "integrity"


def take_a_file_of_another_run(folder, other, rng):
    path = rng.choice(other_files(folder))
    found = other / path.relative_to(folder)
    if not found.is_file() or found.read_bytes() == path.read_bytes():
        return None
    shutil.copy(found, path)
    return path, None, "integrity"


def swap_files(folder, other, rng):
    one, two = rng.sample(other_files(folder), 2)
    if one.read_bytes() == two.read_bytes():
        return None
    for path, data in ((one, two.read_bytes()), (two, one.read_bytes())):
        path.write_bytes(data)
    return one, None, "integrity"


def delete_a_file(folder, other, rng):
    path = rng.choice([folder / name for name in members(folder)])
    path.unlink()
    return path, None, "completeness"


def rename_a_file(folder, other, rng):
    path = rng.choice([folder / name for name in members(folder)])
    path.rename(path.with_name(rng.choice(["7", "x", "old"]) + path.name))
    return path, None, "completeness"


def put_a_link_in_its_place(folder, other, rng):
    path = rng.choice([folder / name for name in members(folder)])
    path.unlink()
    path.symlink_to(other / path.relative_to(folder))
    return path, None, "integrity"


def put_a_folder_in_its_place(folder, other, rng):
    path = rng.choice([folder / name for name in members(folder)])
    path.unlink()
    path.mkdir()
    return path, None, "integrity"


def add_a_file(folder, other, rng):
    name = rng.choice(["models/77.safetensors", "best/models/77.safetensors", "audit-2026.jsonl", "models/notes"])
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"{}\n")
    return folder / name, None, "integrity"


def cut_a_file(folder, other, rng):
    path = rng.choice(other_files(folder))
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])
    return path, None, "integrity"


def change_the_seal(folder, other, rng):
    data = bytearray((folder / SEAL).read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(7)
    (folder / SEAL).write_bytes(data)
    return folder / SEAL, None, "integrity"


def cut_the_seal(folder, other, rng):
    data = (folder / SEAL).read_bytes()
    (folder / SEAL).write_bytes(data[: rng.randrange(len(data))])
    return folder / SEAL, None, "integrity"


def forget_a_file_in_the_seal(folder, other, rng):
    form = json.loads((folder / SEAL).read_text())
    form["files"].pop(rng.choice([*form["files"]]))
    (folder / SEAL).write_text(json.dumps(form))
    return folder / SEAL, None, "integrity"


KINDS = [value for value in [*vars().values()] if getattr(value, "__code__", None) and value.__code__.co_argcount == 3]


def check_an_alteration(kind, seed, runs, place):
    """Apply an alteration to a copy of a run, and return whether it could be."""
    folder = shutil.copytree(runs[0], place)
    before = state(folder)
    done = kind(folder, runs[1], random.Random(seed))
    if done is None or state(folder) == before:
        return False
    path, lines, verdict = done
    found, name = verify(folder), str(path.relative_to(folder))
    what = f"{kind.__name__}, seed {seed}: {found}"
    assert found.status == 1, what
    named = [finding for finding in found.findings if finding.file == name]
    assert named, what
    if lines is not None:
        assert {finding.line for finding in found.findings} <= lines, what
        assert {finding.file for finding in found.findings} == {name}, what
    assert getattr(found, verdict) == "no", what
    with pytest.raises(SealError, match=r"not as its run left it"):
        Record.load(folder)
    return True


def state(folder):
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {path.relative_to(folder): (data, path.is_symlink()) for path, data in files.items()}


def all_are_found(count, runs, tmp_path):
    applied, seed = Counter(), 0
    while sum(applied.values()) < count:
        kind, seed = KINDS[seed % len(KINDS)], seed + 1
        place = tmp_path / "altered"
        applied[kind.__name__] += check_an_alteration(kind, seed, runs, place)
        shutil.rmtree(place)
    assert {*applied} == {kind.__name__ for kind in KINDS}
    assert min(applied.values()) >= count // len(KINDS) // 3, applied


@pytest.mark.slow
def test_alterations_are_found_and_located(runs, tmp_path):
    assert len(KINDS) >= 20
    all_are_found(5 * len(KINDS), runs, tmp_path)


@pytest.mark.slow
def test_hundreds_of_alterations_are_found_and_located(runs, tmp_path):
    all_are_found(600, runs, tmp_path)


def test_a_finding_says_where(copy):
    history = copy / "history.jsonl"
    lines = split(history.read_bytes())
    whole = b"".join(lines)

    def findings(*new):
        history.write_bytes(b"".join(new))
        return [finding.text for finding in examine(copy).findings]

    changed = lines[4].replace(b'"seconds":', b'"seconds":1')
    assert findings(*lines[:4], changed, *lines[5:]) == ["history.jsonl, line 5 was changed (step 4)"]
    assert findings(*lines[:4], *lines[5:]) == ["history.jsonl, line 5 is missing (after step 3, before step 5)"]
    assert findings(*lines[:5], lines[4], *lines[5:]) == ["history.jsonl, line 6 is line 5 once more (step 4)"]
    moved = findings(*lines[:2], lines[5], *lines[3:5], lines[2], *lines[6:])
    was = "was line {} when the run ended (step {})".format
    assert moved == [f"history.jsonl, line 3 {was(6, 5)}", f"history.jsonl, line 6 {was(3, 2)}"]
    last = len(lines)
    assert findings(*lines[:-1]) == [f"history.jsonl, line {last} is missing (after step {STEPS - 1})"]
    assert findings(*lines, b"{}\n") == [f"history.jsonl, line {last + 1} was added"]
    assert findings(whole) == []
    audit = copy / "audit.jsonl"
    trail = split(audit.read_bytes())
    audit.write_bytes(b"".join([*trail[:3], trail[3].replace(b"task 2", b"task 9"), *trail[4:]]))
    assert [f.text for f in examine(copy).findings] == ["audit.jsonl, line 4 was changed (step 0, client 2)"]
    audit.write_bytes(b"".join(trail))
    model = sorted((copy / "models").iterdir())[1]
    model.write_bytes(model.read_bytes()[:-1] + b"\0")
    assert [f.text for f in examine(copy).findings] == [f"models/{model.name} was changed (client 1)"]


def test_long_stretches_that_differ_are_still_told(copy, monkeypatch):
    monkeypatch.setattr(seals, "COMPARED", 4)
    history = copy / "history.jsonl"
    lines = split(history.read_bytes())
    history.write_bytes(b"".join([lines[0], *reversed(lines[1:])]))
    middle = len(lines) // 2 + 1 if len(lines) % 2 == 0 else 0  # it stays where it was
    expected = [("moved", k) for k in range(2, len(lines) + 1) if k != middle]
    assert [(f.kind, f.line) for f in examine(copy).findings] == expected


def test_what_is_at_its_place_is_not_named(copy, monkeypatch):
    """Two lines far apart are changed; those between them are what they were."""
    monkeypatch.setattr(seals, "COMPARED", 4)
    history = copy / "history.jsonl"
    lines = split(history.read_bytes())
    changed = [line.replace(b'"step"', b'"Step"') if k in (1, len(lines) - 2) else line for k, line in enumerate(lines)]
    history.write_bytes(b"".join(changed))
    assert [(f.kind, f.line) for f in examine(copy).findings] == [("changed", 2), ("changed", len(lines) - 1)]


def test_many_equal_lines_are_compared_in_little_time(tmp_path):
    begun = time.process_time()
    assert examine(sealed_lines(tmp_path, b"{}\n" * 2000, b"[]\n" + b"{}\n" * 1998 + b"[]\n")).findings
    assert time.process_time() - begun < 5.0


def sealed_lines(folder, sealed, now):
    """A folder that was sealed with an audit trail of these lines, and has others now."""
    (folder / "audit.jsonl").write_bytes(sealed)
    seal(folder, {})
    (folder / "audit.jsonl").write_bytes(now)
    return folder


def test_what_is_not_of_the_record_is_listed(copy, capsys):
    for name in ("models/.hidden", "best/evil.py", "notes.txt"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text("x")
    assert set(verify(copy).others) >= {"models/.hidden", "best/evil.py", "notes.txt"}
    (copy.parent / "link").symlink_to(copy)
    assert verify(copy.parent / "link").others == verify(copy).others
    shutil.move(copy / "best", copy.parent / "elsewhere")
    (copy / "best").symlink_to(copy.parent / "elsewhere")
    assert "best" in verify(copy).others
    assert "best/evil.py" not in verify(copy).others


@pytest.mark.parametrize("name", ["audit.jsonl", "audit-1.jsonl"])
@pytest.mark.parametrize("kind", ["a link that leads out", "a device", "a folder", "a link to nothing"])
def test_without_a_seal_too_links_are_not_followed(kind, name, copy):
    (copy / SEAL).unlink()
    (copy / name).unlink(missing_ok=True)
    if kind == "a folder":
        (copy / name).mkdir()
    else:
        there = {"a device": "/dev/zero", "a link to nothing": "nowhere"}
        (copy / name).symlink_to(there.get(kind, copy.parent / "outside"))
        (copy.parent / "outside").write_text("secret\n")
    found = verify(copy)
    assert [(f.file, f.kind) for f in found.findings if f.file == name] == [(name, "changed")]


# Reading


def test_a_changed_folder_is_refused_or_read_and_said(copy, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    history = copy / "history.jsonl"
    history.write_bytes(history.read_bytes().replace(b'"accuracy":0.', b'"accuracy":0.9', 1))
    with pytest.raises(SealError, match=r"history\.jsonl, line 1 was changed \(step 0\).*phalanx verify.*--unsealed"):
        Record.load(copy)
    record = Record.load(copy, unsealed=True)
    assert [f.text for f in record.seal.findings] == ["history.jsonl, line 1 was changed (step 0)"]
    commands = (
        ["report", str(copy)],
        ["compare", str(copy)],
        ["evaluate", str(copy)],
        ["export", str(copy), "--out", "model.safetensors"],
    )
    for command in commands:
        assert main(command) == 2
        assert "history.jsonl, line 1 was changed" in capsys.readouterr().err
        assert main([*command, "--unsealed"]) == 0
        assert "Changed since the run ended, and read all the same: history.jsonl, line 1" in capsys.readouterr().out
    for page in (copy / "report.html", tmp_path / "comparison" / "study.html", tmp_path / "comparison" / "study.md"):
        assert "Changed since the run ended, and read all the same: history.jsonl, line 1" in page.read_text()


def test_a_folder_without_a_seal_is_read_and_said(copy, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (copy / SEAL).unlink()
    record = Record.load(copy)
    assert record.seal is not None
    assert not record.seal.sealed
    for command in (["report", str(copy)], ["compare", str(copy)]):
        assert main(command) == 0
        assert "Not sealed: whether it was changed" in capsys.readouterr().out
    assert "Not sealed: whether it was changed" in (copy / "report.html").read_text()
    assert main(["verify", str(copy)]) == 2
    said = capsys.readouterr().out
    assert "Nothing is proven" in said
    audit = split((copy / "audit.jsonl").read_bytes())
    (copy / "audit.jsonl").write_bytes(b"".join(audit[:2] + audit[3:]))
    assert main(["verify", str(copy)]) == 1
    assert "audit.jsonl, line 3 does not follow line 2" in capsys.readouterr().out


def test_an_intact_folder_is_read_without_a_word(runs, tmp_path, capsys):
    assert Record.load(runs[0]).seal.sentence == ""
    assert main(["report", str(runs[0]), "--out", str(tmp_path / "page.html")]) == 0
    assert "sealed" not in capsys.readouterr().out.lower()
    assert "unsealed" not in (tmp_path / "page.html").read_text().lower()
    assert main(["verify", str(runs[0])]) == 2
    found = examine(runs[0])
    assert f"{plural(found.files, 'file')}, {plural(found.lines, 'line')}" in capsys.readouterr().out


def test_what_cannot_be_verified_is_said(tmp_path, capsys):
    assert main(["verify", str(tmp_path / "nothing")]) == 2
    assert main(["verify", str(tmp_path)]) == 2
    (tmp_path / "run.json").write_text("{}")
    assert main(["verify", str(tmp_path)]) == 2
    assert "Its run goes on or was killed" in capsys.readouterr().out


# Runs that stop and go on


def stop_at(step, kind=StopRunError):
    def observer(progress):
        if progress.step == step:
            raise kind("enough")

    return observer


@pytest.mark.parametrize("kind", [StopRunError, KeyboardInterrupt, RuntimeError])
def test_a_run_that_stops_is_sealed_and_goes_on_without_a_seal(kind, tmp_path):
    folder, seen = tmp_path / "run", []
    try:
        simulate(PLAN, folder=folder, observers=[stop_at(3, kind)], models=SavedModels(best=True), checkpoint=OFTEN)
    except (KeyboardInterrupt, RuntimeError):
        assert kind is not StopRunError
    assert examine(folder).sentence == ""
    assert (folder / "checkpoint").exists()

    def look(progress):
        seen.append((folder / SEAL).exists())

    record = simulate(PLAN, folder=folder, observers=[look], models=SavedModels(best=True))
    assert seen == [False] * len(seen)
    assert seen
    assert record.summary.status == "finished"
    assert examine(folder).sentence == ""
    assert not (folder / "checkpoint").exists()
    whole = simulate(PLAN, folder=tmp_path / "whole", models=SavedModels(best=True))
    assert record.history == whole.history
    ours, theirs = (json.loads((at / SEAL).read_text()) for at in (folder, tmp_path / "whole"))
    assert ours["lines"] == theirs["lines"]


@pytest.mark.parametrize("name", ["history.jsonl", "best/model.safetensors", "best/model.json"])
def test_a_run_does_not_go_on_from_a_changed_folder(name, tmp_path):
    simulate(PLAN, folder=tmp_path, observers=[stop_at(3)], models=SavedModels(best=True))
    data = bytearray((tmp_path / name).read_bytes())
    data[-40] ^= 1
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=rf"{name}.*was changed.*Checkpoint\(resume=False\)"):
        simulate(PLAN, folder=tmp_path, models=SavedModels(best=True))
    assert examine(tmp_path).findings, "a refusal changes nothing"


def test_what_a_run_writes_again_may_be_gone_when_it_goes_on(tmp_path):
    simulate(PLAN, folder=tmp_path, observers=[stop_at(3)])
    for name in ("summary.json", "model.json", "model.md"):
        (tmp_path / name).unlink()
    assert simulate(PLAN, folder=tmp_path).summary.status == "finished"
    assert examine(tmp_path).sentence == ""


def test_a_history_that_somebody_changes_on_the_way_is_not_sealed(tmp_path):
    def meddle(progress):
        if progress.step == 3:
            text = (tmp_path / "history.jsonl").read_bytes()
            (tmp_path / "history.jsonl").write_bytes(text.replace(b'"step":2', b'"step":1'))

    with pytest.warns(UserWarning, match=r"no seal.*history\.jsonl was changed while the run wrote it"):
        simulate(PLAN, folder=tmp_path, observers=[meddle])
    assert not (tmp_path / SEAL).exists()
    assert not (tmp_path / UNSEALED).exists(), "nor later"


def test_a_disk_that_takes_no_seal_leaves_an_unsealed_record(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(seals, "write_inside", full)
    with pytest.warns(UserWarning, match=r"has no seal.*No space left"):
        record = simulate(PLAN, folder=tmp_path)
    assert Record.load(tmp_path) == record


@pytest.mark.filterwarnings("ignore:The record of this run has no seal")
def test_the_same_command_seals_a_run_for_whose_seal_there_was_no_room(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    command = ["run", "--clients", "2", "--model.hidden", "[]", "--until.steps", "1", "--folder", str(tmp_path / "run")]
    monkeypatch.setattr(seals, "write_inside", full)
    assert main(command) == 0
    assert main(command) == 2, "there is no room yet"
    monkeypatch.undo()
    capsys.readouterr()
    assert main(command) == 0
    assert "Sealed now, as it was not when it ended" in capsys.readouterr().out
    assert examine(tmp_path / "run").sentence == ""
    assert not (tmp_path / "run" / UNSEALED).exists()
    (tmp_path / "run" / SEAL).unlink()
    assert main(command) == 0
    assert not (tmp_path / "run" / SEAL).exists(), "that somebody removed it is not hidden"


def test_the_chain_is_the_documented_one():
    from hashlib import sha256

    lines = [b"one\n", b"two\n"]
    link = bytes(32)
    for line in lines:
        link = sha256(link + sha256(line).digest()).digest()
    assert chain_of(lines).mark == Mark(2, link.hex())
    assert chain_of([]).mark == Mark(0, "00" * 32)


def test_the_seal_of_a_history_is_that_of_its_lines(runs):
    form = json.loads((runs[0] / SEAL).read_text())
    lines = split(as_lines(Record.load(runs[0]).history))
    assert form["lines"]["history.jsonl"]["link"] == chain_of(lines).mark.link


def test_a_trail_says_itself_where_it_was_changed(tmp_path):
    audit_of(tmp_path / "audit.jsonl", 6)
    lines = split((tmp_path / "audit.jsonl").read_bytes())
    assert [*breaks(lines)] == []
    for k in range(len(lines) - 1):
        assert [number for number, _ in breaks(lines[:k] + lines[k + 1 :])] == [k + 1]
        changed = lines[k].replace(b'"seconds":', b'"seconds":1')
        assert [number for number, _ in breaks([*lines[:k], changed, *lines[k + 1 :]])] == [k + 2]
    old = [b'{"event":"lost"}\n', b'{"event":"begun"}\n']
    assert [*breaks(old)] == [], "lines from before there was a chain"
    assert [number for number, _ in breaks([*lines, *old])] == [len(lines) + 1, len(lines) + 2]


@pytest.mark.parametrize("kind", ["regression", "a run that diverges"])
def test_a_history_with_figures_that_are_not_finite_is_sealed(kind, tmp_path, capsys):
    x = torch.rand(40, 3, generator=generator(0, "examples"))
    numbers = Dataset(x, x.sum(1))
    small = Run(clients=2, data=InMemory(numbers, numbers), model=MLP(()), training=LocalSGD(lr=0.01), until=Until(2))
    plan = {
        "regression": replace(small, task=Regression()),
        "a run that diverges": replace(PLAN, training=LocalSGD(lr=1e38)),
    }[kind]
    simulate(plan, folder=tmp_path / "run")
    assert verify(tmp_path / "run").status == 0
    (tmp_path / "run" / SEAL).unlink()
    assert main(["verify", str(tmp_path / "run")]) == 2
    assert "it was made before runs were sealed, or its seal was removed" in capsys.readouterr().out
