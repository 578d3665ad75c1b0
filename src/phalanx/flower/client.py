"""A client's side: it says who it is, trains when it is asked to, and signs what it sends.

Flower starts a new process for each message.  What a client has to remember between two tasks, where its algorithm
needs that, is in files of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from phalanx.algorithms.private import privately, secretly
from phalanx.attacks import Answer as Reply
from phalanx.attacks import Attack, Update
from phalanx.core import Algorithm, InfeasibleError, Local, Vector
from phalanx.data import Dataset
from phalanx.flower import codec
from phalanx.flower.codec import WORDS, Answer, Malformed, TaskMessage
from phalanx.flower.identity import load_key, public_bytes
from phalanx.rng import generator
from phalanx.training.evaluation import evaluate
from phalanx.training.sgd import LocalSGD, Trainer
from phalanx.training.vector import BufferPolicy, FlatModule

KEPT = 3  # turns that a client remembers, so that a server that was killed can go back two: one was sent ahead


@dataclass(frozen=True, eq=False)
class Participant:
    """What a client does, and with what.

    Args:
        algorithm: the same as the server's; its client role is played here.
        model: what is trained; its values are overwritten.
        training: how.
        data: the client's examples, on `device`. They stay here.
        key: its private key, or the file of it.
        memory: a folder for what the client remembers between tasks. Needed where the algorithm says so, or the attack.
        seed: the run's, which orders minibatches.
        buffers: what becomes of buffers of the model; the same as the server's.
        device: where it computes.
        attack: for experiments: what it does instead, if it is Byzantine.
        noise: where `Private` has its noise from: "system", which nobody can compute again; or "stream", as in a
            simulation, which hides nothing from those who know the seed.
    """

    algorithm: Algorithm
    model: nn.Module
    training: LocalSGD
    data: Dataset
    key: Ed25519PrivateKey | Path
    memory: Path | None = None
    seed: int = 0
    buffers: BufferPolicy = "refuse"
    device: str = "cpu"
    attack: Attack | None = None
    noise: Literal["system", "stream"] = "system"

    def __post_init__(self) -> None:
        if self.attack is not None and self.attack.omniscient:
            raise InfeasibleError(
                f"{type(self.attack).__name__} needs to see what others send, and a real client sees only its own. "
                "Choose an attack that is not omniscient, or a simulation."
            )
        if self.attack is not None and _by_time(self.attack):
            raise InfeasibleError(
                f"{type(self.attack).__name__} acts by when it answers, or how often, and a task has one answer here. "
                "Choose another attack, or a simulation."
            )
        if self.memory is None and (self.algorithm.remembers or self.attack is not None):
            who = self.attack if self.attack is not None else self.algorithm
            raise InfeasibleError(
                f"{type(who).__name__} remembers something from task to task. Give its clients a folder: memory=..."
            )


def _by_time(attack: Attack) -> bool:
    """Whether an attack does anything but answer each task once, as soon as it can."""
    plain = Reply(0, torch.zeros(1))
    sent = () if attack.recalls or attack.holds_back else attack.answers(plain, ())
    return not (len(sent) == 1 and sent[0] is plain) or attack.delay(1.0, generator(0, "delay")) != 1.0


class Known(NamedTuple):
    """What a client remembers of a turn."""

    local: Local | None
    previous: Vector | None  # what it was sent


@dataclass(frozen=True)
class Memory:
    """What a client remembers of its last turns, in files without pickles.

    Args:
        folder: where they are; None: nothing is kept.
    """

    folder: Path | None

    def before(self, task: TaskMessage) -> Known:
        """What was known before a task: that of the last turn before its own.  Later turns are forgotten.

        Raises:
            Malformed: the server went back farther than this client can.
        """
        found = self._turns(task)
        earlier = {turn: path for turn, path in found.items() if turn < task.turn}
        if found and not earlier and task.turn > 0:
            raise Malformed(f"is asked for turn {task.turn}, and remembers turns {min(found)} to {max(found)} only")
        for turn in found.keys() - earlier.keys():
            found[turn].unlink()
        return _load(earlier[max(earlier)]) if earlier else Known(None, None)

    def keep(self, task: TaskMessage, known: Known) -> None:
        """Remembers a turn, whole or not at all, and forgets those long ago."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{task.session}-{task.turn}.npz"
        local = known.local
        parts = {"params": local and local.params, "delta": local and local.delta, "memory": local and local.memory}
        parts["previous"] = known.previous
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            held = {name: part.cpu().numpy() for name, part in parts.items() if part is not None}
            np.savez(file, allow_pickle=False, **held)
        partial.replace(path)
        for old in sorted(self._turns(task).items())[:-KEPT]:
            old[1].unlink()

    def _turns(self, task: TaskMessage) -> dict[int, Path]:
        files = self.folder.glob(f"{task.session}-*.npz") if self.folder else ()
        return {int(path.stem.removeprefix(f"{task.session}-")): path for path in files}


def _load(path: Path) -> Known:
    with np.load(path, allow_pickle=False) as file:
        parts = {name: torch.from_numpy(file[name]) for name in file.files}
    local = Local(parts["params"], parts["delta"], parts.get("memory")) if "params" in parts else None
    return Known(local, parts.get("previous"))


class ClientWorker:
    """A participant at work.

    Args:
        participant: who.
    """

    def __init__(self, participant: Participant) -> None:
        self.participant = participant
        self.algorithm = secretly(participant.algorithm) if participant.noise == "system" else participant.algorithm
        key = participant.key
        self.key = key if isinstance(key, Ed25519PrivateKey) else load_key(key)
        self.trainer = Trainer(
            FlatModule(participant.model, participant.buffers, participant.device),
            participant.training,
            participant.seed,
        )
        self.memory = Memory(participant.memory)
        self._poisoned: Dataset | None = None

    def introduce(self, content: RecordDict) -> RecordDict:
        """Who it is, and how many examples it has; it can lie about the latter."""
        size, attack = len(self.participant.data), self.participant.attack
        return self._signed(codec.read_task(content), attack.reported_size(size) if attack else size)

    def train(self, content: RecordDict) -> RecordDict:
        """Trains as it is told to.

        Raises:
            Malformed: that is not a task for this model.
        """
        who, model = self.participant, self.trainer.model
        download = torch.empty(model.size)
        task = codec.read_task(content, download)
        download = download.to(model.device)
        known = self.memory.before(task)
        start = self.algorithm.integrate(known.local, download)
        row = torch.empty(model.size, dtype=model.dtype, device=model.device)
        data = self._data(task.client)
        loss = self.trainer.train(start, data, client=task.client, turn=task.turn, version=task.version, out=row)
        if who.algorithm.exact_losses and len(data):
            loss = evaluate(model, start, data).loss
        if who.noise == "system" and privately(self.algorithm):
            loss = 0.0  # it would tell of the examples what the noise is to hide
        delta, memory = self.algorithm.upload(row, known.local.memory if known.local else None)
        if who.algorithm.remembers or who.attack is not None:
            self.memory.keep(task, Known(Local(start, delta, memory), download))
        if who.attack is not None:
            update = Update(task.client, task.version, download, delta, known.previous)
            delta = who.attack.forge(update, None, generator(who.seed, "attack", task.client, task.turn))
        return self._signed(task, loss, codec.encode(delta, task.transfer))

    def _data(self, client: int) -> Dataset:
        """What it trains on: its data, poisoned once if it attacks."""
        who = self.participant
        if self._poisoned is None:
            rng = generator(who.seed, "poison", client)
            self._poisoned = who.attack.poison(who.data, rng) if who.attack else who.data
        return self._poisoned

    def _signed(self, task: TaskMessage, value: object, update: ArrayRecord | None = None) -> RecordDict:
        answer = Answer(task.nonce, public_bytes(self.key), task.version, value, b"")
        content = codec.answer_content(answer, update)
        words = content.config_records[WORDS]
        words["signature"] = self.key.sign(codec.stated(task, content))
        return content


def client_app(participant: Participant | Callable[[Context], Participant]) -> ClientApp:
    """Flower's app of a client.

    Args:
        participant: who; or what makes it from the context, which holds the configuration of node and run. It is made
            once in each process and for each node.
    """
    app, workers = ClientApp(), dict[int, ClientWorker]()

    def worker(context: Context) -> ClientWorker:
        if context.node_id not in workers:
            made = participant if isinstance(participant, Participant) else participant(context)
            workers[context.node_id] = ClientWorker(made)
        return workers[context.node_id]

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        return Message(worker(context).introduce(message.content), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(worker(context).train(message.content), reply_to=message)

    return app
