"""The connection to the clients, as the loop asks for it: what every one offers, and what some can do besides."""

from collections.abc import Mapping, Set
from typing import Any, NamedTuple, Protocol, runtime_checkable

from phalanx.core import AnyState, ClientReport, Vector


class Reply(NamedTuple):
    """An answer to one download, before any check: delta and loss can be anything."""

    client: int
    version: int  # of the download that it answers, by the transport's own record
    delta: object
    loss: object
    report: ClientReport | None = None  # of a client that measures what it is sent


class Arrivals(NamedTuple):
    """The results of one wait.  Failures are data, never exceptions."""

    replies: tuple[Reply, ...] = ()
    invalid: Mapping[int, str] = {}  # client -> what was wrong with its answer, in the transport's words
    lost: Mapping[int, str] = {}  # client -> silent past its deadline, crashed, left; its task is over
    joined: Mapping[int, object] = {}  # new client -> the size that it reports, unchecked
    late: Mapping[int, str] = {}  # client -> why the wait ended without its answer, which still counts when it arrives
    back: Set[int] = frozenset()  # clients that are available again, of those that `Intermittent.here` left out
    missing: Mapping[int, str] = {}  # client -> why its answer never arrives; the wait could not end otherwise
    gone: Set[int] = frozenset()  # clients that do not come back, as is known since this wait


@runtime_checkable
class Transport(Protocol):
    """A connection to the clients, which carries downloads and replies: `Simulation`, or Flower."""

    @property
    def now(self) -> float:
        """Seconds since the run began."""

    def enroll(self) -> Mapping[int, object]:
        """Return the sizes that clients report, unchecked."""

    def send(self, downloads: Mapping[int, Vector], version: int) -> None:
        """Send each client its download, to be trained."""

    def receive(self, *, every: bool) -> Arrivals:
        """Wait for all outstanding answers, or for the next arrival.

        The wait always ends, and always with a result: a client that is silent past its deadline is named in `lost`.
        """


@runtime_checkable
class Intermittent(Protocol):
    """A transport that knows which clients are available."""

    def here(self, clients: Set[int]) -> Set[int]:
        """Return those of the clients that are available now; `Arrivals.back` names the others when they are."""


@runtime_checkable
class Lossy(Protocol):
    """A transport that knows whether it can give up an answer."""

    @property
    def lossy(self) -> bool:
        """Whether a wait can end without the answer of a client: past a deadline, or as the client crashed or left."""


@runtime_checkable
class Joinable(Protocol):
    """A transport that knows whether further clients can join."""

    @property
    def joins(self) -> bool:
        """Whether a wait can name clients in `Arrivals.joined`."""


@runtime_checkable
class Prefetching(Protocol):
    """A transport by which a client can hold a second download while it works on the first.

    The results are reported in the order of sending, and at most one per client in a wait.
    """

    @property
    def prefetch(self) -> bool:
        """Whether clients are sent a second download."""

    def forget(self, clients: Set[int]) -> None:
        """Give up all downloads of these clients: their answers do not arrive any more."""


@runtime_checkable
class Revealing(Protocol):
    """A transport with parts that may see the server's state, such as omniscient attackers in a simulation."""

    def reveal(self, state: AnyState) -> None:
        """Show the state from which the next downloads are made; called before each `send`."""


@runtime_checkable
class Suspending(Protocol):
    """A transport that gives a client no task for a while after answers that were invalid."""

    def with_suspensions(self, invalid: Mapping[int, str], enrolled: Set[int]) -> Mapping[int, str]:
        """Return why answers were invalid, by client; the reasons say for whom a suspension follows."""


@runtime_checkable
class Resumable(Protocol):
    """A transport that can return its unfinished work, so that another one goes on from there."""

    def snapshot(self) -> object:
        """Return the unfinished work between two steps, for `restore`; nothing in it changes any more."""

    def restore(self, snapshot: Any, /) -> None:
        """Go on from a snapshot of a transport with the same settings."""
