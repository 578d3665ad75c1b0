"""The loop between server and clients: one for simulation and deployment, for rounds and for arrivals."""

import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

from phalanx.aggregators.influence import Influence, audited
from phalanx.core import (
    ROUND_LOST,
    Algorithm,
    AnyState,
    InfeasibleError,
    Setting,
    StalledError,
    TooFewError,
    Updates,
    Vector,
)
from phalanx.engine.at_start import promised
from phalanx.engine.connection import Arrivals, Intermittent, Prefetching, Resumable, Revealing, Suspending, Transport
from phalanx.engine.guard import Sent
from phalanx.engine.ledger import MANY_TRIES, FailedAttempts, Ledger, listed
from phalanx.engine.observer import Observer, Progress
from phalanx.engine.participation import Sampler, everyone
from phalanx.engine.reference import Reference, ServerReference, Train, server_reference
from phalanx.engine.settings import LoopSettings
from phalanx.promises import Promise, PromiseError, watched
from phalanx.promises.promise import TAKEN
from phalanx.promises.remarks import outweighs, with_attackers
from phalanx.wording import plural

S = TypeVar("S", bound=AnyState)
NOTED = 5  # lost rounds in a row of which a run says what its promise needs


@dataclass(frozen=True, eq=False)
class Snapshot(Generic[S]):
    """The whole state of a run between two steps: another process can go on from it, with the same results to the bit.

    Args:
        state: of the algorithm.
        waiting: clients that are ready for a download.
        away: clients that are ready for a download, and cannot be reached.
        step: steps so far.
        attempt: number of times that downloads were sent so far.
        sent: downloads without an answer.
        failed: clients with failed attempts since the last step.
        transport: unfinished work of the transport.
        enrolled: clients that were let in.
        reference: the last result of the server's own training; None if it has not trained.
        ahead: downloads that wait at a client until it has answered the one before.
        lost_in_a_row: rounds that were lost since the model changed.
        why_lost: the last of them.
        watched: number of clients that each aggregation is checked for.
        least: number of attackers that as many clients tolerate as were left in the smallest step that was held back.
        f: number of attackers that is promised to be tolerated.
        gone: clients that were excluded, or have left for good.
        sizes: those that all clients reported which were let in.
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
    lost_in_a_row: int = 0
    why_lost: str = ""
    watched: int = 0
    least: int = 0
    f: int = 0
    gone: frozenset[int] = frozenset()
    sizes: Mapping[int, int] = field(default_factory=dict)


OnSnapshot = Callable[[Callable[[], Snapshot[Any]]], None]  # called before each step; its argument takes one


def nothing(take: Callable[[], Snapshot[Any]]) -> None:
    """Take no snapshot."""


def run(
    algorithm: Algorithm[S],
    transport: Transport,
    model: Vector,
    settings: LoopSettings,
    *,
    sample: Sampler = everyone,
    reference: Train | None = None,
    observers: Sequence[Observer] = (),
    on_snapshot: OnSnapshot = nothing,
    resume: Snapshot[S] | None = None,
) -> S:
    """Train `model` by `algorithm` with the clients that `transport` reaches.

    Args:
        algorithm: the federated learning algorithm, with its server and client roles.
        transport: the connection between server and clients.
        model: initial parameters.
        settings: when to stop, which updates are invalid, and what else the loop does; also a `Run`.
        sample: chooses the clients of a round among those that are ready and available. Synchronous algorithms only.
        reference: the server's own training, such as `phalanx.training.ServerTraining`, for an algorithm that needs it
            by `Traits.reference_every`.
        observers: called before the first step, after each step, and after each wait without a step in which an answer
            was invalid or lost.
        on_snapshot: called before each step; may take a snapshot, and keep it, since nothing in it changes.
        resume: the snapshot to go on from, with all other arguments unchanged; the transport is a new one.

    Returns:
        The last state.

    Raises:
        InfeasibleError: the algorithm cannot serve these clients, even if all of them answer; or it needs a reference
            and there is none; or the transport has no snapshots; or it would send downloads ahead in rounds.
        StalledError: no client is left that could send the next update, or too many rounds in a row were lost.
        StopRunError: an observer has raised it.
    """
    _check(algorithm, transport, sample)
    own = server_reference(algorithm, reference)
    until, ledger = settings.until, Ledger(settings.guard, model)
    loop = ServerLoop(algorithm, transport, ledger, own, sample, tuple(observers), settings)
    state = loop.begin(model) if resume is None else loop.resume(resume)
    loop.report(state)
    while not until.reached(loop.step, transport.now):
        on_snapshot(partial(loop.snapshot, state))
        loop.ask(state)
        arrivals = transport.receive(every=algorithm.traits.synchronous)
        if until.seconds is not None and transport.now > until.seconds:
            break
        updates, again = loop.settle(arrivals, state)
        if updates is not None:
            state, updates = loop.advance(state, updates, again)
        state = loop.change_members(arrivals, state, updates)
        if updates is not None or loop.ledger.has_report:
            loop.report(state, updates)
        loop.check_lost()
        if updates is None:
            loop.check_hope(arrivals, state)
        del updates, arrivals  # so that the next round can use their memory
    loop.check_lost(over=state.version == 0)
    return state


def _check(algorithm: Algorithm[Any], transport: Transport, sample: Sampler) -> None:
    """Raise `InfeasibleError` if an algorithm without rounds should sample clients, or one with rounds send ahead."""
    name = type(algorithm).__name__
    if sample is not everyone and not algorithm.traits.synchronous:
        raise InfeasibleError(f"{name} is asynchronous: it serves whoever is free, and has no rounds to sample from.")
    if algorithm.traits.synchronous and isinstance(transport, Prefetching) and transport.prefetch:
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
    """The state of the loop: which clients wait for a download.  The ledger holds the enrolled clients and downloads.

    An enrolled client is in `waiting` if it is ready for a download, in `away` if it cannot be reached then, or in the
    ledger as one with an unanswered download; only the algorithm excludes clients from all three.
    """

    algorithm: Algorithm[S]
    transport: Transport
    ledger: Ledger
    own: ServerReference | None
    sample: Sampler
    observers: tuple[Observer, ...]
    settings: LoopSettings
    waiting: Set[int] = frozenset()
    away: frozenset[int] = frozenset()
    step: int = 0
    attempt: int = 0
    lost_in_a_row: int = 0
    remarks: tuple[str, ...] = ()  # for the next report
    influences: tuple[Influence, ...] = ()  # likewise
    why_lost: str = ""  # the last one that was lost
    watched: int = 0  # number of clients that each aggregation is checked for
    was_watched: int = 0  # likewise, in the last step
    least: int = 0  # number of attackers that the fewest clients tolerate of which a remark has said so
    f: int = 0  # number of attackers that is promised to be tolerated
    gone: Set[int] = frozenset()  # clients that were excluded, or have left for good
    sizes: Mapping[int, int] = field(default_factory=dict)  # of all clients that were let in
    promise: Promise | None = None  # for the next report
    shares: tuple[float, ...] = ()  # likewise
    broken: int = 0  # likewise

    def __post_init__(self) -> None:
        transport = self.transport
        self._intermittent = transport if isinstance(transport, Intermittent) else None
        self._prefetching = transport if isinstance(transport, Prefetching) and transport.prefetch else None
        self._revealing = transport if isinstance(transport, Revealing) else None
        self._suspending = transport if isinstance(transport, Suspending) else None

    # Begin and resume

    def begin(self, model: Vector) -> S:
        """Return the first state."""
        sizes = self.ledger.check(self.transport.enroll())
        if not sizes:
            raise InfeasibleError(f"No client can take part.{listed(self.ledger.report()[0])}")
        state, self.waiting = self.algorithm.init(model, sizes)
        self.promise = self._promised(sizes)
        self.watched = self.least = self.promise.in_step
        self.f, self.sizes = self.promise.f, sizes
        self.remarks = self.promise.remarks
        for remark in self.remarks:
            warnings.warn(remark, stacklevel=3)
        self.ledger.enroll(sizes)
        return state

    def _promised(self, sizes: Mapping[int, int] | int) -> Promise:
        steps, f = self.settings.until.limit, self.settings.tolerate
        broken = self.settings.broken_promise
        return promised(self.algorithm, self.transport, sizes, self.sample, steps=steps, tolerate=f, broken=broken)

    def _promise_again(self, *, joined: bool) -> None:
        """Compute the promise for the clients that are there now; it never grows.

        Those that are gone can be honest ones.  So f of those that are left can be attackers, and the weights stay made
        for all.  If so many are not tolerated, a remark says how many are, and that steps are held back.
        """
        left = len(self.ledger.enrolled - self.gone)
        if not self.watched or not left:
            return
        algorithm, until = with_attackers(self.algorithm, len(self.sizes)), self.settings.until.limit
        broken, sizes = self.settings.broken_promise, len(self.sizes) if joined else self.sizes
        how: dict[str, Any] = {"steps": until, "tolerate": self.f, "broken": broken, "left": left}
        with suppress(InfeasibleError):
            now = promised(algorithm, self.transport, sizes, self.sample, **how)
            if now.in_step <= self.watched:
                self.promise = now
                return
        if not joined:
            self._say_of_fewer(left, f"{plural(left, 'client')} left", self.f)
            return
        try:
            now = self._promised(len(self.ledger.enrolled))
        except InfeasibleError as error:
            self.remarks = (*self.remarks, f"The promise for {self.watched} still holds back what breaks it: {error}")
            return
        if now.in_step < self.watched:
            self.watched, self.promise, self.f = now.in_step, now, now.f
            self.least = min(self.least, self.watched)
            self.remarks = (*self.remarks, f"After clients have joined: {now.sentence}")

    def _needs(self) -> str:
        """Return how many answers the promise needs in a round, and what brings them; "" if any number does."""
        try:
            return self._promised(len(self.ledger.enrolled)).needs
        except InfeasibleError:
            return ""

    def _promise_of_the_rest(self, broken: Sequence[PromiseError]) -> None:
        """Say what the promise is of as many clients as are left where one is held back, if it is less than ever."""
        for error in broken:
            self._say_of_fewer(error.rows, f"{plural(error.rows, 'client')} left in a {error.name}", error.f)

    def _say_of_fewer(self, clients: int, left: str, promised: int) -> None:
        """Say what the promise is of so many clients, if it is less than ever."""
        f, said = self._for_fewer(clients)
        if f < self.least:
            self.least, then = f, TAKEN.get(self.settings.broken_promise)
            kept = "holds such steps back" if then is None else f"is broken by such steps. Each is {then}"
            self.remarks = (*self.remarks, f"With {left}: {said} The promise for {promised} {kept}.")

    def _for_fewer(self, clients: int) -> tuple[int, str]:
        """Return the most that can be promised of some clients: the number of attackers, and the promise in words."""
        why = ""
        for f in range(self.least, -1, -1):
            try:
                return f, promised(self.algorithm, self.transport, clients, everyone, tolerate=f).sentence
            except InfeasibleError as error:
                why = str(error)
        return 0, why

    def resume(self, snapshot: Snapshot[S]) -> S:
        """Return the state of a snapshot, and restore the rest of the run."""
        resumable(self.transport).restore(snapshot.transport)
        self.waiting, self.away = snapshot.waiting, snapshot.away
        self.step, self.attempt, self.lost_in_a_row = snapshot.step, snapshot.attempt, snapshot.lost_in_a_row
        self.why_lost, self.watched, self.least = snapshot.why_lost, snapshot.watched, snapshot.least
        self.f, self.gone, self.sizes = snapshot.f, snapshot.gone, dict(snapshot.sizes)
        records = dict(snapshot.sent), dict(snapshot.ahead), dict(snapshot.failed)
        self.ledger = Ledger(self.ledger.guard, self.ledger.model, snapshot.enrolled, *records)
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
            self.lost_in_a_row,
            self.why_lost,
            self.watched,
            self.least,
            self.f,
            frozenset(self.gone),
            self.sizes,
        )

    def report(self, state: S, updates: Updates | None = None) -> None:
        """Show the progress to the observers."""
        invalid: Mapping[int, str]
        invalid, lost = self.ledger.report()
        if self._suspending is not None:
            invalid = self._suspending.with_suspensions(invalid, self.ledger.enrolled)
        remarks, self.remarks = self.remarks, ()
        influences, self.influences = self.influences, ()
        promise, self.promise = self.promise, None
        shares, self.shares = self.shares, ()
        broken, self.broken = self.broken, 0
        progress = Progress(
            self.step,
            self.transport.now,
            state,
            updates,
            invalid,
            lost,
            self.ledger.enrolled,
            remarks,
            None,
            influences,
            promise,
            shares,
            broken=broken,
            watched=self.was_watched,
        )
        for observer in self.observers:
            observer(progress)

    # From one step to the next

    def ask(self, state: S) -> None:
        """Send a download to each client that is due one and available."""
        ready = {client for client in self.waiting if client not in self.ledger.sent}
        behind = self._behind(state)
        here = ready | behind if self._intermittent is None else self._intermittent.here(ready | behind)
        here, ahead = here - behind, here & behind
        self.away |= ready - here
        sampled = self.sample(here, self.attempt)
        downloads = {client: self.algorithm.download(state, client) for client in sorted(sampled | ahead)}
        self.waiting, self.attempt = here - sampled, self.attempt + 1
        self.ledger.ask(downloads, state.version)
        if not self.ledger.sent and not self.away:
            lacking = lack(self.algorithm, state, len(self.ledger.enrolled))
            raise StalledError(
                f"No client is ready and no answer is outstanding.{lacking}{listed(self.ledger.reasons)}"
            )
        if self._revealing is not None:
            self._revealing.reveal(state)
        self.transport.send(downloads, state.version)

    def _behind(self, state: S) -> Set[int]:
        """Return the clients that are due a second download: their current one is older than the server's version.

        So no client trains a version twice because of it, and a client that has answered a version for which the
        algorithm still collects answers does not train it again.
        """
        if self._prefetching is None:
            return frozenset()
        ledger = self.ledger
        return {i for i, sent in ledger.sent.items() if i not in ledger.ahead and sent.version < state.version}

    def settle(self, arrivals: Arrivals, state: S) -> tuple[Updates | None, Set[int]]:
        """Return the valid updates, and the clients that need another download; note which clients are back."""
        updates, again = self.ledger.settle(arrivals, state.version)
        back = self.away & arrivals.back
        self.away -= back
        self.waiting = self.waiting | again | back
        return updates, again

    def advance(self, state: S, updates: Updates, again: Set[int]) -> tuple[S, Updates | None]:
        """Return the state after a step, and its updates; None if they were lost and the step is tried again."""
        if self.own is not None:
            updates = replace(updates, reference=self._own_change(self.own, state))
        self.was_watched = self.watched
        broken = list[PromiseError]()  # those of a cluster do not stop the step
        treatment = self.settings.broken_promise
        then = TAKEN.get(treatment)  # None: it is held back
        try:
            with audited(self.settings.influence) as found, watched(self._left(), broken, treatment) as shares:
                new, ready = self.algorithm.step(state, updates)
        except InfeasibleError as error:
            if then is None:
                self._promise_of_the_rest(broken)
            return self._lose(state, updates, error)
        if then is not None:
            self.remarks = (*self.remarks, *(f"{error} It is {then}." for error in broken))
            self.broken += len(broken)
        elif self.algorithm.traits.synchronous:  # others wait for more answers
            self._promise_of_the_rest(broken)
        self.influences, self.shares = tuple(found), (*self.shares, *shares)
        if new.version != state.version:
            self.lost_in_a_row = 0
        self.step += 1
        self.ledger.stepped()
        if self.algorithm.traits.synchronous:  # it names all clients of the next round
            self.waiting, self.away = ready | again, frozenset()
            return new, updates
        self.waiting = self.waiting | ready
        self._exclude(new, ready)
        return new, updates

    def _left(self) -> int:
        """Return how many of the attackers that are tolerated can be among the updates of this step.

        Of a round, those whose answers were invalid are not: honest clients send none, so that these are attackers.
        """
        return max(0, self.watched - len(self.ledger.bad)) if self.algorithm.traits.synchronous else self.watched

    def _own_change(self, own: ServerReference, state: S) -> Vector:
        """Return the server's own change; a failure ends the run, since it would be the same again."""
        try:
            return own.change(state)
        except InfeasibleError:
            self.report(state)
            raise

    def _lose(self, state: S, updates: Updates, error: InfeasibleError) -> tuple[S, Updates | None]:
        """Return the state after a round that was lost, and its updates if it counts as a step."""
        self.lost_in_a_row, self.why_lost = self.lost_in_a_row + 1, (why := str(error))
        noted = min(NOTED, self.settings.lost_rounds.most)
        if isinstance(error, TooFewError) and self.lost_in_a_row >= noted and (needs := self._needs()):
            self.why_lost += f" {needs}"
            if self.lost_in_a_row == noted:
                self.remarks = (*self.remarks, f"{plural(noted, 'round')} in a row were lost. {needs}")
        new, ready = self.algorithm.lose_round(state, updates, why)
        self.waiting = self.waiting | ready
        if self.settings.lost_rounds.then == "skip":
            self.step += 1
            return new, updates
        self.ledger.lose(updates.clients, f"{ROUND_LOST}{why}")
        return new, None

    def check_lost(self, *, over: bool = False) -> None:
        """Raise `StalledError` if too many rounds in a row were lost, or the run is over and all of them were."""
        count = self.lost_in_a_row
        if count < (1 if over else self.settings.lost_rounds.most):
            return
        which = f"All {plural(count, 'round')} were lost" if over else f"{plural(count, 'round')} in a row were lost"
        raise StalledError(f"{which}, the last one because {self.why_lost}{listed(self.ledger.reasons)}")

    def _exclude(self, state: S, ready: Set[int]) -> None:
        """Expect nothing more of clients that the last verdicts excluded."""
        if self.away or self._prefetching is not None:
            excluded = {client for client, verdict in state.verdicts.items() if verdict.final}
            self.away -= excluded
            self._forget(excluded - ready)

    def _forget(self, clients: Set[int]) -> None:
        """Drop the downloads that were sent ahead to clients which are not ready for another."""
        if self._prefetching is not None and clients:
            self.waiting = self.waiting - clients
            self.ledger.forget(clients)
            self._prefetching.forget(clients)

    def change_members(self, arrivals: Arrivals, state: S, updates: Updates | None) -> S:
        """Return the state with the clients that joined late; note who is gone, and what is promised of the rest."""
        enrolled, gone = self.ledger.enrolled, self.gone
        if updates is not None:
            back = {i for i in gone & {*updates.clients} if i in state.verdicts and state.verdicts[i].accepted}
            gone = gone - back | {i for i, verdict in state.verdicts.items() if verdict.final}
        gone = enrolled & (gone | arrivals.gone)
        state = self.admit(arrivals.joined, state)
        joined = self.ledger.enrolled != enrolled
        if joined or gone != self.gone:
            self.gone = gone
            self._promise_again(joined=joined)
        return state

    def admit(self, joined: Mapping[int, object], state: S) -> S:
        """Return the state with the clients that joined late; refuse those that cannot be enrolled."""
        for client, size in self.ledger.check(joined).items():
            try:
                self._check_join(client)
                state = self.algorithm.join(state, client, size)
            except InfeasibleError as error:
                self.ledger.refuse(client, str(error))
            else:
                self.ledger.enroll({client})
                self.waiting, self.sizes = self.waiting | {client}, {**self.sizes, client: size}
                if why := outweighs(self.algorithm, state, client, self.ledger.enrolled):
                    self.remarks = (*self.remarks, f"After client {client} has joined: {why}")
        return state

    def _check_join(self, client: int) -> None:
        """Raise `InfeasibleError` if a client cannot be enrolled, whatever size it reports."""
        if client in self.ledger.enrolled:
            raise InfeasibleError(f"Client {client} takes part already. Give a new client an id of its own.")
        if not self.algorithm.traits.can_join:
            raise InfeasibleError(
                f"{self.algorithm.title} cannot take in client {client}, which came after the run had begun. "
                "Have all clients there from the start, or choose an algorithm that can, such as ClusteredFL."
            )

    def check_hope(self, arrivals: Arrivals, state: S) -> None:
        """Raise `StalledError` if no answer can arrive any more, or all clients that could send one have failed."""
        ledger = self.ledger
        lacking = lack(self.algorithm, state, len(self.ledger.enrolled))
        if arrivals.missing:
            remedy = lacking or " Set a deadline, after which it goes on without them."
            raise StalledError(
                f"No answer comes from {plural(len(arrivals.missing), 'client')}, and the server would wait for "
                f"ever.{remedy}{listed(arrivals.missing)}"
            )
        if not any(arrivals):
            reasons = {client: f"was sent version {sent.version}" for client, sent in ledger.sent.items()}
            reasons |= dict.fromkeys(self.away, "cannot be reached, and does not come back")
            unanswered = (
                f"{plural(len(ledger.sent), 'client')} {'has' if len(ledger.sent) == 1 else 'have'} not answered"
            )
            raise StalledError(
                f"A wait of the transport brought nothing, and {unanswered}. "
                f"A wait ends with a reply, or names in `lost` who is past the deadline.{listed(reasons)}"
            )
        self._check_endless(lacking)
        groups = self.waiting, ledger.sent, self.away
        if len(ledger.failed) < max(map(len, groups)):
            return
        if all(i in ledger.failed and ledger.failed[i].hopeless for group in groups for i in group):
            n = len(ledger.failed)
            who = f"all {n} clients that are available" if n > 1 else "the only client left"
            raise StalledError(
                f"Nobody brings the update for step {self.step + 1}: the answers of {who} were invalid or lost."
                f"{lacking}{listed(ledger.reasons)}"
            )

    def _check_endless(self, lacking: str) -> None:
        """Raise `StalledError` if a client fails again and again while nothing comes from the others."""
        ledger = self.ledger
        most = max((attempts.tries for attempts in ledger.failed.values()), default=0)
        hopeless = {i for i, attempts in ledger.failed.items() if attempts.hopeless}
        silent = {i: f"was sent version {sent.version}" for i, sent in ledger.sent.items() if i not in hopeless}
        if most < MANY_TRIES or not silent:
            return
        raise StalledError(
            f"Nobody brings the update for step {self.step + 1}: a client failed {most} times in a row, and nothing "
            f"comes from {plural(len(silent), 'other')}. Set a deadline, after which it goes on without them."
            f"{lacking}{listed({**ledger.reasons, **silent})}"
        )


def lack(algorithm: Algorithm[Any], state: AnyState, clients: int) -> str:
    """Return which quorum cannot come together any more, and the remedy; empty if the algorithm waits for none.

    A deadline is no remedy: clients that have answered wait for others, and further attempts at these fail as well.
    """
    pools = algorithm.pools(Setting(clients), state) or ()
    waiting = [(pool.smallest - pool.there, pool) for pool in pools if pool.there is not None]
    if not waiting:
        return ""
    least = min(waiting, key=lambda pair: pair[0])[1]
    return (
        f" {type(algorithm).__name__} waits for a quorum of {plural(least.smallest, 'client')}: {least.there} of them "
        f"have answered, and no other can answer any more. {least.smaller}, or have more clients."
    )
