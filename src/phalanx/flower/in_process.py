"""A federation without a network: Flower's messages within one process, serialised as for the network.

It tests an app in seconds instead of minutes.  A node is a function from message to message, such as a ClientApp.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from typing_extensions import override

SERVER = 1  # id of the server's node
Node = Callable[[Message, Context], Message | None]  # None: it never answers


@dataclass(eq=False)
class Delivery:
    """A message with its reply or error."""

    node: int
    context: Context
    contents: dict[str, bytes]  # the objects of the message
    reply: dict[str, bytes] | None = None  # the objects of the reply
    reply_id: str = ""
    failure: Error | None = None


@dataclass
class Queue:
    """The messages that a node still has to process, in order."""

    todo: list[str] = field(default_factory=list)
    woken: threading.Condition = field(default_factory=threading.Condition)


class InProcessGrid(Grid):
    """A `Grid` of nodes in this process.

    Args:
        nodes: the nodes by id.
        config: configuration of each node, as given to a SuperNode on its command line.
        stepwise: deliver replies in the order in which their messages were sent, and each only after `allow`, so that
            the order of arrivals is reproducible.
    """

    def __init__(
        self,
        nodes: Mapping[int, Node],
        config: Mapping[int, Mapping[str, Any]] | None = None,
        *,
        stepwise: bool = False,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SERVER, 1
        self.nodes = dict(nodes)
        self._config, self._stepwise, self._allowed = dict(config or {}), stepwise, 0
        self._contexts = dict[int, Context]()
        self._deliveries = dict[str, Delivery]()
        self._order = list[str]()  # of "train" messages whose replies are not delivered yet
        self._queues = dict[int, Queue]()
        self._compute, self._lock, self._closed = threading.Lock(), threading.Lock(), False

    @override
    def set_run(self, run: Any) -> None:
        """Do nothing: there is only one run."""

    @property
    @override
    def run(self) -> NoReturn:
        """Raise `AttributeError`: Flower has no record of this run."""
        raise AttributeError("A grid in this process has no Flower run.")

    @override
    def create_message(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `AttributeError`: Flower has deprecated this method."""
        raise AttributeError("create_message is deprecated. Make messages with Message(...).")

    @override
    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and return their replies, or those that arrived before the timeout."""
        open_ids, replies = set(self.push_messages(messages)), list[Message]()
        deadline = time.monotonic() + (3600.0 if timeout is None else timeout)
        while open_ids and time.monotonic() < deadline:
            for number in [*open_ids]:
                if got := self.pull_messages([number]):
                    replies += got
                    open_ids.discard(number)
            time.sleep(0.005)
        return replies

    def __enter__(self) -> "InProcessGrid":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Start no further work, and wait for the node that is computing."""
        with self._lock:
            self._closed, queues = True, list(self._queues.values())
        for waiting in queues:
            with waiting.woken:
                waiting.woken.notify()
        with self._compute:
            pass

    @override
    def get_node_ids(self) -> list[int]:
        """Return the ids of the connected nodes."""
        with self._lock:
            return list(self.nodes)

    def context(self, run_config: Mapping[str, Any]) -> Context:
        """Return the context that Flower passes to a ServerApp, with this configuration of the run."""
        return Context(1, SERVER, {}, RecordDict(), dict(run_config))

    def connect(self, node: int, app: Node) -> None:
        """Connect a node."""
        with self._lock:
            self.nodes[node] = app

    def disconnect(self, node: int) -> None:
        """Disconnect a node."""
        with self._lock:
            self.nodes.pop(node, None)

    def allow(self, count: int) -> None:
        """Deliver so many more replies to "train" messages."""
        with self._lock:
            self._allowed += count

    @override
    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = list[str]()
        for message in messages:
            number = message.object_id
            message.metadata.__dict__["_message_id"] = number
            node = message.metadata.dst_node_id
            contents = {key: value.deflate() for key, value in get_all_nested_objects(message).items()}
            with self._lock:
                context = self._contexts.setdefault(
                    node, Context(1, node, dict(self._config.get(node, {})), RecordDict(), {})
                )
                self._deliveries[number] = Delivery(node, context, contents)
                if message.metadata.message_type == "train":
                    self._order.append(number)
                if node not in self._queues:
                    self._queues[node] = Queue()
                    threading.Thread(target=self._serve, args=(node,), daemon=True).start()
                waiting = self._queues[node]
            with waiting.woken:
                waiting.todo.append(number)
                waiting.woken.notify()
            numbers.append(number)
        return numbers

    @override
    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = list[Message]()
        for number in message_ids:
            with self._lock:
                delivery = self._deliveries.get(number)
                if delivery is None or not (delivery.reply or delivery.failure) or self._withheld(number):
                    continue
                del self._deliveries[number]
            replies.append(_read(delivery))
        return replies

    def _withheld(self, number: str) -> bool:
        """Return whether a reply must wait for `allow`; if not, count it as delivered."""
        if not self._stepwise or number not in self._order:
            return False
        if not self._allowed or self._order[0] != number:
            return True
        self._order.pop(0)
        self._allowed -= 1
        return False

    def _serve(self, node: int) -> None:
        """Process the messages of a node, in order."""
        waiting = self._queues[node]
        while True:
            with waiting.woken:
                waiting.woken.wait_for(lambda: waiting.todo or self._closed)
                if self._closed:
                    return
                number = waiting.todo.pop(0)
            with self._lock:
                delivery, app = self._deliveries[number], self.nodes.get(node)
            if app is None:
                with self._lock:
                    delivery.failure = Error(5, "node is gone")
                continue
            message = inflate_object_from_contents(number, dict(delivery.contents))
            message.metadata.__dict__["_message_id"] = number  # type: ignore[attr-defined]
            self._answer(app, message, delivery)

    def _answer(self, app: Node, message: Any, delivery: Delivery) -> None:
        waits = getattr(app, "waits", False)  # a node that only waits must not hold up those that compute
        try:
            if waits:
                reply = app(message, delivery.context)
            else:
                with self._compute:  # one computes at a time; `close` waits for this lock
                    reply = None if self._closed else app(message, delivery.context)
        except Exception as error:  # Flower reports the error of a failing app like this
            with self._lock:
                delivery.failure = Error(2, str(error))
            return
        if reply is not None:
            contents = {key: value.deflate() for key, value in get_all_nested_objects(reply).items()}
            with self._lock:
                delivery.reply, delivery.reply_id = contents, reply.object_id


def _read(delivery: Delivery) -> Message:
    """Return the reply as Flower deserialises it."""
    if delivery.reply is None:
        number = next(reversed(delivery.contents))
        sent: Any = inflate_object_from_contents(number, dict(delivery.contents))
        sent.metadata.__dict__["_message_id"] = number
        failed = Message(delivery.failure or Error(0), reply_to=sent)
        failed.metadata.__dict__["_src_node_id"] = SERVER
        return failed
    reply: Any = inflate_object_from_contents(delivery.reply_id, dict(delivery.reply))
    reply.metadata.__dict__["_message_id"] = delivery.reply_id
    return reply  # type: ignore[no-any-return]
