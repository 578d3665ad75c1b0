"""The evidence of a step: digests of what came, what decided, and what was made of it.

A deployment writes it into its audit trail, one line for each line of the history, so that the witnesses of the trail
are witnesses of the history, the updates and the models as well (`phalanx.runs.evidenced`).
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from phalanx.core import AnyState, Verdict
from phalanx.engine.observer import Progress
from phalanx.runs.files import inside
from phalanx.runs.history import promise_of, verdicts_of
from phalanx.runs.models import Served, content, others
from phalanx.runs.schema import PromiseRecord
from phalanx.runs.seal import Mark, file_hash, files_of_end


class SignedUpdate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client has signed when it sent an update; the fields but for `digest` are those of its task.

    Args:
        key: its public key, as text.
        version: of the model that it was sent.
        turn: number of its earlier tasks.
        nonce: of the task, in hexadecimal.
        digest: SHA-256 over all parts of its answer, in hexadecimal.
        signature: in hexadecimal.
    """

    key: str
    version: int
    turn: int
    nonce: str
    digest: str
    signature: str


class StepEvidence(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a line of an audit trail says about a line of the history.  Digests are SHA-256, in hexadecimal.

    Args:
        history: number of lines of the history, and the last link of their hash chain.
        line: digest of the last of these lines.
        result: of the global model after the step, as float32 or the run's type, entry after entry.
        others: of the models that clients are served instead, by client and number; empty if there are none.
        algorithm: the algorithm with its rule and all parameters, as in `run.json`.
        promise: in force.
        verdicts: by client.
        updates: digest of each update as the algorithm got it, by client.
        signed: what each of these clients has signed.
        session: names the run; clients sign it.
        coordinator: the public key that the tasks named, as text; clients sign it.
        transfer: in which form updates travelled; clients sign it.
        files: digest of each other file of the record, by name; where the run has ended.
        kept: digest of the file of the step's updates; empty if they are not kept.
    """

    history: Mark
    line: str = ""
    result: str = ""
    others: str = ""
    algorithm: dict[str, Any] = {}
    promise: PromiseRecord | None = None
    verdicts: dict[int, Verdict] = {}
    updates: dict[int, str] = {}
    signed: dict[int, SignedUpdate] = {}
    session: str = ""
    coordinator: str = ""
    transfer: str = ""
    files: dict[str, str] = {}
    kept: str = ""


class EvidenceMaker:
    """Makes the evidence of the last line of a history.

    Args:
        served: returns the models of a state for its enrolled clients.
        last: returns where the history is, and the digest of its last line.
        algorithm: with its rule and all parameters, as in `run.json`.
        folder: of the run; None: there are no files.
        promise: the last one of a run that goes on; empty if there is none.
    """

    def __init__(
        self,
        served: Callable[[AnyState, frozenset[int]], Served],
        last: Callable[[], tuple[Mark, str]],
        algorithm: Mapping[str, Any],
        folder: Path | None,
        *,
        promise: Iterable[PromiseRecord] = (),
    ) -> None:
        self._served, self._last, self._algorithm, self._folder = served, last, dict(algorithm), folder
        self._promise = next(iter(promise), None)

    def of_step(
        self, progress: Progress, signed: Mapping[int, SignedUpdate], kept: str = "", **task: str
    ) -> StepEvidence:
        """Return the evidence of a step, or of a wait without one.

        Args:
            progress: of the step.
            signed: by client, what it has signed last.
            kept: digest of the file of the step's updates.
            task: `session`, `coordinator` and `transfer` of the tasks.
        """
        self._promise = promise_of(progress.promise) or self._promise
        history, line = self._last()
        served, updates = self._served(progress.state, progress.enrolled), progress.updates
        found = StepEvidence(history, line, content(served.model).hex(), others(served), promise=self._promise)
        if updates is None:
            return msgspec.structs.replace(found, kept="" if progress.step else kept)
        rows = zip(updates.clients, updates.deltas, strict=True)
        return msgspec.structs.replace(
            found,
            algorithm=self._algorithm,
            verdicts=verdicts_of(progress.state.verdicts),
            updates={client: content(row).hex() for client, row in rows},
            signed={client: signed[client] for client in updates.clients if client in signed},
            kept=kept,
            **task,
        )

    def of_end(self, *, ended: bool) -> StepEvidence:
        """Return the evidence of a run that ends, or goes on: its history, and the other files if it has ended."""
        folder = self._folder if ended else None
        files = {} if folder is None else {name: file_hash(inside(folder, name)) for name in files_of_end(folder)}
        return StepEvidence(self._last()[0], files=files)
