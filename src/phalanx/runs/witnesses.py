"""Clients as witnesses of an audit trail: what they keep, and what the coordinator keeps of them.

The coordinator signs the head of the Merkle tree over its audit trail in each task (`phalanx.runs.transparency`).  A
client keeps each head in its list of tasks, and takes none that does not go on from the last one.  So an altered line,
a trail that was cut, and two trails that were shown to two clients are found by whoever has the lists.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path

import msgspec

from phalanx.reading import contents, from_json
from phalanx.runs.files import inside

TASKS, WITNESSES = "tasks.jsonl", "witnesses.json"
LARGEST = 1 << 28  # bytes of a list of tasks


class SeenTask(msgspec.Struct, frozen=True):
    """A line of a client's list of tasks.

    Args:
        time: when the task came.
        kind: of the task.
        session: names the run.
        client: its id in the roster; -1 in an introduction.
        version: of the model.
        turn: number of earlier tasks of the client.
        nonce: in hexadecimal.
        checkpoint: the head of the audit trail, signed; empty if there was none.
        coordinator: the public key that has signed it.
        refused: whether the head did not go on from the one before.
    """

    time: str
    kind: str
    session: str
    client: int
    version: int
    turn: int
    nonce: str
    checkpoint: str = ""
    coordinator: str = ""
    refused: bool = False


class Witness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last head that a client has co-signed, in `witnesses.json`.

    Args:
        name: of the client.
        key: its public key, as text.
        checkpoint: the head, signed by the coordinator.
        coordinator: the public key that has signed it, as text.
        cosignature: the client's line.
    """

    name: str
    key: str
    checkpoint: str
    coordinator: str
    cosignature: str


class Witnesses(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `witnesses.json`: the witness that each client is, by its id."""

    clients: dict[int, Witness]


def as_json(witnesses: Mapping[int, Witness]) -> bytes:
    """Return the content of `witnesses.json`."""
    return msgspec.json.format(msgspec.json.encode(Witnesses(dict(sorted(witnesses.items())))), indent=1) + b"\n"


def witnesses_of(folder: Path) -> dict[int, Witness]:
    """Return the witnesses in the folder of a run that goes on; none if there are none, or the file is damaged."""
    try:
        return from_json(contents(inside(folder, WITNESSES), LARGEST), Witnesses).clients
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        warnings.warn(f"{WITNESSES} is damaged: {error}. It is written again as clients answer.", stacklevel=2)
        return {}
