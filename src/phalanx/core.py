"""The words of the library: vectors, updates, verdicts, algorithms, transports.

A round is a step on m updates, an arrival is a step on one; nothing else differs between synchronous and asynchronous
federated learning.  `docs/design.md` draws the whole picture, `phalanx.engine.run` is the loop.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor
from typing_extensions import TypeVar

from phalanx.wording import plural

Vector = Float[Tensor, "d"]  # a model, or a change to one, flattened
Matrix = Float[Tensor, "m d"]  # one row per client
Weights = Float[Tensor, "m"]  # one non-negative scalar per row


@runtime_checkable
class Rule(Protocol):
    """What combines the updates of clients: a `phalanx.aggregators.Aggregator`."""

    @property
    def title(self) -> str:
        """A name for people."""

    def __call__(
        self, deltas: Matrix, weights: Weights | None = None, *, turn: int = 0, previous: Vector | None = None
    ) -> Vector:
        """Return the combination of the rows; arguments and errors are those of an `Aggregator`."""


class InfeasibleError(ValueError):
    """What was asked for cannot be done with what is there.

    The message says what was expected, what came, and the remedy.
    """


class StalledError(RuntimeError):
    """The run cannot go on: nobody is left who could bring the next update.

    The message says who is missing and why.
    """


@dataclass(frozen=True, eq=False)
class Updates:
    """What one server step consumes: a whole round (m rows) or a single arrival (one row).

    Ids, versions and bases come from the server's own record of what it sent; a client can lie about delta and loss
    only.

    Args:
        clients: m ids, increasing.
        versions: the age of the state that each client was sent, in server updates.
        bases: the vector that each client was sent; shared storage where equal.
        deltas: trained minus received parameters, a descent direction, one row per client.
        losses: mean training loss of each client in its first local epoch, in nats per example; of the model that it
            was sent, on all its examples, where the algorithm asks for that by `exact_losses`.
        reference: the change that the server's own training makes, on examples of its own, starting at the present
            model; given to algorithms that ask for it by `needs_reference`.
    """

    clients: tuple[int, ...]
    versions: tuple[int, ...]
    bases: tuple[Vector, ...]
    deltas: Matrix
    losses: Weights
    reference: Vector | None = None

    def __post_init__(self) -> None:
        m = len(self.clients)
        lengths = {
            "versions": len(self.versions),
            "bases": len(self.bases),
            "deltas": self.deltas.shape[0],
            "losses": self.losses.shape[0],
        }
        if set(lengths.values()) != {m}:
            wrong = {name: n for name, n in lengths.items() if n != m}
            raise ValueError(f"Updates of {plural(m, 'client')} need {m} of everything, got {wrong}.")
        if any(a >= b for a, b in zip(self.clients, self.clients[1:], strict=False)):
            raise ValueError(f"Updates are ordered by client id and name each client once, got {self.clients}.")

    def __len__(self) -> int:
        return len(self.clients)

    def of(self, members: Set[int]) -> "Updates":
        """The updates of those clients that are in `members`; `self`, without a copy, where all are."""
        rows = [row for row, client in enumerate(self.clients) if client in members]
        if len(rows) == len(self):
            return self
        return Updates(
            tuple(self.clients[r] for r in rows),
            tuple(self.versions[r] for r in rows),
            tuple(self.bases[r] for r in rows),
            self.deltas[rows],
            self.losses[rows],
            self.reference,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one client's update in one step.

    The weight is how much of the update is in the step, in [0, 1]: its share in a mean, its weight in a mixture, its
    factor for age.  A learning rate of the server, which is the same for all, is left out.  So weights compare updates
    of one run, and say nothing of how far the model has moved.
    """

    accepted: bool
    weight: float  # 0 if rejected
    score: float | None = None  # the method's own figure: cosine, distance, reputation, Lipschitz quantile
    reason: str = ""  # in words of the method; empty if accepted without remark
    final: bool = False  # the client is excluded for good: it is not asked again
    waits: bool = False  # the update is kept for a later step, which decides: another verdict will come


class QuorumStatus(NamedTuple):
    """How far an algorithm has come that waits for the answers of several clients before it changes its model."""

    wanted: int  # the quorum: clients whose answers it waits for
    there: int  # of how many of them it has one
    remedy: str  # which option asks for fewer: "Lower k"


class Local(NamedTuple):
    """What a client remembers between two downloads."""

    params: Vector  # where its last training started
    delta: Vector  # what it uploaded
    memory: Tensor | None = None  # the algorithm's own: momentum, error feedback


@runtime_checkable
class AnyState(Protocol):
    """Everything the server carries over from step to step.  Immutable; an algorithm adds fields of its own."""

    @property
    def version(self) -> int:
        """The age: number of server updates so far."""

    @property
    def model(self) -> Vector:
        """The global model."""

    @property
    def verdicts(self) -> Mapping[int, Verdict]:
        """One for each client whose update came, or was decided, in the last step."""


State = TypeVar("State", bound=AnyState, default=Any)


class Algorithm(ABC, Generic[State]):
    """A federated learning algorithm: frozen hyper-parameters, a server role and a client role.

    `init` and `step` are pure: a state may be replayed, checkpointed, compared and tested by hand.
    """

    synchronous: ClassVar[bool] = True  # step on whole rounds, or on arrivals one by one
    observed: ClassVar[tuple[str, ...]] = ()  # small fields of the state that history writes down and figures plot
    exact_losses: ClassVar[bool] = False  # whether clients measure the loss of what they are sent before they train
    needs_reference: ClassVar[bool] = False  # whether `step` needs `Updates.reference`, the server's own change
    can_join: ClassVar[bool] = False  # whether clients can join after the run has begun

    @property
    def title(self) -> str:
        """Return a short name, such as `FedAvg`."""
        return type(self).__name__

    # Role: server
    @abstractmethod
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[State, Set[int]]:
        """The first state, and who gets the first download.

        Args:
            model: initial parameters.
            sizes: number of examples that each client declares.  Clients may lie.

        Raises:
            InfeasibleError: the algorithm cannot serve this population.
        """

    @abstractmethod
    def step(self, state: State, updates: Updates) -> tuple[State, Set[int]]:
        """The next state, and who is ready for a download now.

        Raises:
            InfeasibleError: there are fewer updates than the algorithm needs.
        """

    def download(self, state: State, client: int) -> Vector:
        """What `client` is sent."""
        return state.model

    def join(self, state: State, client: int, size: int) -> State:
        """Return the state with a client that joins after `init`; unchanged if not overridden.

        Called only if `can_join`.

        Args:
            state: the present one.
            client: its id, of nobody who is enrolled.
            size: number of examples that it reports.  Clients may lie.

        Raises:
            InfeasibleError: the algorithm cannot take in this client.
        """
        return state

    @property
    def rule(self) -> Rule | None:
        """The rule that combines updates, for titles and for attackers that try it out; None if there is none."""
        return None

    def weights(self, state: State, clients: Collection[int]) -> Mapping[int, float]:
        """Return the weights with which `rule` would combine updates of these clients now.  Only ratios matter.

        Args:
            state: the present one.
            clients: enrolled ones.
        """
        return dict.fromkeys(clients, 1.0)

    def candidate_models(self, state: State, client: int) -> Mapping[int, Vector]:
        """The models that `client` can be served, by a number of the algorithm's own, the most general first.

        The last is what `download` sends. Clients choose by examples that they keep from training: `Run.validation`.
        """
        return {0: self.download(state, client)}

    def quorum_status(self, state: State) -> QuorumStatus | None:
        """What it waits for; None if it waits for no number of clients.  Tells what a run lacks that cannot go on."""
        return None

    def check_round(self, m: int, population: int) -> None:
        """Looks whether rounds of m updates will do, whatever is in them.

        Args:
            m: updates of a round.
            population: clients that are enrolled.

        Raises:
            InfeasibleError: they are too few for a step, or for what the algorithm is there for.
        """

    @property
    def knows_layout(self) -> bool:
        """Whether the server tells the entries of a model apart by where they are, as those of a layer."""
        return False

    @property
    def reference_every(self) -> int:
        """For how many server versions one reference serves; the server trains anew after that.

        An algorithm with a period of its own has it in a field of this name, with a default.
        """
        return 1

    # Role: client
    def integrate(self, local: Local | None, download: Vector) -> Vector:
        """The parameters that a client trains, and is served, after a download.  A pure call."""
        return download

    def upload(self, delta: Vector, memory: Tensor | None) -> tuple[Vector, Tensor | None]:
        """What a client sends for the change `delta` that it trained, and what it remembers."""
        return delta, memory

    @property
    def remembers(self) -> bool:
        """Whether the client role needs what a client remembers; if not, clients that are sent the same are alike."""
        kind = type(self)
        return kind.integrate is not Algorithm.integrate or kind.upload is not Algorithm.upload


class Reply(NamedTuple):
    """What came back for one download, before anybody has looked at it: delta and loss can be anything."""

    client: int
    version: int  # of the download that it answers, by the transport's own record
    delta: object
    loss: object


class Arrivals(NamedTuple):
    """What one wait brought.  Failures are data, never exceptions."""

    replies: tuple[Reply, ...] = ()
    refused: Mapping[int, str] = {}  # client -> what was wrong with its answer, in the transport's words
    lost: Mapping[int, str] = {}  # client -> silent past its deadline, crashed, left; its task is over
    joined: Mapping[int, object] = {}  # client that was not there before -> the size that it declares, unchecked
    late: Mapping[int, str] = {}  # client -> why the wait ended without its answer, which still counts when it comes
    back: Set[int] = frozenset()  # clients that can be reached again, of those that `Intermittent.here` left out
    missing: Mapping[int, str] = {}  # client -> why its answer never comes; the wait could not end otherwise


@runtime_checkable
class Transport(Protocol):
    """Brings downloads to clients and their replies back: `Simulation`, or Flower."""

    @property
    def now(self) -> float:
        """Seconds since the run began."""

    def enroll(self) -> Mapping[int, object]:
        """The sizes that clients declare, unchecked."""

    def send(self, downloads: Mapping[int, Vector], version: int) -> None:
        """Sends each client its download, and asks it to train."""

    def receive(self, *, every: bool) -> Arrivals:
        """Waits for all that is outstanding, or for the next arrival.

        Never for ever, and never for nothing: who stays silent past its deadline is named in `lost`.
        """


@runtime_checkable
class Intermittent(Protocol):
    """A transport that knows who can be reached at present."""

    def here(self, clients: Set[int]) -> Set[int]:
        """Those of the clients that can be reached now; `Arrivals.back` names the others when they can be."""


@runtime_checkable
class Prefetching(Protocol):
    """A transport by which a client can hold a second download while it works on the first.

    What becomes of them is told in the order in which they were sent, and of each client once in a wait.
    """

    @property
    def prefetch(self) -> bool:
        """Whether clients are to be sent a second one."""

    def forget(self, clients: Set[int]) -> None:
        """Gives up all that these clients were sent: nothing that comes of it arrives any more."""


@runtime_checkable
class Revealing(Protocol):
    """A transport with parts that may see the server's state, such as omniscient attackers in a simulation."""

    def reveal(self, state: AnyState) -> None:
        """Show the state from which the next downloads are made.  Called before each `send`."""


@runtime_checkable
class Resumable(Protocol):
    """A transport that can say what it has under way, so that another one goes on from there."""

    def snapshot(self) -> object:
        """What it has under way between two steps, for `restore`; nothing in it changes any more."""

    def restore(self, snapshot: Any, /) -> None:
        """Goes on from a snapshot of a transport that was made like this one."""


class Progress(NamedTuple):
    """What observers of a run see.

    They are called before the first step (of a resumed run: the first after that), after each step, and after each wait
    that brought nothing usable, but somebody who was refused or lost.
    """

    step: int  # steps so far
    now: float  # seconds since the run began
    state: AnyState
    updates: Updates | None  # of this step; None if no step was taken
    refused: Mapping[int, str]  # client -> why, since the previous call
    lost: Mapping[int, str]  # client -> why, since the previous call; also who is late, and still waited for
    enrolled: frozenset[int] = frozenset()  # clients that were let in so far; excluded ones stay enrolled


@runtime_checkable
class Observer(Protocol):
    """Looks at a run, and never changes it."""

    def __call__(self, progress: Progress, /) -> None:
        """Takes note."""


@dataclass(frozen=True)
class Until:
    """When a run ends: at whichever comes first, after 30 steps if neither is given.

    Args:
        steps: server steps: rounds of a synchronous algorithm, arrivals of an asynchronous one.
        seconds: seconds on the run's clock, virtual ones in a simulation.
    """

    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}.")
        if self.seconds is not None and not self.seconds > 0:
            raise ValueError(f"seconds must be positive, got {self.seconds}.")

    @property
    def limit(self) -> int | None:
        """The number of steps after which the run is over at the latest; None if only seconds count."""
        return 30 if self.steps is None and self.seconds is None else self.steps

    @classmethod
    def of(cls, until: "Until | int") -> "Until":
        """An `Until`, where an integer means steps."""
        return cls(steps=until) if isinstance(until, int) else until

    def reached(self, steps: int, seconds: float) -> bool:
        """Whether a run of so many steps and seconds is over."""
        return (self.limit is not None and steps >= self.limit) or (
            self.seconds is not None and seconds >= self.seconds
        )
