"""What is read from a record: who the clients are, what each of them did, and who was removed when."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from phalanx.report.words import finite

if TYPE_CHECKING:
    from phalanx.runs.history import Line, Record

HONEST, BYZANTINE, UNKNOWN = "honest", "Byzantine", "unknown"


class Group(NamedTuple):
    """Clients that belong together: their name, "clients" where the truth is unknown, and their ids in order."""

    name: str
    clients: tuple[int, ...]


class Removals(NamedTuple):
    """Clients removed in one step.

    Args:
        step: when.
        byzantine: how many of them are Byzantine.
        others: how many are honest, or not known to be anything else.
    """

    step: int
    byzantine: int
    others: int


class Ledger:
    """A record client by client, from one pass over its history.

    Attributes:
        record: the run.
        clients: what the summary says of each client, and nothing of those that only the history names; by id.
        truth: for each client HONEST, BYZANTINE or UNKNOWN.
        removed: for each removed client, what the summary says of its removal.
        weight: for each client, the sum of the weights of its updates.
        times: how often each client was ("accepted", client), "rejected", "refused" or "lost".
        accuracy: for each client whose accuracy under its own distribution of labels is known, the last such.
        shares: for each removal (step, client), the client's share of all weight up to then, where there was any.
    """

    def __init__(self, record: "Record") -> None:
        self.record = record
        self.clients = _clients(record)
        self.truth = {c: _truth(about.get("byzantine")) for c, about in self.clients.items()}
        self.removed = {c: about["removed"] for c, about in self.clients.items() if about.get("removed")}
        self.weight: dict[int, float] = defaultdict(float)
        self.times = Counter[tuple[str, int]]()
        lasts = [line["client_accuracy"] for line in record.history if line.get("client_accuracy")]
        self.accuracy = {int(c): accuracy for c, accuracy in (lasts[-1] if lasts else {}).items()}
        self.shares: dict[tuple[int, int], float] = {}
        for line in record.history:
            self._read(line)
            leaving = [c for c, removed in self.removed.items() if int(removed["step"]) == int(line["step"])]
            if leaving and (total := self.total) > 0:
                self.shares |= {(int(line["step"]), c): self.weight[c] / total for c in leaving}

    def _read(self, line: "Line") -> None:
        for name, verdict in (line.get("verdicts") or {}).items():
            if verdict.get("waits"):
                continue
            self.weight[int(name)] += finite(verdict.get("weight")) or 0.0
            self.times["accepted" if verdict["accepted"] else "rejected", int(name)] += 1
        for kind in ("refused", "lost"):
            self.times.update((kind, int(name)) for name in line.get(kind) or {})

    @property
    def total(self) -> float:
        """All weight."""
        return sum(self.weight.values())

    @property
    def byzantine_share(self) -> float | None:
        """The share of all weight that went to Byzantine clients; None if there was none."""
        total = self.total
        return sum(self.weight[c] for c in self.of(BYZANTINE)) / total if total > 0 else None

    @property
    def groups(self) -> tuple[Group, ...]:
        """The clients by truth: unknown ones, honest ones, Byzantine ones; no group is empty."""
        names = {UNKNOWN: "clients", HONEST: HONEST, BYZANTINE: BYZANTINE}
        return tuple(Group(name, who) for truth, name in names.items() if (who := self.of(truth)))

    @property
    def removals(self) -> list[Removals]:
        """How many clients were removed, by step."""
        steps: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for client, removed in self.removed.items():
            steps[int(removed["step"])][self.truth[client] != BYZANTINE] += 1
        return [Removals(step, *counts) for step, counts in sorted(steps.items())]

    def of(self, truth: str) -> tuple[int, ...]:
        """The clients of that truth, by id."""
        return tuple(c for c, known in self.truth.items() if known == truth)

    def number(self, client: int, key: str) -> float | None:
        """A number that the summary gives for a client, None if it does not."""
        return finite(self.clients[client].get(key))


def attacked(record: "Record") -> bool:
    """Whether the run's configuration has an attack, and somebody to carry it out."""
    attackers = record.config.get("byzantine") != 0 or bool(record.config.get("byzantine_beside"))
    return record.config.get("attack") is not None and attackers


def _clients(record: "Record") -> dict[int, Mapping[str, Any]]:
    told = record.summary.get("clients") or {}
    seen = {c for line in record.history for part in ("verdicts", "refused", "lost") for c in line.get(part) or {}}
    return {int(c): told.get(c) or {} for c in sorted({*told, *seen}, key=int)}


def _truth(byzantine: object) -> str:
    return UNKNOWN if byzantine is None else BYZANTINE if byzantine else HONEST
