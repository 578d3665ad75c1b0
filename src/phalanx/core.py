"""The basic types of the library: vectors, updates, verdicts, algorithms.

A round is a step on m updates, an arrival is a step on one; nothing else differs between synchronous and asynchronous
federated learning.  `docs/design.md` draws the whole picture, `phalanx.engine.run` is the loop,
`phalanx.engine.connection` its way to the clients.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, is_dataclass, replace
from fractions import Fraction
from typing import Annotated, Any, Generic, Literal, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float
from msgspec import Meta
from torch import Tensor
from typing_extensions import TypeVar

from phalanx.errors import InfeasibleError as InfeasibleError  # noqa: PLC0414  (offered here, too)
from phalanx.errors import StalledError as StalledError  # noqa: PLC0414  (offered here, too)
from phalanx.errors import TooFewError as TooFewError  # noqa: PLC0414  (offered here, too)
from phalanx.fields import INFINITE, CheckedFields, PositiveInt
from phalanx.wording import plural

Vector = Float[Tensor, "d"]  # a model, or a change to one, flattened
Download = Float[Tensor, "_"]  # a model, or a change to one, and what else `Traits.vectors` counts
Served = Float[Tensor, "_"]  # a model as a client uses it, with its own parameters, if it has any, at the end
Matrix = Float[Tensor, "m d"]  # one row per client
Weights = Float[Tensor, "m"]  # one non-negative scalar per row
Keeps = Literal["nothing", "memory", "training"]
Means = Literal["range", "distance", "length", "selection", "nothing"]
ROUNDING = Fraction(1, 10**12)  # relative difference of shares that are equal up to rounding
ROUND_LOST = "round lost: "  # how the reason begins that verdicts on a lost round give


@runtime_checkable
class Rule(Protocol):
    """A rule that combines the updates of clients: a `phalanx.aggregators.Aggregator`."""

    @property
    def title(self) -> str:
        """A readable name."""

    def __call__(
        self, deltas: Matrix, weights: Weights | None = None, *, turn: int = 0, previous: Vector | None = None
    ) -> Vector:
        """Return the combination of the rows; arguments and errors are those of an `Aggregator`."""


@dataclass(frozen=True)
class ClientReport:
    """A client's measurement of the model that it uses at a download, on examples that it does not train on.

    It is a claim: of an attacker it can be anything.
    """

    examples: int  # number of these examples
    loss: float | None = None  # mean per label; None if it is not finite
    accuracy: float | None = None  # None if the task has none


@dataclass(frozen=True, eq=False)
class Updates:
    """The updates of one server step: a whole round (m rows) or a single arrival (one row).

    Ids, versions and bases come from the server's own record of what it sent; a client can lie about delta and loss
    only.

    Args:
        clients: m ids, increasing.
        versions: the age of the state that each client was sent, in server updates.
        bases: the vector that each client was sent; shared storage where equal.
        deltas: trained minus received parameters, a descent direction, one row per client.
        losses: mean training loss of each client in its first local epoch, in nats per example; of the model that it
            was sent, on all its examples, where `Traits.exact_losses`.
        reference: the change that the server's own training makes, on examples of its own, starting at the current
            model; given where `Traits.reference_every`.
        reports: by client that measures what it is sent, its report.  For the record; algorithms do not use it.
    """

    clients: tuple[int, ...]
    versions: tuple[int, ...]
    bases: tuple[Download, ...]
    deltas: Matrix
    losses: Weights
    reference: Vector | None = None
    reports: Mapping[int, ClientReport] = field(default_factory=dict)

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
        """Return the updates of those clients that are in `members`; `self`, without a copy, where all are."""
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
            {client: report for client, report in self.reports.items() if client in members},
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on one client's update in one step.

    The weight is how much of the update is in the step, in [0, 1]: its share in a mean, its weight in a mixture, its
    factor for age.  A learning rate of the server, which is the same for all, is left out.  So weights compare updates
    of one run, and do not say how far the model has moved.
    """

    accepted: bool
    weight: float  # 0 if filtered
    score: float | None = None  # the method's own figure: cosine, distance, reputation, Lipschitz quantile
    reason: str = ""  # a reason in words; empty if accepted without remark
    final: bool = False  # the client is excluded for good: it gets no more downloads
    waits: bool = False  # the update is kept for a later step, which decides: another verdict follows


@dataclass(frozen=True)
class Tolerance:
    """What a rule tolerates, for one number of rows.

    Args:
        share: the largest share of the weight that attackers may hold, in [0, 1].
        means: what is bounded then. "range": each entry of the result lies between those of honest rows. "distance":
            the distance to the honest rows is bounded by how far these are from each other. "length": the result is no
            longer than the longest honest row. "selection": at least one honest row is in the mean. "nothing".
        source: why, or why nothing is tolerated; a sentence.
        strict: whether attackers must hold less than the share.
        least: number of rows that the rule needs.
        equal: whether all rows must weigh the same.
    """

    share: Fraction
    means: Means
    source: str
    strict: bool = False
    least: int = 1
    equal: bool = False

    @classmethod
    def none(cls, source: str) -> "Tolerance":
        """Return that of a rule for which nothing is proven."""
        return cls(Fraction(0), "nothing", source)

    @classmethod
    def below_half(cls, means: Means, source: str) -> "Tolerance":
        """Return that of a rule that tolerates less than one half of the weight."""
        return cls(Fraction(1, 2), means, source, strict=True)

    def allows(self, held: float | Fraction) -> bool:
        """Return whether attackers may hold this share of the weight; the limit itself counts up to rounding."""
        limit = self.share * (1 - ROUNDING) if self.strict else self.share * (1 + ROUNDING)
        return held < limit if self.strict else held <= limit

    @property
    def limit(self) -> str:
        """The share in words."""
        half = self.share == Fraction(1, 2)
        if self.strict:
            return "less than one half" if half else f"less than {float(self.share):.3g}"
        return f"{float(self.share):.3g} at most"


@runtime_checkable
class Weighting(Protocol):
    """Makes weights of sizes: a `phalanx.weighting.Preprocess`, which says what the methods do."""

    @property
    def holds(self) -> bool:
        """Whether a set of clients for which no bound is feasible is not aggregated."""

    def held(self, sizes: Mapping[int, int] | None, f: int, q: int, clients: int, *, parted: bool = False) -> Fraction:
        """Return the largest share of the weight that any f of any q clients hold; 1 if it is not bounded."""

    def feasible(self, q: int, clients: int) -> bool:
        """Return whether any q of so many clients have weights."""

    def requested(self, clients: int) -> int | None:
        """Return the number of attackers, of so many clients, that the weights are made for; None for no number."""

    def taking_part(self, f: int, clients: int) -> int:
        """Return how many of f attackers among so many clients a draw brings, but for a small probability."""


@dataclass(frozen=True)
class Setting:
    """The setting in which an algorithm runs, as far as promises depend on it.

    Args:
        clients: number of clients that are enrolled.
        sizes: the sizes that they report; None: whatever they report.
        drawn: number of clients that are drawn at random for each round; None: all take part.
        steps: number of steps of the run; None if it is not known.
        lossy: whether a round can end without the answers of some clients: past a deadline, or as they are absent.
        joins: whether clients can join later, with any size.
        fastest: whether those `drawn` are the fastest of all, as many in each round, and not drawn by lot.
    """

    clients: int
    sizes: Mapping[int, int] | None = None
    drawn: int | None = None
    steps: int | None = None
    lossy: bool = False
    joins: bool = False
    fastest: bool = False

    @property
    def asked(self) -> int:
        """The number of updates of a round from which nobody is missing; all clients of an asynchronous algorithm."""
        return self.clients if self.drawn is None else min(self.drawn, self.clients)


@dataclass(frozen=True)
class Pool:
    """What an algorithm combines in one call of a rule: updates of which clients, and how few there can be.

    Args:
        name: "quorum", "buffer", "round", "cluster", ...
        rule: what combines them; None if it is no rule that states what it tolerates.
        weighting: makes their weights of sizes; None if all weigh the same.
        smallest: smallest number of different clients.
        full: number of clients of a set from which nobody is missing; no set has to be larger.
        larger: what makes the smallest set larger: "raise k".
        smaller: what makes it smaller, for a run that stalls: "Lower k".
        chosen: who decides which clients are in it: nobody ("everyone"), a draw ("lot"), who is fastest ("arrival"), or
            what clients send ("updates").
        versions: number of rounds whose updates can meet in it.
        several: whether a client can have several rows in it.
        unproven: why nothing is promised whatever the rule tolerates, a sentence; "" if something can be.
        bounds: what a bounded share bounds: the result itself ("result"), its change ("shift"), or no more ("share").
        parted: whether it is of the clients of one cluster, in which all attackers can be.
        beyond: what is not bounded, a sentence; "" if there is nothing to add.
        refused: why no step can ever be taken, a message; "" if one can be.
        there: number of answers so far, of `smallest`, where a state was given.
    """

    name: str
    rule: Rule | None
    smallest: int
    full: int
    weighting: Weighting | None = None
    larger: str = "have more clients take part in each round"
    smaller: str = ""
    chosen: Literal["everyone", "lot", "arrival", "updates"] = "everyone"
    versions: int = 1
    several: bool = False
    parted: bool = False
    unproven: str = ""
    bounds: Literal["result", "shift", "share"] = "result"
    beyond: str = ""
    refused: str = ""
    there: int | None = None

    @classmethod
    def of_round(cls, rule: Rule | None, weighting: Weighting | None, setting: Setting, **changes: Any) -> "Pool":
        """Return the updates of a round, which may be any number of those asked if answers can be missing."""
        chosen = "everyone" if setting.drawn is None else "arrival" if setting.fastest else "lot"
        smallest = 1 if setting.lossy else setting.asked
        return cls("round", rule, smallest, setting.asked, weighting, **{"chosen": chosen, **changes})

    @classmethod
    def of_one(cls, rule: Rule | None = None, unproven: str = "") -> "Pool":
        """Return a single update."""
        larger = "choose an algorithm that waits for several clients, such as Quorum"
        return cls("step", rule, 1, 1, larger=larger, chosen="arrival", unproven=unproven)


class Local(NamedTuple):
    """The local state of a client between two downloads."""

    params: Vector  # where its last training started; empty unless `Traits.keeps` is "training"
    delta: Vector  # what it uploaded; likewise
    memory: Tensor | None = None  # the algorithm's own: momentum, error feedback


class Correction(NamedTuple):
    """A change of each gradient of a client's local training, which becomes g + vector + proximal (w - start)."""

    vector: Vector
    proximal: float = 0.0


@runtime_checkable
class AnyState(Protocol):
    """The server's state between two steps.  Immutable; an algorithm adds fields of its own."""

    @property
    def version(self) -> int:
        """The age: number of server updates so far."""

    @property
    def model(self) -> Vector:
        """The global model."""

    @property
    def verdicts(self) -> Mapping[int, Verdict]:
        """A verdict for each client whose update arrived, or was decided on, in the last step."""


State = TypeVar("State", bound=AnyState, default=Any)


class Pace(NamedTuple):
    """What sets how far a client's training moves a model; see `LocalSGD`, whose fields these are."""

    epochs: int
    steps: int | None
    batch_size: float
    momentum: float


class GroupSearch(NamedTuple):
    """How an algorithm looks for groups of clients that learn different things, and where it was measured to find them.

    Args:
        by: its name.
        least: smallest group that it finds.
        turns: number of updates of each client before it looks.
        found: in how many measured seeds it found all groups, by the number of examples a client.
        in_part: the same where a part of the clients takes part in each round; "" if those make no difference.
    """

    by: str
    least: int
    turns: int
    found: str
    in_part: str = ""


class Traits(NamedTuple):
    """What an algorithm declares: a value, which the engine reads, and which a wrapper changes by `_replace`.

    Args:
        synchronous: it steps on whole rounds; if not, on arrivals one by one.
        observed: small fields of its state that the history records and figures plot.
        can_join: clients can join after the run has begun.
        exact_losses: clients measure the loss of what they are sent before they train.
        reference_every: number of server versions for which one change that the server itself trains serves, as
            `Updates.reference`; None: `step` needs none.
        knows_layout: the server uses the positions of a model's entries, such as those of a layer.
        vectors: number of vectors of the model's length in a download; the first are parameters.
        pace: how clients train, where the server counts on it; None: it does not.
        corrects: the client role changes gradients.
        keeps: what the client role reads of a client's local state: nothing, then clients with equal downloads have
            equal parameters; its memory; or also what its last training started from and gave.
        groups: how it looks for groups of clients; None: it does not.
    """

    synchronous: bool = True
    observed: tuple[str, ...] = ()
    can_join: bool = False
    exact_losses: bool = False
    reference_every: int | None = None
    knows_layout: bool = False
    vectors: int = 1
    pace: Pace | None = None
    corrects: bool = False
    keeps: Keeps = "nothing"
    groups: GroupSearch | None = None

    @property
    def needs_reference(self) -> bool:
        """Whether the server trains a model of its own."""
        return self.reference_every is not None

    @property
    def remembers(self) -> bool:
        """Whether clients keep a local state."""
        return self.keeps != "nothing"


class Algorithm(CheckedFields, ABC, Generic[State]):
    """A federated learning algorithm: frozen hyper-parameters, a server role and a client role.

    `init` and `step` are pure: a state may be replayed, checkpointed, compared and tested by hand.  The state is a
    NamedTuple or a frozen dataclass, with fields of the algorithm's own and these: `version`, the number of server
    updates so far; `model`, of shape (d,); `verdicts`, a `Verdict` for each client whose update was decided on.

    Examples:
        >>> import torch
        >>> from dataclasses import dataclass
        >>> class State(NamedTuple):
        ...     version: int
        ...     model: Vector
        ...     verdicts: Mapping[int, Verdict]
        ...     clients: frozenset[int]
        >>> @dataclass(frozen=True)
        ... class Averaging(Algorithm[State]):
        ...     def init(self, model, sizes):
        ...         return State(0, model, {}, frozenset(sizes)), frozenset(sizes)
        ...
        ...     def step(self, state, updates):
        ...         verdicts = {i: Verdict(accepted=True, weight=1 / len(updates)) for i in updates.clients}
        ...         model = state.model + updates.deltas.mean(0)
        ...         return State(state.version + 1, model, verdicts, state.clients), state.clients
        >>> state, ready = Averaging().init(torch.zeros(1), {0: 10, 1: 10})
        >>> deltas = torch.tensor([[1.0], [3.0]])
        >>> state, ready = Averaging().step(state, Updates((0, 1), (0, 0), (state.model,) * 2, deltas, torch.ones(2)))
        >>> state.model, sorted(ready)
        (tensor([2.]), [0, 1])
        >>> from phalanx import Run, Until, simulate
        >>> simulate(Run(algorithm=Averaging(), clients=7, until=Until(steps=2))).summary.steps
        2
    """

    @property
    def traits(self) -> Traits:
        """What the algorithm declares.  A subclass returns `super().traits._replace(...)` with what differs."""
        kind = type(self)
        corrects, integrates = kind.correction is not Algorithm.correction, kind.integrate is not Algorithm.integrate
        remembers = integrates or kind.upload is not Algorithm.upload
        keeps: Keeps = "nothing" if not remembers else "training" if corrects or integrates else "memory"
        return Traits(corrects=corrects, keeps=keeps)

    @property
    def title(self) -> str:
        """Return a short name, such as `FedAvg`."""
        return type(self).__name__

    @property
    def rule(self) -> Rule | None:
        """The rule that combines updates, for titles and for attackers that evaluate it; None if there is none.

        It is the field `aggregate`, if the algorithm has one.
        """
        rule: Rule | None = getattr(self, "aggregate", None)
        return rule

    # Role: server
    @abstractmethod
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[State, Set[int]]:
        """Return the first state, and the clients that get the first download.

        Args:
            model: initial parameters.
            sizes: number of examples that each client reports.  Clients may lie.

        Raises:
            InfeasibleError: the algorithm cannot serve this population.
        """

    @abstractmethod
    def step(self, state: State, updates: Updates) -> tuple[State, Set[int]]:
        """Return the next state, and the clients that are ready for a download now.

        Args:
            state: the current one.
            updates: those of the round; of an asynchronous algorithm the one that arrived.

        Raises:
            InfeasibleError: there are fewer updates than the algorithm needs, or its rule has no result for them. The
                round is lost: see `lose_round`.
        """

    def download(self, state: State, client: int) -> Download:
        """Return the vector that `client` is sent."""
        return state.model

    def join(self, state: State, client: int, size: int) -> State:
        """Return the state with a client that joins after `init`; unchanged if not overridden.

        Called only if `Traits.can_join`.

        Args:
            state: the current state.
            client: its id, which no enrolled client has.
            size: number of examples that it reports.  Clients may lie.

        Raises:
            InfeasibleError: the algorithm cannot take in this client.
        """
        return state

    def part(self, state: State, clients: Mapping[int, int]) -> tuple[State, Set[int]]:
        """Return a state for some of the clients, which go on by themselves, and those of them that get a download.

        They begin again at the present model if this is not overridden.

        Args:
            state: the present one.
            clients: some that are enrolled and not excluded, each with the size that it reports.

        Raises:
            InfeasibleError: they are too few.
        """
        return self.init(state.model, clients)

    def weights(self, state: State, clients: Collection[int]) -> Mapping[int, float]:
        """Return the weights with which `rule` would combine updates of these clients now.  Only ratios matter.

        Args:
            state: the current state.
            clients: enrolled clients.
        """
        return dict.fromkeys(clients, 1.0)

    def carried(self, state: State) -> tuple[int, Vector | None]:
        """Return the number of the next call of `rule`, and its last result if it starts from there, else None.

        Of an algorithm that calls its rule in several clusters, the last result is None.
        """
        return state.version, getattr(state, "aggregate", None)

    def candidate_models(self, state: State, client: int) -> Mapping[int, Download]:
        """Return the models that `client` can be served, by a number of the algorithm's own, the most general first.

        The last is what `download` sends, without what is only added to test the client. Clients choose by examples
        that they keep from training: `Run.validation`.
        """
        return {0: self.download(state, client)}

    def pools(self, setting: Setting, state: State | None = None) -> tuple[Pool, ...] | None:
        """Return what is combined at once, in each call of a rule that changes a model or a memory.

        Promises follow from it: of few clients, attackers can be many.  None if the algorithm does not say; then
        nothing is promised.  An empty tuple: no update of a client reaches another.

        Args:
            setting: of the run.
            state: the current one, for how many answers are `there`; None: what can be combined in the whole run.
        """
        return None

    def lose_round(self, state: State, updates: Updates, why: str) -> tuple[State, Set[int]]:
        """Return the state after a lost round, and who is ready for a download: the model stays, verdicts say why.

        A round is lost if `step` raises `InfeasibleError`: the updates are too few, or the rule has no result for them.
        An algorithm overrides this if updates wait in its state that have to be given up too.

        Args:
            state: before the round.
            updates: those that came.
            why: the message of the error.

        Raises:
            TypeError: the state is neither a NamedTuple nor a dataclass, and the algorithm does not override this.
        """
        return with_verdicts(state, lost_verdicts(updates.clients, why)), set(updates.clients)

    # Role: client
    def integrate(self, local: Local | None, download: Download) -> Vector:
        """Return the parameters that a client trains, and is served, after a download.  A pure function."""
        return download

    def correction(self, local: Local | None, download: Download, reach: float) -> Correction | None:
        """Return what changes each gradient of the client's training; None: nothing.  A pure function.

        Args:
            local: the client's state.
            download: what it was sent.
            reach: number of steps that it trains, times the learning rate: how far a gradient of length 1 moves it.
        """
        return None

    def upload(self, delta: Vector, memory: Tensor | None) -> tuple[Vector, Tensor | None]:
        """Return what a client sends for the change `delta` that it trained, and its new local state."""
        return delta, memory


def local_state(algorithm: Algorithm[Any], start: Vector, delta: Vector, memory: Tensor | None) -> Local | None:
    """Return what a client keeps until its next download: only what its role reads.

    Args:
        algorithm: has the role.
        start: where the training of the client started.
        delta: what it uploads.
        memory: the state that `Algorithm.upload` returned.
    """
    keeps = algorithm.traits.keeps
    if keeps == "nothing":
        return None
    nothing = start.new_empty(0)
    return Local(start, delta, memory) if keeps == "training" else Local(nothing, nothing, memory)


def lost_verdicts(clients: Iterable[int], why: str) -> dict[int, Verdict]:
    """Return the verdicts on clients whose round was lost."""
    return dict.fromkeys(sorted(clients), Verdict(False, 0.0, None, f"{ROUND_LOST}{why}"))


def with_verdicts(state: State, verdicts: Mapping[int, Verdict]) -> State:
    """Return the state with other verdicts; raise `TypeError` if it is neither a NamedTuple nor a dataclass."""
    if isinstance(state, tuple) and hasattr(state, "_replace"):
        new: State = state._replace(verdicts=verdicts)
        return new
    if is_dataclass(state) and not isinstance(state, type):
        return replace(state, verdicts=verdicts)
    raise TypeError(
        f"A {type(state).__name__} cannot be given verdicts on a lost round. Make it a NamedTuple or a dataclass with "
        "a field `verdicts`, or override `lose_round`."
    )


@dataclass(frozen=True)
class Until(CheckedFields):
    """The end of a run: whichever limit is reached first, 30 steps if neither is given.

    Args:
        steps: server steps: rounds of a synchronous algorithm, arrivals of an asynchronous one.
        seconds: seconds on the run's clock, virtual ones in a simulation.
    """

    steps: PositiveInt | None = None
    seconds: Annotated[float, Meta(gt=0), INFINITE] | None = None

    @property
    def limit(self) -> int | None:
        """The largest number of steps of the run; None if only seconds count."""
        return 30 if self.steps is None and self.seconds is None else self.steps

    @classmethod
    def of(cls, until: "Until | int") -> "Until":
        """Return an `Until`; an integer means steps."""
        return cls(steps=until) if isinstance(until, int) else until

    def reached(self, steps: int, seconds: float) -> bool:
        """Return whether a run is over after these steps and seconds."""
        return (self.limit is not None and steps >= self.limit) or (
            self.seconds is not None and seconds >= self.seconds
        )
