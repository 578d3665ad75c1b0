"""The in-process transport: clients train, and their answers arrive on the virtual clock."""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set

import torch
from torch import Tensor

from phalanx.attacks import Attack, Update
from phalanx.attacks.timing import joins_after
from phalanx.core import (
    Algorithm,
    AnyState,
    ClientReport,
    Download,
    InfeasibleError,
    Local,
    Served,
    Vector,
    local_state,
)
from phalanx.data import Dataset
from phalanx.engine.connection import Arrivals, Reply
from phalanx.numerics.allocation import ReusedRoom
from phalanx.rng import numpy_generator
from phalanx.simulation.adversary import Adversary, AttackerExecutor
from phalanx.simulation.availability import Attendance, Availability
from phalanx.simulation.clock import Clock
from phalanx.simulation.deadline import Deadline
from phalanx.simulation.events import Back, ClientJoins, Event, Finished, Released, TaskFailed, Trained, Underway, Wait
from phalanx.simulation.executor import AheadExecutor, DividedExecutor, Executor, SerialExecutor
from phalanx.simulation.latency import SHORTEST, Constant, Latency, Workload
from phalanx.training.evaluation import report
from phalanx.training.local import LocalTask, LocalTrainer, check_correctable, correction_of

NO_GRACE = "Set grace to 0, or choose a synchronous algorithm."


class Simulation:
    """Clients in this process.

    A client trains when it is sent a download, and its reply is put on the clock.  With an executor that trains ahead,
    an asynchronous run goes on meanwhile, and waits when a result is needed.  A Byzantine client forges its reply
    when it is delivered, so that an omniscient attack can know every honest update of its round, or in flight.  After
    a deadline a client drops its task.

    Args:
        algorithm: its client role is performed here.
        trainer: trains the clients.
        data: each client's examples, on the trainer's device.
        attack: the attack of the Byzantine clients.
        byzantine: ids of the Byzantine clients.
        latency: the duration of tasks.
        joining: when clients join that are not enrolled from the start, in virtual seconds.
        availability: when clients are available, and which of their tasks fail.
        deadline: when the server stops waiting for an answer.
        seed: seed of the run.
        elsewhere: makes an executor from the clients' data, which trains them in place of the trainer, with the same
            results to the bit. Asynchronous algorithms need an `AheadExecutor`, since they train clients one by one.
        held_out: by client, the examples on which it measures the model that it uses at a download, before it trains.
            Attackers report what they measure, too. None: nobody measures.
        most_examples: makes, from the sizes that clients report, the largest number of examples that each honest client
            trains on; those are drawn at random, by the stream "truncated" of the client. None: they train on all.

    Raises:
        InfeasibleError: some of these exclude each other.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        trainer: LocalTrainer,
        data: Mapping[int, Dataset],
        *,
        attack: Attack | None = None,
        byzantine: Set[int] = frozenset(),
        latency: Latency | None = None,
        joining: Mapping[int, float] | None = None,
        availability: Availability | None = None,
        deadline: Deadline | None = None,
        seed: int = 0,
        elsewhere: Callable[[Mapping[int, Dataset]], Executor] | None = None,
        held_out: Mapping[int, Dataset] | None = None,
        most_examples: Callable[[Mapping[int, object]], Mapping[int, int]] | None = None,
    ) -> None:
        self.algorithm, self.trainer, self.seed = algorithm, trainer, seed
        sizes = {client: len(held) for client, held in data.items()}
        model = trainer.model.values[: trainer.model.size]
        check_correctable(algorithm, trainer)
        self.adversary = Adversary(attack, byzantine, algorithm=algorithm, sizes=sizes, model=model, seed=seed)
        self.reported = self.adversary.reported
        most = most_examples(self.reported) if most_examples else {}
        data = {client: self._cut(client, held, most.get(client)) for client, held in data.items()}
        self.data = {client: self.adversary.poisoned(client, held) for client, held in data.items()}
        self._sizes = {client: len(held) for client, held in self.data.items()}
        honest = self._honest_executor(elsewhere)
        self._ahead = honest if isinstance(honest, AheadExecutor) and not algorithm.traits.synchronous else None
        exact, trains = algorithm.traits.exact_losses, self.adversary.trains
        self._theirs = AttackerExecutor(self.adversary, trainer, exact=exact) if trains else None
        self._executor = DividedExecutor(self.adversary.clients, self._theirs, honest) if self._theirs else honest
        self.clock = Clock[Event]()
        late = joins_after(attack)
        joining = {**(joining or {}), **(dict.fromkeys(byzantine, late) if late else {})}
        self._set_times(latency or Constant(), joining, availability, deadline)
        self._turns = dict.fromkeys(data, 0)
        self._locals = dict[int, Local]()
        self._held_out, self._reports = held_out or {}, dict[int, ClientReport]()  # by client, of its last download
        self._flying = OrderedDict[int, Trained]()  # the task of each client that has one, in the order of downloads
        self._begun = dict[int, LocalTask]()  # the tasks among these that train ahead
        self._others = 0  # honest clients among these that have not answered
        self._room = ReusedRoom()  # for the changes of a round
        self._waits = self._version = 0  # waits so far, and the newest version that was sent

    def _cut(self, client: int, held: Dataset, most: int | None) -> Dataset:
        """Return the data that a client trains on: at most so many of its examples, if it is honest."""
        if most is None or most >= len(held) or client in self.adversary:
            return held
        order = torch.from_numpy(numpy_generator(self.seed, "truncated", client).permutation(len(held)))
        return held.of(order[:most].sort().values.to(held.y.device))

    def _set_times(
        self,
        latency: Latency,
        joining: Mapping[int, float],
        availability: Availability | None,
        deadline: Deadline | None,
    ) -> None:
        if strangers := sorted(joining.keys() - self.data.keys()):
            raise InfeasibleError(f"Clients {strangers} are to join, but are not among the {len(self.data)} clients.")
        if deadline is not None and deadline.grace and not self.algorithm.traits.synchronous:
            name = type(self.algorithm).__name__
            raise InfeasibleError(f"{name} has no rounds in which a late answer could count. {NO_GRACE}")
        self.latency, self.joining, self.availability, self.deadline = latency, joining, availability, deadline
        latency.check(len(self.data))
        self._attendance: Attendance | None = None
        self._silent: Mapping[int, float] = {}
        if availability is not None:
            availability.check(len(self.data))
            self._attendance = Attendance(availability, self.seed)
            self._silent = availability.silent(len(self.data), self.seed)
        self._down = dict[int, float]()  # until when crashed clients are unavailable
        self._expected = set[int]()  # clients that will be `Back`
        self._gone = set[int]()  # clients of which the server learns with the next wait that they do not come back
        for client, seconds in joining.items():
            if seconds > 0:
                self.clock.schedule(seconds, ClientJoins(client))

    def _honest_executor(self, elsewhere: Callable[[Mapping[int, Dataset]], Executor] | None) -> Executor:
        if elsewhere is None:
            return SerialExecutor(self.trainer, self.data, self.algorithm.traits.exact_losses)
        if self.algorithm.traits.corrects:
            raise InfeasibleError(
                f"{self.algorithm.title} corrects the gradients of its clients, which only this process does. Train "
                "here; `phalanx reproduce --ray` spreads whole runs."
            )
        made = elsewhere(self.data)
        if not self.algorithm.traits.synchronous and not isinstance(made, AheadExecutor | SerialExecutor):
            raise InfeasibleError(
                f"{type(self.algorithm).__name__} trains its clients one by one, so there is no round whose clients "
                "could train elsewhere at one time. Train on the cores of this machine; `phalanx reproduce --ray` "
                "spreads whole runs."
            )
        return made

    @property
    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self.clock.now

    @property
    def lossy(self) -> bool:
        """See `Lossy`."""
        return self.deadline is not None or self.availability is not None

    @property
    def joins(self) -> bool:
        """See `Joinable`."""
        return any(seconds > 0 for seconds in self.joining.values())

    def enroll(self) -> Mapping[int, object]:
        """See `Transport`: the clients that take part from the start."""
        return {i: size for i, size in self.reported.items() if self.joining.get(i, 0) <= 0}

    def model_of(self, client: int, download: Download) -> Served:
        """Return the model that `client` would be served with this download.  Changes nothing."""
        return self.trainer.served(client, self.algorithm.integrate(self._locals.get(client), download))

    # Availability

    def here(self, clients: Set[int]) -> Set[int]:
        """See `Intermittent`."""
        if self._attendance is None:
            return clients
        times = {client: self._reached(client) for client in clients}
        self._gone |= {client for client, time in times.items() if time == math.inf}
        for client in sorted(times.keys() - self._expected):
            if self.now < times[client] < math.inf:
                self._expected.add(client)
                self.clock.at(times[client], Back(client))
        return {client for client, time in times.items() if time == self.now}

    def _reached(self, client: int) -> float:
        """Return the next time at which a client is available: now if it is, infinite if it does not come back."""
        if self._attendance is None:
            return self.now
        earliest = max(self.now, self._down.get(client, 0.0))
        period = self._attendance.period(client, earliest)
        return math.inf if period is None else max(earliest, period.begin)

    # Downloads

    def reveal(self, state: AnyState) -> None:
        """See `Revealing`: omniscient attackers know the state."""
        self.adversary.state = state

    def send(self, downloads: Mapping[int, Vector], version: int) -> None:
        """See `Transport`.  The changes of all clients are the rows of one matrix."""
        model = self.trainer.model
        rows = self._room((len(downloads), model.size), model.dtype, model.device)
        self._version = version
        tasks = self._tasks(downloads, version, rows)
        if self._ahead is None:
            self._train(self._executor(tasks), downloads)
        else:
            self._begin(self._ahead, tasks, downloads)

    def _train(self, trained: Iterable[tuple[LocalTask, float]], downloads: Mapping[int, Vector]) -> None:
        """Let clients train one after the other, and schedule their answers."""
        for task, loss in trained:
            self._set_out(task, downloads[task.client])
            self._learn(task, loss)

    def _begin(self, ahead: AheadExecutor, tasks: Iterable[LocalTask], downloads: Mapping[int, Vector]) -> None:
        """Let clients train ahead; attackers that train by their attack do so now, in this process."""
        begun = list[tuple[LocalTask, float]]()
        for task in tasks:
            if self._theirs is not None and task.client in self.adversary:
                self._train(self._theirs([task]), downloads)
            else:
                begun.append((task, self._set_out(task, downloads[task.client])))
                self._begun[task.client] = task
        ahead.begin(begun)

    def _tasks(self, downloads: Mapping[int, Vector], version: int, rows: Tensor) -> Iterator[LocalTask]:
        """Yield the task of each client, made when it is needed."""
        for row, (client, download) in zip(rows.unbind(), downloads.items(), strict=True):
            turn = self._turns[client]
            self._turns[client] += 1
            local = self._locals.get(client)
            start = self.algorithm.integrate(local, download)
            held = len(self.data[client])
            kept = self._held_out.get(client)
            if kept is not None and len(kept):
                served = self.trainer.served(client, start)
                self._reports[client] = report(self.trainer.model, served, kept, self.trainer.task)
            correction = correction_of(self.algorithm, self.trainer, local, download, held=held, version=version)
            yield LocalTask(client, turn, version, start, row, correction)

    def _set_out(self, task: LocalTask, download: Vector) -> float:
        """Schedule the answer of a client, and return the time at which its result is needed."""
        client, base = task.client, download[: self.trainer.model.size]
        update = Update(client, task.version, base, task.row, self.adversary.follow(client, base))
        self._others += client not in self.adversary
        self._flying[client] = Trained(
            update, task.turn, math.nan, None, self.now, self._waits, self._reports.get(client)
        )
        return self._schedule(task, download.nbytes)

    def _learn(self, task: LocalTask, loss: float) -> None:
        """Note what a client has learnt, and sends."""
        client, local = task.client, self._locals.get(task.client)
        delta, memory = self.algorithm.upload(task.row, local.memory if local else None)
        then = local_state(self.algorithm, task.start, delta, memory)
        trained = self._flying[client]
        self._flying[client] = trained._replace(update=trained.update._replace(delta=delta), loss=loss, local=then)

    def _fetch(self, clients: Iterable[int]) -> None:
        """Wait for the results of those clients that train ahead."""
        for client in clients:
            if self._ahead is not None and (task := self._begun.pop(client, None)) is not None:
                self._learn(task, self._ahead.result(task))

    def _schedule(self, task: LocalTask, download: int) -> float:
        """Schedule the end of a task, and return the time of its answer; infinite if it has none."""
        client, turn = task.client, task.turn
        work = Workload(client, turn, self._sizes[client], download, task.row.nbytes, len(self.data))
        seconds = self.adversary.seconds(client, turn, task.version, self.latency.seconds(work, self.seed))
        end: Event = Finished(client, turn)
        if self.availability is not None and (broken := self._broken(self.availability, work, seconds)):
            seconds, end = broken
        self.clock.schedule(seconds, end)
        return self.now + seconds if isinstance(end, Finished) else math.inf

    def _broken(self, availability: Availability, task: Workload, seconds: float) -> tuple[float, TaskFailed] | None:
        """Return when and why a task ends without an answer; None if it does not."""
        ends = list[tuple[float, TaskFailed]]()
        if crash := availability.crash(task, seconds, self.seed):
            ends.append(
                (crash.after, TaskFailed(task.client, task.turn, f"crashed after {crash.after:.3g} s", crash.back))
            )
        if self._attendance is not None and not availability.keeps:
            period = self._attendance.period(task.client, self.now)
            left = period.end - self.now if period else math.inf
            if left < seconds:
                ends.append(
                    (left, TaskFailed(task.client, task.turn, f"left after {left:.3g} s, without an answer", 0.0))
                )
        return min(ends, key=lambda end: end[0], default=None)

    # Answers

    def receive(self, *, every: bool) -> Arrivals:
        """See `Transport`."""
        wait, expected = Wait(), len(self._flying)
        if every and expected:
            self._end_round(wait, expected)
            stuck = self.deadline is None and len(wait.done) < expected
        else:
            self._pass(wait, math.inf, wait.brought_something)
            while every and self.clock.upcoming == self.now:  # clients back at the same time begin a round together
                self._happen(self.clock.next(), wait)
            stuck = not wait.brought_something()
        self._waits += 1
        for client in wait.done:
            del self._flying[client]
        missing = {client: self._why(client) for client in sorted(self._flying)} if stuck else {}
        gone, self._gone = frozenset(self._gone), set()
        return Arrivals(tuple(wait.replies), {}, wait.lost, wait.joined, wait.late, frozenset(wait.back), missing, gone)

    def _end_round(self, wait: Wait, expected: int) -> None:
        """Wait for all outstanding answers, or until the deadline."""
        limit = self.now + self.deadline.seconds if self.deadline else math.inf
        self._pass(wait, limit, lambda: len(wait.done) == expected)
        if self.deadline is None or len(wait.done) == expected:
            return
        if self.deadline.grace and not wait.replies:
            self._pass(wait, math.inf, wait.brought_something)
        if self.now < limit:
            self.clock.advance(limit)
        for client in sorted(self._flying.keys() - wait.done):
            deadlines = self._waits - self._flying[client].wait + 1
            if deadlines > self.deadline.grace:
                self._lose(client, self._too_late(deadlines), wait)
            else:
                wait.late[client] = f"late: {self._too_late(deadlines)}, still waited for"

    def _pass(self, wait: Wait, limit: float, enough: Callable[[], bool]) -> None:
        """Handle events until enough has arrived, or none is left before the limit."""
        while not enough():
            for late in self.adversary.release(self._version, self._others):
                self.clock.schedule(SHORTEST, Released(late.update.client, late.turn))
            upcoming, overdue = self.clock.upcoming, self._overdue()
            if min(upcoming, overdue) > limit or min(upcoming, overdue) == math.inf:
                return
            if upcoming <= overdue:
                self._happen(self.clock.next(), wait)
            else:
                self.clock.advance(overdue)
                self._lose(next(iter(self._flying)), self._too_late(1), wait)

    def _overdue(self) -> float:
        """Return when the next answer is overdue; infinite if none will be.  That is the oldest."""
        if self.deadline is None or self.algorithm.traits.synchronous or not self._flying:
            return math.inf
        return next(iter(self._flying.values())).asked + self.deadline.seconds

    def _happen(self, event: Event, wait: Wait) -> None:
        match event:
            case Finished():
                self._finish(event, wait)
            case Released(client, turn):
                if self._outstanding(client, turn, wait):
                    self._answer(self._flying[client], wait)
            case TaskFailed(client, turn, why, away):
                if self._outstanding(client, turn, wait):
                    self._down[client] = self.now + away
                    self._lose(client, why, wait)
            case Back(client):
                self._expected.discard(client)
                wait.back.add(client)
            case ClientJoins(client):
                wait.joined[client] = self.reported[client]

    def _outstanding(self, client: int, turn: int, wait: Wait) -> bool:
        """Return whether the server still waits for that task."""
        trained = self._flying.get(client)
        return trained is not None and trained.turn == turn and client not in wait.done

    def _finish(self, event: Finished, wait: Wait) -> None:
        """End a client's task; it answers, if it is available and does not hold its answer back."""
        client = event.client
        if not self._outstanding(client, event.turn, wait):
            return
        self._fetch([client])
        trained = self._flying[client]
        if trained.local is not None:
            self._locals[client] = trained.local
        if self.now >= self._silent.get(client, math.inf):
            return
        reached = self._reached(client)
        if self.now < reached < math.inf:
            self.clock.at(reached, event)
        elif reached > self.now:
            self._gone.add(client)
            if self.deadline is None:  # else the deadline ends the wait, as for any client that does not answer
                self._lose(client, "left, and does not come back", wait)
        elif not self.adversary.holds_back(trained):
            self._answer(trained, wait)

    def _answer(self, trained: Trained, wait: Wait) -> None:
        client, version = trained.update.client, trained.update.version
        if self.adversary.sees(trained):
            self._fetch(self._flying)
        answers = self.adversary.answers(trained, self._flying, wait)
        wait.replies += [Reply(client, answered, delta, trained.loss, trained.report) for answered, delta in answers]
        if any(answered == version for answered, _ in answers):
            self._settle(client, wait)

    def _lose(self, client: int, why: str, wait: Wait) -> None:
        wait.lost[client] = why
        self._settle(client, wait)

    def _settle(self, client: int, wait: Wait) -> None:
        """Close a task."""
        wait.done.add(client)
        if self._ahead is not None and (task := self._begun.pop(client, None)) is not None:
            self._ahead.forget(task)
        self.adversary.held.pop(client, None)
        self._others -= client not in self.adversary

    def _too_late(self, deadlines: int) -> str:
        seconds = self.deadline.seconds if self.deadline else math.inf
        return f"no answer within {f'{deadlines} x ' if deadlines > 1 else ''}{seconds:g} s"

    def _why(self, client: int) -> str:
        """Return why a client never answers."""
        if client in self.adversary.held:
            return "holds its answer back"
        since = self._silent.get(client, math.inf)
        return f"sends nothing any more since {since:g} s" if self.now >= since else "does not answer"

    # Snapshots

    def snapshot(self) -> Underway:
        """See `Resumable`.  Waits for all clients that train ahead."""
        self._fetch([*self._begun])
        clock = self.clock
        return Underway(
            clock.now,
            tuple(clock.events),
            clock.tickets,
            self._waits,
            self._version,
            dict(self._turns),
            dict(self._flying),
            tuple(self.adversary.held),
            dict(self._down),
            dict(self._locals),
            dict(self.adversary.previous),
            dict(self.adversary.earlier),
            self.trainer.snapshot(),
            dict(self.adversary.memories),
        )

    def restore(self, snapshot: Underway, /) -> None:
        """See `Resumable`."""
        self.clock = Clock(snapshot.now, list(snapshot.events), snapshot.tickets)
        self._waits, self._version = snapshot.waits, snapshot.version
        self._turns, self._flying = dict(snapshot.turns), OrderedDict(snapshot.flying)
        self.adversary.held = {client: self._flying[client] for client in snapshot.held}
        self._others = len(self._flying.keys() - self.adversary.clients)
        self.trainer.restore(snapshot.memories)
        self._down, self._locals = dict(snapshot.down), dict(snapshot.locals)
        self.adversary.previous, self.adversary.earlier = dict(snapshot.previous), dict(snapshot.earlier)
        self.adversary.memories = dict(snapshot.remembered)
        self._expected = {event.client for _, _, event in snapshot.events if isinstance(event, Back)}
