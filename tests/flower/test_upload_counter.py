"""How often clients were given a task: never too low, as the account of privacy is made from it."""

import dataclasses
import os
import stat
from collections import Counter
from types import SimpleNamespace

import pytest

import phalanx
from flower.federations import FIRST_NODE, SMALL, at_nodes, coordinator, honest
from flower.test_server import Killed, killed_at
from phalanx.algorithms import FedAsync, FedAvg, Private
from phalanx.engine.observer import Progress
from phalanx.flower import InProcessGrid, coordinate
from phalanx.flower.audit import Audit
from phalanx.flower.upload_counter import UploadCounter
from phalanx.runs import accounting as privacy
from phalanx.runs.record import Record


def answered(plan, folder, *observers, **options):
    """How often each client answered a task, in runs in one folder: as many as there are observers, and one more."""
    counts = Counter()

    def counted(client, app):
        def node(message, context):
            reply = app(message, context)
            counts[client] += message.metadata.message_type == "train"
            return reply

        return node

    for watching in ([*observers], []) if observers else ([],):
        apps = {i: counted(i, app) for i, app in honest(plan, folder / "memory").items()}
        with InProcessGrid(at_nodes(apps)) as grid:
            try:
                coordinate(grid, coordinator(plan, folder=folder / "run", observers=watching, **options))
            except Killed:
                continue
    return counts


def plan_of(algorithm, steps):
    algorithm = Private(algorithm, clip=1.0, noise_multiplier=1.0)
    return dataclasses.replace(SMALL, clients=4, algorithm=algorithm, until=phalanx.Until(steps))


@pytest.mark.parametrize("step", [1, 4])
def test_what_is_done_again_after_a_kill_counts_again(step, tmp_path):
    """Whether there was a checkpoint to go on from, or the run began anew."""
    plan = plan_of(FedAvg(), 6)
    counts = answered(plan, tmp_path, killed_at(step))
    assert counts == dict.fromkeys(range(4), 7)
    record = Record.load(tmp_path / "run")
    assert privacy.uploads(record) == counts
    assert sum(bool(line.verdicts) for line in record.history) == 6, "the history tells of one less"


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("killed", [[], [killed_at(4)]], ids=["to the end", "killed"])
def test_tasks_that_are_open_at_the_end_count(killed, prefetch, tmp_path):
    counts = answered(plan_of(FedAsync(), 9), tmp_path, *killed, prefetch=prefetch)
    record = Record.load(tmp_path / "run")
    uploads = privacy.uploads(record)
    assert all(uploads[i] >= counts[i] for i in range(4))
    served = sum(len(line.verdicts) for line in record.history)
    assert sum(uploads.values()) >= served + 3 + 3 * len(killed), "all but one had a task, and again after a kill"


def test_a_task_is_on_the_disk_before_it_is_sent_and_stays_there(tmp_path):
    path = tmp_path / "run" / "asked.jsonl"
    first = UploadCounter(path)
    assert not path.parent.exists(), "a run that cannot begin touches nothing"
    first.note([2, 0])
    assert path.read_text() == "[0, 2]\n"
    first.note([])
    first.note([2])
    with path.open("a") as file:
        file.write("[0, 1")  # killed while it wrote, before it sent anything
    second = UploadCounter(path)
    second.note([1])
    assert second.counts == UploadCounter(path).counts == {0: 1, 1: 1, 2: 2}


def asked_in(folder):
    asked = UploadCounter(folder / "asked.jsonl")
    return lambda: asked.note([0])


def audited_in(folder):
    audit = Audit(folder / "audit.jsonl", lambda: 0.0, str)
    return lambda: audit(Progress(0, 0.0, SimpleNamespace(version=0, verdicts={}), None, {0: "NaN"}, {}))


@pytest.mark.parametrize("written_in", [asked_in, audited_in], ids=["asked", "audit"])
def test_the_name_of_a_new_file_is_on_the_disk_as_well(written_in, tmp_path, monkeypatch):
    kinds, write = [], written_in(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda file: kinds.append(stat.S_IFMT(os.fstat(file).st_mode)))
    write()
    assert kinds[:2] == [stat.S_IFREG, stat.S_IFDIR], "as soon as the file is there"
    write()
    assert kinds.count(stat.S_IFDIR) == 1
    assert kinds[-1] == stat.S_IFREG


def test_a_server_sends_nothing_that_it_has_not_written_down(tmp_path):
    class Looking(InProcessGrid):
        def push_messages(self, messages):
            for message in (messages := [*messages]):
                if message.metadata.message_type == "train":
                    client = message.metadata.dst_node_id - FIRST_NODE
                    sent[client] += 1
                    assert UploadCounter(tmp_path / "asked.jsonl").counts[client] >= sent[client]
            return super().push_messages(messages)

    sent, plan = Counter(), plan_of(FedAvg(), 2)
    with Looking(at_nodes(honest(plan, tmp_path))) as grid:
        state = coordinate(grid, coordinator(plan, folder=tmp_path))
    assert state.version == 2
    assert sent == dict.fromkeys(range(4), 2)


@pytest.mark.parametrize("line", ["{}", "[0, true]", "[1.5]", "[0", "nothing"])
def test_a_damaged_file_is_not_counted_from(line, tmp_path):
    (tmp_path / "asked.jsonl").write_text(f"[0]\n{line}\n[1]\n")
    with pytest.raises(ValueError, match=r"line 2: .* move it away and keep it"):
        UploadCounter(tmp_path / "asked.jsonl")
