"""The server's record of its clients: who is enrolled, what each was sent, and what went wrong since the last step."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from phalanx.core import Arrivals, Updates, Vector
from phalanx.engine.guard import Guard, Sent

TRIES = 10  # losses in a row after which a client counts as hopeless; one invalid answer is enough


class FailedAttempts(NamedTuple):
    """How often a client was asked without success since the last step."""

    tries: int
    why: str  # the last time

    @property
    def hopeless(self) -> bool:
        """Whether it has been asked often enough."""
        return self.tries >= TRIES


@dataclass
class Ledger:
    """The server's record of its clients.  Only its own methods change it.

    Args:
        guard: checks what clients report and send.
        model: what an update must look like.
        enrolled: clients that were let in; nobody leaves, also who is excluded.
        sent: downloads without an answer.
        ahead: downloads that wait at a client until it has answered that in `sent`.
        failed: clients that were asked without success since the last step.
    """

    guard: Guard
    model: Vector
    enrolled: frozenset[int] = frozenset()
    sent: dict[int, Sent] = field(default_factory=dict)
    ahead: dict[int, Sent] = field(default_factory=dict)
    failed: dict[int, FailedAttempts] = field(default_factory=dict)
    _refused: dict[int, str] = field(default_factory=dict)  # since the last report
    _lost: dict[int, str] = field(default_factory=dict)  # since the last report

    @property
    def reasons(self) -> dict[int, str]:
        """For each client that was asked without success since the last step, why it failed the last time."""
        return {client: attempts.why for client, attempts in self.failed.items()}

    # Enrolment

    def check(self, declared: Mapping[int, object]) -> dict[int, int]:
        """Return the valid sizes of clients that want to enrol; refuse the others."""
        sizes, refused = self.guard.enroll(declared)
        self._refused |= refused
        return sizes

    def enroll(self, clients: Iterable[int]) -> None:
        """Let clients in."""
        self.enrolled = self.enrolled.union(clients)

    def refuse(self, client: int, why: str) -> None:
        """Do not let a client in."""
        self._refused[client] = why

    # Downloads and their answers

    def ask(self, downloads: Mapping[int, Vector], version: int) -> None:
        """Note what is sent."""
        for client, download in downloads.items():
            place = self.ahead if client in self.sent else self.sent
            place[client] = Sent(version, download)

    def forget(self, clients: Set[int]) -> None:
        """Expect no answer of these clients any more."""
        for client in clients:
            self.sent.pop(client, None)
            self.ahead.pop(client, None)

    def settle(self, arrivals: Arrivals, version: int) -> tuple[Updates | None, set[int]]:
        """Return the updates that are fit for a step, if any are, and the clients that have to be asked again."""
        checked = self.guard.inspect(arrivals.replies, self.sent, version, self.model)
        bad = {**arrivals.refused, **{i: why for i, why in checked.refused.items() if i in checked.answered}}
        failed = {**arrivals.lost, **bad}
        again = failed.keys() - (checked.updates.clients if checked.updates else ())
        for i in checked.answered | again:
            self._next(i)
        self._refused |= {**arrivals.refused, **checked.refused}
        newly_late = {i: why for i, why in arrivals.late.items() if i in self.sent and self.sent[i].version == version}
        self._lost |= {**arrivals.lost, **newly_late}
        for i in again:
            tries = TRIES if i in bad else self.failed[i].tries + 1 if i in self.failed else 1
            self.failed[i] = FailedAttempts(tries, failed[i])
        return None if arrivals.missing else checked.updates, again  # a part of a round is no round

    def _next(self, client: int) -> None:
        """What a client was sent is settled: it goes on with what it was sent ahead."""
        self.sent.pop(client, None)
        if client in self.ahead:
            self.sent[client] = self.ahead.pop(client)

    def stepped(self) -> None:
        """Start to count failures from zero: there was a step."""
        self.failed.clear()

    # Reports

    @property
    def has_report(self) -> bool:
        """Whether a client was refused or lost since the last report."""
        return bool(self._refused or self._lost)

    def report(self) -> tuple[dict[int, str], dict[int, str]]:
        """Return which clients were refused and lost since the last report, with reasons."""
        report = self._refused, self._lost
        self._refused, self._lost = {}, {}
        return report


def listed(reasons: Mapping[int, str], limit: int = 10) -> str:
    """Return the reasons as lines of a message."""
    lines = [f"\n  client {i}: {reasons[i]}" for i in sorted(reasons)[:limit]]
    more = f"\n  and {len(reasons) - limit} more" if len(reasons) > limit else ""
    return "".join(lines) + more
