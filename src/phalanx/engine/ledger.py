"""The server's record of its clients: who is enrolled, what each was sent, and the failures since the last step."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from phalanx.core import Updates, Vector
from phalanx.engine.connection import Arrivals
from phalanx.engine.guard import Guard, Sent

TRIES = 10  # losses in a row after which a client counts as hopeless; one invalid answer is enough
MANY_TRIES = 1000  # losses in a row of one client after which nobody waits for silent others any longer


class FailedAttempts(NamedTuple):
    """The failed attempts of a client since the last step."""

    tries: int
    why: str  # of the last failure

    @property
    def hopeless(self) -> bool:
        """Whether so many attempts have failed that no answer is expected any more."""
        return self.tries >= TRIES


@dataclass
class Ledger:
    """The server's record of its clients.  Only its own methods change it.

    Args:
        guard: checks what clients report and send.
        model: gives the shape, dtype and device of a valid update.
        enrolled: clients that were let in; excluded ones stay enrolled.
        sent: downloads without an answer.
        ahead: downloads that wait at a client until it has answered the one in `sent`.
        failed: clients with failed attempts since the last step.
    """

    guard: Guard
    model: Vector
    enrolled: frozenset[int] = frozenset()
    sent: dict[int, Sent] = field(default_factory=dict)
    ahead: dict[int, Sent] = field(default_factory=dict)
    failed: dict[int, FailedAttempts] = field(default_factory=dict)
    bad: Set[int] = frozenset()  # enrolled clients whose answers in the last wait were invalid
    _invalid: dict[int, str] = field(default_factory=dict)  # since the last report
    _lost: dict[int, str] = field(default_factory=dict)  # since the last report

    @property
    def reasons(self) -> dict[int, str]:
        """For each client with failed attempts since the last step, the reason of the last one."""
        return {client: attempts.why for client, attempts in self.failed.items()}

    # Enrolment

    def check(self, reported: Mapping[int, object]) -> dict[int, int]:
        """Return the valid sizes of clients that want to enrol; refuse the others."""
        sizes, invalid = self.guard.enroll(reported)
        self._invalid |= invalid
        return sizes

    def enroll(self, clients: Iterable[int]) -> None:
        """Let clients in."""
        self.enrolled = self.enrolled.union(clients)

    def refuse(self, client: int, why: str) -> None:
        """Do not let a client in."""
        self._invalid[client] = why

    # Downloads and their answers

    def ask(self, downloads: Mapping[int, Vector], version: int) -> None:
        """Note the downloads that are sent."""
        for client, download in downloads.items():
            place = self.ahead if client in self.sent else self.sent
            place[client] = Sent(version, download)

    def forget(self, clients: Set[int]) -> None:
        """Expect no answer of these clients any more."""
        for client in clients:
            self.sent.pop(client, None)
            self.ahead.pop(client, None)

    def settle(self, arrivals: Arrivals, version: int) -> tuple[Updates | None, set[int]]:
        """Return the valid updates, if there are any for a step, and the clients that need another download."""
        checked = self.guard.inspect(arrivals.replies, self.sent, version, self.model)
        self.bad = self.enrolled & (arrivals.invalid.keys() | (checked.invalid.keys() & checked.answered))
        bad = {**arrivals.invalid, **{i: why for i, why in checked.invalid.items() if i in checked.answered}}
        failed = {**arrivals.lost, **bad}
        again = failed.keys() - (checked.updates.clients if checked.updates else ())
        for i in checked.answered | again:
            self._next(i)
        self._invalid |= {**arrivals.invalid, **checked.invalid}
        newly_late = {i: why for i, why in arrivals.late.items() if i in self.sent and self.sent[i].version == version}
        self._lost |= {**arrivals.lost, **newly_late}
        for i in again:
            tries = TRIES if i in bad else self.failed[i].tries + 1 if i in self.failed else 1
            self.failed[i] = FailedAttempts(tries, failed[i])
        return None if arrivals.missing else checked.updates, again  # a part of a round is no round

    def _next(self, client: int) -> None:
        """Close a client's download; it goes on with the one that it was sent ahead."""
        self.sent.pop(client, None)
        if client in self.ahead:
            self.sent[client] = self.ahead.pop(client)

    def lose(self, clients: Iterable[int], why: str) -> None:
        """Note clients whose updates came, and could not be used."""
        self._lost |= dict.fromkeys(clients, why)

    def stepped(self) -> None:
        """Count failures from zero after a step."""
        self.failed.clear()

    # Reports

    @property
    def has_report(self) -> bool:
        """Return whether an answer was invalid or lost since the last report."""
        return bool(self._invalid or self._lost)

    def report(self) -> tuple[dict[int, str], dict[int, str]]:
        """Return whose answers were invalid and lost since the last report, with reasons."""
        report = self._invalid, self._lost
        self._invalid, self._lost = {}, {}
        return report


def listed(reasons: Mapping[int, str], limit: int = 10) -> str:
    """Return the reasons as lines of a message."""
    lines = [f"\n  client {i}: {reasons[i]}" for i in sorted(reasons)[:limit]]
    more = f"\n  and {len(reasons) - limit} more" if len(reasons) > limit else ""
    return "".join(lines) + more
