"""The loop, the only one: written once for simulation and deployment, for rounds and for arrivals."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from phalanx.core import (
    Algorithm,
    AnyState,
    Arrivals,
    InfeasibleError,
    Intermittent,
    Observer,
    Prefetching,
    Progress,
    Resumable,
    StalledError,
    Transport,
    Until,
    Updates,
    Vector,
)
from phalanx.engine.guard import Guard, Sent
from phalanx.engine.participation import Sampler, everyone
from phalanx.wording import plural

S = TypeVar("S", bound=AnyState)
Train = Callable[[Vector, int], Vector]  # a model, its version -> the change that the server's own training makes
TRIES = 10  # how often in a row a client is lost before there is no hope for it; it is refused but once


class Reference(NamedTuple):
    """What the server's own training made of a version."""

    version: int
    change: Vector


@dataclass
class ServerReference:
    """The server's own training, done when a step needs it and what it did last is too old.

    Args:
        train: does it.
        every: for how many server versions it serves.
        last: what it did last.
    """

    train: Train
    every: int
    last: Reference | None = None

    def change(self, state: AnyState) -> Vector:
        """The change to the present model, or to that of a version which is not too old.

        Raises:
            InfeasibleError: it is not finite.
        """
        if self.last is None or state.version - self.last.version >= self.every:
            change = self.train(state.model, state.version)
            if not bool(change.isfinite().all()):
                raise InfeasibleError(
                    f"The server's own training of version {state.version} gave values that are not finite, so that "
                    "no update can be compared with it. Lower the learning rate."
                )
            self.last = Reference(state.version, change)
        return self.last.change


class FailedAttempts(NamedTuple):
    """How a client was asked in vain since the last step."""

    tries: int
    why: str  # the last time

    @property
    def hopeless(self) -> bool:
        """Whether it has been asked often enough."""
        return self.tries >= TRIES


@dataclass(frozen=True, eq=False)
class Snapshot(Generic[S]):
    """A run between two steps, all of it: with it, another process goes on to the same bits.

    Args:
        state: the algorithm's.
        waiting: clients that are ready for a download.
        away: clients that are ready for a download, and cannot be reached.
        step: steps so far.
        attempt: how often clients were asked so far.
        sent: downloads without an answer.
        failed: clients that were asked since the last step in vain.
        transport: by the transport, for itself.
        reference: what the server's own training did last; None if it has not trained.
        ahead: downloads that wait at a client until it has answered what it works on.
    """

    state: S
    waiting: frozenset[int]
    away: frozenset[int]
    step: int
    attempt: int
    sent: Mapping[int, Sent]
    failed: Mapping[int, FailedAttempts]
    transport: Any
    reference: Reference | None = None
    ahead: Mapping[int, Sent] = field(default_factory=dict)


OnSnapshot = Callable[[Callable[[], Snapshot[Any]]], None]  # is shown, before each step, how a snapshot can be taken


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
    reference: Train | None = None,
    observers: Sequence[Observer] = (),
    on_snapshot: OnSnapshot = nothing,
    resume: Snapshot[S] | None = None,
) -> S:
    """Trains `model` by `algorithm` with the clients that `transport` reaches.

    Args:
        algorithm: what the server and the clients do.
        transport: how they reach each other.
        model: initial parameters.
        until: when to stop; an integer counts steps.
        sample: who is asked in a round, of those that are ready and can be reached. Synchronous algorithms only.
        guard: what is refused; `Guard()` if not given.
        reference: the server's own training, such as `phalanx.training.ServerTraining`, for an algorithm that asks for
            it by `needs_reference`.
        observers: called before the first step, after each step, and after each wait that brought nothing but somebody
            who was refused or lost.
        on_snapshot: called before each step; may take a snapshot, and hold it, as nothing that is in it changes.
        resume: where to go on, with everything else as it was; the transport is a new one.

    Returns:
        The last state.

    Raises:
        InfeasibleError: the algorithm cannot serve this population, or what is left of it; or it needs a reference and
            there is none; or the transport has no snapshots; or it is to send downloads ahead in rounds.
        StalledError: nobody is left who could bring the next update.
    """
    until = Until.of(until)
    if sample is not everyone and not algorithm.synchronous:
        name = type(algorithm).__name__
        raise InfeasibleError(f"{name} is asynchronous: it serves whoever is free, and has no rounds to sample from.")
    if algorithm.synchronous and isinstance(transport, Prefetching) and transport.prefetch:
        name = type(algorithm).__name__
        raise InfeasibleError(
            f"{name} is synchronous: nothing can be sent ahead of a round that is not over. Leave prefetch out, or "
            f"choose an asynchronous algorithm, such as Quorum({name}(), k=3)."
        )
    ledger = Ledger(guard or Guard(), model)
    own = server_reference(algorithm, reference)
    loop = ServerLoop(algorithm, transport, ledger, own, sample)
    state = loop.begin(model) if resume is None else loop.resume(resume)

    def tell(updates: Updates | None) -> None:
        progress = Progress(loop.step, transport.now, state, updates, *ledger.news())
        for observer in observers:
            observer(progress)

    tell(None)

    while not until.reached(loop.step, transport.now):
        on_snapshot(partial(loop.snapshot, state))
        loop.ask(state)
        arrivals = transport.receive(every=algorithm.synchronous)
        if until.seconds is not None and transport.now > until.seconds:
            break
        updates, again = loop.settle(arrivals, state)
        if updates is not None:
            try:
                state = loop.advance(state, updates, again)
            except InfeasibleError as error:
                tell(None)
                reasons = {client: vain.why for client, vain in ledger.failed.items()}
                error.add_note(f"In step {loop.step + 1}, with {plural(len(updates), 'update')}.{listed(reasons)}")
                raise
            ledger.failed.clear()
        state = loop.admit(arrivals.joined, state)
        if updates is not None or ledger.has_news:
            tell(updates)
        if updates is None:
            ledger.check_hope(loop, arrivals, state)
    return state


def server_reference(algorithm: Algorithm[Any], train: Train | None) -> ServerReference | None:
    """The server's own training, None if the algorithm does not need it; raises `InfeasibleError` if it does, without."""
    if not algorithm.needs_reference:
        return None
    if train is None:
        raise InfeasibleError(
            f"{type(algorithm).__name__} compares updates with the server's own training, and the server has no "
            "examples. Set `server_examples` of the run, to 100 say; or give `phalanx.run` a `reference`."
        )
    return ServerReference(train, algorithm.reference_every)


def resumable(transport: Transport) -> Resumable:
    """The transport as one that has snapshots; raises `InfeasibleError` if it has none."""
    if not isinstance(transport, Resumable):
        raise InfeasibleError(f"{type(transport).__name__} has no snapshot() and restore(): its runs cannot go on.")
    return transport


@dataclass
class ServerLoop(Generic[S]):
    """Where a run is: who is to be asked next.

    A client that takes part is in `waiting` if it is ready for a download, in `away` if it cannot be reached then, or
    in the ledger as one that was sent something; nobody falls out but by the algorithm's will.
    """

    algorithm: Algorithm[S]
    transport: Transport
    ledger: "Ledger"
    own: ServerReference | None
    sample: Sampler
    waiting: Set[int] = frozenset()
    away: set[int] = field(default_factory=set)
    step: int = 0
    attempt: int = 0

    def __post_init__(self) -> None:
        self._intermittent = self.transport if isinstance(self.transport, Intermittent) else None
        self._prefetching: Prefetching | None = None
        if isinstance(self.transport, Prefetching) and self.transport.prefetch:
            self._prefetching = self.transport

    def begin(self, model: Vector) -> S:
        """The first state."""
        sizes, refused = self.ledger.guard.enroll(self.transport.enroll())
        if not sizes:
            raise InfeasibleError(f"No client can take part.{listed(refused)}")
        state, self.waiting = self.algorithm.init(model, sizes)
        self.ledger.refused |= refused
        return state

    def resume(self, snapshot: Snapshot[S]) -> S:
        """The state of a snapshot; everything else goes on from it, too."""
        resumable(self.transport).restore(snapshot.transport)
        self.waiting, self.away = snapshot.waiting, set(snapshot.away)
        self.step, self.attempt = snapshot.step, snapshot.attempt
        self.ledger.sent, self.ledger.failed = dict(snapshot.sent), dict(snapshot.failed)
        self.ledger.ahead = dict(snapshot.ahead)
        if self.own is not None:
            self.own.last = snapshot.reference
        return snapshot.state

    def snapshot(self, state: S) -> Snapshot[S]:
        """All of the run."""
        ledger, underway = self.ledger, resumable(self.transport).snapshot()
        sets = frozenset(self.waiting), frozenset(self.away)
        own, asked = self.own.last if self.own else None, (dict(ledger.sent), dict(ledger.failed))
        return Snapshot(state, *sets, self.step, self.attempt, *asked, underway, own, dict(ledger.ahead))

    def ask(self, state: S) -> None:
        """Sends a download to whom it is due, of those that can be reached."""
        ready = {client for client in self.waiting if client not in self.ledger.sent}
        behind = self._behind(state)
        here = ready | behind if self._intermittent is None else self._intermittent.here(ready | behind)
        here, ahead = here - behind, here & behind
        if len(here) < len(ready):
            self.away |= ready - here
        asked = self.sample(here, self.attempt)
        downloads = {client: self.algorithm.download(state, client) for client in sorted(asked | ahead)}
        self.waiting, self.attempt = here - asked, self.attempt + 1
        self.ledger.ask(downloads, state.version)
        if not self.ledger.sent and not self.away:
            reasons = {client: vain.why for client, vain in self.ledger.failed.items()}
            lacking = lack(self.algorithm, state)
            raise StalledError(f"No client is ready and no answer is outstanding.{lacking}{listed(reasons)}")
        self.transport.send(downloads, state.version)

    def _behind(self, state: S) -> Set[int]:
        """Clients that are due a second download: what they work on is of an older version than the present one.

        So nobody trains a version twice because of it, and whoever has answered a version that the algorithm still
        gathers answers to is not asked to do so again.
        """
        if self._prefetching is None:
            return frozenset()
        ledger = self.ledger
        return {i for i, sent in ledger.sent.items() if i not in ledger.ahead and sent.version < state.version}

    def settle(self, arrivals: Arrivals, state: S) -> tuple[Updates | None, Set[int]]:
        """The updates that are fit for a step, and who has to be asked again; notes who is back."""
        updates, again = self.ledger.settle(arrivals, state.version)
        back = self.away & arrivals.back
        self.away -= back
        self.waiting = self.waiting | again | back
        return updates, again

    def advance(self, state: S, updates: Updates, again: Set[int]) -> S:
        """The state after a step."""
        if self.own is not None:
            updates = replace(updates, reference=self.own.change(state))
        state, ready = self.algorithm.step(state, updates)
        self.step += 1
        if self.algorithm.synchronous:  # it names everybody who takes part in the next round
            self.waiting = ready | again
            self.away.clear()
        else:
            self.waiting = self.waiting | ready
            if self.away or self._prefetching is not None:
                removed = {client for client, verdict in state.verdicts.items() if verdict.final}
                self.away -= removed
                self._forget(removed - ready)
        return state

    def _forget(self, clients: Set[int]) -> None:
        """Drops what clients were sent ahead that are not asked again."""
        if self._prefetching is not None and clients:
            self.waiting = self.waiting - clients
            self.ledger.forget(clients)
            self._prefetching.forget(clients)

    def admit(self, joined: Mapping[int, object], state: S) -> S:
        """The state with those who came late; notes who is not let in."""
        if not joined:
            return state
        sizes, refused = self.ledger.guard.enroll(joined)
        self.ledger.refused |= refused
        for client, size in sizes.items():
            try:
                state = self.algorithm.join(state, client, size)
            except InfeasibleError as error:
                self.ledger.refused[client] = str(error)
            else:
                self.waiting = self.waiting | {client}
        return state


@dataclass
class Ledger:
    """What the server writes down about its clients, so that none of them is forgotten or asked twice."""

    guard: Guard
    model: Vector  # what an update must look like
    sent: dict[int, Sent] = field(default_factory=dict)  # downloads without an answer
    refused: dict[int, str] = field(default_factory=dict)  # since observers were last told
    lost: dict[int, str] = field(default_factory=dict)  # since observers were last told
    failed: dict[int, FailedAttempts] = field(
        default_factory=dict
    )  # clients that were asked since the last step in vain
    ahead: dict[int, Sent] = field(default_factory=dict)  # what clients get to when they have answered that in `sent`

    def ask(self, downloads: Mapping[int, Vector], version: int) -> None:
        """Notes what is sent."""
        for client, download in downloads.items():
            place = self.ahead if client in self.sent else self.sent
            place[client] = Sent(version, download)

    def forget(self, clients: Set[int]) -> None:
        """Expects nothing of these clients any more."""
        for client in clients:
            self.sent.pop(client, None)
            self.ahead.pop(client, None)

    def _next(self, client: int) -> None:
        """What a client was sent is settled: what it was sent ahead is what it works on."""
        self.sent.pop(client, None)
        if client in self.ahead:
            self.sent[client] = self.ahead.pop(client)

    def settle(self, arrivals: Arrivals, version: int) -> tuple[Updates | None, set[int]]:
        """The updates that are fit for a step, if any are, and the clients that have to be asked again."""
        checked = self.guard.inspect(arrivals.replies, self.sent, version, self.model)
        bad = {**arrivals.refused, **{i: why for i, why in checked.refused.items() if i in checked.answered}}
        failed = {**arrivals.lost, **bad}
        again = failed.keys() - (checked.updates.clients if checked.updates else ())
        for i in checked.answered | again:
            self._next(i)
        self.refused |= {**arrivals.refused, **checked.refused}
        newly_late = {i: why for i, why in arrivals.late.items() if i in self.sent and self.sent[i].version == version}
        self.lost |= {**arrivals.lost, **newly_late}
        for i in again:
            tries = TRIES if i in bad else self.failed[i].tries + 1 if i in self.failed else 1
            self.failed[i] = FailedAttempts(tries, failed[i])
        return None if arrivals.missing else checked.updates, again  # a part of a round is no round

    def check_hope(self, loop: ServerLoop[Any], arrivals: Arrivals, state: AnyState) -> None:
        """Raises `StalledError` when nothing comes any more, or all who could bring the next update were asked in vain."""
        lacking = lack(loop.algorithm, state)
        if arrivals.missing:
            remedy = lacking or " Set a deadline, after which it goes on without them."
            raise StalledError(
                f"No answer comes from {plural(len(arrivals.missing), 'client')}, and the server would wait for "
                f"ever.{remedy}{listed(arrivals.missing)}"
            )
        if not any(arrivals):
            reasons = {client: f"was sent version {sent.version}" for client, sent in self.sent.items()}
            reasons |= dict.fromkeys(loop.away, "cannot be reached, and does not come back")
            owing = f"{plural(len(self.sent), 'client')} {'owes' if len(self.sent) == 1 else 'owe'} an answer"
            raise StalledError(
                f"A wait of the transport brought nothing, and {owing}. "
                f"A wait ends with a reply, or names in `lost` who is past the deadline.{listed(reasons)}"
            )
        groups = loop.waiting, self.sent, loop.away
        if len(self.failed) < max(map(len, groups)):
            return
        if all(i in self.failed and self.failed[i].hopeless for group in groups for i in group):
            reasons = {i: vain.why for i, vain in self.failed.items()}
            who = f"all {n} clients that can be asked were" if (n := len(reasons)) > 1 else "the only client left was"
            raise StalledError(
                f"Nobody brings the update for step {loop.step + 1}: {who} refused or lost.{lacking}{listed(reasons)}"
            )

    @property
    def has_news(self) -> bool:
        """Whether somebody was refused or lost since observers were last told."""
        return bool(self.refused or self.lost)

    def news(self) -> tuple[dict[int, str], dict[int, str]]:
        """Who was refused and lost since this was last asked for."""
        news = self.refused, self.lost
        self.refused, self.lost = {}, {}
        return news


def lack(algorithm: Algorithm[Any], state: AnyState) -> str:
    """What an algorithm waits for that no client can bring any more, and the remedy; empty if it waits for no number.

    A deadline is no remedy: clients whose answers are there wait for others, and these are asked again in vain.
    """
    if (told := algorithm.quorum_status(state)) is None:
        return ""
    return (
        f" {type(algorithm).__name__} waits for a quorum of {plural(told.wanted, 'client')}: {told.there} of them have "
        f"answered, and no other can answer any more. {told.remedy}, or have more clients."
    )


def listed(reasons: Mapping[int, str], limit: int = 10) -> str:
    """The reasons as lines of a message."""
    lines = [f"\n  client {i}: {reasons[i]}" for i in sorted(reasons)[:limit]]
    more = f"\n  and {len(reasons) - limit} more" if len(reasons) > limit else ""
    return "".join(lines) + more
