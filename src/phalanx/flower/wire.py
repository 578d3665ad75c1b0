"""Sending of single messages over Flower's `Grid`, with replies and errors."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from phalanx.data import Schema
from phalanx.flower.codec import MalformedError, brief
from phalanx.flower.gate import received
from phalanx.flower.limits import at_most, most_bytes

log = logging.getLogger("phalanx.flower")

ERRORS = {  # Flower's error codes
    1: "its app could not be loaded",
    2: "its app failed",
    3: "the message expired or was never uploaded",
    4: "its reply expired or was never uploaded",
    5: "it is no longer connected",
    7: "the app it received is incomplete",
    8: "its app was killed",
}
GONE = 5  # error code of a node that has been silent for too long
SILENT = (3, 4, GONE)  # error codes of a node that says nothing
LONGEST = 200  # characters of text from outside
GRACE = 2.0  # seconds for threads to end
SPARE = 60.0  # seconds that Flower keeps a message beyond its deadline here
SHARE = 0.02  # polling interval as a share of the time already waited: each poll costs the SuperLink 9 ms


class UndeliveredError(Exception):
    """Flower did not accept a message.

    Args:
        why: the reason.
        gone: whether the reason is that the node is gone.
    """

    def __init__(self, why: str, *, gone: bool) -> None:
        super().__init__(why)
        self.gone = gone


class Threads:
    """Daemon threads: they end by themselves, or with the process."""

    def __init__(self) -> None:
        self._threads = list[threading.Thread]()

    def begin(self, work: Callable[..., None], *arguments: Any) -> None:
        """Run a function in a new thread."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=work, args=arguments, daemon=True, name=f"phalanx{work.__name__}")
        self._threads.append(thread)
        thread.start()

    def join(self, seconds: float) -> None:
        """Wait for the threads, `seconds` at most since a call into Flower can block for minutes.

        A process that exits while one of them computes is aborted.
        """
        deadline = time.monotonic() + seconds
        for thread in [*self._threads]:
            thread.join(max(0.0, deadline - time.monotonic()))


def push(grid: Grid, message: Message) -> str:
    """Send a message and return Flower's id of it.

    Raises:
        UndeliveredError: Flower did not accept the message.
    """
    numbers = [*grid.push_messages([message])]
    if len(numbers) != 1:
        raise UndeliveredError("it is too large for the SuperLink or a proxy in front of it", gone=False)
    if not numbers[0]:
        raise UndeliveredError("Flower no longer knows the node", gone=True)
    return numbers[0]


def pull(
    grid: Grid,
    number: str,
    poll: float,
    deadline: float,
    over: threading.Event,
    *,
    clock: Callable[[], float],
    entries: int = 0,
) -> Message | None:
    """Wait for the reply to a message and return it, or None if there is none in time.

    Exceptions that Flower raises while it reads a reply are not caught.  Nor is `MalformedError`, of a reply that is
    larger than any with a valid update.

    Args:
        grid: Flower's grid.
        number: Flower's id of the message.
        poll: seconds between two polls, more after a long wait.
        deadline: by the clock.
        over: set when nobody waits for the reply any more.
        clock: gives the time.
        entries: number of entries of the update in the reply.
    """
    start = clock()
    while not over.is_set() and (now := clock()) < deadline:
        try:
            with at_most(most_bytes(entries)):
                for reply in grid.pull_messages([number]):
                    return reply
        except httpx.TransportError as error:
            log.warning("Flower cannot be reached: %s", short(error))
        over.wait(min(max(poll, SHARE * (now - start)), max(0.0, deadline - clock())))
    return None


def failure(reply: Message, schema: Schema | None = None) -> str:
    """Return the error in a reply, from Flower or a client's app, as text of this library.

    Args:
        reply: the reply.
        schema: of the federation.
    """
    error = reply.error
    why = received(error.reason, schema)
    return ERRORS.get(error.code, f"error {error.code}") + (f": {why}" if why else "")


def short(value: Any) -> str:
    """Return text or an exception from outside as one line of at most 200 characters."""
    ours = isinstance(value, MalformedError | UndeliveredError)
    kind = f"{type(value).__name__}: " if isinstance(value, Exception) and not ours else ""
    return brief(f"{kind}{value}", LONGEST)
