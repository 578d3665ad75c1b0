"""Encoding of vectors and message fields as Flower's records, and strict decoding.

Nothing is unpickled and nothing received is trusted: the records and their names, the types of their values, and each
array's magic bytes, dtype, shape and length to the byte are compared with the expected ones before memory is
allocated.  The header of an array is compared as text and never interpreted.

Updates can be compressed for the transfer.  `float32` is exact.  `bfloat16` takes half of the bytes, with an error of
at most 2^-8 of each entry.  `int8` takes a quarter; in each block of 256 entries, the error of each is at most 1/254 of
the largest.  Downloads are always exact, since the server must know exactly what the client received.
"""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from jaxtyping import Shaped
from torch import Tensor

from phalanx.core import ClientReport, Vector
from phalanx.runs.signing import signed_by
from phalanx.runs.statements import fingerprint_of, statement
from phalanx.runs.updates import BLOCK, ArrayPart, SentAnswer, Transfer, restore
from phalanx.version import VERSION

# version of this format, where 1 did not name the coordinator and 2 not its key; and the minor release of both sides
FORMAT = f"3 of Phalanx {VERSION.rpartition('.')[0]}"
WORDS, VECTOR = "phalanx", "vector"  # the records of a message
REPORT, SCHEMA, COSIGNATURE = "report", "schema", "cosignature"  # those of an answer that are optional
HEAD = "checkpoint"  # that of a task that is optional
MOST_PROOFS, LONGEST_PROOF = 40, 64 * 32  # proofs in a task, and bytes of one
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")  # of a schema
NONCE = 32  # bytes
NOBODY = -1  # in a task: the client that is asked is not known yet
NPY = b"\x93NUMPY\x01\x00"  # start of an array in NumPy's format 1.0; then 2 bytes of header length, header, entries
LONGEST_HEADER = 512  # bytes of a header
STYPE = "numpy.ndarray"  # Flower's name of that format
MOST_EXAMPLES = 10**12  # that a report can claim
ARCHIVE = b"PK\x03\x04"
MOST_SIZES = 30  # dimensions of a wrong shape that an error message shows


class MalformedError(ValueError):
    """A received message does not have the expected form.  The text says what was expected and what was received."""


class OtherReleaseError(MalformedError):
    """A message of another release of Phalanx."""


def brief(value: object, longest: int = 60) -> str:
    """Return text from outside as one line of at most `longest` characters."""
    text = "".join(c if c.isprintable() else " " for c in str(value)[: longest + 1])
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


class TaskMessage(NamedTuple):
    """The fields of a task from the server, apart from the vector."""

    kind: Literal["enrol", "train"]
    session: str  # id of the run; the same after resuming
    nonce: bytes  # random, new for each task
    client: int  # the addressee; -1 where the server does not know it yet
    version: int  # of the download
    turn: int  # number of earlier tasks of the client
    transfer: Transfer
    coordinator: str = ""  # the public key of the sender, as text; empty if it has none


class AnswerMessage(NamedTuple):
    """The fields of a client's answer, apart from the vector."""

    nonce: bytes
    key: bytes  # public key of the claimed sender
    version: int
    value: object  # in "enrol" the reported size, in "train" the loss; unchecked
    signature: object  # unchecked


class ShownHead(NamedTuple):
    """The head of the coordinator's audit trail, as a client is shown it.

    Args:
        note: signed by the coordinator.
        proofs: by size of an earlier head, the proof that the trail goes on from there.
    """

    note: str
    proofs: Mapping[int, Sequence[bytes]]


# Vectors


def layout(transfer: Transfer, d: int) -> dict[str, tuple[str, int]]:
    """Return name, dtype and length of the arrays that encode a vector of d entries."""
    if transfer == "float32":
        return {"values": ("float32", d)}
    if transfer == "bfloat16":
        return {"values": ("uint16", d)}
    return {"values": ("int8", d), "scales": ("float32", math.ceil(d / BLOCK))}


def encode(vector: Vector, transfer: Transfer = "float32") -> ArrayRecord:
    """Encode a vector as arrays.

    Raises:
        ValueError: its entries are not float32.
    """
    if vector.dtype != torch.float32:
        raise ValueError(f"Vectors must be float32, got {vector.dtype}. Convert the model with module.float().")
    vector = vector.detach().cpu().contiguous()
    if transfer == "float32":
        parts = {"values": vector}
    elif transfer == "bfloat16":
        parts = {"values": vector.to(torch.bfloat16).view(torch.uint16)}
    else:
        parts = _quantised(vector)
    return ArrayRecord({name: Array(part.numpy()) for name, part in parts.items()})


def decode(record: object, transfer: Transfer, out: Vector) -> None:
    """Decode a vector from arrays into `out`, whose length is the expected one.

    Raises:
        MalformedError: the arrays do not encode a vector of this length.
    """
    if type(record) is not ArrayRecord:
        raise MalformedError(f"record {VECTOR!r} is a {type(record).__name__}, expected an ArrayRecord")
    expected = layout(transfer, len(out))
    if record.keys() != expected.keys():
        raise MalformedError(f"arrays are {_names(record)}, expected {_names(expected)} for {transfer}")
    parts = {name: entries_of(name, record[name], dtype, (n,)) for name, (dtype, n) in expected.items()}
    values, entries = parts["values"], out.numpy()
    if transfer == "float32":
        entries[:] = values
    elif transfer == "bfloat16":
        np.left_shift(values, 16, out=entries.view(np.uint32), dtype=np.uint32)
    else:
        restore(values, parts["scales"], out)


def _quantised(vector: Vector) -> dict[str, Tensor]:
    """Return the entries as multiples -127..127 of their block's scale, rounded to the nearest, and the scales."""
    blocks = torch.nn.functional.pad(vector, (0, -len(vector) % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(1) / 127
    multiples = (blocks / scales.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round().clamp(-127, 127)
    return {"values": multiples.to(torch.int8).flatten()[: len(vector)].contiguous(), "scales": scales}


def entries_of(name: str, array: object, dtype: str, shape: tuple[int, ...]) -> Shaped[np.ndarray, "_"]:
    """Return the entries of a received array as a flat view of its bytes.

    Args:
        name: name of the array, for error messages.
        array: the array as received.
        dtype: the expected dtype.
        shape: the expected shape.

    Raises:
        MalformedError: the array is not of this dtype and shape.
    """
    if type(array) is not Array or type(array.data) is not bytes:
        raise MalformedError(f"array {name!r} is a {type(array).__name__}, expected an Array of bytes")
    claimed = array.dtype, tuple(array.shape), array.stype
    if claimed != (dtype, shape, STYPE):
        shown = " ".join((brief(claimed[0]), brief(claimed[1][:MOST_SIZES]), "as", brief(claimed[2])))
        raise MalformedError(f"array {name!r} claims to be {shown}, expected {dtype} {shape}")
    data, count, width = array.data, math.prod(shape), np.dtype(dtype).itemsize
    if data.startswith(ARCHIVE):
        raise MalformedError(f"array {name!r} is an archive")
    if not data.startswith(NPY):
        raise MalformedError(f"array {name!r} begins with {data[: len(NPY)]!r}, expected {NPY!r}")
    begin = len(NPY) + 2
    length = int.from_bytes(data[len(NPY) : begin], "little")
    header = data[begin : begin + length].rstrip(b" \n") if length <= LONGEST_HEADER else b""
    if header != _header(dtype, shape):
        shown = brief(header.decode("ascii", "replace"), 100) or f"{length} bytes long"
        raise MalformedError(f"array {name!r} has the header {shown}, expected {_header(dtype, shape).decode()}")
    if len(data) != begin + length + count * width:
        size = len(data) - begin - length
        raise MalformedError(f"array {name!r} holds {size:,} bytes of entries, expected {count * width:,}")
    return np.frombuffer(data, dtype, count, begin + length)


def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    return f"{{'descr': '{np.dtype(dtype).str}', 'fortran_order': False, 'shape': {shape}, }}".encode()


def _names(values: Mapping[str, Any]) -> str:
    some = ", ".join(repr(name[:30]) for name in sorted(values)[:5])
    return f"{some} and {len(values) - 5} more" if len(values) > 5 else some or "none"


# Fields


def task_content(task: TaskMessage, download: Vector | None = None) -> RecordDict:
    """Encode a task as records."""
    words = {"format": FORMAT, **task._asdict(), "signature": b""}
    records: dict[str, Any] = {WORDS: ConfigRecord(words)}
    if download is not None:
        records[VECTOR] = encode(download)
    return RecordDict(records)


def read_task(content: RecordDict, out: Vector | None = None) -> TaskMessage:
    """Decode a task from records; write its vector to `out` if one is expected.

    Raises:
        MalformedError: the records are not a task.
    """
    kinds = {"kind": str, "session": str, "nonce": bytes, "client": int, "version": int, "turn": int, "transfer": str,
             "coordinator": str, "signature": bytes}  # fmt: skip
    more = {HEAD} & {*content} if type(content) is RecordDict else set[str]()
    _check_records(content, {WORDS} | more if out is None else {WORDS, VECTOR} | more)
    values = _words(content, kinds)
    del values["signature"]
    task = TaskMessage(**values)
    if len(task.nonce) != NONCE or not task.session.isalnum() or task.kind not in ("enrol", "train"):
        raise MalformedError("the task has no session of letters and digits, no nonce of 32 bytes, or no known kind")
    if task.transfer not in ("float32", "bfloat16", "int8"):
        raise MalformedError(f"transfer is {task.transfer!r}, expected float32, bfloat16 or int8")
    if out is not None:
        decode(content[VECTOR], "float32", out)
    return task


def add_head(content: RecordDict, shown: ShownHead) -> None:
    """Add the head of the audit trail to the records of a task."""
    proofs = {str(size): b"".join(proof) for size, proof in shown.proofs.items()}
    content[HEAD] = ConfigRecord({"note": shown.note, **proofs})


def read_head(content: RecordDict) -> ShownHead | None:
    """Return the head of the audit trail in a task; None if it has none.

    Raises:
        MalformedError: it has another form.
    """
    if HEAD not in content:
        return None
    record: Any = content[HEAD]
    if type(record) is not ConfigRecord or type(note := record.get("note")) is not str:
        raise MalformedError(f"record {HEAD!r} is a {type(record).__name__}, expected a ConfigRecord with a note")
    proofs = dict[int, list[bytes]]()
    for name, value in record.items():
        if name == "note":
            continue
        proof: Any = value
        fits = type(proof) is bytes and len(proof) <= LONGEST_PROOF and not len(proof) % 32
        if not fits or not re.fullmatch("0|[1-9][0-9]{0,14}", name) or len(record) > MOST_PROOFS + 1:
            raise MalformedError(f"record {HEAD!r} holds {brief(name)}, expected at most {MOST_PROOFS} proofs by size")
        proofs[int(name)] = [proof[k : k + 32] for k in range(0, len(proof), 32)]
    return ShownHead(note, proofs)


def read_cosignature(content: RecordDict) -> tuple[str, int]:
    """Return the co-signature in an answer, and the size of the last head that its sender holds; "" and 0 if none.

    Raises:
        MalformedError: it has another form.
    """
    if COSIGNATURE not in content:
        return "", 0
    record: Any = content[COSIGNATURE]
    if type(record) is not ConfigRecord or record.keys() != {"line", "size"}:
        raise MalformedError(
            f"record {COSIGNATURE!r} is a {type(record).__name__}, expected a ConfigRecord with a line"
        )
    if type(record["line"]) is not str or type(record["size"]) is not int or record["size"] < 0:
        raise MalformedError(f"record {COSIGNATURE!r} holds no line of text, or no size")
    return record["line"], record["size"]


def answer_content(
    answer: AnswerMessage,
    update: ArrayRecord | None = None,
    report: ClientReport | None = None,
    schema: str = "",
    statistics: bytes = b"",
) -> RecordDict:
    """Encode an answer as records.

    Args:
        answer: its fields.
        update: the vector.
        report: what the client measured.
        schema: digest of the client's schema; empty if it has none.
        statistics: of its table, as JSON; empty if it sends none.
    """
    words: dict[str, Any] = {"format": FORMAT, **answer._asdict()}
    records: dict[str, Any] = {WORDS: ConfigRecord(words)}
    if update is not None:
        records[VECTOR] = update
    if report is not None:
        measured = {"loss": report.loss, "accuracy": report.accuracy}
        known = {name: value for name, value in measured.items() if value is not None}
        records[REPORT] = MetricRecord({"examples": report.examples, **known})
    if schema:
        sent = {"statistics": statistics.decode()} if statistics else {}
        records[SCHEMA] = ConfigRecord({"digest": schema, **sent})
    return RecordDict(records)


def read_answer(content: RecordDict) -> AnswerMessage:
    """Decode the fields of an answer; `read_update` decodes its vector.

    Raises:
        MalformedError: the records are not an answer.
    """
    kinds = {"nonce": bytes, "key": bytes, "version": int, "value": object, "signature": object}
    return AnswerMessage(**_words(content, kinds))


def read_schema(content: RecordDict) -> str:
    """Return the digest of the client's schema in an answer; empty if it has none.

    Raises:
        MalformedError: it is no digest.
    """
    if SCHEMA not in content:
        return ""
    record: Any = content[SCHEMA]
    if type(record) is not ConfigRecord or record.keys() - {"statistics"} != {"digest"}:
        raise MalformedError(f"record {SCHEMA!r} is a {type(record).__name__}, expected a ConfigRecord with a digest")
    digest = record["digest"]
    if type(digest) is not str or not DIGEST.fullmatch(digest):
        raise MalformedError(f"the schema's digest is {brief(repr(digest))}, expected sha256: and 64 digits")
    return digest


def read_statistics(content: RecordDict) -> bytes | None:
    """Return the statistics of the client's table in an answer, as JSON of unknown origin; None if it sends none."""
    record: Any = content.get(SCHEMA, {})
    sent: Any = record.get("statistics")
    return None if sent is None else sent.encode(errors="replace") if type(sent) is str else b""


def read_update(content: RecordDict, transfer: Transfer, out: Vector) -> ClientReport | None:
    """Decode the update of an answer into `out`, and return the client's report, if it sent one.

    Raises:
        MalformedError: there is no update of this form, the report is not one, or there are further records.
    """
    more = {REPORT, SCHEMA, COSIGNATURE} & {*content} if type(content) is RecordDict else set[str]()
    _check_records(content, {WORDS, VECTOR} | more)
    report = _read_report(content[REPORT]) if REPORT in more else None
    decode(content[VECTOR], transfer, out)
    return report


def _read_report(record: object) -> ClientReport:
    if type(record) is not MetricRecord:
        raise MalformedError(f"record {REPORT!r} is a {type(record).__name__}, expected a MetricRecord")
    if "examples" not in record or not record.keys() <= {"examples", "loss", "accuracy"}:
        raise MalformedError(
            f"record {REPORT!r} holds {_names(record)}, expected examples, and loss and accuracy if known"
        )
    return report_of({name: (name, value) for name, value in record.items()})


def report_of(named: Mapping[str, tuple[str, object]]) -> ClientReport:
    """Return a client's report; raise `MalformedError` if a value of it cannot be.

    Args:
        named: by field of the report, the name that the client gave to it, and its value.
    """
    known, values = {"examples": int, "loss": float, "accuracy": float}, dict[str, Any]()
    for field, (name, given) in named.items():
        value: Any = given
        if (kind := type(value)) is not known[field]:
            raise MalformedError(f"{name} is a {kind.__name__}, expected {known[field].__name__}")
        most = {"accuracy": 1.0, "examples": MOST_EXAMPLES}.get(field, math.inf)
        if not (math.isfinite(value) and value <= most and (field == "loss" or value >= 0)):
            raise MalformedError(f"{name} is {brief(value)}, which cannot be")
        values[field] = value
    return ClientReport(**values)


def _check_records(content: object, expected: set[str]) -> None:
    if type(content) is not RecordDict:
        raise MalformedError(f"content is a {type(content).__name__}, expected a RecordDict")
    if content.keys() != expected:
        raise MalformedError(f"records are {_names(content)}, expected {', '.join(map(repr, sorted(expected)))}")


def _words(content: RecordDict, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return the fields of a message after a check of their names and types."""
    record = content.get(WORDS) if type(content) is RecordDict else None
    if type(record) is not ConfigRecord:
        raise MalformedError(f"record {WORDS!r} is a {type(record).__name__}, expected a ConfigRecord")
    if record.get("format", FORMAT) != FORMAT:
        raise OtherReleaseError(
            f"format is {brief(repr(record['format']))}, expected {FORMAT!r}: install the same Phalanx on both sides"
        )
    if record.keys() != kinds.keys() | {"format"}:
        raise MalformedError(f"record {WORDS!r} holds {_names(record)}, expected {_names({**kinds, 'format': str})}")
    for name, kind in kinds.items():
        if kind is not object and type(record[name]) is not kind:
            raise MalformedError(f"{name} is a {type(record[name]).__name__}, expected {kind.__name__}")
    return {name: record[name] for name in kinds}


# Signatures


def sign_task(content: RecordDict, key: Ed25519PrivateKey, addressee: bytes) -> None:
    """Sign the records of a task with the coordinator's key.

    Args:
        content: of `task_content`; gets the signature.
        key: the coordinator's.
        addressee: public key of the client; empty where the coordinator does not know yet whom it asks.
    """
    record: Any = content[WORDS]
    record["signature"] = key.sign(_task_statement(content, addressee))


def check_task(content: RecordDict, coordinator: bytes, own: bytes) -> None:
    """Check that a coordinator has signed the records of a task, and for this client.

    Args:
        content: as `read_task` has read it.
        coordinator: the coordinator's public key.
        own: the client's public key.

    Raises:
        MalformedError: it has not.
    """
    record: Any = content[WORDS]
    addressee = b"" if record["client"] == NOBODY else own
    if not signed_by(coordinator, record["signature"], _task_statement(content, addressee)):
        raise MalformedError("the task is not signed by the coordinator that it names, for this client")


def _task_statement(content: RecordDict, addressee: bytes) -> bytes:
    return statement("task", addressee, fingerprint(content))


def signing_input(task: TaskMessage, content: RecordDict) -> bytes:
    """Return the bytes that the client signs: the task, from the caller's own copy, and the whole answer."""
    return signed_statement(task, fingerprint(content))


def signed_statement(task: TaskMessage, digest: bytes) -> bytes:
    """Return the same for an answer of which the fingerprint is known."""
    return statement(
        task.kind,
        task.coordinator,
        task.session,
        task.nonce,
        task.client,
        task.version,
        task.turn,
        task.transfer,
        digest,
    )


def fingerprint(content: RecordDict) -> bytes:
    """Return the SHA-256 of everything in a message except its signature."""
    parts = _parts(content)
    return fingerprint_of(part if isinstance(part, str) else hashlib.sha256(part.data).digest() for part in parts)


def sent_answer(content: RecordDict, transfer: Transfer) -> SentAnswer:
    """Return an answer as its client sent it, after `read_update` has read it."""
    parts, arrays = list[str | ArrayPart](), dict[str, bytes]()
    for part in _parts(content):
        if isinstance(part, str):
            parts.append(part)
            continue
        start = len(NPY) + 2 + int.from_bytes(part.data[len(NPY) : len(NPY) + 2], "little")
        parts.append(ArrayPart(part.name, part.data[:start].hex()))
        if transfer != "float32":
            arrays[part.name] = part.data[start:]
    return SentAnswer((*parts,), arrays)


class _NamedArray(NamedTuple):
    name: str
    data: bytes


def _parts(content: RecordDict) -> Iterator[str | _NamedArray]:
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
                yield _NamedArray(key, value.data)
