"""The loop between server and clients: one for simulation and deployment, for rounds and for arrivals."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

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
    Revealing,
    StalledError,
    Transport,
    Until,
    Updates,
    Vector,
)
from phalanx.engine.guard import Guard, Sent
from phalanx.engine.ledger import FailedAttempts, Ledger, listed
from phalanx.engine.participation import Sampler, everyone
from phalanx.engine.reference import Reference, ServerReference, Train, server_reference
from phalanx.wording import plural

S = TypeVar("S", bound=AnyState)


@dataclass(frozen=True, eq=False)
class Snapshot(Generic[S]):
    """A whole run between two steps: from it, another process goes on to the same bits.

    Args:
        state: the algorithm's.
        waiting: clients that are ready for a download.
        away: clients that are ready for a download, and cannot be reached.
        step: steps so far.
        attempt: how often clients were asked so far.
        sent: downloads without an answer.
        failed: clients that were asked without success since the last step.
        transport: by the transport, for itself.
        enrolled: clients that were let in.
        reference: the last result of the server's own training; None if it has not trained.
        ahead: downloads that wait at a client until it has answered the one before.
    """

    state: S
    waiting: frozenset[int]
    away: frozenset[int]
    step: int
    attempt: int
    sent: Mapping[int, Sent]
    failed: Mapping[int, FailedAttempts]
    transport: Any
    enrolled: frozenset[int]
    reference: Reference | None = None
    ahead: Mapping[int, Sent] = field(default_factory=dict)


OnSnapshot = Callable[[Callable[[], Snapshot[Any]]], None]  # called before each step with what takes a snapshot


def nothing(take: Callable[[], Snapshot[Any]]) -> None:
    """Take no snapshot."""


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
    """Train `model` by `algorithm` with the clients that `transport` reaches.

    Args:
        algorithm: what the server and the clients do.
        transport: how they reach each other.
        model: initial parameters.
        until: when to stop; an integer counts steps.
        sample: who is asked in a round, of those that are ready and can be reached. Synchronous algorithms only.
        guard: which updates and sizes are invalid; `Guard()` if not given.
        reference: the server's own training, such as `phalanx.training.ServerTraining`, for an algorithm that needs it
            by `needs_reference`.
        observers: called before the first step, after each step, and after each wait without a step in which a client
            was refused or lost.
        on_snapshot: called before each step; may take a snapshot, and keep it, since nothing in it changes.
        resume: where to go on, with everything else as it was; the transport is a new one.

    Returns:
        The last state.

    Raises:
        InfeasibleError: the algorithm cannot serve these clients, or those that are left; or it needs a reference and
            there is none; or the transport has no snapshots; or it is to send downloads ahead in rounds.
        StalledError: no client is left that could send the next update.
    """
    until = Until.of(until)
    _check(algorithm, transport, sample)
    own = server_reference(algorithm, reference)
    loop = ServerLoop(algorithm, transport, Ledger(guard or Guard(), model), own, sample, tuple(observers))
    state = loop.begin(model) if resume is None else loop.resume(resume)
    loop.report(state)
    while not until.reached(loop.step, transport.now):
        on_snapshot(partial(loop.snapshot, state))
        loop.ask(state)
        arrivals = transport.receive(every=algorithm.synchronous)
        if until.seconds is not None and transport.now > until.seconds:
            break
        updates, again = loop.settle(arrivals, state)
        if updates is not None:
            state = loop.advance(state, updates, again)
        state = loop.admit(arrivals.joined, state)
        if updates is not None or loop.ledger.has_report:
            loop.report(state, updates)
        if updates is None:
            loop.check_hope(arrivals, state)
    return state


def _check(algorithm: Algorithm[Any], transport: Transport, sample: Sampler) -> None:
    """Raise `InfeasibleError` if an algorithm without rounds is to sample them, or one with rounds to send ahead."""
    name = type(algorithm).__name__
    if sample is not everyone and not algorithm.synchronous:
        raise InfeasibleError(f"{name} is asynchronous: it serves whoever is free, and has no rounds to sample from.")
    if algorithm.synchronous and isinstance(transport, Prefetching) and transport.prefetch:
        raise InfeasibleError(
            f"{name} is synchronous: nothing can be sent ahead of a round that is not over. Leave prefetch out, or "
            f"choose an asynchronous algorithm, such as Quorum({name}(), k=3)."
        )


def resumable(transport: Transport) -> Resumable:
    """Return the transport as one that has snapshots; raise `InfeasibleError` if it has none."""
    if not isinstance(transport, Resumable):
        raise InfeasibleError(f"{type(transport).__name__} has no snapshot() and restore(): its runs cannot go on.")
    return transport


@dataclass
class ServerLoop(Generic[S]):
    """Who is asked next.  The ledger knows the rest: who is enrolled, and who was sent something.

    An enrolled client is in `waiting` if it is ready for a download, in `away` if it cannot be reached then, or in the
    ledger as one that was sent something; only the algorithm excludes clients from all three.
    """

    algorithm: Algorithm[S]
    transport: Transport
    ledger: Ledger
    own: ServerReference | None
    sample: Sampler
    observers: tuple[Observer, ...]
    waiting: Set[int] = frozenset()
    away: frozenset[int] = frozenset()
    step: int = 0
    attempt: int = 0

    def __post_init__(self) -> None:
        transport = self.transport
        self._intermittent = transport if isinstance(transport, Intermittent) else None
        self._prefetching = transport if isinstance(transport, Prefetching) and transport.prefetch else None
        self._revealing = transport if isinstance(transport, Revealing) else None

    # Where it begins and goes on

    def begin(self, model: Vector) -> S:
        """Return the first state."""
        sizes = self.ledger.check(self.transport.enroll())
        if not sizes:
            raise InfeasibleError(f"No client can take part.{listed(self.ledger.report()[0])}")
        state, self.waiting = self.algorithm.init(model, sizes)
        self.ledger.enroll(sizes)
        return state

    def resume(self, snapshot: Snapshot[S]) -> S:
        """Return the state of a snapshot, from which everything goes on."""
        resumable(self.transport).restore(snapshot.transport)
        self.waiting, self.away = snapshot.waiting, snapshot.away
        self.step, self.attempt = snapshot.step, snapshot.attempt
        asked = dict(snapshot.sent), dict(snapshot.ahead), dict(snapshot.failed)
        self.ledger = Ledger(self.ledger.guard, self.ledger.model, snapshot.enrolled, *asked)
        if self.own is not None:
            self.own.last = snapshot.reference
        return snapshot.state

    def snapshot(self, state: S) -> Snapshot[S]:
        """Return the whole run."""
        ledger, last = self.ledger, self.own.last if self.own else None
        return Snapshot(
            state,
            frozenset(self.waiting),
            self.away,
            self.step,
            self.attempt,
            dict(ledger.sent),
            dict(ledger.failed),
            resumable(self.transport).snapshot(),
            ledger.enrolled,
            last,
            dict(ledger.ahead),
        )

    def report(self, state: S, updates: Updates | None = None) -> None:
        """Show observers where the run is."""
        refused, lost = self.ledger.report()
        progress = Progress(self.step, self.transport.now, state, updates, refused, lost, self.ledger.enrolled)
        for observer in self.observers:
            observer(progress)

    # From one step to the next

    def ask(self, state: S) -> None:
        """Send a download to each client that is due one and can be reached."""
        ready = {client for client in self.waiting if client not in self.ledger.sent}
        behind = self._behind(state)
        here = ready | behind if self._intermittent is None else self._intermittent.here(ready | behind)
        here, ahead = here - behind, here & behind
        self.away |= ready - here
        asked = self.sample(here, self.attempt)
        downloads = {client: self.algorithm.download(state, client) for client in sorted(asked | ahead)}
        self.waiting, self.attempt = here - asked, self.attempt + 1
        self.ledger.ask(downloads, state.version)
        if not self.ledger.sent and not self.away:
            lacking = lack(self.algorithm, state)
            raise StalledError(
                f"No client is ready and no answer is outstanding.{lacking}{listed(self.ledger.reasons)}"
            )
        if self._revealing is not None:
            self._revealing.reveal(state)
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
        """Return the updates that are fit for a step, and who has to be asked again; note who is back."""
        updates, again = self.ledger.settle(arrivals, state.version)
        back = self.away & arrivals.back
        self.away -= back
        self.waiting = self.waiting | again | back
        return updates, again

    def advance(self, state: S, updates: Updates, again: Set[int]) -> S:
        """Return the state after a step."""
        try:
            if self.own is not None:
                updates = replace(updates, reference=self.own.change(state))
            state, ready = self.algorithm.step(state, updates)
        except InfeasibleError as error:
            self.report(state)
            reasons = listed(self.ledger.reasons)
            error.add_note(f"In step {self.step + 1}, with {plural(len(updates), 'update')}.{reasons}")
            raise
        self.step += 1
        self.ledger.stepped()
        if self.algorithm.synchronous:  # it names everybody who takes part in the next round
            self.waiting, self.away = ready | again, frozenset()
            return state
        self.waiting = self.waiting | ready
        if self.away or self._prefetching is not None:
            excluded = {client for client, verdict in state.verdicts.items() if verdict.final}
            self.away -= excluded
            self._forget(excluded - ready)
        return state

    def _forget(self, clients: Set[int]) -> None:
        """Drop what clients were sent ahead that are not asked again."""
        if self._prefetching is not None and clients:
            self.waiting = self.waiting - clients
            self.ledger.forget(clients)
            self._prefetching.forget(clients)

    def admit(self, joined: Mapping[int, object], state: S) -> S:
        """Return the state with the clients that came late; refuse those that cannot be let in."""
        for client, size in self.ledger.check(joined).items():
            try:
                self._check_join(client)
                state = self.algorithm.join(state, client, size)
            except InfeasibleError as error:
                self.ledger.refuse(client, str(error))
            else:
                self.ledger.enroll({client})
                self.waiting = self.waiting | {client}
        return state

    def _check_join(self, client: int) -> None:
        """Raise `InfeasibleError` if a client cannot be let in, whatever size it reports."""
        if client in self.ledger.enrolled:
            raise InfeasibleError(f"Client {client} takes part already. Give a new client an id of its own.")
        if not self.algorithm.can_join:
            raise InfeasibleError(
                f"{self.algorithm.title} cannot take in client {client}, which came after the run had begun. "
                "Have all clients there from the start, or choose an algorithm that can, such as ClusteredFL."
            )

    def check_hope(self, arrivals: Arrivals, state: S) -> None:
        """Raise `StalledError` if nothing can come any more, or all who could send the next update have failed."""
        ledger, lacking = self.ledger, lack(self.algorithm, state)
        if arrivals.missing:
            remedy = lacking or " Set a deadline, after which it goes on without them."
            raise StalledError(
                f"No answer comes from {plural(len(arrivals.missing), 'client')}, and the server would wait for "
                f"ever.{remedy}{listed(arrivals.missing)}"
            )
        if not any(arrivals):
            reasons = {client: f"was sent version {sent.version}" for client, sent in ledger.sent.items()}
            reasons |= dict.fromkeys(self.away, "cannot be reached, and does not come back")
            owing = f"{plural(len(ledger.sent), 'client')} {'owes' if len(ledger.sent) == 1 else 'owe'} an answer"
            raise StalledError(
                f"A wait of the transport brought nothing, and {owing}. "
                f"A wait ends with a reply, or names in `lost` who is past the deadline.{listed(reasons)}"
            )
        groups = self.waiting, ledger.sent, self.away
        if len(ledger.failed) < max(map(len, groups)):
            return
        if all(i in ledger.failed and ledger.failed[i].hopeless for group in groups for i in group):
            n = len(ledger.failed)
            who = f"all {n} clients that can be asked were" if n > 1 else "the only client left was"
            raise StalledError(
                f"Nobody brings the update for step {self.step + 1}: {who} refused or lost."
                f"{lacking}{listed(ledger.reasons)}"
            )


def lack(algorithm: Algorithm[Any], state: AnyState) -> str:
    """Return what an algorithm waits for that no client can bring any more, and the remedy; empty if it does not wait.

    A deadline is no remedy: clients whose answers are there wait for others, and these are asked again without success.
    """
    if (status := algorithm.quorum_status(state)) is None:
        return ""
    return (
        f" {type(algorithm).__name__} waits for a quorum of {plural(status.wanted, 'client')}: {status.there} of them "
        f"have answered, and no other can answer any more. {status.remedy}, or have more clients."
    )
