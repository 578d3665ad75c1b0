"""The register of connected clients: the node of each, the size that it reports, and its strikes and misses.

A node receives a fresh nonce, and its client proves its identity by a signature.  Flower's number of a node is only an
address; a client that comes back under another number is still the same client.
"""

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from phalanx.core import Vector
from phalanx.data import Schema
from phalanx.flower import codec
from phalanx.flower.audit import Note
from phalanx.flower.awake_clock import TICK, AwakeClock
from phalanx.flower.codec import MOST_PROOFS, NOBODY, MalformedError, ShownHead, TaskMessage, brief
from phalanx.flower.identity import Member, Roster, as_text, coordinator_key, public_bytes, public_text
from phalanx.flower.logs import log_fields
from phalanx.flower.suspension import Standing, Suspension
from phalanx.flower.timeouts import Timeouts
from phalanx.flower.wire import GRACE, SPARE, Threads, failure, pull, push, short
from phalanx.runs.missing import SUSPENDED
from phalanx.runs.signing import signed_by
from phalanx.runs.transparency import TreeHead, is_cosigned, open_note, sign_note
from phalanx.runs.witnesses import Witness
from phalanx.wording import plural

log = logging.getLogger("phalanx.flower")

SERVED = "its sentence is over"
EXCUSED = "more clients are silent than the plan tolerates, and none is charged for that"
AT_ONCE = 64  # introductions at one time: each costs a thread, and the SuperLink 9 ms per poll
SLOW = "(on a slow host, raise Timeouts.introduction)"
LONGEST_PAUSE = 600.0  # longest pause between two checks of a node that fails to prove its identity
LISTED, PERIOD = 100, 3600.0  # nodes turned away that log and audit trail list, at most, in so many seconds
REMEMBERED = 10_000  # nodes of which it is known that they are listed
LONGEST_SIZE = 100  # characters of a reported size that is in words, since every checkpoint holds it
END = 20.0  # seconds for clients to co-sign the end of the audit trail, all together
WIDEST_SIZE = 64  # bits of one that is an integer, as many as Flower carries


HeadOf = Callable[[Sequence[int]], tuple[int, bytes, Mapping[int, Sequence[bytes]]] | None]


def no_head(sizes: Sequence[int]) -> None:
    """Return that there is no audit trail."""


def forget(note: Note) -> None:
    """Ignore the event."""


class Register:
    """The register of connected clients.  Its methods may be called from any thread.

    Args:
        grid: Flower's.
        roster: who may take part: a file, which is read again when it has changed, or the roster itself.
        timeouts: how long it waits.
        suspension: who is suspended.
        came: is called when a client enrols, and when the roster has changed.
        tell: takes the events of clients.
        clock: gives the time of deadlines.
        schema: of the tables of all clients; None: there is none.
        key: private key of the coordinator, or its file; see `coordinator_key`.
        head: of the audit trail; None while there is none.
        keeps_statistics: whether the statistics that clients send of their tables are kept.

    Raises:
        ValueError: the roster is none, or its coordinator's key is not there.
    """

    def __init__(
        self,
        grid: Grid,
        roster: Path | Roster,
        timeouts: Timeouts,
        suspension: Suspension,
        *,
        came: Callable[[], None],
        tell: Callable[[Note], None] = forget,
        clock: AwakeClock | None = None,
        schema: Schema | None = None,
        key: Ed25519PrivateKey | Path | None = None,
        head: HeadOf = no_head,
        keeps_statistics: bool = False,
    ) -> None:
        self._head = head
        self._shown = dict[int, list[int]]()  # sizes of the heads that a client may hold, the oldest first
        self.witnessed = dict[int, Witness]()  # the last head that each client has co-signed
        self.clock = clock or AwakeClock()
        self.grid, self.timeouts, self.suspension, self._came, self._tell = grid, timeouts, suspension, came, tell
        self.schema = schema
        self.keeps_statistics = keeps_statistics
        self.statistics = dict[int, bytes]()  # of tables, unchecked, the first that each client sent
        self.session = ""  # names the run
        self.step = 0  # of the run, the last that was done
        self.notice = ""  # what is wrong at the moment on the coordinator's side, and what to do
        self.slow = dict[int, str]()  # clients whose answers take much longer than those of others, with the figures
        self.roster = roster if isinstance(roster, Roster) else Roster.load(roster)
        self._key = coordinator_key(key, roster, self.roster.coordinator)
        self.coordinator = public_text(self._key) if self._key else ""  # its public key, which tasks name
        self._file = roster if isinstance(roster, Path) else None
        self._stamp: tuple[int, int] | None = None  # of the file, as it was read
        self.reported = dict[int, object]()  # sizes, unchecked, of all clients that ever enrolled
        self.standings = dict[int, Standing]()
        self.strangers = dict[int, str]()  # nodes that are connected and nobody in the roster, with the reason
        self._queue = dict[int, float]()  # unknown nodes in the order of their checks: not before this time
        self._asking = dict[int, float]()  # nodes that are being asked: until when; a blocked pull can take longer
        self._failures = dict[int, int]()  # how often a connected node has failed to say who it is
        self._replaced = dict[int, int]()  # how often a client came at another node while it was still at one
        self._listed = dict[int, None]()  # nodes that were listed as turned away, the oldest first
        self._period, self._count = -math.inf, 0  # begin of the present `PERIOD`, and how many were turned away in it
        self._at = dict[int, int]()  # client -> node
        self._present: frozenset[int] = frozenset()  # nodes that are connected
        self._suspended = set[int]()  # suspended clients whose readmission is not reported yet
        self._new = dict[int, object]()  # newcomers since the last call
        self._paused = self.clock.paused  # as it was last reported
        self._changed = threading.Condition()
        self._begun, self._closed = time.monotonic(), threading.Event()
        self._threads, self._watching = Threads(), False

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._begun

    def begin(self, session: str) -> None:
        """Start to check the connected nodes."""
        self.session = session
        if not self._watching:
            self._watching = True
            self.clock()
            self._paused = self.clock.paused  # what was before the run does not matter
            self._threads.begin(self._watch)
            self._threads.begin(self._tick)

    def close(self) -> None:
        """Stop checking."""
        self._closed.set()
        self._threads.join(GRACE)

    # Queries

    def wait_for(self, clients: Callable[[], set[int]]) -> list[Member]:
        """Wait until clients are connected, at most `Timeouts.enrolment`; return those that are not."""
        begun, said = self.clock(), ""
        deadline, before = begun + self.timeouts.enrolment, self.notice
        with self._changed:
            while (missing := self._missing(clients())) and (left := deadline - self.clock()) > 0:
                if self.clock() - begun >= TICK and (now := ", ".join(map(str, missing))) != said:
                    said = now
                    self.notice = (
                        f"Waits for {now} to say who it is, {left:.0f} s at most. A node answers when it has finished "
                        "the task that it still holds, such as one of a run that was killed"
                    )
                    log.info("%s", self.notice, extra=log_fields("waiting", step=self.step))
                self._changed.wait(min(left, TICK))
            self.notice = before
            return missing

    def remedy(self) -> str:
        """Return what to do where clients are missing: by what their nodes do, if they are connected."""
        with self._changed:
            asked, mute = len(self._asking), sum(SLOW in why for why in self.strangers.values())
        if mute:
            return f"{plural(mute, 'node')} did not say in time which client it is. Raise Timeouts.introduction."
        if asked:
            return f"{plural(asked, 'node')} still has time to say which client it is. Raise Timeouts.enrolment."
        return "Start them, wait longer (Timeouts.enrolment), or begin with fewer (Timeouts.least)."

    def _missing(self, clients: set[int]) -> list[Member]:
        return [m for i, m in self.roster.active.items() if i in clients and self._at.get(i) not in self._present]

    def enrolled(self) -> dict[int, object]:
        """Return the sizes of all enrolled clients, and start the clock; clients that enrol later are newcomers."""
        with self._changed:
            self._begun, self._new = time.monotonic(), {}
            return dict(self.reported)

    def set_clock(self, now: float) -> None:
        """Set the clock to this number of seconds after the beginning."""
        self._begun = time.monotonic() - now
        with self._changed:
            self._suspended = {client for client, standing in self.standings.items() if standing.until > now}

    def newcomers(self) -> dict[int, object]:
        """Return the sizes of clients that enrolled for the first time since the last call."""
        with self._changed:
            new, self._new = self._new, {}
            return new

    def node_of(self, client: int) -> int | None:
        """Return the node of a client; None if it is not connected."""
        with self._changed:
            node = self._at.get(client)
            return node if node in self._present else None

    def gone(self, node: int) -> None:
        """Note before the next check that a node is not connected: it gets no tasks until it is back."""
        with self._changed:
            self._present -= {node}

    def barred(self, client: int) -> str:
        """Return why a client gets no tasks; empty if it does."""
        with self._changed:
            if client not in self.roster.active:
                return "it is not, or no longer, in the roster"
            standing = self._standing(client)
        left = standing.until - self.now
        return f"suspended for {left:.0f} s more after {standing.why}" if left > 0 else ""

    # Strikes and misses

    def standing(self, client: int) -> Standing:
        """Return the standing of a client."""
        with self._changed:
            return self._standing(client)

    def _standing(self, client: int) -> Standing:
        member = self.roster.active.get(client)
        term = member.term if member else 0
        found = self.standings.get(client)
        return found if found is not None and found.term == term else Standing(term=term)

    def struck(self, client: int, why: str) -> str:
        """Note a signed answer that was invalid; return `why`, and whether that suspends the client."""
        return why + self._note(client, lambda standing: self.suspension.struck(standing, self.now, why))

    def last_strike(self, client: int) -> bool:
        """Return whether one more invalid answer suspends a client."""
        return self.suspension.last_strike(self.standing(client))

    def missed(self, client: int, why: str) -> str:
        """Note a task without a signed answer; return `why`, and whether that suspends the client."""
        return why + self._note(client, lambda standing: self.suspension.missed(standing, self.now, why))

    def answered(self, client: int) -> None:
        """Note a valid answer."""
        self._note(client, self.suspension.answered)

    def excuse(self, client: int, before: Standing) -> None:
        """Take back the misses of a client, and a suspension for them, since it had another standing."""
        with self._changed:
            standing = self._standing(client)
            if standing.term != before.term or standing.strikes != before.strikes or standing == before:
                return
            self.standings[client] = before
            let_in = standing.until > max(before.until, self.now)
        if let_in:
            self._let_in_again(client, EXCUSED)

    def readmit(self, client: int) -> None:
        """Clear the standing of a client."""
        self._note(client, lambda standing: Standing(term=standing.term))
        self._let_in_again(client, "what was on record is wiped out")

    def _note(self, client: int, change: Callable[[Standing], Standing]) -> str:
        with self._changed:
            before = self._standing(client)
            after = self.standings[client] = change(before)
            if after.until > before.until:
                self._suspended.add(client)
        if after.until <= before.until:
            return ""
        why = f"for {self.suspension.sentence:g} s, after {after.why}"
        said = log_fields("suspended", client=client, step=self.step)
        log.warning("client %d is suspended %s", client, why, extra=said)
        self._tell(Note("suspended", client, why))
        return SUSPENDED

    def _let_in_again(self, client: int, why: str) -> None:
        with self._changed:
            self._suspended.discard(client)
        said = log_fields("re-admitted", client=client, step=self.step)
        log.info("client %d is let in again: %s", client, why, extra=said)
        self._tell(Note("re-admitted", client, why))

    def _end_sentences(self) -> None:
        """Report clients whose suspension is over."""
        with self._changed:
            over = [client for client in sorted(self._suspended) if self._standing(client).until <= self.now]
        for client in over:
            self._let_in_again(client, SERVED)

    def kept(self, *, newcomers: bool = True) -> tuple[Mapping[int, object], Mapping[int, Standing]]:
        """Return sizes and standings, for the record.

        Args:
            newcomers: whether to include newcomers; after a snapshot without them they enrol again.
        """
        with self._changed:
            sizes = {i: size for i, size in self.reported.items() if newcomers or i not in self._new}
            return sizes, dict(self.standings)

    # Checks of connected nodes

    def _tick(self) -> None:
        """Read the clock, so that it notices pauses, and report them."""
        while not self._closed.wait(TICK):
            self.report_pause()

    def report_pause(self) -> None:
        """Report that this process was stopped, if it was since the last report."""
        self.clock()
        with self._changed:
            seconds, self._paused = self.clock.paused - self._paused, self.clock.paused
        if seconds > 0:
            why = f"the coordinator's process stopped for {seconds:.0f} s; deadlines are extended by that"
            log.warning("%s", why, extra=log_fields("paused", step=self.step))
            self._tell(Note("paused", None, why))

    def _watch(self) -> None:
        while not self._closed.is_set():
            try:
                self._read_roster()
                nodes = frozenset(self.grid.get_node_ids())
            except (
                Exception
            ) as error:  # whatever Flower raises: the next look may succeed, and all waits have deadlines
                log.warning("cannot see who is connected: %s", short(error))
            else:
                for node in self._unknown(nodes):
                    self._threads.begin(self._meet, node)
            self._end_sentences()
            self._closed.wait(self.timeouts.roll_call)

    def _unknown(self, nodes: frozenset[int]) -> list[int]:
        """Return the nodes whose identity is checked now; note which are connected.

        They are checked in the order in which they came, or in which their pause ended: neither low numbers nor many
        new nodes can keep a client waiting.  The order of those that are there from the beginning is random.
        """
        now = self.clock()
        with self._changed:
            self._present = nodes
            self._changed.notify_all()
            self.strangers = {node: why for node, why in self.strangers.items() if node in nodes}
            self._failures = {node: count for node, count in self._failures.items() if node in nodes}
            known = {*self._at.values(), *self._asking}
            self._queue = {node: due for node, due in self._queue.items() if node in nodes and node not in known}
            new = [*(nodes - known - self._queue.keys())]
            secrets.SystemRandom().shuffle(new)
            self._queue |= dict.fromkeys(new, now)
            due = sorted((n for n, at in self._queue.items() if at <= now), key=self._queue.__getitem__)
            asked = due[: max(0, AT_ONCE - sum(until > now for until in self._asking.values()))]
            for node in asked:
                del self._queue[node]
                self._asking[node] = now + self._time_of(node)
        return asked

    def _read_roster(self) -> None:
        """Read a roster that has changed; a damaged one changes nothing, and is logged."""
        if self._file is None:
            return
        try:
            found = self._file.stat()
            stamp = found.st_mtime_ns, found.st_size
            if stamp == self._stamp:
                return
            roster = Roster.load(self._file)
        except (ValueError, OSError) as error:
            log.error("the roster stays as it was: %s", error)
            return
        self._stamp = stamp
        with self._changed:
            before, self.roster, suspended = self.roster, roster, frozenset(self._suspended)
            for client in [*self._at]:
                now, then = roster.active.get(client), before.active.get(client)
                if now is None or then is None or now.key != then.key:
                    del self._at[client]  # revoked, or under a new key: it must prove its identity
            self._queue = dict.fromkeys(sorted(self._queue, key=self._queue.__getitem__), self.clock())
            self._failures = {}
            self._changed.notify_all()
        self._came()
        for note in changes(before, roster, suspended):
            if note.event == "re-admitted" and note.client is not None:
                self._let_in_again(note.client, note.why)
            else:
                self._tell(note)

    def _meet(self, node: int) -> None:
        """Check the identity of a node."""
        nonce = secrets.token_bytes(codec.NONCE)
        limit = self._time_of(node)
        task = TaskMessage("enrol", self.session, nonce, NOBODY, 0, 0, "float32", self.coordinator)
        try:
            message = Message(self.content(task), node, MessageType.QUERY, ttl=limit + SPARE, group_id="enrol")
            (number,) = self.grid.push_messages([message])
            reply = pull(self.grid, number, self.timeouts.poll, self.clock() + limit, self._closed, clock=self.clock)
            if reply is None:
                raise MalformedError(f"it did not say who it is within {limit:g} s {SLOW}")
            member, size = self._introduced(reply, task)
        except Exception as error:  # a node of which nothing is known can make Flower raise anything
            if self._closed.is_set():
                return
            self._turn_away(node, short(error))
            return
        self._let_in(node, member, size)

    def content(self, task: TaskMessage, download: Vector | None = None) -> RecordDict:
        """Return the records of a task, signed by the coordinator for its client."""
        content, member = codec.task_content(task, download), self.roster.active.get(task.client)
        if self._key is None:
            return content
        if task.client != NOBODY:
            with self._changed:
                sizes = self._shown.setdefault(task.client, [])
                if (found := self._head(sizes)) is not None:
                    size, root, proofs = found
                    note = sign_note(TreeHead(f"phalanx/{self.session}", size, root), self._key)
                    codec.add_head(content, ShownHead(note, proofs))
                    sizes[:] = [*dict.fromkeys([*sizes[-MOST_PROOFS + 1 :], size])]
        codec.sign_task(content, self._key, b"" if member is None else member.key)
        return content

    def check_cosignature(self, member: Member, content: RecordDict, note: str) -> None:
        """Note that a client has co-signed the head of the audit trail that it was sent.

        Raises:
            MalformedError: it has not.
        """
        if not note or self._key is None:
            return
        head, (line, _) = open_note(note, public_bytes(self._key)), codec.read_cosignature(content)
        if not is_cosigned(head, line, member.key):
            raise MalformedError("it has not co-signed the head of the audit trail that it was sent")
        with self._changed:
            self._shown[member.id] = [size for size in self._shown.get(member.id, []) if size >= head.size]
            self.witnessed[member.id] = Witness(member.name, as_text(member.key), note, self.coordinator, line)

    def show_end(self) -> None:
        """Show all connected clients the last head of the audit trail, for `END` seconds at most; they co-sign it."""
        threads, deadline = Threads(), self.clock() + END
        with self._changed:
            there = [(client, node) for client, node in self._at.items() if node in self._present]
        self.notice = f"The steps are done. Waits for clients to sign the end of the audit trail, {END:g} s at most"
        for client, node in there if self._key is not None and self._head([]) is not None else ():
            threads.begin(self._show_end, client, node, deadline)
        threads.join(END)
        self.notice = ""

    def _show_end(self, client: int, node: int, deadline: float) -> None:
        nonce = secrets.token_bytes(codec.NONCE)
        task = TaskMessage("enrol", self.session, nonce, client, 0, 0, "float32", self.coordinator)
        try:
            member, content = self.roster.active[client], self.content(task)
            shown = codec.read_head(content)
            number = push(self.grid, Message(content, node, MessageType.QUERY, ttl=END + SPARE, group_id="end"))
            reply = pull(self.grid, number, self.timeouts.poll, deadline, self._closed, clock=self.clock)
            if reply is None or reply.has_error() or shown is None:
                raise MalformedError("it did not answer" if reply is None else "it could not")
            answer = codec.read_answer(reply.content)
            stated = codec.signing_input(task, reply.content)
            if answer.key != member.key or not signed_by(member.key, answer.signature, stated):
                raise MalformedError("its answer is not signed")
            self.check_cosignature(member, reply.content, shown.note)
        except Exception as error:  # it stays a witness of what it has seen before
            log.info("client %d has not co-signed the end of the audit trail: %s", client, short(error))

    def _turn_away(self, node: int, why: str) -> None:
        """Leave a node alone for a while; list it the first time only."""
        now = self.clock()
        with self._changed:
            self.strangers[node] = why
            self._asking.pop(node, None)
            failures = self._failures[node] = self._failures.get(node, 0) + 1
            self._queue[node] = now + self._pause(failures)
            if node in self._listed:
                return
            self._listed[node] = None
            if len(self._listed) > REMEMBERED:
                del self._listed[next(iter(self._listed))]
            if now - self._period >= PERIOD:
                self._period, self._count = now, 0
            self._count += 1
            count = self._count
        if count > LISTED + 1:
            return
        said = log_fields("turned away", node=node, step=self.step)
        what = f"node {node}" if count <= LISTED else f"node {node} and others"
        more = "" if count <= LISTED else f" (no more are listed for {PERIOD / 60:.0f} min)"
        log.warning("%s %s not let in: %s%s", what, "is" if count <= LISTED else "are", why, more, extra=said)
        self._tell(Note("turned away", None, f"{what}: {why}{more}"))

    def _time_of(self, node: int) -> float:
        """Return the seconds that a node has to say which client it is: twice as many after each failure."""
        first = self.timeouts.introduction
        return max(first, min(LONGEST_PAUSE, first * 2.0 ** min(self._failures.get(node, 0), 30)))

    def _introduced(self, reply: Message, task: TaskMessage) -> tuple[Member, object]:
        """Return a node's client, and the size that it reports; raise `MalformedError` if it is not in the roster."""
        if reply.has_error():
            raise MalformedError(failure(reply, self.schema))
        answer = codec.read_answer(reply.content)
        member = self.roster.owner(answer.key)
        if member is None or member.revoked:
            raise MalformedError("its key is not in the roster" if member is None else f"client {member} is revoked")
        if not signed_by(answer.key, answer.signature, codec.signing_input(task, reply.content)):
            raise MalformedError(
                f"it says it is client {member}, and has not signed that, for this question, with its key"
            )
        self.check_schema(member, reply.content)
        if reply.content.keys() - {codec.SCHEMA, codec.COSIGNATURE} != {codec.WORDS}:
            raise MalformedError(f"client {member} says who it is in {len(reply.content)} records, expected one")
        self._check_held(member, codec.read_cosignature(reply.content)[1])
        if self.keeps_statistics and (statistics := codec.read_statistics(reply.content)) is not None:
            self.statistics.setdefault(member.id, statistics)
        size = answer.value
        if type(size) is str:
            return member, brief(size, LONGEST_SIZE)
        if type(size) is float or (type(size) is int and size.bit_length() <= WIDEST_SIZE):
            return member, size
        kind = f"{type(size).__name__} as its number of examples"
        raise MalformedError(f"client {member} reports a {kind}, expected an integer of {WIDEST_SIZE} bits at most")

    def _check_held(self, member: Member, size: int) -> None:
        """Note which head a client holds of this run; raise `MalformedError` if the audit trail never was as long."""
        found = self._head([])
        if found is not None and size > found[0]:
            raise MalformedError(
                f"client {member} has seen {size} lines of the audit trail, which has {found[0]}: it was cut, or the "
                "client lies"
            )
        with self._changed:
            sent = (later for later in self._shown.get(member.id, []) if later > size)  # may be on their way
            self._shown[member.id] = [*([size] if size else []), *sent]

    def check_schema(self, client: object, content: RecordDict) -> None:
        """Raise `MalformedError` if a client's answer names another schema than the coordinator's, or none."""
        found = codec.read_schema(content)
        if self.schema is None and found:
            raise MalformedError(
                f"client {client} has the schema {found}, and the coordinator none: others may read their tables "
                "otherwise. Give it the file: Coordinator(schema=...)"
            )
        if self.schema is not None and found != self.schema.digest:
            has = f"has the schema {found}" if found else "has no schema"
            raise MalformedError(
                f"client {client} {has}, and the coordinator {self.schema.digest}. Give it the coordinator's file"
            )

    def _let_in(self, node: int, member: Member, size: object) -> None:
        reports, said = short(repr(size)), log_fields("enrolled", client=member.id, node=node, step=self.step)
        with self._changed:
            replaced = self._replace(member.id, node)
            if not replaced & (replaced - 1):  # the first time, and then ever more rarely
                log.info("client %s is at node %d and reports %s examples", member, node, reports, extra=said)
            if replaced and not replaced & (replaced - 1):
                log.warning("client %s is at several nodes: one took the place of another %d times", member, replaced)
            self._at[member.id] = node
            self._asking.pop(node, None)
            self._failures.pop(node, None)
            self.strangers.pop(node, None)
            if member.id not in self.reported:
                self.reported[member.id] = self._new[member.id] = size
                self._tell(Note("enrolled", member.id, f"reports {reports} examples"))  # before the run can begin
            self._changed.notify_all()
        self._came()

    def _replace(self, client: int, node: int) -> int:
        """Leave a node alone for a while whose client has come at another one; return how often that has happened.

        Nodes with the key of one client would take its place from each other for ever.
        """
        before = self._at.get(client)
        if before is None or before == node or before not in self._present:
            return 0
        times = self._replaced[client] = self._replaced.get(client, 0) + 1
        self._queue[before] = self.clock() + self._pause(times)
        return times

    def _pause(self, times: int) -> float:
        """Return the seconds until a node is asked again that has not answered so often."""
        return min(LONGEST_PAUSE, self.timeouts.absent * 2.0 ** min(times - 1, 30))


def changes(before: Roster, now: Roster, suspended: Set[int]) -> Iterator[Note]:
    """Yield the changes by a new roster for clients of the old one.

    Args:
        before: the old one.
        now: the new one.
        suspended: who is suspended; a new term lets them in again.
    """
    then = {member.id: member for member in before.members}
    for member in sorted(now.members, key=lambda m: m.id):
        old = then.get(member.id)
        if old is None:
            continue
        if member.revoked and not old.revoked:
            yield Note("revoked", member.id, "by the roster")
        elif old.revoked and not member.revoked:
            yield Note("re-admitted", member.id, "by the roster, after it was revoked")
        elif old.term != member.term and member.id in suspended:
            yield Note("re-admitted", member.id, f"by the roster, in term {member.term}")
        if member.key != old.key:
            yield Note("new key", member.id, "by the roster")
    for client in sorted(then.keys() - {member.id for member in now.members}):
        yield Note("revoked", client, "no longer in the roster")
