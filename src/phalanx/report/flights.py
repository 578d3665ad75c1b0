"""The tasks of a run whose updates arrived one by one, or late: begin, end and outcome of each."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from phalanx.runs.record import Record
    from phalanx.runs.schema import StepRecord

ACCEPTED, FILTERED, UNDECIDED, INVALID, LOST = "accepted", "filtered", "undecided", "invalid", "lost"
DECIDED = {True: ACCEPTED, False: FILTERED}


class Flight(NamedTuple):
    """One task of a client, from its download to its outcome.

    Args:
        client: its id.
        sent: seconds; the end of the client's previous task or the creation of the model, whichever is later. That is
            the time of the download, unless the client was unavailable then. For an invalid or lost update the model
            is unknown.
        came: seconds.
        step: in which it arrived.
        age: number of new versions of the server meanwhile; None for an invalid or lost update.
        fate: ACCEPTED, FILTERED, UNDECIDED as long as no later step decides, INVALID or LOST.
        weight: of the update in the step that used it; 0 if none did.
    """

    client: int
    sent: float
    came: float
    step: int
    age: int | None
    fate: str
    weight: float


def asynchronous(record: "Record") -> bool:
    """Return whether the history has the version that each update trained on."""
    return any(step.versions for step in record.history)


def flights(record: "Record") -> tuple[Flight, ...]:
    """Return all tasks that have ended, in this order; none if the history has no versions.

    If one verdict is on several updates of a client, as in Catalyst on a late one and a fresh one, it holds for each
    of them, and its weight is divided.
    """
    return tuple(_Reader().read(record.history)) if asynchronous(record) else ()


class _Reader:
    """One pass over a history."""

    def __init__(self) -> None:
        self.out: list[Flight] = []
        self.version = 0  # of the line before
        self.begun: dict[int, float] = {}  # time at which each version was created
        self.free: dict[int, float] = {}  # end of each client's last task
        self.open: dict[int, list[int]] = defaultdict(list)  # for each client, the indices of its undecided flights

    def read(self, history: "Sequence[StepRecord]") -> list[Flight]:
        """Return the flights of all steps."""
        for step in history:
            self._arrive(step)
            self._decide(step, moved=step.version > self.version)
            for fate, clients in ((INVALID, step.invalid), (LOST, step.lost)):
                for client in clients:
                    self._note(step, client, None, fate)
            self.version = step.version
            self.begun.setdefault(step.version, step.seconds)
        return self.out

    def _arrive(self, step: "StepRecord") -> None:
        """Note the updates of a step.  One that has no versions is a round of which all are fresh."""
        for client, version in (step.versions or dict.fromkeys(step.verdicts, self.version)).items():
            self.open[client].append(len(self.out))
            self._note(step, client, version, UNDECIDED)

    def _note(self, step: "StepRecord", client: int, version: int | None, fate: str) -> None:
        now, free = step.seconds, self.free.get(client, 0.0)
        sent = free if version is None else max(free, self.begun.get(version, 0.0))
        age = None if version is None else self.version - version
        self.out.append(Flight(client, min(sent, now), now, step.step, age, fate, 0.0))
        self.free[client] = now

    def _decide(self, step: "StepRecord", *, moved: bool) -> None:
        """Apply the verdicts of a step.  Without a new version, one on an arrived client is on that update alone."""
        here = step.versions or step.verdicts
        for client, verdict in step.decided.items():
            waiting = self.open[client]
            decided = waiting[-1:] if client in here and not moved else waiting[:]
            del waiting[len(waiting) - len(decided) :]
            for place in decided:
                weight = verdict.weight / len(decided)
                self.out[place] = self.out[place]._replace(fate=DECIDED[verdict.accepted], weight=weight)
