"""The updates of a run that came one by one, or late: when each was sent for, when it came, and what became of it."""

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from phalanx.report.words import finite

if TYPE_CHECKING:
    from phalanx.runs.history import Line, Record

ACCEPTED, REJECTED, UNDECIDED, REFUSED, LOST = "accepted", "rejected", "undecided", "refused", "lost"
DECIDED = {True: ACCEPTED, False: REJECTED}


class Flight(NamedTuple):
    """One task of a client, from the model that it was sent to what came of it.

    Args:
        client: its id.
        sent: seconds; when the client's task before was over or the model came about, whichever is later. That is when
            it was sent, unless the client could not be reached then. Of what was refused or lost the model is not told.
        came: seconds.
        step: in which it came.
        age: how many versions the server had gone on meanwhile; None for what was refused or lost.
        fate: ACCEPTED, REJECTED, UNDECIDED as long as no later step decided, REFUSED or LOST.
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
    """Whether the history tells which version each update answers."""
    return any("versions" in line for line in record.history)


def flights(record: "Record") -> tuple[Flight, ...]:
    """All tasks that were over, in the order in which they were; none if the history does not tell versions.

    Where one verdict is on several updates of a client, as in Catalyst on a late one and a fresh one, it holds for each
    of them, and its weight is divided.
    """
    return tuple(_Reader().read(record.history)) if asynchronous(record) else ()


class _Reader:
    """One pass over a history."""

    def __init__(self) -> None:
        self.out: list[Flight] = []
        self.version = 0  # of the line before
        self.begun: dict[int, float] = {}  # when each version came about
        self.free: dict[int, float] = {}  # when each client's last task was over
        self.open: dict[int, list[int]] = defaultdict(list)  # for each client, its undecided flights by their place

    def read(self, history: "list[Line]") -> list[Flight]:
        """The flights of all lines."""
        for line in history:
            version = int(line.get("version") or 0)
            if "verdicts" in line:
                self._arrive(line)
                self._decide(line, moved=version > self.version)
            if int(line["step"]) > 0:  # who is refused before did not enrol
                for fate, told in ((REFUSED, line.get("refused")), (LOST, line.get("lost"))):
                    for name in told or {}:
                        self._note(line, int(name), None, fate)
            self.version = version
            self.begun.setdefault(version, finite(line.get("seconds")) or 0.0)
        return self.out

    def _arrive(self, line: "Line") -> None:
        """Notes the updates of a line.  One that names no versions has a round of which all are fresh."""
        versions: Mapping[str, Any] = line.get("versions") or dict.fromkeys(line["verdicts"], self.version)
        for name, version in versions.items():
            self.open[int(name)].append(len(self.out))
            self._note(line, int(name), int(version), UNDECIDED)

    def _note(self, line: "Line", client: int, version: int | None, fate: str) -> None:
        now, free = finite(line.get("seconds")) or 0.0, self.free.get(client, 0.0)
        sent = free if version is None else max(free, self.begun.get(version, 0.0))
        age = None if version is None else self.version - version
        self.out.append(Flight(client, min(sent, now), now, int(line["step"]), age, fate, 0.0))
        self.free[client] = now

    def _decide(self, line: "Line", *, moved: bool) -> None:
        """Applies the verdicts of a line.  Without a new version, one on who just came is on what just came."""
        here = line.get("versions") or line["verdicts"]
        for name, verdict in line["verdicts"].items():
            if verdict.get("waits"):
                continue
            waiting = self.open[int(name)]
            decided = waiting[-1:] if name in here and not moved else waiting[:]
            del waiting[len(waiting) - len(decided) :]
            for place in decided:
                weight = (finite(verdict.get("weight")) or 0.0) / len(decided)
                self.out[place] = self.out[place]._replace(fate=DECIDED[bool(verdict["accepted"])], weight=weight)
