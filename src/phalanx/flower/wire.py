"""Flower's `Grid` as it is used here: one message, its reply or what went wrong."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from phalanx.flower.codec import Malformed, brief

log = logging.getLogger("phalanx.flower")

FLOWERS_WORDS = {  # Flower's codes of errors
    1: "its app could not be loaded",
    2: "its app failed",
    3: "the message expired or was never uploaded",
    4: "its reply expired or was never uploaded",
    5: "it is no longer connected",
    7: "the app that it was sent is not whole",
    8: "its app was killed",
}
GONE = 5  # the code of a node that has not been heard of for too long
LONGEST = 200  # characters of what somebody else says
GRACE = 2.0  # seconds that threads have to end
SPARE = 60.0  # seconds that Flower keeps a message beyond our own deadline
SHARE = 0.02  # of the time waited for an answer, by which it may be seen too late: each look costs the SuperLink 9 ms


class Unsent(Exception):
    """Flower has not taken a message.

    Args:
        why: in words.
        gone: whether that is because nobody is there to bring it to.
    """

    def __init__(self, why: str, *, gone: bool) -> None:
        super().__init__(why)
        self.gone = gone


class Threads:
    """Threads that end by themselves, or with the process."""

    def __init__(self) -> None:
        self._begun = list[threading.Thread]()

    def begin(self, work: Callable[..., None], *arguments: Any) -> None:
        """Has a thread of its own do some work."""
        self._begun = [thread for thread in self._begun if thread.is_alive()]
        thread = threading.Thread(target=work, args=arguments, daemon=True, name=f"phalanx{work.__name__}")
        self._begun.append(thread)
        thread.start()

    def join(self, seconds: float) -> None:
        """Waits for them, but not for those that Flower holds: a process that ends while they compute is aborted."""
        deadline = time.monotonic() + seconds
        for thread in [*self._begun]:
            thread.join(max(0.0, deadline - time.monotonic()))


def pushed(grid: Grid, message: Message) -> str:
    """Gives Flower a message; returns its id of it.

    Raises:
        Unsent: it has not taken the message.
    """
    numbers = [*grid.push_messages([message])]
    if len(numbers) != 1:
        raise Unsent("it is too large for the SuperLink, or for a proxy before it", gone=False)
    if not numbers[0]:
        raise Unsent("Flower does not know the node any more", gone=True)
    return numbers[0]


def pulled(grid: Grid, number: str, poll: float, deadline: float, over: threading.Event) -> Message | None:
    """The reply to a message; None if there is none in time.  What Flower raises of a reply comes through.

    Args:
        grid: Flower's.
        number: the id that it has given the message.
        poll: seconds between two looks; more where it has waited for long.
        deadline: by `time.monotonic`.
        over: is set when nobody waits any more.
    """
    begun = time.monotonic()
    while not over.is_set() and (now := time.monotonic()) < deadline:
        try:
            for reply in grid.pull_messages([number]):
                return reply
        except httpx.TransportError as error:
            log.warning("Flower cannot be reached: %s", short(error))
        over.wait(min(max(poll, SHARE * (now - begun)), max(0.0, deadline - time.monotonic())))
    return None


def failure(reply: Message) -> str:
    """What Flower, or a client's app, says went wrong."""
    error = reply.error
    return f"{FLOWERS_WORDS.get(error.code, f'error {error.code}')}: {short(error.reason)}"


def short(said: Any) -> str:
    """What somebody else says, on one line and not too long."""
    ours = isinstance(said, Malformed | Unsent)
    kind = f"{type(said).__name__}: " if isinstance(said, Exception) and not ours else ""
    return brief(f"{kind}{said}", LONGEST)
