"""The client's side: it enrols, trains on the tasks it receives, and signs its answers.

Flower starts a new process for each message.  State between two tasks, of the algorithm or of the local training (a
personal model, an optimizer), is kept in files that only the client's user can read, and is never sent.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from phalanx.algorithms.hidden import hiding
from phalanx.algorithms.private import privately, secretly
from phalanx.attacks import Attack, Training, Update
from phalanx.attacks.attack import each, remembers, varies
from phalanx.attacks.data import poison
from phalanx.attacks.size import reported_size
from phalanx.attacks.timing import changes_timing
from phalanx.core import Algorithm, ClientReport, InfeasibleError, Local, Served, Vector, local_state
from phalanx.data import Dataset, Schema
from phalanx.data.images import ImageSource
from phalanx.data.table_files import TableFile
from phalanx.data.table_schema import UnfitTableError
from phalanx.data.table_statistics import statistics_of
from phalanx.flower import codec
from phalanx.flower.codec import COSIGNATURE, WORDS, AnswerMessage, MalformedError, TaskMessage, brief
from phalanx.flower.contract import ClientExamples, UnderContract, check_outputs, examples_of
from phalanx.flower.durable_files import private_file
from phalanx.flower.gate import OtherCoordinatorError, check_gpu, gated
from phalanx.flower.identity import from_text, load_key, public_bytes
from phalanx.flower.seen import SeenTasks, file_of
from phalanx.flower.signed_schema import UnsignedSchemaError, signature_file, signed_schema
from phalanx.models import Model
from phalanx.rng import generator
from phalanx.runs.files import settle
from phalanx.runs.packing import pack, unpack
from phalanx.runs.transparency import TreeHead, cosign
from phalanx.training.evaluation import evaluate, least_loss
from phalanx.training.evaluation import report as report_of
from phalanx.training.local import LocalTask, LocalTraining, check_correctable, correction_of
from phalanx.training.task import Classification, Task
from phalanx.training.vector import BufferPolicy, FlatModule, sent_tensors

ANY = "any"  # coordinator that is answered, for experiments: everybody
KEPT = 3  # turns that a client remembers: a server that crashed may go back by two, one of them a task sent ahead


@dataclass(frozen=True, eq=False)
class Participant(UnderContract):
    """The configuration of a client.

    Args:
        algorithm: the same as the server's; the client runs its client part.
        model: the model to train; its values are overwritten. Or the description of one, such as `MLP((32,))`, for the
            inputs and classes of `schema`.
        training: local training settings.
        data: the client's examples, on `device`; they never leave the client. Or a table or images that become examples
            by `schema`: a path, all rows or images of which are trained on; or a `CSV`, `Parquet`, `ImageFolder` or
            `ImageTable`, whose test part is `held_out`. A table can be written in another way than the schema says.
        key: its private key, or the path of the key file.
        memory: a folder for the client's state between tasks; needed by some algorithms and trainings (`FedPer`,
            `Ditto`, an optimizer that remembers), and by every attack. The list of the tasks that it has taken is
            there as well; without a folder it lies next to the key.
        seed: the seed of the run, which determines the order of minibatches.
        buffers: treatment of the model's buffers; the same as the server's.
        device: PyTorch device for training.
        attack: the attack of a Byzantine client, for experiments.
        coordinator: the public key of the coordinator that the client answers, as `phalanx flower coordinator` has
            shown it; if empty, that in the configuration of its node (`--node-config 'coordinator="ed25519:..."'`).
            Who has not signed with that key is not answered. "any", for experiments: it answers everybody.
        noise: source of the noise of `Private` and `PrivateSGD`: "system", which nobody can reproduce, or "stream" as
            in a simulation, which protects nothing from those who know the seed.
        task: the task that is trained.
        held_out: examples of the client that it does not train on, on `device`. It measures each model that it is sent
            on them, and reports loss, accuracy and their number, signed with its update. None: it reports nothing.
        schema: of the tables of all clients, or its file; the same as the coordinator's, which compares digests.
        statistics: whether the client sends the coordinator the statistics of its table, as `phalanx schema statistics`
            writes them, when it enrols.
        signed: whether the schema must be signed by the key of `coordinator` (`phalanx schema sign`); None: a file
            must, where that key is known. A signature next to its file is checked in any case.

    Raises:
        UnfitTableError: the table does not fit the schema. The coordinator learns the kind, the column and about how
            many rows; the client's own log has the rest.
    """

    algorithm: Algorithm
    model: nn.Module | Model
    training: LocalTraining
    data: Dataset | TableFile | ImageSource | Path | str
    key: Ed25519PrivateKey | Path
    memory: Path | None = None
    seed: int = 0
    buffers: BufferPolicy = "refuse"
    device: str = "cpu"
    attack: Attack | None = None
    noise: Literal["system", "stream"] = "system"
    coordinator: str = ""
    task: Task = Classification()
    held_out: Dataset | None = None
    schema: Schema | Path | str | None = None
    statistics: bool = False
    signed: bool | None = None

    def __post_init__(self) -> None:
        if self.signed and not isinstance(self.schema, Path | str):
            raise InfeasibleError("A signed schema is a file, next to its signature. Give schema=Path(...).")
        tabular = self.contract is not None and self.contract.images is None and not isinstance(self.data, Dataset)
        if self.statistics and (not tabular or self.hides):
            raise InfeasibleError(
                "statistics are those of a table by a schema, and noise does not hide them. Give data=Path(...) and "
                "schema, or leave statistics out."
            )
        if self.examples.held_out is not None and self.hides:
            raise InfeasibleError(
                "A reported accuracy reveals what the noise of Private or PrivateSGD hides. Leave held_out out, or the "
                "noise; of a table, give the path in place of a CSV, which has a test part."
            )
        if self.attack is not None and self.attack.traits.omniscient:
            raise InfeasibleError(
                f"{type(self.attack).__name__} needs other clients' updates, and a real client sees only its own. "
                "Choose an attack that is not omniscient, or run a simulation."
            )
        if changes_timing(self.attack):
            raise InfeasibleError(
                f"{type(self.attack).__name__} changes when a client joins, or when and how often it answers, and a "
                "real one answers each task once. Choose another attack, or run a simulation."
            )
        if each(self.attack, Training) or remembers(self.attack) or varies(self.attack):
            raise InfeasibleError(
                f"{type(self.attack).__name__} changes local training, changes from round to round or has a memory, "
                "which only a simulation offers. Choose another attack, or run a simulation."
            )
        self.training.check(self.algorithm)
        if self.memory is None and (stateful := self._stateful()) is not None:
            raise InfeasibleError(
                f"{type(stateful).__name__} keeps state between tasks. Give its clients a folder: memory=..."
            )
        if isinstance(self.key, Path):
            load_key(self.key)
        self._check_dtype(sent_tensors(self.module, self.buffers)[0].dtype)
        check_outputs(self.module, self.contract, self.buffers)

    @cached_property
    def examples(self) -> ClientExamples:
        """The examples, of a table as they were when this was made."""
        found = examples_of(self.data, self.contract)
        return found if self.held_out is None else found._replace(held_out=self.held_out)

    def table_statistics(self) -> bytes:
        """Return the statistics of the table, as JSON; empty if the client sends none.

        Raises:
            InfeasibleError: it has too few rows.
        """
        if not self.statistics or self.contract is None or isinstance(self.data, Dataset | ImageSource):
            return b""
        file = self.data if isinstance(self.data, TableFile) else None
        path = str(self.data) if file is None else file.path
        try:
            return statistics_of(self.contract, path, file and self.contract.as_site(file)).json
        except UnfitTableError:
            raise
        except ValueError as error:
            raise InfeasibleError(str(error)) from error

    def _stateful(self) -> object:
        """Return what keeps state between two tasks; None if nothing does."""
        if self.attack is not None:
            return self.attack
        return self.algorithm if self.algorithm.traits.remembers else self.training if self.training.remembers else None

    @property
    def hides(self) -> bool:
        """Whether nothing but noisy updates may leave the client."""
        return self.noise == "system" and (privately(self.algorithm) or self.training.base.hides)

    def _check_dtype(self, dtype: torch.dtype) -> None:
        """Raise `ValueError` if the model cannot take the type of the examples; float64 is converted for it."""
        for x in self.examples.train.inputs.values():
            if x.is_floating_point() and x.dtype not in (dtype, torch.float64):
                raise ValueError(
                    f"The model computes in {dtype}, and the examples are {x.dtype}. Convert one of them, e.g. by "
                    "model.float() and x.float()."
                )


class RememberedTurn(NamedTuple):
    """The state of a client after a turn."""

    local: Local | None
    previous: Vector | None  # the download of that turn
    training: object = None  # what the training remembers, such as a personal model


@dataclass(frozen=True)
class ClientMemory:
    """The state of a client after each of its last turns, in NumPy files without pickles.

    Args:
        folder: the folder of the files; None: nothing is kept.
        device: where the client trains, which takes the tensors of the algorithm and those that training kept there.
    """

    folder: Path | None
    device: torch.device | str = "cpu"

    def before(self, task: TaskMessage) -> RememberedTurn:
        """Return the state before a task, which is that after the last earlier turn, and delete later turns.

        Raises:
            MalformedError: the server went back further than this client remembers.
        """
        found = self._turns(task)
        earlier = {turn: path for turn, path in found.items() if turn < task.turn}
        if found and not earlier and task.turn > 0:
            raise MalformedError(
                f"got a task of turn {task.turn}, but remembers only turns {min(found)} to {max(found)}"
            )
        for turn in found.keys() - earlier.keys():
            found[turn].unlink()
        return _load(earlier[max(earlier)], self.device) if earlier else RememberedTurn(None, None)

    def keep(self, task: TaskMessage, known: RememberedTurn) -> None:
        """Save the state after a turn atomically, and delete those of old turns."""
        if self.folder is None:
            return
        path = self.folder / f"{task.session}-{task.turn}.npz"
        local = known.local
        parts = {"params": local and local.params, "delta": local and local.delta, "memory": local and local.memory}
        parts["previous"] = known.previous
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)  # of a process that was killed
        with private_file(partial) as file:  # an update says something about the data, before any noise above all
            held = {name: part.cpu().numpy() for name, part in parts.items() if part is not None}
            np.savez(file, allow_pickle=False, **held, **_packed(known.training))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        settle(self.folder)
        for old in sorted(self._turns(task).items())[:-KEPT]:
            old[1].unlink()

    def last(self) -> RememberedTurn:
        """Return the state after the last turn of the latest run."""
        found = sorted(self.folder.glob("*.npz"), key=lambda path: path.stat().st_mtime_ns) if self.folder else []
        return _load(found[-1], self.device) if found else RememberedTurn(None, None)

    def _turns(self, task: TaskMessage) -> dict[int, Path]:
        files = self.folder.glob(f"{task.session}-*.npz") if self.folder else ()
        return {int(path.stem.removeprefix(f"{task.session}-")): path for path in files}


def _load(path: Path, device: torch.device | str) -> RememberedTurn:
    with np.load(path, allow_pickle=False) as file:
        parts = {name: torch.from_numpy(file[name]) for name in file.files}
    kept = {name: parts[name].to(device) for name in ("params", "delta", "memory", "previous") if name in parts}
    local = Local(kept["params"], kept["delta"], kept.get("memory")) if "params" in kept else None
    return RememberedTurn(local, kept.get("previous"), _unpacked(parts, device))


FORM, PIECE = "form", "piece"  # names of a packed value in the file


def _packed(value: object) -> dict[str, npt.NDArray[np.uint8]]:
    """Return a value as arrays; see `phalanx.runs.packing`."""
    if value is None:
        return {}
    packed = pack(value)
    pieces = {f"{PIECE}{k}": _joined(*piece.read()) for k, piece in enumerate(packed.pieces)}
    return {FORM: np.frombuffer(json.dumps(packed.form).encode(), np.uint8), **pieces}


def _joined(before: bytes, held: torch.Tensor, after: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(before + held.numpy().tobytes() + after, np.uint8)


def _unpacked(parts: Mapping[str, torch.Tensor], device: torch.device | str) -> object:
    if FORM not in parts:
        return None
    form = json.loads(parts[FORM].numpy().tobytes())
    pieces = [parts[f"{PIECE}{k}"].clone() for k in range(len(form["pieces"]))]  # at a border of 64 bytes
    return unpack(form, pieces, device)


class ClientWorker:
    """Answers the messages of the server for a participant.

    Args:
        participant: the client's configuration.
        coordinator: the public key of the coordinator that it answers, if the participant names none.

    Raises:
        ValueError: that is no public key.
    """

    def __init__(self, participant: Participant, coordinator: str = "") -> None:
        self.participant, self.coordinator = participant, participant.coordinator or coordinator
        if self.coordinator not in ("", ANY):
            from_text(self.coordinator)
        self._check_schema()
        self.algorithm = secretly(participant.algorithm) if participant.noise == "system" else participant.algorithm
        key = participant.key
        self.key = key if isinstance(key, Ed25519PrivateKey) else load_key(key)
        model = FlatModule(participant.module, participant.buffers, participant.device, participant.training.personal)
        training = participant.training.secretly() if participant.noise == "system" else participant.training
        self.task = participant.task.fitted(participant.examples.train)
        self.trainer = training.trainer(model, self.task, participant.seed)
        few = participant.examples.train.for_model(model.dtype)
        self.trainer.try_out(few.of(torch.arange(min(3, len(few)), device=few.y.device)))
        check_correctable(self.algorithm, self.trainer)
        self.memory = ClientMemory(participant.memory, model.device)
        self._head: TreeHead | None = None  # that came with the last task
        self.seen = SeenTasks(file_of(participant.memory, key))
        self._poisoned: Dataset | None = None

    def _check_schema(self) -> None:
        """Raise `InfeasibleError` if the coordinator has not signed the schema, and it should have."""
        participant, known = self.participant, self.coordinator not in ("", ANY)
        given, pooled = participant.schema, participant.contract is not None and participant.contract.pooled
        if pooled and not (known and isinstance(given, Path | str)):
            raise InfeasibleError(
                f"The scaling of {pooled[0]!r} is pooled: one site that lied moved it as far as it liked. A client "
                "takes that from a file that the coordinator has signed. Give schema=Path(...) and coordinator."
            )
        if participant.signed and not known:
            raise InfeasibleError("Nobody knows who signs the schema. Give the coordinator's key, or leave out signed.")
        if not (known and isinstance(given, Path | str)):
            return
        signature = signature_file(Path(given))
        if participant.signed is None and not pooled and not signature.exists():
            raise UnsignedSchemaError(
                f"{given} is not signed: there is no {signature.name} next to it. Ask the coordinator for that, which "
                "`phalanx schema sign` writes; or, to take a schema that nobody has signed, set signed=False."
            )
        if participant.signed is not False or pooled or signature.exists():
            found = signed_schema(Path(given), self.coordinator)
            if participant.contract is None or found.digest != participant.contract.digest:
                raise InfeasibleError(f"{given} has changed since it was read. Start the client again.")

    def introduce(self, content: RecordDict) -> RecordDict:
        """Return the signed answer to enrolment: the reported number of examples, which an attacker may falsify."""
        size = reported_size(self.participant.attack, len(self.participant.examples.train))
        return self._signed(self._meant(codec.read_task(content), content), size)

    def train(self, content: RecordDict) -> RecordDict:
        """Train on a task and return the signed answer.

        Raises:
            MalformedError: the content is not a task for this model.
        """
        participant, model = self.participant, self.trainer.model
        download = torch.empty(self.algorithm.traits.vectors * model.size)
        task = self._meant(codec.read_task(content, download), content)
        download = download.to(model.device)
        known = self.memory.before(task)
        self.trainer.restore({} if known.training is None else {task.client: known.training})
        start = self.algorithm.integrate(known.local, download)
        row = torch.empty(model.size, dtype=model.dtype, device=model.device)
        data = self._data(task.client)
        version = task.version
        correction = correction_of(self.algorithm, self.trainer, known.local, download, held=len(data), version=version)
        report = self._report(self.trainer.served(task.client, start))
        loss = self.trainer.train(LocalTask(task.client, task.turn, version, start, row, correction), data)
        if participant.algorithm.traits.exact_losses and len(data):
            loss = evaluate(model, start, data, self.task).loss
        if participant.hides:
            loss = 0.0  # a true loss would reveal what the noise hides
        delta, memory = self.algorithm.upload(row, known.local.memory if known.local else None)
        trained = self.trainer.snapshot().get(task.client)
        if participant.algorithm.traits.remembers or participant.attack is not None:
            local = local_state(participant.algorithm, start, delta, memory)
            self.memory.keep(task, RememberedTurn(local, download[: model.size], trained))
        elif trained is not None:
            self.memory.keep(task, RememberedTurn(None, None, trained))
        if participant.attack is not None:
            update = Update(task.client, task.version, download[: model.size], delta, known.previous)
            rng = generator(participant.seed, "attack", task.client, task.turn)
            delta = participant.attack.forge(update, None, rng)
        return self._signed(task, loss, codec.encode(delta, task.transfer), report)

    def personalize(self, files: Mapping[int, Path]) -> int:
        """See `personalize`."""
        participant, model = self.participant, self.trainer.model
        how, memory = hiding(self.algorithm), self.memory.last().training
        self.trainer.restore({} if memory is None else {0: memory})
        models = dict[int, Served]()
        for number, file in files.items():
            model.module.load_state_dict(safetensors.torch.load_file(file))
            shared = model.read()
            models[number] = self.trainer.served(0, shared if how is None else how.revealed(shared))
        train, held_out = participant.examples
        judges = train if held_out is None else held_out
        number = least_loss(model, models, judges.for_model(model.dtype), self.task)
        model.load(models[number])
        return number

    def _report(self, model: Served) -> ClientReport | None:
        """Return the client's measurement of a model; None if it has no examples for it."""
        data = self.participant.examples.held_out
        if data is None or not len(data):
            return None
        flat = self.trainer.model
        return report_of(flat, model, data.for_model(flat.dtype), self.task)

    def _meant(self, task: TaskMessage, content: RecordDict) -> TaskMessage:
        """Return a task that this client's coordinator has signed for it, and that it sees for the first time.

        Raises:
            OtherCoordinatorError: it has not, or the client was given no coordinator's key.
            MalformedError: the client had this task before.
        """
        if self.coordinator == ANY:
            return task
        if not self.coordinator:
            raise OtherCoordinatorError(
                "this client was not given the key of its coordinator, and answers nobody. Give it the key that the "
                "coordinator gives you: Participant(coordinator=...), or coordinator=... in its node's configuration"
            )
        if task.coordinator != self.coordinator:
            raise OtherCoordinatorError(
                f"the task is from {_named(task.coordinator)}, and this client answers {_named(self.coordinator)}. If "
                "it should, give it that key: Participant(coordinator=...), or coordinator=... in its node's "
                "configuration"
            )
        codec.check_task(content, from_text(self.coordinator), public_bytes(self.key))
        self._head = self.seen.add(task, codec.read_head(content))
        return task

    def _data(self, client: int) -> Dataset:
        """Return the training data, poisoned once if the client attacks."""
        participant = self.participant
        if self._poisoned is None:
            data = participant.examples.train.for_model(self.trainer.model.dtype)
            self._poisoned = poison(participant.attack, data, generator(participant.seed, "poison", client))
        return self._poisoned

    def _signed(
        self, task: TaskMessage, value: object, update: ArrayRecord | None = None, report: ClientReport | None = None
    ) -> RecordDict:
        answer = AnswerMessage(task.nonce, public_bytes(self.key), task.version, value, b"")
        schema = self.participant.contract
        statistics = self.participant.table_statistics() if task.kind == "enrol" else b""
        content = codec.answer_content(answer, update, report, "" if schema is None else schema.digest, statistics)
        if self.coordinator != ANY and (self._head is not None or task.kind == "enrol"):
            line = "" if self._head is None else cosign(self._head, self.key, int(time.time()))
            content[COSIGNATURE] = ConfigRecord({"line": line, "size": self.seen.size(task.session)})
        words = content.config_records[WORDS]
        words["signature"] = self.key.sign(codec.signing_input(task, content))
        return content


def _named(coordinator: str) -> str:
    return f"the coordinator {brief(repr(coordinator))}" if coordinator else "a coordinator without a key"


def personalize(participant: Participant, files: Mapping[int, Path]) -> int:
    """Load the model that a client uses after a run into its module, with what stayed at the client.

    Args:
        participant: the client; its `module` gets the values. Its `memory` is that of the run.
        files: of `offered`. Of several models it takes that with the least loss on `held_out`, or on `data` without it.

    Returns:
        The number of the model.
    """
    return ClientWorker(participant).personalize(files)


def client_app(participant: Participant | Callable[[Context], Participant]) -> ClientApp:
    """Return Flower's ClientApp of a client.

    If it fails, the coordinator learns a reason of `phalanx.flower.gate.REASONS`, and the client's own log the rest.

    Args:
        participant: the client's configuration, or a function that makes it from the context, which holds the
            configurations of node and run. It is called once in each process and for each node.
    """
    app, workers = ClientApp(), dict[int, ClientWorker]()

    def worker(context: Context) -> ClientWorker:
        if context.node_id not in workers:
            made = participant if isinstance(participant, Participant) else participant(context)
            check_gpu(made.device)
            workers[context.node_id] = ClientWorker(made, str(context.node_config.get("coordinator", "")))
        check_gpu(workers[context.node_id].participant.device)  # which can be gone since then
        return workers[context.node_id]

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        return Message(gated(lambda: worker(context).introduce(message.content)), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(gated(lambda: worker(context).train(message.content)), reply_to=message)

    return app
