"""What a loss of power leaves of a run: only what was brought to the disk, and the run goes on from that."""

import dataclasses
import json
import os
import resource
import stat

import pytest

import phalanx
from flower.federations import SMALL, at_nodes, coordinator, honest, roster_of
from flower.test_record import Killed, killed_at, progress
from phalanx.algorithms import RFFL, FedAvg
from phalanx.flower import InProcessGrid, coordinate
from phalanx.flower.audit import Audit
from phalanx.flower.codec import TaskMessage
from phalanx.flower.identity import Roster
from phalanx.flower.seen import SeenTasks
from phalanx.models import MLP
from phalanx.runs.checkpoint import peek
from phalanx.runs.record import Record
from phalanx.runs.seal import split
from phalanx.runs.session import DiskFullError

PLAN = dataclasses.replace(SMALL, clients=3, algorithm=FedAvg(), model=MLP((4,)), until=phalanx.Until(4))


class Disk:
    """A disk that loses what was not synced: the content of a file since then, and its name until its folder was."""

    def __init__(self, monkeypatch):
        self.contents, self.names = {}, {}  # by inode; of a folder by its path: the inodes by name
        sync = os.fsync

        def fsync(file):
            number = file if isinstance(file, int) else file.fileno()
            sync(number)
            path, about = os.readlink(f"/proc/self/fd/{number}"), os.fstat(number)
            if stat.S_ISDIR(about.st_mode):
                self.names[path] = {entry.name: entry.inode() for entry in os.scandir(path)}
            else:
                with open(path, "rb") as opened:
                    self.contents[about.st_ino] = opened.read()

        monkeypatch.setattr(os, "fsync", fsync)

    def left(self, folder):
        """What a loss of power would leave of the files in a folder."""
        return {name: self.contents.get(inode, b"") for name, inode in self.names.get(str(folder), {}).items()}


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


def test_a_run_goes_on_from_what_a_loss_of_power_leaves(disk, tmp_path):
    folder, left = tmp_path / "run", {}

    def look(progress):
        if progress.step == 3:
            left.update(disk.left(folder))
            assert left["audit.jsonl"] == (folder / "audit.jsonl").read_bytes(), (
                "each line is there before the next step"
            )
        killed_at(3)(progress)

    apps = at_nodes(honest(PLAN, tmp_path))
    with InProcessGrid(apps) as grid, pytest.raises(Killed):
        coordinate(grid, coordinator(PLAN, folder=folder, observers=[look]))
    after = tmp_path / "after"
    after.mkdir()
    for name in ("checkpoint", "history.jsonl", "audit.jsonl", "run.json"):
        if name in left:
            (after / name).write_bytes(left[name])
    header = peek(after)
    assert header is not None
    assert header.step >= 2, "a checkpoint of the step before"
    assert len(split(left["history.jsonl"])) >= header.lines, "with the lines that it knows"
    with InProcessGrid(apps) as grid:
        state = coordinate(grid, coordinator(PLAN, folder=after))
    assert state.version == 4
    assert (after / "audit.jsonl").read_bytes().startswith(left["audit.jsonl"])


def test_kept_updates_are_on_the_disk_before_the_checkpoint_that_follows(disk, tmp_path):
    folder, seen = tmp_path / "run", []

    def look(progress):
        there = {path.name: path.read_bytes() for path in (folder / "updates").iterdir()}
        assert disk.left(folder / "updates") == there
        assert (folder / "updates").stat().st_ino in disk.names[str(folder)].values(), "and so is their folder"
        seen.append(len(there))

    with InProcessGrid(at_nodes(honest(PLAN, tmp_path))) as grid:
        coordinate(grid, coordinator(PLAN, folder=folder, keep_updates=True, observers=[look]))
    assert seen == [1, 2, 3, 4, 5]


def test_what_a_client_remembers_is_on_the_disk_before_its_answer_counts(disk, tmp_path):
    plan, seen = dataclasses.replace(PLAN, algorithm=RFFL()), []

    def look(progress):
        for i in range(PLAN.clients) if progress.step else ():
            there = {path.name: path.read_bytes() for path in (tmp_path / str(i)).glob("*.npz")}
            left = disk.left(tmp_path / str(i))
            assert {name: left.get(name) for name in there} == there
            seen.append(len(there))

    with InProcessGrid(at_nodes(honest(plan, tmp_path))) as grid:
        coordinate(grid, coordinator(plan, folder=tmp_path / "run", observers=[look]))
    assert len(seen) == 12
    assert min(seen) > 0


def test_a_new_trail_has_its_name_on_the_disk_with_its_first_line(disk, tmp_path):
    """The checkpoint, which comes later, would bring the name there as well."""
    audit = Audit(tmp_path / "audit.jsonl", lambda: 0.0, str)
    audit(progress(0))
    left = disk.left(tmp_path)
    assert left["audit.jsonl"] == (tmp_path / "audit.jsonl").read_bytes() != b""
    audit.end("finished")
    assert disk.left(tmp_path)["audit.jsonl"] == (tmp_path / "audit.jsonl").read_bytes()


def test_a_roster_is_on_the_disk_when_it_is_saved(disk, tmp_path):
    path = tmp_path / "roster.yaml"
    for clients in (1, 2):
        roster_of(clients).save(path)
        (tmp_path / "left.yaml").write_bytes(disk.left(tmp_path)["roster.yaml"])
        assert len(Roster.load(tmp_path / "left.yaml").members) == clients


def test_a_task_is_on_the_disk_before_it_is_worked_on(disk, tmp_path):
    seen, folder = SeenTasks(tmp_path / "memory" / "tasks.jsonl"), tmp_path / "memory"
    for k in range(2):
        seen.add(TaskMessage("train", "abc", bytes([k]) * 32, 0, k, k, "float32"))
        assert len(split(disk.left(folder)["tasks.jsonl"])) == k + 1


@pytest.mark.parametrize("spare", [0, 100, 3000])
@pytest.mark.parametrize("kept", ["audit.jsonl", "history.jsonl", "checkpoint"])
def test_a_coordinator_whose_disk_is_full_says_so_and_goes_on_when_there_is_room(kept, spare, tmp_path):
    """No file grows beyond the size of one of them, and so many bytes, from the second step on."""
    folder, before = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(progress):
        if progress.step == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, ((folder / kept).stat().st_size + spare, before[1]))

    apps = at_nodes(honest(PLAN, tmp_path))
    try:
        with (
            InProcessGrid(apps) as grid,
            pytest.raises(DiskFullError, match=r"Free some space; then the same command goes on after step [123]"),
        ):
            coordinate(grid, coordinator(PLAN, folder=folder, observers=[fill]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    left = (folder / "audit.jsonl").read_bytes()
    assert left.endswith(b"\n")
    assert all(map(json.loads, split(left)))
    with InProcessGrid(apps) as grid:
        assert coordinate(grid, coordinator(PLAN, folder=folder)).version == 4
    assert (folder / "audit.jsonl").read_bytes().startswith(left), "no line is lost, or written twice"
    assert len(split((folder / "history.jsonl").read_bytes())) == len(Record.load(folder).history)
