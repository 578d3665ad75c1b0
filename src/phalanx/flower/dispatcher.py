"""Sending of tasks, in order by one thread, and waiting for their answers, each in a thread of its own.

The sender of a reply is established by the task that it answers and by a signature over that task's nonce, never by
what the reply says about itself.
"""

import logging
import queue
import threading
from dataclasses import dataclass, field
from typing import NamedTuple

import httpx
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from phalanx.core import Download, Vector
from phalanx.engine.connection import Reply
from phalanx.flower import codec
from phalanx.flower.awake_clock import TICK
from phalanx.flower.codec import AnswerMessage, MalformedError, TaskMessage
from phalanx.flower.identity import as_text
from phalanx.flower.register import Register
from phalanx.flower.timeouts import Timeouts
from phalanx.flower.wire import GONE, GRACE, SILENT, SPARE, Threads, UndeliveredError, failure, pull, push, short
from phalanx.runs.evidence import SignedUpdate
from phalanx.runs.signing import signed_by
from phalanx.runs.updates import SentAnswer

log = logging.getLogger("phalanx.flower")


class Invalid(NamedTuple):
    """A reply that is invalid."""

    why: str
    signed: bool  # whether the signature proves that the client itself sent it


class Lost(NamedTuple):
    """A task without a reply."""

    why: str
    silent: bool = False  # whether nothing came at all, neither a reply nor the failure of an app


Outcome = Reply | Invalid | Lost


@dataclass(eq=False)
class Dispatch:
    """A task in flight."""

    task: TaskMessage
    download: Download
    row: Vector  # receives the update
    node: int  # the addressee; 0 if the task is not sent
    limit: float  # seconds for the answer
    deadline: float  # by the register's clock; a latest time until the answer is waited for
    begun: float = 0.0  # by the same clock; when the client could begin with it
    paused: float = 0.0  # seconds of all pauses of this process until then
    unsent: str = ""  # the reason, if it was not sent
    unreached: bool = False  # whether the reason is that the node, or Flower, was not reached
    message: str = ""  # Flower's id, once it is sent
    note: str = ""  # the head of the audit trail that was sent along
    signed: SignedUpdate | None = None  # what its client has signed, once it has answered
    as_sent: SentAnswer | None = None  # its answer, if answers are kept
    sent: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)  # nobody waits for the answer any more
    finished: bool = False  # its outcome is in the inbox


class Dispatcher:
    """Sends tasks through Flower and puts the outcomes of those that are fetched into `inbox`.

    Args:
        grid: Flower's grid.
        register: the clients with their nodes and keys.
        timeouts: the polling interval.
        keeps: whether answers are kept as they were sent.
    """

    def __init__(self, grid: Grid, register: Register, timeouts: Timeouts, *, keeps: bool = False) -> None:
        self.keeps = keeps
        self.grid, self.register, self.timeouts = grid, register, timeouts
        self.inbox = queue.SimpleQueue[tuple[Dispatch, Outcome] | None]()  # None: wakes up the reader for another event
        self._outbox = queue.SimpleQueue[Dispatch | None]()
        self._threads = Threads()
        self._threads.begin(self._send_all)

    def close(self) -> None:
        """Stop sending, and wait briefly for the threads; tasks nobody waits for are skipped."""
        self._outbox.put(None)
        self._threads.join(GRACE)

    def send(self, dispatch: Dispatch) -> None:
        """Send a task after those given before."""
        self._outbox.put(dispatch)

    def fetch(self, dispatch: Dispatch) -> None:
        """Wait for the answer to a task in a thread of its own."""
        self._threads.begin(self._fetch, dispatch)

    def _send_all(self) -> None:
        while (dispatch := self._outbox.get()) is not None:
            if dispatch.over.is_set():
                continue
            try:
                content = self.register.content(dispatch.task, dispatch.download)
                shown = codec.read_head(content)
                dispatch.note = "" if shown is None else shown.note
                left, group = max(0.0, dispatch.deadline - self.register.clock()), str(dispatch.task.version)
                message = Message(content, dispatch.node, MessageType.TRAIN, ttl=left + SPARE, group_id=group)
                dispatch.message = push(self.grid, message)
            except UndeliveredError as error:
                if error.gone:
                    self.register.gone(dispatch.node)
                dispatch.unsent, dispatch.node = f"the task could not be sent: {error}", 0
                dispatch.unreached = error.gone
            except Exception as error:  # an error of Flower must end this task only, not the thread
                dispatch.unsent = f"the task could not be sent: {short(error)}"
                dispatch.unreached = isinstance(error, httpx.TransportError)
            dispatch.sent.set()

    def _fetch(self, dispatch: Dispatch) -> None:
        try:
            outcome = self._outcome(dispatch)
        except Exception as error:  # a client's reply can make Flower raise; that must not end the thread silently
            outcome = Invalid(f"its reply cannot be read: {short(error)}", signed=False)
        if outcome is not None:
            dispatch.finished = True
            self.inbox.put((dispatch, outcome))

    def _outcome(self, dispatch: Dispatch) -> Outcome | None:
        """Wait for a task's outcome; None if there is none in time, or nobody waits any more."""
        while not (dispatch.sent.wait(TICK) or dispatch.over.is_set()):
            if self.register.clock() >= dispatch.deadline:
                break
        if dispatch.unsent:
            return Lost(dispatch.unsent, silent=dispatch.unreached)
        if not dispatch.message or dispatch.over.is_set():
            return None
        poll, size, clock = self.timeouts.poll, len(dispatch.row), self.register.clock
        reply = pull(self.grid, dispatch.message, poll, dispatch.deadline, dispatch.over, clock=clock, entries=size)
        return None if reply is None else self._checked(reply, dispatch)

    def _checked(self, reply: Message, dispatch: Dispatch) -> Outcome:
        """Return the outcome for a reply; its update is written to the row of the dispatch."""
        task = dispatch.task
        if reply.has_error():
            if reply.error.code == GONE:
                self.register.gone(dispatch.node)
            return Lost(failure(reply, self.register.schema), silent=reply.error.code in SILENT)
        try:
            answer = self._authenticated(reply, dispatch)
        except MalformedError as error:
            return Invalid(str(error), signed=False)
        try:
            if answer.version != task.version:
                raise MalformedError(f"answers version {answer.version}, expected version {task.version}")
            self.register.check_schema(task.client, reply.content)
            member = self.register.roster.active.get(task.client)
            if member is not None:
                self.register.check_cosignature(member, reply.content, dispatch.note)
            report = codec.read_update(reply.content, task.transfer, dispatch.row)
        except MalformedError as error:
            return Invalid(str(error), signed=True)
        dispatch.as_sent = codec.sent_answer(reply.content, task.transfer) if self.keeps else None
        return Reply(task.client, task.version, dispatch.row, answer.value, report)

    def _authenticated(self, reply: Message, dispatch: Dispatch) -> AnswerMessage:
        """Return the fields of a reply after proof that the task's client signed them for this task.

        Raises:
            MalformedError: there is no such proof.
        """
        task, metadata = dispatch.task, reply.metadata
        if (metadata.src_node_id, metadata.reply_to_message_id) != (dispatch.node, dispatch.message):
            raise MalformedError(f"its reply is from node {metadata.src_node_id}, or answers another message")
        try:
            answer = codec.read_answer(reply.content)
        except MalformedError as error:
            raise MalformedError(f"unsigned: {error}") from error
        roster = self.register.roster
        member = roster.active.get(task.client)
        if member is None or answer.key != member.key:
            owner = roster.owner(answer.key)
            raise MalformedError(f"signed by {f'client {owner}' if owner else 'a key that is not in the roster'}")
        if answer.nonce != task.nonce:
            raise MalformedError("replayed, or meant for another task: its nonce is different")
        signature, digest = answer.signature, codec.fingerprint(reply.content)
        if type(signature) is not bytes or not signed_by(member.key, signature, codec.signed_statement(task, digest)):
            raise MalformedError("its signature is not valid")
        of = as_text(member.key), task.version, task.turn, task.nonce.hex()
        dispatch.signed = SignedUpdate(*of, digest.hex(), signature.hex())
        return answer
