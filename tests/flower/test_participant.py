"""A client's side: what it refuses to be, and what it remembers."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from flower.federations import KEYS, SMALL, examples
from phalanx import LocalSGD
from phalanx.algorithms import FedAvg
from phalanx.attacks import (
    ALIE,
    Duplicate,
    Flood,
    Gaussian,
    HoldBack,
    LazyFreeRider,
    Neurotoxin,
    PoisonedFL,
    Replay,
    Rescale,
    Scheduled,
    Together,
)
from phalanx.core import InfeasibleError, Local
from phalanx.data import Dataset
from phalanx.flower import MalformedError, Participant, participant_of
from phalanx.flower.client import ClientMemory, ClientWorker, RememberedTurn, _packed, _unpacked
from phalanx.flower.codec import VECTOR, TaskMessage, answer_content, encode, read_answer, read_update, task_content
from phalanx.flower.identity import new_key
from phalanx.runs.federation import Federation
from phalanx.training.local import LocalTask

TASK = TaskMessage("train", "abc", bytes(32), 1, 0, 0, "float32")


def known(value):
    local = Local(torch.full((3,), value), torch.full((3,), -value), torch.tensor([value]))
    return RememberedTurn(local, torch.full((3,), 10 * value))


def attacker(attack, tmp_path):
    plan = dataclasses.replace(SMALL, attack=attack, byzantine=1)
    (client,) = plan.attackers()
    return participant_of(plan, client, KEYS[0], tmp_path)


def test_an_omniscient_attack_is_refused_with_the_reason(tmp_path):
    with pytest.raises(InfeasibleError, match="ALIE needs other clients' updates, and a real client sees only its own"):
        attacker(ALIE(), tmp_path)


@pytest.mark.parametrize(
    "attack", [Flood(), HoldBack(), Replay(), Duplicate(), Together(Rescale(2.0), Flood())], ids=str
)
def test_attacks_by_time_are_refused_with_the_reason(attack, tmp_path):
    with pytest.raises(InfeasibleError, match="changes when a client joins, or when and how often it answers"):
        attacker(attack, tmp_path)


@pytest.mark.parametrize(
    "attack",
    [Neurotoxin(), PoisonedFL(), Scheduled(Rescale(2.0)), Together(Neurotoxin(), Rescale(2.0))],
    ids=str,
)
def test_attacks_that_need_a_simulation_are_refused_with_the_reason(attack, tmp_path):
    with pytest.raises(InfeasibleError, match="which only a simulation offers"):
        attacker(attack, tmp_path)


@pytest.mark.parametrize("attack", [Gaussian(), LazyFreeRider(), Together(Rescale(2.0), Gaussian())], ids=str)
def test_local_attacks_are_not(attack, tmp_path):
    assert attacker(attack, tmp_path).attack == attack


def test_who_has_to_remember_needs_a_place_for_it(tmp_path):
    with pytest.raises(InfeasibleError, match="LazyFreeRider keeps state between tasks"):
        dataclasses.replace(attacker(LazyFreeRider(), tmp_path), memory=None)


PLAIN = Participant(FedAvg(), nn.Linear(5, 2), LocalSGD(), examples(4, 0), KEYS[0])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": nn.Sequential(nn.Linear(5, 2), nn.BatchNorm1d(2))}, r'3 buffers .* Set buffers="average"'),
        (
            {"model": nn.Linear(5, 2).double()},
            r"in torch\.float64, and the examples are torch\.float32\. Convert",
        ),
        ({"model": nn.Sequential(nn.Linear(5, 2), nn.Linear(2, 2).double())}, "one vector of one dtype"),
        ({"model": nn.ReLU()}, r"ReLU has no trainable parameters"),
        ({"key": Path("none.key")}, r"no key file none\.key\. Make one with `phalanx flower key none\.key`"),
    ],
)
def test_what_cannot_work_is_said_before_the_client_connects(changes, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=why):
        dataclasses.replace(PLAIN, **changes)


def test_what_can_work_is_not_refused(tmp_path):
    normalised = nn.Sequential(nn.Linear(5, 2), nn.BatchNorm1d(2))
    assert dataclasses.replace(PLAIN, model=normalised, buffers="average").model is normalised
    integers = Dataset(torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), 2)
    assert dataclasses.replace(PLAIN, data=integers, model=nn.Embedding(3, 2).double()).data is integers
    new_key(tmp_path / "key")
    assert dataclasses.replace(PLAIN, key=tmp_path / "key").key == tmp_path / "key"


def test_a_key_that_others_can_read_is_refused_before_the_client_connects(tmp_path):
    new_key(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(ValueError, match="Others can read"):
        dataclasses.replace(PLAIN, key=tmp_path / "key")


def test_a_client_remembers_the_turn_before(tmp_path):
    memory = ClientMemory(tmp_path)
    assert memory.before(TASK) == RememberedTurn(None, None)
    memory.keep(TASK, known(1.0))
    found = memory.before(TASK._replace(turn=1))
    assert found.local.params.tolist() == [1.0] * 3
    assert found.local.memory.tolist() == [1.0]
    assert found.previous.tolist() == [10.0] * 3
    assert memory.before(TASK._replace(turn=1, session="def")) == RememberedTurn(None, None), "another run"


def test_what_is_remembered_comes_back_on_the_device_of_the_training(tmp_path, monkeypatch):
    """The meta device takes the place of a GPU; a counter of an optimizer that was on the CPU stays there."""
    ClientMemory(tmp_path).keep(TASK, known(1.0)._replace(training={"step": torch.ones(1)}))
    found = ClientMemory(tmp_path, "meta").before(TASK._replace(turn=1))
    assert {part.device.type for part in (*found.local, found.previous)} == {"meta"}
    assert found.training["step"].tolist() == [1.0]
    parts = _packed(torch.ones(3))
    form = json.loads(parts["form"].tobytes())
    form["pieces"] = [[size, False] for size, _ in form["pieces"]]
    there = parts | {"form": np.frombuffer(json.dumps(form).encode(), np.uint8)}
    assert _unpacked({name: torch.tensor(part) for name, part in there.items()}, "meta").device.type == "meta"


def test_a_turn_that_was_lost_leaves_a_gap(tmp_path):
    memory = ClientMemory(tmp_path)
    memory.keep(TASK, known(1.0))
    assert memory.before(TASK._replace(turn=5)).local.params.tolist() == [1.0] * 3


def test_a_server_that_was_killed_can_go_back_two_turns_and_no_further(tmp_path):
    memory = ClientMemory(tmp_path)
    for turn in range(5):
        memory.keep(TASK._replace(turn=turn), known(float(turn)))
    assert memory.before(TASK._replace(turn=3)).local.params.tolist() == [2.0] * 3
    assert len(list(tmp_path.iterdir())) == 1, "what it was told after that is forgotten"
    with pytest.raises(MalformedError, match="got a task of turn 2, but remembers only turns 2 to 2"):
        memory.before(TASK._replace(turn=2))


def test_what_is_remembered_is_no_pickle(tmp_path):
    ClientMemory(tmp_path).keep(TASK, RememberedTurn(None, torch.ones(2)))
    (path,) = tmp_path.iterdir()
    with np.load(path, allow_pickle=False) as file:
        assert file.files == ["previous"]


def test_a_client_trains_as_it_is_told_to(tmp_path):
    federation = Federation(SMALL)
    worker = ClientWorker(participant_of(SMALL, 1, KEYS[1], tmp_path, federation))
    content = worker.train(task_content(TASK, federation.start))
    out, expected = torch.empty_like(federation.start), torch.empty_like(federation.start)
    read_update(content, "float32", out)
    trainer = federation.transport.trainer
    loss = trainer.train(LocalTask(1, 0, 0, federation.start, expected), federation.data[1])
    assert out.equal(expected)
    assert read_answer(content).value == loss
    assert read_answer(worker.introduce(task_content(TASK._replace(kind="enrol")))).value == 10


def test_a_client_does_not_train_what_is_not_its_model(tmp_path):
    worker = ClientWorker(participant_of(SMALL, 1, KEYS[1], tmp_path))
    with pytest.raises(MalformedError, match=r"claims to be float32 \(3,\)"):
        worker.train(task_content(TASK, torch.zeros(3)))
    with pytest.raises(MalformedError, match="records are 'phalanx', expected"):
        worker.train(task_content(TASK))
    with pytest.raises(MalformedError, match="record 'phalanx' holds"):
        worker.train(answer_content(read_answer(worker.introduce(task_content(TASK))), encode(torch.zeros(3))))
    session = task_content(TASK._replace(session="../../etc"), torch.zeros(3))
    with pytest.raises(MalformedError, match="no session of letters and digits"):
        worker.train(session)
    assert VECTOR in session


def test_algorithms_without_memory_need_no_folder():
    assert participant_of(SMALL, 0, KEYS[0]).memory is None
    assert isinstance(SMALL.algorithm, FedAvg)
