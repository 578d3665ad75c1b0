"""Real clients: the transport over Flower's messages.

Data from Flower are not trusted: `phalanx.flower.register` checks the identity of nodes, `dispatcher` the sender of a
reply, `codec` its content.  Each task in flight is pulled by its own thread, since one pull can block for minutes if a
client announces a reply and uploads nothing; and each wait has its own deadline, since Flower notices a dead client
late or never.  Only `get_node_ids`, `push_messages` and `pull_messages` of Flower's `Grid` are used.

A client can hold one task beyond the one that it works on.  Flower 1.41 hands a node its messages in the order in which
they were made, and a SuperNode takes the next one when it has sent the reply to the one before: it works on one at a
time, in a process of its own for each, and sleeps for three seconds only where no other message waits.  So a client
with a local state has completed one task before the next.  An answer to the second task that nevertheless arrives first
stays at Flower until the first is settled: it is not fetched before.

Where more clients are silent than the plan tolerates (`phalanx.flower.outage`), their tasks are sent again until they
answer, and the wait goes on.
"""

import logging
import math
import queue
import secrets
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import NamedTuple

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.serverapp import Grid

from phalanx.core import Download, InfeasibleError, StalledError, Vector
from phalanx.data import Schema
from phalanx.engine.connection import Arrivals, Reply
from phalanx.engine.ledger import listed
from phalanx.engine.observer import Progress
from phalanx.flower import codec
from phalanx.flower.audit import Note
from phalanx.flower.awake_clock import TICK, AwakeClock
from phalanx.flower.codec import TaskMessage
from phalanx.flower.deadlines import Deadlines
from phalanx.flower.dispatcher import Dispatch, Dispatcher, Invalid, Lost, Outcome
from phalanx.flower.identity import Roster
from phalanx.flower.logs import log_fields
from phalanx.flower.outage import Outage, tolerated
from phalanx.flower.register import HeadOf, Register, forget, no_head
from phalanx.flower.suspension import Standing, Suspension
from phalanx.flower.timeouts import Timeouts
from phalanx.flower.upload_counter import UploadCounter
from phalanx.numerics.allocation import room
from phalanx.runs.evidence import SignedUpdate
from phalanx.runs.missing import SUSPENDED
from phalanx.runs.updates import SentAnswer, Transfer
from phalanx.wording import plural

log = logging.getLogger("phalanx.flower")

WINDOW = 3.0  # missed tasks count for an outage for this many times `Timeouts.answer`
LONGER = 4.0  # longest time for an answer in an outage, as a multiple of `Timeouts.answer`
OUTAGE, OUTAGE_OVER = "outage", "outage over"  # events


class Pending(NamedTuple):
    """A task without an answer, as a snapshot keeps it."""

    version: int
    turn: int
    download: Download


class SilentTask(NamedTuple):
    """A task without an answer that is not given up yet."""

    pending: Pending
    row: Vector  # receives the update
    why: str
    charged: bool  # whether it is a miss if it is given up
    due: float  # by the clock; when it is sent again, if it is
    paused: bool  # whether this process stopped since it was sent


class TransportState(NamedTuple):
    """The state of the transport between steps."""

    session: str
    now: float  # seconds
    turns: Mapping[int, int]  # number of tasks of each client
    pending: Mapping[int, Pending]
    reported: Mapping[int, object]  # sizes of the clients that have enrolled and been reported
    standings: Mapping[int, Standing]
    ahead: Mapping[int, Pending] = {}  # tasks of clients after the pending ones
    f: int = 0  # number of attackers that the plan tolerates
    rounds: bool = False  # whether it works in rounds


class Waited:
    """The results of one wait so far."""

    def __init__(self) -> None:
        self.replies = list[Reply]()
        self.invalid = dict[int, str]()
        self.lost = dict[int, str]()

    def __bool__(self) -> bool:
        return bool(self.replies or self.invalid or self.lost)

    @property
    def finished(self) -> set[int]:
        """The clients with a result."""
        return {*(reply.client for reply in self.replies), *self.invalid, *self.lost}


class FlowerTransport:
    """A transport to real clients over Flower.

    It is an `Observer` as well: as one of the observers of its run, it counts invalid updates as strikes.

    Args:
        grid: Flower's, as a ServerApp is given it.
        roster: who may take part: a file, which is read again when it has changed, or the roster itself.
        timeouts: how long it waits.
        suspension: rules of suspension, and the shortest time between two tasks.
        transfer: in which form updates travel.
        prefetch: whether a client is sent a second task while it works on the first, for a newer version, so that it
            has something to do while its answer travels. Updates are older for it. Asynchronous algorithms only.
        tell: takes the events of clients between steps, from any thread.
        asked: counts the tasks that each client is given.
        update_size: number of entries of an update; None: as many as a download has.
        f: number of attackers that the plan is expected to tolerate, until it promises.
        clock: gives the time of deadlines.
        schema: of the tables of all clients; None: there is none.
        key: private key of the coordinator, by which it signs each task, or its file; None: `coordinator.pem` next to
            the file of the roster, or nothing if that names no coordinator.
        head: of the audit trail, which clients are shown and co-sign; see `Audit.head`.
        keeps: whether `sent` holds answers as they were sent.
    """

    def __init__(
        self,
        grid: Grid,
        roster: Path | Roster,
        *,
        timeouts: Timeouts | None = None,
        suspension: Suspension | None = None,
        transfer: Transfer = "float32",
        prefetch: bool = False,
        tell: Callable[[Note], None] = forget,
        asked: UploadCounter | None = None,
        update_size: int | None = None,
        f: int = 0,
        clock: AwakeClock | None = None,
        schema: Schema | None = None,
        key: Ed25519PrivateKey | Path | None = None,
        head: HeadOf = no_head,
        keeps: bool = False,
    ) -> None:
        self.update_size, self.f, self._tell, self.clock = update_size, f, tell, clock or AwakeClock()
        self.asked = asked or UploadCounter()
        self.timeouts, self.suspension, self.transfer = timeouts or Timeouts(), suspension or Suspension(), transfer
        self.register = Register(
            grid,
            roster,
            self.timeouts,
            self.suspension,
            came=lambda: self._dispatcher.inbox.put(None),  # wakes up a wait, which then checks who is connected
            tell=tell,
            clock=self.clock,
            schema=schema,
            key=key,
            head=head,
        )
        self._dispatcher, self.prefetch = Dispatcher(grid, self.register, self.timeouts, keeps=keeps), prefetch
        self._open = dict[int, Dispatch]()  # the current task of each client
        self._ahead = dict[int, Dispatch]()  # the next task of some of these
        self._away = dict[int, str]()  # clients that were due a task and unavailable, with the reason
        self._least, self._rounds = 1, False
        self._turns = dict[int, int]()
        self._last_asked = dict[int, float]()  # by the clock
        self._silent = dict[int, SilentTask]()
        self.outage = Outage(WINDOW * self.timeouts.answer, self.clock)
        self._announced: float | None = None  # beginning of the outage that the operator knows of
        self._excluded, self._enrolled = frozenset[int](), frozenset[int]()
        self._joined = dict[int, object]()  # clients that enrolled, and were not reported yet
        self._deadlines = Deadlines(self.timeouts)
        self._delivered: frozenset[int] = frozenset()  # clients with a reply in the last arrivals
        self.signed = dict[int, SignedUpdate]()  # by client, of its last valid reply
        self.sent = dict[int, SentAnswer]()  # likewise

    def __enter__(self) -> "FlowerTransport":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all waiting; tasks in flight are dropped."""
        self.forget(self._open.keys() | self._silent.keys())
        self.register.close()
        self._dispatcher.close()

    @property
    def lossy(self) -> bool:
        """See `Lossy`: a real client can always fail to answer in time."""
        return True

    @property
    def joins(self) -> bool:
        """See `Joinable`: a client can come at any time."""
        return True

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self.register.now

    def with_suspensions(self, invalid: Mapping[int, str], enrolled: Set[int]) -> Mapping[int, str]:
        """See `Suspending`: an update that the guard finds invalid is a strike."""
        found = invalid.keys() & enrolled & self._delivered
        last = {client for client in found if self.register.last_strike(client)}
        return {client: why + SUSPENDED if client in last else why for client, why in invalid.items()}

    def __call__(self, progress: Progress, /) -> None:
        """See `Observer`: an update that the guard finds invalid is a strike."""
        for client, why in sorted(progress.invalid.items()):
            if client not in progress.enrolled:
                self._complain("not enrolled", client, f"not enrolled: {why}")
            elif client in self._delivered:
                found = why.removesuffix(SUSPENDED)
                self._complain("invalid", client, found)
                self.register.struck(client, found)
        self._delivered = frozenset()
        self.register.slow = self._deadlines.slow()
        self.register.report_pause()
        self.register.step, self._enrolled = progress.step, progress.enrolled
        self._excluded = frozenset(i for i, verdict in progress.state.verdicts.items() if verdict.final)
        if progress.promise is not None:
            self.f = progress.promise.f

    def _complain(self, event: str, client: int, why: str) -> None:
        """Log a problem with a client."""
        said = log_fields(event, client=client, step=self.register.step)
        log.warning("client %d: %s", client, why, extra=said)

    # Availability

    def enroll(self) -> Mapping[int, object]:
        """See `Transport`.

        Raises:
            InfeasibleError: not enough clients have enrolled in time; names those that are missing.
        """
        self.register.begin(secrets.token_hex(16))
        missing = self.register.wait_for(lambda: set(self.register.roster.active))
        reported, active = self.register.enrolled(), len(self.register.roster.active)
        wanted = self.timeouts.least or (active - tolerated(active, self.f) if self.f and active else active)
        if not reported or len(reported) < wanted:
            named = ", ".join(map(str, missing)) or "nobody, as the roster is empty"
            strangers = "".join(f"\n  node {n}: {why}" for n, why in sorted(self.register.strangers.items())[:10])
            raise InfeasibleError(
                f"{len(reported)} of the {wanted} clients that are needed enrolled within "
                f"{self.timeouts.enrolment:g} s. Missing: {named}. {self.register.remedy()}{strangers}"
            )
        if missing:
            self._warn(f"begins without clients {', '.join(map(str, missing))}")
        return reported

    def here(self, clients: Set[int]) -> Set[int]:
        """See `Intermittent`: clients that are connected, not suspended, and past the interval since their last task.

        None, while fewer can be reached than `Timeouts.least`.
        """
        away = {client: why for client in clients if (why := self._away_because(client))}
        reached, due = clients - away.keys(), clients | self._open.keys() | self._silent.keys()
        fit = sum(not self.register.barred(client) for client in due) if self._rounds else 0
        self._least = min(self.timeouts.least or max(1, fit - tolerated(fit, self.f)), len(due))
        if reached and len(reached | self._open.keys()) < self._least:
            self._away |= dict.fromkeys(reached, f"waits until {self._least} clients can be reached") | away
            return set()
        self._away = {i: why for i, why in self._away.items() if i not in reached} | away
        return reached

    def _away_because(self, client: int) -> str:
        """Return why a client gets no task now; empty if it can get one."""
        if why := self.register.barred(client):
            return why
        if client in self._silent:
            return "its last task is sent again"
        if self.register.node_of(client) is None:
            return "it is not connected"
        left = self._last_asked.get(client, -math.inf) + self.suspension.interval - self.clock()
        if left > 0 and not self._rounds:
            return f"it gets its next task in {left:.1f} s, every {self.suspension.interval:g} s at most"
        return ""

    def _back(self) -> frozenset[int]:
        """Return the clients that were unavailable, and are available now."""
        back = frozenset(client for client in self._away if not self._away_because(client))
        return back if len(back | self._open.keys()) >= self._least else frozenset()

    # Tasks

    def send(self, downloads: Mapping[int, Download], version: int) -> None:
        """See `Transport`.  The updates go into one matrix.

        Raises:
            InfeasibleError: the model is not float32, or not on the CPU.
        """
        if not downloads:
            return
        first = next(iter(downloads.values()))
        if (first.dtype, first.device.type) != (torch.float32, "cpu"):
            raise InfeasibleError(f"Models travel as float32 from the CPU, got {first.dtype} on {first.device}.")
        self.asked.note(downloads)
        rows = room((len(downloads), self.update_size or len(first)))
        for row, (client, download) in zip(rows, downloads.items(), strict=True):
            turn = self._turns.get(client, 0)
            self._turns[client] = turn + 1
            self._set_out(client, Pending(version, turn, download), row)

    def _set_out(self, client: int, pending: Pending, row: Vector) -> None:
        version, turn, download = pending
        nonce = secrets.token_bytes(codec.NONCE)  # and so nobody can guess Flower's id of the message, a hash
        register = self.register
        task = TaskMessage("train", register.session, nonce, client, version, turn, self.transfer, register.coordinator)
        now, node, first = self.clock(), self.register.node_of(client), self._open.get(client)
        begins = first.deadline if first is not None else now  # at the latest
        limit = self._limit(client)
        dispatch = Dispatch(task, download, row, node or 0, limit, begins + limit)
        self._last_asked[client] = now
        if node is None:
            dispatch.unsent, dispatch.unreached = "it is not connected", True
            dispatch.sent.set()
        else:
            self._dispatcher.send(dispatch)
        if first is None:
            self._begin(dispatch)
        else:
            self._ahead[client] = dispatch

    def _limit(self, client: int) -> float:
        """Return how many seconds a client has for its next answer."""
        standing = self.register.standing(client)
        last_chance, times = self.suspension.last_chance(standing), self.outage.again.get(client, 0)
        limit = self._deadlines.of(client, standing.misses, last_chance=last_chance)
        return min(limit * math.pow(2.0, min(times, 60)), LONGER * self.timeouts.answer) if times else limit

    def _begin(self, dispatch: Dispatch) -> None:
        """Start a task, which is now the first at its client."""
        dispatch.begun, dispatch.paused = self.clock(), self.clock.paused
        dispatch.deadline = dispatch.begun + dispatch.limit
        self._open[dispatch.task.client] = dispatch
        self._dispatcher.fetch(dispatch)

    def receive(self, *, every: bool) -> Arrivals:
        """See `Transport`.

        Raises:
            StalledError: an outage has lasted longer than `Timeouts.outage`.
        """
        self._rounds = every
        wait, owed, patient = Waited(), bool(self._open or self._silent), self.clock() + self.timeouts.absent
        while True:
            self._expire(wait)
            self._joined |= self.register.newcomers()
            if self._silent or self.outage.since is not None or not self._open:
                self._judge()
                self._go_on_with_silent(wait, every=every)
            back, busy = self._back(), bool(self._open or self._silent)
            if wait and not (every and busy):
                break
            if (back or self._joined) and not (every and owed):
                break
            if not busy and self.outage.since is None and self.clock() >= patient:
                wait.lost |= {i: self._away_because(i) or why for i, why in self._away.items()}
                self._away = {}
                break
            if self.outage.since is not None:
                patient = self.clock() + self.timeouts.absent
            self._pass(wait, patient)
        self._delivered = frozenset(reply.client for reply in wait.replies)
        self._away = {i: why for i, why in self._away.items() if i not in back}
        joined, self._joined = self._joined, {}
        revoked = {member.id for member in self.register.roster.members if member.revoked}
        return Arrivals(tuple(wait.replies), wait.invalid, wait.lost, joined, back=back, gone=revoked)

    def _pass(self, wait: Waited, patient: float) -> None:
        """Wait for an event, at most until the next deadline, and handle it."""
        now = self.clock()
        deadlines = [dispatch.deadline for dispatch in self._open.values()]
        deadlines += [silent.due for silent in self._silent.values() if silent.due > now]
        look = min(TICK, self.timeouts.roll_call) if self._away or self._silent else TICK
        try:
            event = self._dispatcher.inbox.get(timeout=max(0.001, min([now + look, *(deadlines or [patient])]) - now))
        except queue.Empty:
            return
        if event is not None:
            self._settle(*event, wait)

    def _settle(self, dispatch: Dispatch, outcome: Outcome, wait: Waited) -> None:
        """Note the outcome of a task, unless it is given up."""
        client = dispatch.task.client
        if self._open.get(client) is not dispatch:
            self._complain("late", client, f"what came for turn {dispatch.task.turn} came too late")
            return
        if isinstance(outcome, Lost) and outcome.silent:
            self._hold(dispatch, outcome.why, wait)
            return
        self._end(dispatch)
        if isinstance(outcome, Reply):
            wait.replies.append(outcome)
            if dispatch.signed is not None:
                self.signed[client] = dispatch.signed
            if dispatch.as_sent is not None:
                self.sent[client] = dispatch.as_sent
            self._deadlines.answered(client, self.clock() - dispatch.begun)
            self.outage.answered(client)
            self.register.answered(client)
            return
        if dispatch.node and not dispatch.unsent:
            self.outage.answered(client)  # it is not silent, whatever it sent
        invalid = isinstance(outcome, Invalid)
        why = outcome.why
        self._complain("invalid" if invalid else "lost", client, why)
        if isinstance(outcome, Invalid) and outcome.signed:
            why = self.register.struck(client, why)
        elif dispatch.node and not dispatch.unsent:
            why = self.register.missed(client, why)
        (wait.invalid if invalid else wait.lost)[client] = why

    def _expire(self, wait: Waited) -> None:
        """Stop waiting for the answers whose time is over, and for those of clients that are suspended or revoked."""
        now, finished = self.clock(), wait.finished
        for client, dispatch in [*self._open.items()]:
            if client in finished:
                continue
            if barred := self.register.barred(client):
                self._end(dispatch)
                wait.lost[client] = barred
                self._complain("lost", client, barred)
            elif dispatch.deadline <= now and not dispatch.finished:  # an answer in time counts
                self._hold(dispatch, f"no answer within {round(dispatch.limit, 1):g} s", wait)

    # Silence

    def _hold(self, dispatch: Dispatch, why: str, wait: Waited) -> None:
        """Note a task without an answer, which may be sent again; not if its client has the next one already."""
        client, second = dispatch.task.client, dispatch.task.client in self._ahead
        self._end(dispatch)
        self.outage.missed(client, self.register.standing(client), why)
        times, task = self.outage.again.get(client, 0), dispatch.task
        due = self.clock() + (min(self.timeouts.absent, math.pow(2.0, min(times, 60))) if times else 0.0)
        charged = bool(dispatch.node) and not dispatch.unsent
        pending = Pending(task.version, task.turn, dispatch.download)
        silent = SilentTask(pending, dispatch.row, why, charged, due, self.clock.paused > dispatch.paused)
        if second:
            self._judge(frozenset({client}))
            self._give_up(client, silent, wait)
        else:
            self._silent[client] = silent

    def _judge(self, more: Set[int] = frozenset()) -> None:
        """Note whether an outage begins, goes on, or is over.

        Args:
            more: clients that are silent, of whom nothing is kept.

        Raises:
            StalledError: it has lasted too long.
        """
        register = self.register
        counted = self._silent.keys() | self.outage.lately
        members = (self._enrolled or register.reported.keys()) & register.roster.active.keys() - self._excluded
        members = {i for i in members if i in counted or not register.barred(i)}
        gone = {i for i in members if i in self._silent or i in more or register.node_of(i) is None}
        silent = self.outage.judge(members, gone, self.f)
        since = self.outage.since
        if since is None:
            if self._announced is not None:
                self._warn(f"outage over after {self.clock() - self._announced:.0f} s", OUTAGE_OVER)
                self._announced, register.notice = None, ""
            if self.outage.again:
                self._silent = {i: one._replace(due=0.0, paused=True) for i, one in self._silent.items()}
                self.outage.again = {}
            return
        for client in silent:
            if (before := self.outage.before(client)) is not None:
                register.excuse(client, before)
        names = ", ".join(str(register.roster.active[i]) for i in sorted(silent))
        what = f"outage: {len(silent)} of {plural(len(members), 'client')} are silent; nobody is charged"
        if self._announced is None and self.clock() - since >= TICK:  # others may fall silent at nearly the same time
            self._announced = since
            register.notice = f"{what}. Silent: {names}. Check the coordinator's own machine and network first"
            self._warn(register.notice, OUTAGE)
        if self.clock() - since >= self.timeouts.outage:
            reasons = {i: self.outage.why(i) or self._away_because(i) for i in silent}
            raise StalledError(
                f"{what[:1].upper()}{what[1:]}. It has lasted {self.clock() - since:.0f} s. Start the run again when "
                f"they are back: it goes on from here. To wait longer, raise Timeouts.outage.{listed(reasons)}"
            )

    def _go_on_with_silent(self, wait: Waited, *, every: bool) -> None:
        """Send tasks again in an outage, and after a pause of this process; otherwise give them up."""
        now, waits = self.clock(), self.outage.since is not None and (not every or self._too_few())
        for client, silent in [*self._silent.items()]:
            if client in self._open:
                continue
            if barred := self.register.barred(client):
                del self._silent[client]
                self._give_up(client, silent._replace(why=barred, charged=False), wait)
            elif waits or silent.paused:
                there = self.register.node_of(client) is not None
                if silent.due <= now and (there or not waits):
                    del self._silent[client]
                    if waits:
                        self.outage.again[client] = self.outage.again.get(client, 0) + 1
                    self.asked.note([client])
                    self._set_out(client, silent.pending, silent.row)
            elif not (every and self._open):
                del self._silent[client]
                self._give_up(client, silent, wait)

    def _too_few(self) -> bool:
        """Return whether a round has to wait for silent clients: fewer than `Timeouts.least` are left without them."""
        least = self.timeouts.least
        members = (self._enrolled or self.register.reported.keys()) - self._excluded
        fit = {i for i in members if not self._away_because(i)}
        return least is None or len(fit) < least

    def _give_up(self, client: int, silent: SilentTask, wait: Waited) -> None:
        """Lose a task, which is a miss unless there is an outage."""
        why = silent.why
        self._complain("lost", client, why)
        if silent.charged and self.outage.since is None:
            why = self.register.missed(client, why)
        wait.lost[client] = why

    def _warn(self, why: str, event: str = "warning") -> None:
        """Tell the operator something about the coordinator's side, in log and audit trail."""
        log.warning("%s", why, extra=log_fields(event, step=self.register.step))
        self._tell(Note(event, None, why))

    def _end(self, dispatch: Dispatch) -> None:
        """Close a task; the one that its client was sent ahead is next."""
        client = dispatch.task.client
        dispatch.over.set()
        del self._open[client]
        if (second := self._ahead.pop(client, None)) is not None:
            self._begin(second)

    def forget(self, clients: Set[int]) -> None:
        """See `Prefetching`."""
        for client in [*clients]:
            self._away.pop(client, None)
            self._silent.pop(client, None)
            self.outage.answered(client)
            for dispatch in (self._open.pop(client, None), self._ahead.pop(client, None)):
                if dispatch is not None:
                    dispatch.over.set()

    # Going on

    def snapshot(self) -> TransportState:
        """See `Resumable`."""
        pending, ahead = _pending(self._open), _pending(self._ahead)
        pending |= {client: silent.pending for client, silent in self._silent.items()}
        sizes, standings = self.register.kept(newcomers=False)
        reported = {client: size for client, size in sizes.items() if client not in self._joined}
        turns, rounds = dict(self._turns), self._rounds
        return TransportState(
            self.register.session, self.now, turns, pending, reported, standings, ahead, self.f, rounds
        )

    def restore(self, snapshot: TransportState, /) -> None:
        """See `Resumable`.  Tasks that had no answer are given again, to the same clients, with new nonces."""
        register, self._turns = self.register, dict(snapshot.turns)
        self.f, self._rounds = snapshot.f, snapshot.rounds
        register.reported, register.standings = dict(snapshot.reported), dict(snapshot.standings)
        register.begin(snapshot.session)
        if missing := register.wait_for(lambda: set(snapshot.reported)):
            self._warn(f"goes on without clients {', '.join(map(str, missing))}, who are not connected")
        register.set_clock(snapshot.now)
        again = (*snapshot.pending.items(), *snapshot.ahead.items())
        self.asked.note(client for client, _ in again)
        for client, pending in again:
            self._set_out(client, pending, torch.empty(self.update_size or len(pending.download)))


def _pending(dispatches: Mapping[int, Dispatch]) -> dict[int, Pending]:
    return {i: Pending(e.task.version, e.task.turn, e.download) for i, e in dispatches.items()}
