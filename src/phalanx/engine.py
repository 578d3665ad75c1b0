"""The loop, the only one: written once for simulation and deployment, for rounds and for arrivals."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from phalanx.core import (
    Algorithm,
    AnyState,
    Arrivals,
    Infeasible,
    Observer,
    Progress,
    Resumable,
    Stalled,
    Transport,
    Until,
    Updates,
    Vector,
)
from phalanx.guard import Guard, Sent
from phalanx.rng import numpy_generator

S = TypeVar("S", bound=AnyState)
Sampler = Callable[[Set[int], int], Set[int]]  # ready clients, attempt -> those that are asked


def everyone(ready: Set[int], attempt: int) -> Set[int]:
    """The sampler that asks all who are ready."""
    return ready


@dataclass(frozen=True)
class Participation:
    """The sampler that asks a random share of those that are ready, at least one.

    Args:
        share: in (0, 1].
        seed: the run's.
        byzantine: clients of whom a fixed number is drawn.
        attackers: that number, of those that are drawn in all; None draws without regard to who is Byzantine.
    """

    share: float
    seed: int
    byzantine: frozenset[int] = frozenset()
    attackers: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"participation must lie in (0, 1], got {self.share}.")
        if self.attackers is not None and not 0 <= self.attackers <= len(self.byzantine):
            known = len(self.byzantine)
            raise ValueError(f"attackers must be among the {known} Byzantine clients, got {self.attackers}.")

    def __call__(self, ready: Set[int], attempt: int) -> Set[int]:
        """Draws without replacement, from the stream "participation" of the attempt."""
        if not ready:
            return ready
        count = max(1, round(self.share * len(ready)))
        rng = numpy_generator(self.seed, "participation", attempt)
        if self.attackers is None:
            return set(rng.choice(sorted(ready), count, replace=False).tolist())
        bad, good = sorted(ready & self.byzantine), sorted(ready - self.byzantine)
        attackers = min(self.attackers, len(bad), count)  # fewer only where so many are not ready
        honest = rng.choice(good, min(count - attackers, len(good)), replace=False)
        return {*honest.tolist(), *rng.choice(bad, attackers, replace=False).tolist()}


@dataclass(frozen=True, eq=False)
class Snapshot(Generic[S]):
    """A run between two steps, all of it: with it, another process goes on to the same bits.

    Args:
        state: the algorithm's.
        waiting: clients that are ready for a download.
        step: steps so far.
        attempt: how often clients were asked so far.
        sent: downloads without an answer.
        barren: clients that were asked since the last step in vain, with the reason.
        transport: by the transport, for itself.
    """

    state: S
    waiting: frozenset[int]
    step: int
    attempt: int
    sent: Mapping[int, Sent]
    barren: Mapping[int, str]
    transport: Any


Keep = Callable[[Callable[[], Snapshot[Any]]], None]  # is shown, before each step, how a snapshot can be taken


def nothing(take: Callable[[], Snapshot[Any]]) -> None:
    """Keeps no snapshot."""


def run(
    algorithm: Algorithm[S],
    transport: Transport,
    model: Vector,
    *,
    until: Until | int,
    sample: Sampler = everyone,
    guard: Guard | None = None,
    observers: Sequence[Observer] = (),
    keep: Keep = nothing,
    resume: Snapshot[S] | None = None,
) -> S:
    """Trains `model` by `algorithm` with the clients that `transport` reaches.

    Args:
        algorithm: what the server and the clients do.
        transport: how they reach each other.
        model: initial parameters.
        until: when to stop; an integer counts steps.
        sample: who is asked in a round, of those that are ready. Synchronous algorithms only.
        guard: what is refused; `Guard()` if not given.
        observers: called before the first step, after each step, and after each wait that brought nothing usable.
        keep: called before each step; may take a snapshot, and hold it, as nothing that is in it changes.
        resume: where to go on, with everything else as it was; the transport is a new one.

    Returns:
        The last state.

    Raises:
        Infeasible: the algorithm cannot serve this population, or what is left of it; or the transport has no
            snapshots.
        Stalled: nobody is left who could bring the next update.
    """
    until, guard = Until.of(until), guard or Guard()
    if sample is not everyone and not algorithm.synchronous:
        name = type(algorithm).__name__
        raise Infeasible(f"{name} is asynchronous: it serves whoever is free, and has no rounds to sample from.")
    waiting: Set[int]
    if resume is not None:
        resumable(transport).restore(resume.transport)
        state, waiting, step, attempt = resume.state, resume.waiting, resume.step, resume.attempt
        books = Books(guard, model, dict(resume.sent), barren=dict(resume.barren))
    else:
        sizes, refused = guard.enroll(transport.enroll())
        if not sizes:
            raise Infeasible(f"No client can take part.{listed(refused)}")
        state, waiting = algorithm.init(model, sizes)
        books = Books(guard, model, refused=refused)
        step = attempt = 0

    def snapshot() -> Snapshot[S]:
        underway = resumable(transport).snapshot()
        return Snapshot(state, frozenset(waiting), step, attempt, dict(books.sent), dict(books.barren), underway)

    def tell(updates: Updates | None) -> None:
        progress = Progress(step, transport.now, state, updates, *books.news())
        for observer in observers:
            observer(progress)

    tell(None)

    while not until.reached(step, transport.now):
        keep(snapshot)
        asked = sample(waiting, attempt) - books.sent.keys()
        downloads = {i: algorithm.download(state, i) for i in sorted(asked)}
        waiting, attempt = waiting - asked, attempt + 1
        books.ask(downloads, state.version)
        transport.send(downloads, state.version)

        arrivals = transport.receive(every=algorithm.synchronous)
        if until.seconds is not None and transport.now > until.seconds:
            break
        if not any(arrivals):
            raise Stalled(
                f"A wait of the transport brought nothing, and {len(books.sent)} clients owe an answer. "
                "A wait ends with a reply, or names in `lost` who is past the deadline."
            )
        updates, again = books.settle(arrivals, state.version)
        waiting = waiting | again
        if updates is not None:
            try:
                state, ready = algorithm.step(state, updates)
            except Infeasible as error:
                tell(None)
                error.add_note(f"In step {step + 1}, with {len(updates)} updates.{listed(books.barren)}")
                raise
            waiting, step = ready | again, step + 1
            books.barren.clear()
        state, waiting = books.admit(arrivals.joined, algorithm, state, waiting)
        tell(updates)
        if updates is None:
            books.check_hope(waiting, step)
    return state


def resumable(transport: Transport) -> Resumable:
    """The transport as one that has snapshots; raises `Infeasible` if it has none."""
    if not isinstance(transport, Resumable):
        raise Infeasible(f"{type(transport).__name__} has no snapshot() and restore(): its runs cannot go on.")
    return transport


@dataclass
class Books:
    """What the server writes down about its clients, so that none of them is forgotten or asked twice."""

    guard: Guard
    model: Vector  # what an update must look like
    sent: dict[int, Sent] = field(default_factory=dict)  # downloads without an answer
    refused: dict[int, str] = field(default_factory=dict)  # since observers were last told
    lost: dict[int, str] = field(default_factory=dict)  # since observers were last told
    barren: dict[int, str] = field(default_factory=dict)  # clients that were asked since the last step in vain

    def ask(self, downloads: Mapping[int, Vector], version: int) -> None:
        """Notes what is sent."""
        self.sent |= {i: Sent(version, download) for i, download in downloads.items()}
        if not self.sent:
            raise Stalled(f"No client is ready and no answer is outstanding.{listed(self.barren)}")

    def settle(self, arrivals: Arrivals, version: int) -> tuple[Updates | None, set[int]]:
        """The updates that are fit for a step, and the clients that have to be asked again."""
        checked = self.guard.inspect(arrivals.replies, self.sent, version, self.model)
        failed = {**arrivals.lost, **arrivals.refused}
        failed |= {i: why for i, why in checked.refused.items() if i in checked.answered}
        again = failed.keys() - (checked.updates.clients if checked.updates else ())
        for i in checked.answered | again:
            self.sent.pop(i, None)
        self.refused |= {**arrivals.refused, **checked.refused}
        self.lost |= arrivals.lost
        self.barren |= {i: failed[i] for i in again}
        return checked.updates, again

    def admit(
        self, joined: Mapping[int, object], algorithm: Algorithm[S], state: S, waiting: Set[int]
    ) -> tuple[S, Set[int]]:
        """The state, and who is ready, with those who came late; notes who is not let in."""
        sizes, refused = self.guard.enroll(joined)
        self.refused |= refused
        for client, size in sizes.items():
            try:
                state = algorithm.join(state, client, size)
            except Infeasible as error:
                self.refused[client] = str(error)
            else:
                waiting = waiting | {client}
        return state, waiting

    def check_hope(self, waiting: Set[int], step: int) -> None:
        """Raises `Stalled` when everybody who could bring the next update has been asked in vain."""
        if self.barren.keys() >= waiting | self.sent.keys():
            raise Stalled(
                f"Nobody brings the update for step {step + 1}: all {len(self.barren)} clients that can be asked "
                f"were refused or lost.{listed(self.barren)}"
            )

    def news(self) -> tuple[dict[int, str], dict[int, str]]:
        """Who was refused and lost since this was last asked for."""
        news = self.refused, self.lost
        self.refused, self.lost = {}, {}
        return news


def listed(reasons: Mapping[int, str], limit: int = 10) -> str:
    """The reasons as lines of a message."""
    lines = [f"\n  client {i}: {reasons[i]}" for i in sorted(reasons)[:limit]]
    more = f"\n  and {len(reasons) - limit} more" if len(reasons) > limit else ""
    return "".join(lines) + more
