"""Vectors and words as Flower's records, and back.

Nothing is unpickled, and nothing of what came is believed: records and their names, the kinds of their values, the
magic of an array, its dtype, its shape and its length to the byte are compared with what must have come, and memory is
taken only then.  The head of an array is compared as text and never interpreted.

An update can be made smaller on its way.  `float32` is exact.  `bfloat16` takes half of the bytes; each entry is off by
at most 2^-8 of itself.  `int8` takes a quarter; in each block of 256 entries, each is off by at most 1/254 of the
largest.  Downloads are always exact, since the server's record of what it sent must be what arrived.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from jaxtyping import Shaped
from torch import Tensor

from phalanx.core import Vector
from phalanx.flower.identity import statement

Transfer = Literal["float32", "bfloat16", "int8"]

FORMAT = 1  # of all that is described here
WORDS, VECTOR = "phalanx", "vector"  # the records of a message
NONCE = 32  # bytes
BLOCK = 256  # entries that share a scale
NPY = b"\x93NUMPY\x01\x00"  # an array in NumPy's format 1.0: this, the length of the head in 2 bytes, the head, entries
LONGEST_HEAD = 512  # bytes
STYPE = "numpy.ndarray"  # Flower's word for that format
ARCHIVE = b"PK\x03\x04"
MOST_SIZES = 30  # of a shape that are looked at to show it


class Malformed(ValueError):
    """What came is not what was agreed on.  The message says what was expected and what came."""


def brief(said: object, longest: int = 60) -> str:
    """What somebody else says, on one line and not too long."""
    text = "".join(c if c.isprintable() else " " for c in str(said)[: longest + 1])
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


class TaskMessage(NamedTuple):
    """What the server asks of a client, beside the vector."""

    kind: Literal["enrol", "train"]
    session: str  # names the run, and is the same when it is resumed
    nonce: bytes  # fresh for each task
    client: int  # whose task it is; -1 in "enrol": the server does not know yet
    version: int  # of the download
    turn: int  # how often the client was asked before
    transfer: Transfer


class Answer(NamedTuple):
    """What a client says, beside the vector: in "enrol" its size, in "train" its loss."""

    nonce: bytes
    key: bytes  # public; says who claims to speak
    version: int
    value: object  # the size or the loss, unchecked
    signature: object  # unchecked


# Vectors


def layout(transfer: Transfer, d: int) -> dict[str, tuple[str, int]]:
    """The arrays that a vector of d entries becomes: name, dtype and length."""
    if transfer == "float32":
        return {"values": ("float32", d)}
    if transfer == "bfloat16":
        return {"values": ("uint16", d)}
    return {"values": ("int8", d), "scales": ("float32", math.ceil(d / BLOCK))}


def encode(vector: Vector, transfer: Transfer = "float32") -> ArrayRecord:
    """A vector as arrays.

    Raises:
        ValueError: its entries are not float32.
    """
    if vector.dtype != torch.float32:
        raise ValueError(f"Vectors travel as float32, got {vector.dtype}. Convert the model: module.float().")
    vector = vector.detach().cpu().contiguous()
    if transfer == "float32":
        parts = {"values": vector}
    elif transfer == "bfloat16":
        parts = {"values": vector.to(torch.bfloat16).view(torch.uint16)}
    else:
        parts = _quantised(vector)
    return ArrayRecord({name: Array(part.numpy()) for name, part in parts.items()})


def decode(record: object, transfer: Transfer, out: Vector) -> None:
    """Writes the vector that arrays stand for to `out`, which says how long it must be.

    Raises:
        Malformed: they stand for no such vector.
    """
    if type(record) is not ArrayRecord:
        raise Malformed(f"record {VECTOR!r} is a {type(record).__name__}, expected an ArrayRecord")
    expected = layout(transfer, len(out))
    if record.keys() != expected.keys():
        raise Malformed(f"arrays are {_names(record)}, expected {_names(expected)} for {transfer}")
    parts = {name: entries_of(name, record[name], dtype, (n,)) for name, (dtype, n) in expected.items()}
    values, entries = parts["values"], out.numpy()
    if transfer == "float32":
        entries[:] = values
    elif transfer == "bfloat16":
        np.left_shift(values, 16, out=entries.view(np.uint32), dtype=np.uint32)
    else:
        np.multiply(values, np.repeat(parts["scales"], BLOCK)[: len(values)], out=entries)


def _quantised(vector: Vector) -> dict[str, Tensor]:
    """Entries as multiples -127..127 of the scale of their block, rounded to the nearest."""
    blocks = torch.nn.functional.pad(vector, (0, -len(vector) % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(1) / 127
    multiples = (blocks / scales.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round().clamp(-127, 127)
    return {"values": multiples.to(torch.int8).flatten()[: len(vector)].contiguous(), "scales": scales}


def entries_of(name: str, array: object, dtype: str, shape: tuple[int, ...]) -> Shaped[np.ndarray, "_"]:
    """The entries of an array, one after the other in the memory in which they came.

    Args:
        name: of the array.
        array: as it came.
        dtype: what it must be.
        shape: what it must have.

    Raises:
        Malformed: it is another.
    """
    if type(array) is not Array or type(array.data) is not bytes:
        raise Malformed(f"array {name!r} is a {type(array).__name__}, expected an Array of bytes")
    said = array.dtype, tuple(array.shape), array.stype
    if said != (dtype, shape, STYPE):
        told = " ".join((brief(said[0]), brief(said[1][:MOST_SIZES]), "as", brief(said[2])))
        raise Malformed(f"array {name!r} says it is {told}, expected {dtype} {shape}")
    data, count, width = array.data, math.prod(shape), np.dtype(dtype).itemsize
    if data.startswith(ARCHIVE):
        raise Malformed(f"array {name!r} is an archive")
    if not data.startswith(NPY):
        raise Malformed(f"array {name!r} begins with {data[: len(NPY)]!r}, expected {NPY!r}")
    begin = len(NPY) + 2
    length = int.from_bytes(data[len(NPY) : begin], "little")
    head = data[begin : begin + length].rstrip(b" \n") if length <= LONGEST_HEAD else b""
    if head != _head(dtype, shape):
        shown = brief(head.decode("ascii", "replace"), 100) or f"{length} bytes long"
        raise Malformed(f"array {name!r} has the head {shown}, expected {_head(dtype, shape).decode()}")
    if len(data) != begin + length + count * width:
        size = len(data) - begin - length
        raise Malformed(f"array {name!r} holds {size:,} bytes of entries, expected {count * width:,}")
    return np.frombuffer(data, dtype, count, begin + length)


def _head(dtype: str, shape: tuple[int, ...]) -> bytes:
    return f"{{'descr': '{np.dtype(dtype).str}', 'fortran_order': False, 'shape': {shape}, }}".encode()


def _names(values: Mapping[str, Any]) -> str:
    some = ", ".join(repr(name[:30]) for name in sorted(values)[:5])
    return f"{some} and {len(values) - 5} more" if len(values) > 5 else some or "none"


# Words


def task_content(task: TaskMessage, download: Vector | None = None) -> RecordDict:
    """A task as records."""
    words = {"format": FORMAT, **task._asdict()}
    records: dict[str, Any] = {WORDS: ConfigRecord(words)}
    if download is not None:
        records[VECTOR] = encode(download)
    return RecordDict(records)


def read_task(content: RecordDict, out: Vector | None = None) -> TaskMessage:
    """The task that records describe; its vector is written to `out`, if one is expected.

    Raises:
        Malformed: they describe none.
    """
    kinds = {"kind": str, "session": str, "nonce": bytes, "client": int, "version": int, "turn": int, "transfer": str}
    _check_records(content, {WORDS} if out is None else {WORDS, VECTOR})
    values = _words(content, kinds)
    task = TaskMessage(**values)
    if len(task.nonce) != NONCE or not task.session.isalnum() or task.kind not in ("enrol", "train"):
        raise Malformed("the task has no session of letters and digits, no nonce of 32 bytes, or no known kind")
    if task.transfer not in ("float32", "bfloat16", "int8"):
        raise Malformed(f"transfer is {task.transfer!r}, expected float32, bfloat16 or int8")
    if out is not None:
        decode(content[VECTOR], "float32", out)
    return task


def answer_content(answer: Answer, update: ArrayRecord | None = None) -> RecordDict:
    """An answer as records, for `signed`."""
    words: dict[str, Any] = {"format": FORMAT, **answer._asdict()}
    records: dict[str, Any] = {WORDS: ConfigRecord(words)}
    if update is not None:
        records[VECTOR] = update
    return RecordDict(records)


def read_answer(content: RecordDict) -> Answer:
    """The words of an answer; its vector is for `read_update`.

    Raises:
        Malformed: there are none.
    """
    kinds = {"nonce": bytes, "key": bytes, "version": int, "value": object, "signature": object}
    return Answer(**_words(content, kinds))


def read_update(content: RecordDict, transfer: Transfer, out: Vector) -> None:
    """Writes the update in an answer to `out`.

    Raises:
        Malformed: there is none of that form, or there is more beside it.
    """
    _check_records(content, {WORDS, VECTOR})
    decode(content[VECTOR], transfer, out)


def _check_records(content: object, expected: set[str]) -> None:
    if type(content) is not RecordDict:
        raise Malformed(f"content is a {type(content).__name__}, expected a RecordDict")
    if content.keys() != expected:
        raise Malformed(f"records are {_names(content)}, expected {', '.join(map(repr, sorted(expected)))}")


def _words(content: RecordDict, kinds: Mapping[str, type]) -> dict[str, Any]:
    """The words of a message, each of its kind."""
    record = content.get(WORDS) if type(content) is RecordDict else None
    if type(record) is not ConfigRecord:
        raise Malformed(f"record {WORDS!r} is a {type(record).__name__}, expected a ConfigRecord")
    if record.keys() != kinds.keys() | {"format"}:
        raise Malformed(f"record {WORDS!r} holds {_names(record)}, expected {_names({**kinds, 'format': int})}")
    if record["format"] != FORMAT or type(record["format"]) is not int:
        raise Malformed(
            f"format is {brief(repr(record['format']))}, expected {FORMAT}: install the same Phalanx on both sides"
        )
    for name, kind in kinds.items():
        if kind is not object and type(record[name]) is not kind:
            raise Malformed(f"{name} is a {type(record[name]).__name__}, expected {kind.__name__}")
    return {name: record[name] for name in kinds}


# What is signed


def stated(task: TaskMessage, content: RecordDict) -> bytes:
    """What the client signs: the task, by the reader's own record of it, and all that is in the answer."""
    return statement(
        task.kind, task.session, task.nonce, task.client, task.version, task.turn, task.transfer, fingerprint(content)
    )


def fingerprint(content: RecordDict) -> bytes:
    """The SHA-256 of everything in a message but its signature."""
    digest = hashlib.sha256()
    for part in _told(content):
        digest.update(statement("", part) if isinstance(part, str) else part)
    return digest.digest()


def _told(content: RecordDict) -> Iterator[str | bytes]:
    for name in sorted(content):
        record = content[name]
        yield f"{type(record).__name__} {len(record)} {name}"
        for key in sorted(record):
            if (name, key) == (WORDS, "signature"):
                continue
            value: Any = record[key]
            yield f"{type(value).__name__} {key}"
            if isinstance(record, ConfigRecord | MetricRecord):
                yield f"{type(value[0]).__name__ if isinstance(value, list) and value else ''} {value!r}"
            else:
                yield f"{value.dtype} {tuple(value.shape)!r} {value.stype} {len(value.data)}"
                yield hashlib.sha256(value.data).digest()
