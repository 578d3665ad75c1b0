"""The in-process transport: clients that train at once, and answer when their time has come."""

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

import torch

from phalanx.aggregators import Aggregator
from phalanx.attacks import Attack, Knowledge, Update
from phalanx.core import Algorithm, Arrivals, Infeasible, Local, Reply, Vector
from phalanx.data import Dataset
from phalanx.rng import generator
from phalanx.simulation.clock import Clock
from phalanx.simulation.latency import Constant, Latency
from phalanx.training import Trainer
from phalanx.weighting import Preprocess


class Trained(NamedTuple):
    """An honest update on its way."""

    update: Update
    turn: int  # how often the client had trained before
    loss: float


class Underway(NamedTuple):
    """What a simulation carries from step to step."""

    now: float  # virtual seconds
    events: tuple[tuple[float, int, Trained], ...]  # the clock's heap
    tickets: int  # that the clock has given out
    turns: Mapping[int, int]  # how often each client has trained
    locals: Mapping[int, Local]
    previous: Mapping[int, Vector]  # what each attacker was sent last


class Simulation:
    """Clients in this process.

    A client trains when it is sent a download, and its reply is put on the clock.  A Byzantine client forges its reply
    when it is delivered, so that an omniscient attack can know every honest update of its round, or in flight.

    Args:
        algorithm: its client role is played here.
        trainer: how clients train.
        data: each client's examples, on the trainer's device.
        attack: what the Byzantine clients do.
        byzantine: who they are.
        latency: how long clients take.
        joining: when clients come that are not there from the start, in virtual seconds.
        seed: the run's.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        trainer: Trainer,
        data: Mapping[int, Dataset],
        *,
        attack: Attack | None = None,
        byzantine: Set[int] = frozenset(),
        latency: Latency | None = None,
        joining: Mapping[int, float] | None = None,
        seed: int = 0,
    ) -> None:
        if byzantine and attack is None:
            raise Infeasible(
                f"{len(byzantine)} clients are Byzantine, but there is no attack that they could carry out."
            )
        if strangers := sorted(byzantine - data.keys()):
            raise Infeasible(f"Byzantine clients {strangers} are not among the {len(data)} clients.")
        self.algorithm, self.trainer, self.seed = algorithm, trainer, seed
        self.attack, self.byzantine = attack or Attack(), frozenset(byzantine)
        self.rule = _rule_of(algorithm)
        if byzantine and self.attack.needs_rule and self.rule is None:
            raise Infeasible(
                f"{self.attack} tries out the server's rule, and {type(algorithm).__name__} has none in a field "
                "`aggregate`. Choose an algorithm that has, such as FedAvg, or set a number where it says search."
            )
        self.latency, self.joining = latency or Constant(), dict(joining or {})
        if strangers := sorted(self.joining.keys() - data.keys()):
            raise Infeasible(f"Clients {strangers} are to join, but are not among the {len(data)} clients.")
        self.declared = {i: self.attack.declare(len(d)) if i in byzantine else len(d) for i, d in data.items()}
        self.data = {i: self._poisoned(i, d) if i in byzantine else d for i, d in data.items()}
        self.clock = Clock[Trained]()
        self._turns = dict.fromkeys(data, 0)
        self._locals = dict[int, Local]()
        self._flying = dict[int, Trained]()
        self._previous = dict[int, Vector]()  # what each attacker was sent last
        self._enrolled: Mapping[int, float] | None = None  # what declared sizes count for, once somebody asked

    def _poisoned(self, client: int, data: Dataset) -> Dataset:
        return self.attack.poison(data, generator(self.seed, "poison", client))

    @property
    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self.clock.now

    def enroll(self) -> Mapping[int, object]:
        """See `Transport`: those who are there from the start."""
        return {i: size for i, size in self.declared.items() if self.joining.get(i, 0) <= 0}

    def model_of(self, client: int, download: Vector) -> Vector:
        """The model that `client` would be served with this download.  Changes nothing."""
        return self.algorithm.integrate(self._locals.get(client), download)

    def send(self, downloads: Mapping[int, Vector], version: int) -> None:
        """See `Transport`.  All clients train, into one matrix."""
        model = self.trainer.model
        rows = torch.empty(len(downloads), model.size, dtype=model.dtype, device=model.device)
        for row, (client, download) in zip(rows, downloads.items(), strict=True):
            self._train(client, download, version, row)

    def _train(self, client: int, download: Vector, version: int, row: Vector) -> None:
        turn, local = self._turns[client], self._locals.get(client)
        self._turns[client] += 1
        start = self.algorithm.integrate(local, download)
        loss = self.trainer.train(start, self.data[client], client=client, turn=turn, version=version, out=row)
        delta, memory = self.algorithm.upload(row, local.memory if local else None)
        if self.algorithm.remembers:
            self._locals[client] = Local(start, delta, memory)
        update = Update(client, version, download, delta, self._previous.get(client))
        if client in self.byzantine:
            self._previous[client] = download
        trained = Trained(update, turn, loss)
        self._flying[client] = trained
        self.clock.schedule(self.latency.seconds(client, turn, self.seed), trained)

    def snapshot(self) -> Underway:
        """See `Resumable`."""
        clock = self.clock
        copies = dict(self._turns), dict(self._locals), dict(self._previous)
        return Underway(clock.now, tuple(clock.events), clock.tickets, *copies)

    def restore(self, snapshot: Underway, /) -> None:
        """See `Resumable`."""
        self.clock = Clock(snapshot.now, list(snapshot.events), snapshot.tickets)
        self._flying = {trained.update.client: trained for _, _, trained in snapshot.events}
        self._turns, self._locals = dict(snapshot.turns), dict(snapshot.locals)
        self._previous = dict(snapshot.previous)

    def receive(self, *, every: bool) -> Arrivals:
        """See `Transport`."""
        before = self.now
        due = [self.clock.next() for _ in range(len(self.clock) if every else 1)]
        attacked = any(trained.update.client in self.byzantine for trained in due)
        knowledge = self._knowledge() if attacked and self.attack.omniscient else None
        replies = tuple(self._reply(trained, knowledge) for trained in due)
        for trained in due:
            del self._flying[trained.update.client]
        joined = {i: self.declared[i] for i, seconds in self.joining.items() if max(before, 0) < seconds <= self.now}
        return Arrivals(replies, joined=joined)

    def _reply(self, trained: Trained, knowledge: Knowledge | None) -> Reply:
        update, loss = trained.update, trained.loss
        if update.client not in self.byzantine:
            return Reply(update.client, update.version, update.delta, loss)
        rng = generator(self.seed, "attack", update.client, trained.turn)
        return Reply(update.client, update.version, self.attack.forge(update, knowledge, rng), loss)

    def _knowledge(self) -> Knowledge:
        flying = [self._flying[i].update for i in sorted(self._flying)]
        honest = [update for update in flying if update.client not in self.byzantine]
        none = self.trainer.model.values.new_empty(0, self.trainer.model.size)
        return Knowledge(
            torch.stack([update.delta for update in honest]) if honest else none,
            self.byzantine,
            tuple(update.client for update in honest),
            tuple(update for update in flying if update.client in self.byzantine),
            self.rule,
            self._weights(flying) if self.attack.needs_rule else None,
        )

    def _weights(self, updates: Sequence[Update]) -> Mapping[int, float] | None:
        """What the sizes of those clients count for, if the algorithm says so in a field `preprocess`."""
        preprocess = getattr(self.algorithm, "preprocess", None)
        if not isinstance(preprocess, Preprocess):
            return None
        if self._enrolled is None:
            self._enrolled = preprocess.enrolled({i: size for i, size in self.declared.items() if size >= 1})
        return preprocess.among(self._enrolled, [update.client for update in updates])


def _rule_of(algorithm: Algorithm) -> Aggregator | None:
    """The rule in the algorithm's field `aggregate`, if it has one."""
    rule = getattr(algorithm, "aggregate", None)
    return rule if isinstance(rule, Aggregator) else None
