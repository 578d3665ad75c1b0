"""What is fuzzed: a function of bytes for each reader of what comes from outside.

A target either ends, with a value that is the same when it is written and read again, or raises `RefusedError`
since the reader raised its documented error.  Any other exception is a mistake.
"""

import atexit
import dataclasses
import functools
import gzip
import json
import marshal
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Wired
from google.protobuf.message import DecodeError

from phalanx.cli.study_file import read_study
from phalanx.cli.weights_files import read_sizes, write_weights
from phalanx.core import Verdict
from phalanx.data import MR, SST, AGNews, Shakespeare, WikiText2
from phalanx.data.published_files import _idx, _records
from phalanx.experiments.existing import compared
from phalanx.experiments.shown.study_tables import costs, write_csv
from phalanx.experiments.trace import Excluded, InvalidClient, Trace
from phalanx.flower import InProcessGrid, Member, Roster, codec
from phalanx.flower.audit import Entry
from phalanx.flower.audit import read as read_audit
from phalanx.flower.codec import AnswerMessage, MalformedError, TaskMessage, Transfer
from phalanx.flower.identity import as_text
from phalanx.flower.wire import LONGEST, failure, short
from phalanx.runs.canonical import identity_of
from phalanx.runs.checkpoint import MAGIC, Header, Origin, _read, peek, write
from phalanx.runs.models import Models, architecture_of
from phalanx.runs.packing import Piece, UnpackableError, pack, unpack
from phalanx.runs.provenance import provenance
from phalanx.runs.record import as_lines
from phalanx.runs.schema import StepRecord, to_json
from phalanx.runs.steps import read_step
from phalanx.simulation.traces import number, read_trace, whole
from phalanx.training.evaluation import Metrics

SHM = Path("/dev/shm")
D = 5  # entries of a vector
TRANSFERS: tuple[Transfer, ...] = ("float32", "bfloat16", "int8")


class RefusedError(Exception):
    """The reader refused the input with its documented error."""


class Target(NamedTuple):
    """A reader to fuzz.

    Args:
        check: reads the bytes; raises `RefusedError`, or an exception that is a mistake.
        seeds: makes valid inputs.
        executions: of the long form.
    """

    check: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    executions: int


@contextmanager
def refusing(*kinds: type[Exception]) -> Iterator[None]:
    """Turn the documented errors of a reader into `RefusedError`."""
    try:
        yield
    except kinds as error:
        spoken(error)
        raise RefusedError from error


def spoken(error: Exception, begin: str = "") -> None:
    """Check that an error has a message, which is not as long as a hostile file."""
    assert str(error).startswith(begin)
    assert 0 < len(str(error)) < 6000


FOLDER = Path(tempfile.mkdtemp(prefix="phalanx-fuzz-", dir=SHM if SHM.is_dir() else None))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def file(name: str, content: bytes) -> Path:
    path = FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def like(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether tensors are equal, NaN where the other is NaN included."""
    return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())  # noqa: PLR0124


# --- messages over Flower


InProcessGrid({})  # Flower makes messages only in a task
ASKED = Message(RecordDict(), dst_node_id=1, message_type="train")


def wired(content: RecordDict) -> bytes:
    return recorddict_to_proto(content).SerializeToString()


def messages() -> list[bytes]:
    """The messages of a run as Flower transfers them."""
    vector = torch.linspace(-1, 1, D)
    task = TaskMessage("train", "abc123", bytes(32), 3, 7, 2, "float32", "somebody")
    made = [wired(codec.task_content(task, vector)), wired(codec.task_content(task._replace(kind="enrol", client=-1)))]
    headed = codec.task_content(task, vector)
    codec.add_head(headed, codec.ShownHead("phalanx/abc\n3\n", {2: [bytes(32)] * 2, 0: []}))
    made.append(wired(headed))
    for transfer in TRANSFERS:
        answer = AnswerMessage(bytes(32), bytes(32), 7, 0.5, bytes(64))
        made.append(wired(codec.answer_content(answer, codec.encode(vector, transfer))))
    made.append(wired(codec.answer_content(AnswerMessage(bytes(32), bytes(32), 0, 120, bytes(64)))))
    made.append(
        wired(RecordDict({"phalanx": MetricRecord({"a": [1, 2], "b": 0.5}), "vector": ConfigRecord({"s": "x"})}))
    )
    return [bytes([k % 8]) + text for k, text in enumerate(made)]


def check_wire(data: bytes) -> None:
    """Parse the bytes as Flower does, and read what it makes of them as a task and as an answer."""
    try:
        proto = Wired()
        proto.ParseFromString(data[1:])
        content = recorddict_from_proto(proto)
    except (DecodeError, ValueError, TypeError, KeyError, AttributeError):
        return  # Flower does not deliver it
    read_message(content, data[:1])


def read_message(content: RecordDict, choice: bytes) -> None:
    transfer = TRANSFERS[(choice or b"\0")[0] % 3]
    out, again = torch.full((D,), 7.0), torch.full((D,), 7.0)
    assert len(codec.fingerprint(content)) == 32
    refused = 0
    try:
        task = codec.read_task(content, out)
        assert codec.read_task(codec.task_content(task, out), again) == task
        assert like(out, again)
        codec.signing_input(task, content)
    except MalformedError as error:
        spoken(error)
        refused += 1
    try:
        answer = codec.read_answer(content)
        codec.read_update(content, transfer, out)
        sent = codec.answer_content(answer, content[codec.VECTOR])
        codec.read_update(sent, transfer, again)
        assert like(out, again)
        assert codec.fingerprint(sent) == codec.fingerprint(content)
    except MalformedError as error:
        spoken(error)
        refused += 1
    for read in (codec.read_head, codec.read_cosignature):
        try:
            read(content)
        except MalformedError as error:
            spoken(error)
    if refused == 2:
        raise RefusedError


def check_codec(data: bytes) -> None:
    """Change an honest message in the ways that the bytes say, below the layer that protobuf would refuse."""
    reader = Reader(data)
    vector = torch.tensor([reader.real() for _ in range(D)], dtype=torch.float32)
    transfer = reader.one_of(TRANSFERS)
    if reader.byte() % 2:
        answer = AnswerMessage(reader.take(32), reader.take(32), reader.signed(), reader.value(), reader.take(64))
        content = codec.answer_content(answer, codec.encode(vector, transfer))
    else:
        words = ("train", "abc", bytes(32), reader.signed(), reader.signed(), reader.signed(), transfer, "x")
        content = codec.task_content(TaskMessage(*words), vector)
    for _ in range(reader.byte() % 4):
        changed(content, reader)
    if reader.byte() % 4 == 0:
        failed(Error(reader.signed() % 1000, reader.take(300).decode("utf-8", "replace")))
    read_message(content, bytes([TRANSFERS.index(transfer)]))


def failed(error: Error) -> None:
    """Read the error of a node."""
    shown = short(error.reason)
    assert len(shown) <= LONGEST
    assert shown.isprintable()
    assert failure(Message(error, reply_to=ASKED))


def changed(content: RecordDict, reader: "Reader") -> None:
    """Change a message in one place."""
    words, arrays = content.get(codec.WORDS), content.get(codec.VECTOR)
    kind = reader.byte() % 7
    if kind == 0 and isinstance(words, ConfigRecord) and words:
        words[reader.one_of(sorted(words))] = reader.value()
    elif kind == 1 and isinstance(words, ConfigRecord) and words:
        del words[reader.one_of(sorted(words))]
    elif kind == 2 and words is not None:
        words[reader.text()] = 1
    elif kind == 3 and isinstance(arrays, ArrayRecord) and arrays:
        name = reader.one_of(sorted(arrays))
        old = arrays[name]
        shape = tuple(reader.signed() for _ in range(reader.byte() % 4)) if reader.byte() % 2 else tuple(old.shape)
        dtype = reader.text() if reader.byte() % 4 == 0 else old.dtype
        arrays[name] = Array(dtype, shape, old.stype if reader.byte() % 4 else reader.text(), spliced(old.data, reader))
    elif kind == 4 and isinstance(arrays, ArrayRecord) and arrays:
        arrays[reader.text()] = arrays[reader.one_of(sorted(arrays))]
    elif kind == 5:
        content[reader.text()] = reader.one_of((ConfigRecord(), MetricRecord({"a": 1}), ArrayRecord()))
    elif kind == 6 and content:
        del content[reader.one_of(sorted(content))]


def spliced(data: bytes, reader: "Reader") -> bytes:
    """Some bytes of an array, replaced by others."""
    start = reader.byte() % (len(data) + 1)
    return data[:start] + reader.take(reader.byte() % 40) + data[start + reader.byte() % 40 :]


class Reader:
    """Values that are read off bytes; zeros follow the last byte."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        part = self.data[self.at : self.at + count]
        self.at += count
        return part + bytes(count - len(part))

    def byte(self) -> int:
        return self.take(1)[0]

    def signed(self) -> int:
        return int.from_bytes(self.take(8), "little", signed=True) if self.byte() % 2 else self.byte() - 10

    def real(self) -> float:
        return float(torch.frombuffer(bytearray(self.take(4)), dtype=torch.float32))

    def text(self) -> str:
        return self.take(self.byte() % 24).decode("utf-8", "replace")

    def one_of(self, values):
        return values[self.byte() % len(values)]

    def value(self):
        kinds = (self.signed, self.real, self.text, lambda: self.take(self.byte()), lambda: bool(self.byte() % 2),
                 lambda: [self.signed() for _ in range(self.byte() % 3)], lambda: [self.text()])  # fmt: skip
        return self.one_of(kinds)()


# --- checkpoints


def values() -> list[object]:
    """Values of every kind that a checkpoint keeps."""
    memory = torch.arange(12, dtype=torch.float32)
    return [
        {"a": [1, 2.5, None, True, "text"], 3: (1, {2}, frozenset({"x"}))},
        (memory[2:5], memory.view(3, 4).T, torch.tensor(3, dtype=torch.int64), torch.zeros(0)),
        {0: Verdict(True, 0.5), 1: Verdict(False, 0.0, reason="too far", score=3.5)},
        [torch.tensor([True, False]), torch.ones(2, 2, dtype=torch.bfloat16), torch.float32.itemsize],
        (memory.numpy()[1], memory.double().numpy()[2], memory.int().numpy()[3]),
    ]


def packings() -> list[tuple[dict[str, Any], list[torch.Tensor]]]:
    """Return the values, packed: forms as JSON, and memory."""
    made = []
    for value in values():
        packed = pack(value)
        made.append((json.loads(json.dumps(packed.form)), [whole_piece(piece) for piece in packed.pieces]))
    return made


def whole_piece(piece: Piece) -> torch.Tensor:
    """Return the memory from border to border."""
    before, held, after = piece.read()
    return torch.cat([torch.zeros(len(before), dtype=torch.uint8), held, torch.zeros(len(after), dtype=torch.uint8)])


VALUES, PACKED = values(), packings()
NAMES = """tensor record numpy list tuple set frozenset dict mappingproxy float32 float64 int64 int8 uint8 bool str
bytes void object datetime64 complex64 float128 V9999999999 S9999999999 (2,)f4 i4,i4 , ( quint8 bits8 bfloat16 Tensor nn
phalanx.core:Verdict phalanx.core:Updates phalanx.runs.packing:Piece builtins:object sys:modules : a.b:c.d complex32"""
ODD = (*NAMES.split(), "", None, True, -1, 0, 1, 2, 1 << 31, 1 << 40, 1 << 63, -(1 << 70), 0.5, math.nan, math.inf,
       [], {}, [[]], ["tensor", 0], ["numpy", "float32", 1.5], ["set", ["list"]], ["record", 0],
       ["dict", [["list"], 1]])  # fmt: skip


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Return each place of a form: what holds it, and the key or number."""
    found, left = list[tuple[Any, Any]](), [tree]
    for holder in left:
        here = [(holder, key) for key in (holder if type(holder) is dict else range(len(holder)))]
        found += here
        left += [holder[key] for _, key in here if type(holder[key]) in (dict, list)]
    return found


def copied(tree: Any) -> Any:
    return marshal.loads(marshal.dumps(tree))  # the fastest copy


def changed_form(form: dict[str, Any], reader: "Reader") -> dict[str, Any]:
    """Return a copy of a form, changed in up to four places as the bytes say."""
    form = copied(form)
    for _ in range(1 + reader.byte() % 4):
        found = places(form)
        if not found:
            break
        holder, key = found[int.from_bytes(reader.take(2), "little") % len(found)]
        other, at = reader.one_of(found)
        kind = reader.byte() % 5
        if kind == 0:
            holder[key] = copied(other[at])
        elif kind == 1:
            del holder[key]
        elif kind == 2 and isinstance(holder, list):
            holder.insert(key, copied(reader.one_of(ODD)))
        elif kind == 3 and type(holder[key]) is int:
            holder[key] += reader.signed()
        else:
            holder[key] = copied(reader.one_of(ODD))
    return form


def check_packing(data: bytes) -> None:
    """Change a packed value in the ways that the bytes say, and unpack it."""
    reader = Reader(data)
    form, pieces = reader.one_of(PACKED)
    with refusing(ValueError):
        value = unpack(changed_form(form, reader), [piece.clone() for piece in pieces])
    same_again(value)


def same_again(value: object) -> None:
    """Pack a value that was unpacked, and unpack it again."""
    try:
        packed = pack(value)
    except UnpackableError as error:
        raise RefusedError from error
    again = pack(unpack(json.loads(json.dumps(packed.form)), [whole_piece(piece) for piece in packed.pieces]))
    assert sorted(map(described, again.tensors)) == sorted(map(described, packed.tensors))
    assert repr(ordered(again.form["tree"])) == repr(ordered(packed.form["tree"])), "it changes when it is packed again"


def described(tensor: torch.Tensor) -> str:
    content = tensor.tolist() if 0 < tensor.numel() < 10_000 else ""  # a forged one may repeat an entry 2^60 times
    return f"{tensor.dtype} {tensor.shape} {content}"


def ordered(tree: Any) -> Any:
    """Return a tree with sets in order, and without the numbers of tensors."""
    if not isinstance(tree, list) or tree[:1] == ["tensor"]:
        return tree[:1] if isinstance(tree, list) else tree
    tag, *items = map(ordered, tree)
    return [tag, *(sorted(items, key=repr) if tag in ("set", "frozenset") else items)]


def checkpoints() -> list[bytes]:
    made = []
    for k, value in enumerate(values()):
        path = FOLDER / "made"
        packed = pack(value)
        write(path, Header(ORIGIN, k, 3, "ef" * 32, 1.5, packed.form), packed)
        made.append(b"\1" + path.read_bytes()[:-32])
        made.append(bytes([2, k, *range(40)]))
    return made


def headers() -> list[tuple[dict[str, Any], bytes]]:
    """Return the headers of checkpoints of the values, as JSON, and the memory that follows them."""
    made = []
    for form, pieces in PACKED:
        header = Header(ORIGIN, 3, 3, "ef" * 32, 1.5, form)
        fields = header._asdict() | {"origin": dataclasses.asdict(ORIGIN)}
        made.append((fields, b"".join(piece.numpy().tobytes() for piece in pieces)))
    return made


ORIGIN = Origin("ab" * 32, None, "1.0", {"train": "cd"}, {"threads": 1, "torch": "2"})
HEADERS = headers()


def forged(reader: "Reader") -> bytes:
    """A file whose header is changed as the bytes say, without its checksum."""
    header, memory = reader.one_of(HEADERS)
    text = json.dumps(changed_form(header, reader)).encode()
    return MAGIC + len(text).to_bytes(8, "little") + text + memory


def check_checkpoint(data: bytes) -> None:
    """The first byte: 0, the file is the rest; 1, with its checksum; others, a file whose header the rest changes."""
    kind, body = data[:1], data[1:]
    if kind not in (b"", b"\0", b"\1"):
        body = forged(Reader(body))
    path = file("checkpoint", body + (sha256(body).digest() if kind != b"\0" else b""))
    with refusing(ValueError):
        assert peek(FOLDER) is not None
        header, pieces = _read(path)
        value = unpack(header.form, pieces)
    same_again(value)


# --- files that people write


def check_traces(data: bytes) -> None:
    path = file("times.csv", data)
    with refusing(ValueError):
        trace = read_trace(str(path), ("client", "seconds"), ("turn",))
    assert trace.rows
    for row in trace.rows:
        assert {"client", "seconds"} <= row.cells.keys()
        try:
            client, seconds = whole(row, "client"), number(row, "seconds")
        except ValueError as error:
            spoken(error, row.where)
            continue
        assert client >= 0
        assert math.isfinite(seconds)


def check_weights(data: bytes) -> None:
    path = file("sizes" + (".csv", ".json", ".txt")[(data[:1] or b"\0")[0] % 3], data[1:])
    with refusing(ValueError):
        reported = read_sizes(path)
    assert len(reported.sizes) == len(reported.names)
    assert all(1 <= size <= 10**15 for size in reported.sizes)
    target = FOLDER / "weights.json"
    write_weights(target, reported, [float(size) for size in reported.sizes])
    assert read_sizes(target, "client", "reported") == reported


def steps() -> list[StepRecord]:
    verdicts = {0: Verdict(True, 1.0), 3: Verdict(False, 0.0, reason="excluded: far away", final=True, score=-2.5)}
    return [
        StepRecord(
            step=0, version=0, seconds=0.0, metrics=Metrics(accuracy=0.5, loss=0.7), remarks=("Nothing is promised.",)
        ),
        StepRecord(step=1, version=1, seconds=1.5, verdicts=verdicts, versions={0: 0, 3: 0}),
        StepRecord(step=1, version=1, seconds=2.0, state={"scores": {1: 0.5}}, invalid={2: "NaN"}, lost={4: "silent"}),
    ]


def check_history(data: bytes) -> None:
    with refusing(ValueError):
        step = read_step(data)
    assert read_step(as_lines([step])[:-1]) == step or not finite(step)


def finite(step: StepRecord) -> bool:
    """Numbers that are not finite are null in JSON, which is read as None."""
    return b"null" not in to_json(step)


def forms() -> dict[str, dict[str, Any]]:
    """The records of a study, models and a study of one run, as their files hold them."""
    verdict = {"client": 2, "step": 1, "reason": "far away"}
    settings = {"clients": 3, "seed": 1}
    trace = Trace("a run", identity_of(settings), None, settings, 1, 3, "finished", None, provenance("cpu"), 0.5)
    curves = {"step": (1, 2), "seconds": (0.5, 1.0), "accuracy": (0.5, None)}
    full = dataclasses.replace(
        trace, dimension=4, steps=2, curves=curves, state={"step": (1, 2), "scores": ([0.5], [1.0])},
        excluded=(Excluded(**verdict),), invalid=(InvalidClient(1, 3, "NaN"),), not_enrolled={0: "no key"},
        detection={"precision": 1.0, "recall": None}, filtered={"honest": 0.0}, byzantine=(2,), reported=(3, 4, 5),
        held=(3, 4, 5), received_accuracy={0: 0.5}, client_accuracy={0: 0.25},
        clusters=((0, 1), (2,)), groups={0: 0, 1: 1}, uploads=6,
    )  # fmt: skip
    dataclasses.replace(full, sealed=False).save(file("trace.json", b""))  # a seal refuses every change
    index = {
        "identity": full.identity, "step": 2,
        "clients": {"0": {"0": "model.safetensors", "1": "models/0-client-1.safetensors"}},
        "chosen": {"0": 1}, "inputs": {"shape": [4], "dtype": "float32", "outputs": 2, "classes": 2},
        "architecture": {"class_path": "phalanx.models.MLP", "init_args": {"hidden": [3]}},
    }  # fmt: skip
    study = {
        "base": {"clients": 4, "byzantine": 1, "until": {"steps": 1}},
        "grid": {"attack": [None, {"class_path": "Gaussian", "init_args": {"std": 2.0}}],
                 "algorithm.aggregate": ["Mean", "Krum(f=0)"]},
        "exclude": [{"attack": "none", "algorithm.aggregate": ["Mean"]}], "seeds": [0, 1], "target": 0.5, "name": "x",
        "tuning": {"axis": "algorithm.aggregate", "options": {"all": {"training.lr": [0.1, 0.2]}}, "settings": 1},
    }  # fmt: skip
    return {"records": json.loads((FOLDER / "trace.json").read_text()), "models": index, "studies": study}


@functools.cache
def form_of(name: str) -> dict[str, Any]:
    return forms()[name]


def check_records(data: bytes) -> None:
    """Change the record of a study's run in the ways that the bytes say, read it, and compare it."""
    form = changed_form(form_of("records"), Reader(data))
    path = file(f"{form_of('records')['identity']}.json", json.dumps(form).encode())
    with refusing(ValueError):
        trace = Trace.load(path)
    trace.save(path)
    assert Trace.load(path) == trace
    results = compared([trace], "a comparison")
    write_csv(results, FOLDER)
    costs(results)


def check_models(data: bytes) -> None:
    """Change the index of a run's models, and find the file of each client."""
    file("run/model.json", json.dumps(changed_form(form_of("models"), Reader(data))).encode())
    with refusing(ValueError):
        models = Models.load(FOLDER / "run")
    assert all(isinstance(models.index.file(client), str) for client in models.index.clients) or models.index.left_out
    if models.index.architecture is not None:
        with refusing(ValueError):
            architecture_of(models.index.architecture)


def check_studies(data: bytes) -> None:
    """Change a study, and plan it."""
    path = file("study.yaml", yaml.safe_dump(changed_form(form_of("studies"), Reader(data))).encode())
    with refusing(ValueError, MemoryError):
        study = read_study(path)
    assert study.planned


def check_audit(data: bytes) -> None:
    path = file("audit.jsonl", data)
    with refusing(ValueError):
        entries = read_audit(path)
    path.write_bytes(b"".join(to_json(entry) + b"\n" for entry in entries))
    assert read_audit(path) == entries


def check_roster(data: bytes) -> None:
    path = file("roster.yaml", data)
    with refusing(ValueError):
        roster = Roster.load(path)
    roster.save(path)
    again = Roster.load(path)
    assert {m.id: m for m in again.members} == {m.id: m for m in roster.members}
    assert again.coordinator == roster.coordinator


# --- data sets


READERS: Mapping[str, tuple[str, Callable[[Path], object]]] = {  # a file's name, and its reader
    "idx": ("train-images-idx3-ubyte", lambda path: _idx(path, 2, 2)),
    "cifar": ("data_batch_1.bin", _records),
    "agnews": ("ag_news/train.csv", lambda _: AGNews(4, sequence=4).load(FOLDER)),
    "mr": ("rt-polaritydata/rt-polarity.neg", lambda _: MR(sequence=4).load(FOLDER)),
    "sst": ("sst/stsa.fine.train", lambda _: SST(sequence=4).load(FOLDER)),
    "wikitext": ("wikitext-2/wiki.train.tokens", lambda _: WikiText2(least=1, sequence=4).load(FOLDER)),
    "shakespeare": ("shakespeare/all_data.json", lambda _: Shakespeare(roles=1, sequence=4).load(FOLDER)),
}
OTHERS = {  # the other file of each pair
    "ag_news/test.csv": b'"1","a","b"\n"2","a","b"\n"3","a","b"\n"4","a","b c d e f"\n',
    "rt-polaritydata/rt-polarity.pos": b"good film\n" * 12,
    "sst/stsa.fine.test": b"0 bad\n4 good\n",
    "wikitext-2/wiki.test.tokens": b"a b c d e f g h\n",
}


def check_data(data: bytes) -> None:
    """The first byte chooses the reader, and whether the rest is gzipped."""
    choice = (data[:1] or b"\0")[0]
    name, read = READERS[[*READERS][choice % len(READERS)]]
    zipped = choice >= 128 and not name.endswith(".json")
    for other, content in OTHERS.items():
        if not (FOLDER / other).is_file():
            file(other, content)
    path = file(name, gzip.compress(data[1:], 1, mtime=0) if zipped else data[1:])
    with refusing(ValueError):
        assert read(path) is not None


def data_seeds() -> list[bytes]:
    contents = {
        "idx": bytes((0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2)) + bytes(range(8)),
        "cifar": bytes([3]) + bytes(range(256)) * 12,
        "agnews": OTHERS["ag_news/test.csv"] * 2,
        "mr": "schlecht caf\xe9\n".encode("latin-1") * 12,
        "sst": b"0 very bad film\n3 a good one , indeed\n" * 3,
        "wikitext": b" = Title = \n\n some words of the text <unk> . \n",
        "shakespeare": json.dumps({"user_data": {"A": {"raw": "to be\nor not"}, "B": {"raw": "x\ny\nz"}}}).encode(),
    }
    made = []
    for k, name in enumerate(READERS):
        made += [bytes([k]) + contents[name], bytes([k]) + gzip.compress(contents[name], mtime=0)]
    return made


def _lines(*lines: str) -> bytes:
    return "\n".join((*lines, "")).encode()


def of_bytes() -> list[bytes]:
    """Bytes that say which changes are made, one in each of some places."""
    return [bytes([0, k, 0, 0, 4, k]) for k in range(40)]


def public_key(k: int) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(bytes([k]) * 32).public_key().public_bytes_raw()


def _roster() -> bytes:
    path = FOLDER / "made.yaml"
    Roster(
        (Member(0, "clinic", public_key(1)), Member(3, "other", public_key(2), 2, True)), as_text(public_key(3))
    ).save(path)
    return path.read_bytes()


def _audit() -> bytes:
    entries = [
        Entry("2026-11-21T20:16:00.000Z", 0.0, 0, 0, "begun", None, "", "", None),
        Entry("2026-11-21T20:16:01.000Z", 1.5, 1, 1, "refused", 3, "clinic", "NaN", 2.5),
    ]
    return b"".join(to_json(entry) + b"\n" for entry in entries)


def _traces() -> list[bytes]:
    return [
        _lines("client,seconds", "0,1.5", "1,2e3"),
        _lines("client,turn,seconds", '"0",0,1', "", " 1 , 2 , 3 "),
        b"\xef\xbb\xbfclient,seconds\r\n0,1\r\n",
    ]


def _weights() -> list[bytes]:
    return [
        b"\0" + _lines("client,size", "a,10", "b,20"),
        b"\0" + _lines("client;size", '"x;y";5.0'),
        b"\1" + b'{"a": 10, "b": 3}',
        b"\1" + b'[{"client": "a", "num_examples": 10}, {"client": 2, "num_examples": 3}]',
        b"\2" + b"[1, 2, 3]",
    ]


MILLION, LAKH = 1_000_000, 100_000
TARGETS: Mapping[str, Target] = {
    "codec": Target(
        check_codec, lambda: [os.urandom(0), bytes(range(200)), b"\1\2\3\4" * 60, bytes(range(255, 0, -1))], MILLION
    ),
    "wire": Target(check_wire, messages, MILLION),
    "packing": Target(check_packing, lambda: [bytes([k, *range(30)]) for k in range(len(PACKED))], MILLION),
    "checkpoint": Target(check_checkpoint, checkpoints, MILLION),
    "traces": Target(check_traces, _traces, LAKH),
    "weights": Target(check_weights, _weights, LAKH),
    "data": Target(check_data, data_seeds, LAKH),
    "history": Target(check_history, lambda: [to_json(step) for step in steps()], LAKH),
    "records": Target(check_records, of_bytes, LAKH),
    "models": Target(check_models, of_bytes, LAKH),
    "studies": Target(check_studies, of_bytes, 10_000),
    "audit": Target(check_audit, lambda: [_audit()], LAKH),
    "roster": Target(check_roster, lambda: [_roster()], LAKH),
}
