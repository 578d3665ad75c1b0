"""The clients of a record: their truth, their updates, and the exclusions."""

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from phalanx.runs.reports import reported
from phalanx.runs.schema import ClientRecord

if TYPE_CHECKING:
    from phalanx.runs.record import Record
    from phalanx.runs.schema import StepRecord

HONEST, BYZANTINE, UNKNOWN = "honest", "Byzantine", "unknown"
TRUTH = {False: HONEST, True: BYZANTINE, None: UNKNOWN}


class Group(NamedTuple):
    """A group of clients: its name, "clients" if the truth is unknown, and their ids in order."""

    name: str
    clients: tuple[int, ...]


class Exclusions(NamedTuple):
    """Clients excluded in one step.

    Args:
        step: of the exclusion.
        byzantine: number of Byzantine ones.
        others: number of honest ones, or of unknown truth.
    """

    step: int
    byzantine: int
    others: int


class ClientLedger:
    """A record client by client, read in one pass over its history.

    Attributes:
        record: the run.
        clients: the summary of each client, empty for those that only the history names; by id.
        names: of the clients that have one, by id.
        truth: for each client HONEST, BYZANTINE or UNKNOWN.
        excluded: for each excluded client, the step and the reason.
        suspicious: for each suspicious client, the step and the reason.
        weight: for each client, the sum of the weights of its updates.
        times: number of updates of each client that were ("accepted", client), "filtered", "invalid" or "lost".
        accuracy: for each client, the last known accuracy under its own distribution of labels.
        reported: what each client reported, of those that did.
        shares: for each exclusion (step, client), the client's share of all weight up to then, where there was any.
    """

    def __init__(self, record: "Record") -> None:
        self.record = record
        self.clients = _clients(record)
        self.names = {c: client.name for c, client in self.clients.items() if client.name}
        self.truth = {c: TRUTH[client.byzantine] for c, client in self.clients.items()}
        self.excluded = {c: client.excluded for c, client in self.clients.items() if client.excluded}
        self.suspicious = {c: client.suspicious for c, client in self.clients.items() if client.suspicious}
        self.weight: dict[int, float] = defaultdict(float)
        self.times = Counter[tuple[str, int]]()
        measured = [m.client_accuracy for step in record.history if (m := step.metrics) and m.client_accuracy]
        self.accuracy = measured[-1] if measured else {}
        self.reported = reported(record.history)
        self.shares: dict[tuple[int, int], float] = {}
        for step in record.history:
            self._read(step)
            leaving = [c for c, exclusion in self.excluded.items() if exclusion.step == step.step]
            if leaving and (total := self.total) > 0:
                self.shares |= {(step.step, c): self.weight[c] / total for c in leaving}

    def _read(self, step: "StepRecord") -> None:
        for client, verdict in step.decided.items():
            self.weight[client] += verdict.weight
            self.times["accepted" if verdict.accepted else "filtered", client] += 1
        for kind, clients in (("invalid", step.invalid), ("lost", step.lost)):
            self.times.update((kind, client) for client in clients)

    @property
    def total(self) -> float:
        """The sum of all weights."""
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
    def exclusions(self) -> list[Exclusions]:
        """The numbers of excluded clients, by step."""
        steps: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for client, exclusion in self.excluded.items():
            steps[exclusion.step][self.truth[client] != BYZANTINE] += 1
        return [Exclusions(step, *counts) for step, counts in sorted(steps.items())]

    def of(self, truth: str) -> tuple[int, ...]:
        """Return the clients of that truth, by id."""
        return tuple(c for c, known in self.truth.items() if known == truth)


def attacked(record: "Record") -> bool:
    """Return whether the run's configuration has an attack and Byzantine clients."""
    attackers = record.config.get("byzantine") != 0 or bool(record.config.get("additional_byzantine"))
    return record.config.get("attack") is not None and attackers


def _clients(record: "Record") -> dict[int, ClientRecord]:
    known = record.summary.clients
    seen = {
        c
        for step in record.history
        for part in (step.verdicts, step.not_enrolled, step.invalid, step.lost, step.reports)
        for c in part
    }
    return {c: known.get(c, ClientRecord()) for c in sorted({*known, *seen})}
