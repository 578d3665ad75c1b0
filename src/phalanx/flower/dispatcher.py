"""Tasks on their way: sent in order by one thread, and waited for by a thread each.

Who a reply is from is decided by the task that it answers and by a signature over that task's nonce, never by what the
reply says of itself.
"""

import logging
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from phalanx.core import Reply, Vector
from phalanx.flower import codec
from phalanx.flower.codec import Answer, Malformed, TaskMessage
from phalanx.flower.identity import signed_by
from phalanx.flower.register import Register
from phalanx.flower.timeouts import Timeouts
from phalanx.flower.wire import GONE, GRACE, SPARE, Threads, Unsent, failure, pulled, pushed, short

log = logging.getLogger("phalanx.flower")


class Refused(NamedTuple):
    """What came is not fit."""

    why: str
    signed: bool  # whether the client itself has sent it, beyond doubt


class Lost(NamedTuple):
    """Nothing came."""

    why: str


Outcome = Reply | Refused | Lost


@dataclass(eq=False)
class Dispatch:
    """A task on its way."""

    task: TaskMessage
    download: Vector
    row: Vector  # where the update goes
    node: int  # to which it is sent; 0 if it is sent to nobody
    deadline: float  # by `time.monotonic`; at the latest, as long as nobody has begun to look for the answer
    unsent: str = ""  # why it was not sent, if it was not
    message: str = ""  # Flower's id of it, once it is sent
    sent: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)  # nobody waits for it any more
    brought: bool = False  # what became of it is in the inbox


class Dispatcher:
    """Takes tasks to Flower and brings back what became of those whose answers are to be fetched, in `inbox`.

    Args:
        grid: Flower's.
        register: who has which key.
        timeouts: how long it waits.
    """

    def __init__(self, grid: Grid, register: Register, timeouts: Timeouts) -> None:
        self.grid, self.register, self.timeouts = grid, register, timeouts
        self.inbox = queue.SimpleQueue[tuple[Dispatch, Outcome] | None]()  # None: something else has happened
        self._outbox = queue.SimpleQueue[Dispatch | None]()
        self._threads = Threads()
        self._threads.begin(self._post)

    def close(self) -> None:
        """Sends nothing more; errands that nobody waits for any more are let go."""
        self._outbox.put(None)
        self._threads.join(GRACE)

    def send(self, errand: Dispatch) -> None:
        """Sends a task, after those that were sent before."""
        self._outbox.put(errand)

    def fetch(self, errand: Dispatch) -> None:
        """Waits for the answer to a task, in a thread of its own."""
        self._threads.begin(self._fetch, errand)

    def _post(self) -> None:
        while (errand := self._outbox.get()) is not None:
            if errand.over.is_set():
                continue
            try:
                content = codec.task_content(errand.task, errand.download)
                left, group = max(0.0, errand.deadline - time.monotonic()), str(errand.task.version)
                message = Message(content, errand.node, MessageType.TRAIN, ttl=left + SPARE, group_id=group)
                errand.message = pushed(self.grid, message)
            except Unsent as error:
                if error.gone:
                    self.register.gone(errand.node)
                errand.unsent, errand.node = f"the task could not be sent: {error}", 0
            except Exception as error:  # whatever Flower raises ends this task, and not the post
                errand.unsent = f"the task could not be sent: {short(error)}"
            errand.sent.set()

    def _fetch(self, errand: Dispatch) -> None:
        try:
            outcome = self._brought(errand)
        except Exception as error:  # what a client can make Flower raise must not end a thread unheard
            outcome = Refused(f"its reply cannot be read: {short(error)}", signed=False)
        if outcome is not None:
            errand.brought = True
            self.inbox.put((errand, outcome))

    def _brought(self, errand: Dispatch) -> Outcome | None:
        """What became of a task; None if nothing did in time, or nobody waits any more."""
        errand.sent.wait(max(0.0, errand.deadline - time.monotonic()))
        if errand.unsent:
            return Lost(errand.unsent)
        if not errand.message or errand.over.is_set():
            return None
        reply = pulled(self.grid, errand.message, self.timeouts.poll, errand.deadline, errand.over)
        return None if reply is None else self._examined(reply, errand)

    def _examined(self, reply: Message, errand: Dispatch) -> Outcome:
        """What a reply is; the update in it is written to the errand's row."""
        task = errand.task
        if reply.has_error():
            if reply.error.code == GONE:
                self.register.gone(errand.node)
            return Lost(failure(reply))
        try:
            answer = self._from_its_client(reply, errand)
        except Malformed as error:
            return Refused(str(error), signed=False)
        try:
            if answer.version != task.version:
                raise Malformed(f"answers version {answer.version}, was asked for version {task.version}")
            codec.read_update(reply.content, task.transfer, errand.row)
        except Malformed as error:
            return Refused(str(error), signed=True)
        return Reply(task.client, task.version, errand.row, answer.value)

    def _from_its_client(self, reply: Message, errand: Dispatch) -> Answer:
        """The words of a reply, of which it is certain that the task's client has signed them for this very task.

        Raises:
            Malformed: it is not certain.
        """
        task, said = errand.task, reply.metadata
        if (said.src_node_id, said.reply_to_message_id) != (errand.node, errand.message):
            raise Malformed(f"its reply says that it is by node {said.src_node_id}, or answers another message")
        try:
            answer = codec.read_answer(reply.content)
        except Malformed as error:
            raise Malformed(f"unsigned: {error}") from error
        roster = self.register.roster
        member = roster.active.get(task.client)
        if member is None or answer.key != member.key:
            owner = roster.owner(answer.key)
            raise Malformed(f"signed by {f'client {owner}' if owner else 'a key that is not in the roster'}")
        if answer.nonce != task.nonce:
            raise Malformed("replayed, or meant for another task: its nonce is another")
        if not signed_by(member.key, answer.signature, codec.stated(task, reply.content)):
            raise Malformed("its signature is not valid")
        return answer
