"""The Byzantine clients of a simulation: their knowledge, their answers and the timing of these."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import torch

from phalanx.attacks import (
    Answer,
    Attack,
    AttackTask,
    Knowledge,
    Meanwhile,
    Role,
    Training,
    Update,
    timing,
)
from phalanx.attacks.attack import each, part, remembers, respond, varies
from phalanx.attacks.data import poison
from phalanx.attacks.size import reported_size
from phalanx.attacks.training import check_trainer, train
from phalanx.core import Algorithm, AnyState, InfeasibleError, Vector
from phalanx.data import Dataset
from phalanx.rng import generator
from phalanx.simulation.events import Trained, Wait
from phalanx.training.evaluation import evaluate
from phalanx.training.local import LocalTask, LocalTrainer


class Adversary:
    """The attack of a simulation, with the state of its clients.  Honest clients pass through unchanged.

    Args:
        attack: the attack of the Byzantine clients.
        clients: ids of the Byzantine clients.
        algorithm: the algorithm of the server; an omniscient attack knows its rule and its weights.
        sizes: number of examples of each client, Byzantine or not.
        model: (d,), parameters of a model, for their number, dtype and device.
        seed: seed of the run.

    Raises:
        InfeasibleError: if there is no attack, a client does not exist, or the attack needs a rule and there is none.
    """

    def __init__(
        self,
        attack: Attack | None,
        clients: Set[int],
        *,
        algorithm: Algorithm,
        sizes: Mapping[int, int],
        model: Vector,
        seed: int,
    ) -> None:
        if clients and attack is None:
            raise InfeasibleError(f"{len(clients)} clients are Byzantine, but no attack is given.")
        if strangers := sorted(clients - sizes.keys()):
            raise InfeasibleError(f"Byzantine clients {strangers} are not among the {len(sizes)} clients.")
        self.attack, self.clients, self.seed = attack or Attack(), frozenset(clients), seed
        self.traits = self.attack.traits
        if clients and self.traits.needs_rule and algorithm.rule is None:
            raise InfeasibleError(
                f"{self.attack} tries out the server's rule, and {algorithm.title} has none. Choose an algorithm that "
                "has, such as FedAvg, or set a number where it says search."
            )
        self.remembers, self.recalls = remembers(self.attack), timing.recalls(self.attack)
        self.reported = {i: reported_size(self.attack if i in clients else None, size) for i, size in sizes.items()}
        self.previous = dict[int, Vector]()  # the last download of each attacker
        self.earlier = dict[int, tuple[Answer, ...]]()  # the last answers of each attacker, sent or not
        self.held = dict[int, Trained]()  # tasks whose answer an attacker holds back
        self.memories = dict[int, object]()  # what each attacker remembers, if the attack does
        self._given = dict[int, Dataset]()  # the data of each attacker before it is poisoned, if that depends on parts
        self._poisoned = dict[int, tuple[Attack, Dataset]]()  # the last part of each attacker, and its data
        self._none = model.new_empty(0, model.numel())
        self.algorithm = algorithm
        self.state: AnyState | None = None  # state of the server, from which the next downloads are made

    def __contains__(self, client: int) -> bool:
        return client in self.clients

    @property
    def trains(self) -> bool:
        """Whether the attackers train other than honest clients on data that never change."""
        return bool(self.clients) and (bool(each(self.attack, Training)) or varies(self.attack))

    def part(self, client: int, version: int) -> Attack:
        """Return the attack that an attacker performs for its download of a version."""
        return part(self.attack, Role(client, version, tuple(sorted(self.clients))))

    def poisoned(self, client: int, data: Dataset) -> Dataset:
        """Return the data that a client trains on, or begins with if that depends on the version."""
        if client not in self:
            return data
        self._given[client] = data
        return self.data(client, self.part(client, 0))

    def data(self, client: int, attack: Attack) -> Dataset:
        """Return the data that an attacker trains on if it performs that part of the attack."""
        held = self._poisoned.get(client)
        if held is None or held[0] != attack:
            held = attack, poison(attack, self._given[client], generator(self.seed, "poison", client))
            self._poisoned[client] = held
        return held[1]

    def follow(self, client: int, download: Vector) -> Vector | None:
        """Remember the download of an attacker, and return the previous one; None if there is none."""
        before = self.previous.get(client)
        if client in self:
            self.previous[client] = download
        return before

    def seconds(self, client: int, turn: int, version: int, seconds: float) -> float:
        """Return the seconds from a download to the answer; an honest client would take `seconds`."""
        if client not in self:
            return seconds
        return timing.delay(self.part(client, version), seconds, generator(self.seed, "delay", client, turn))

    def holds_back(self, trained: Trained) -> bool:
        """Return whether a client holds back its answer; if so, keep its task."""
        client, version = trained.update.client, trained.update.version
        held = client in self and timing.holds_back(self.part(client, version))
        if held:
            self.held[client] = trained
        return held

    def sees(self, trained: Trained) -> bool:
        """Return whether the answer of a client depends on the updates of others."""
        client, version = trained.update.client, trained.update.version
        return client in self and self.part(client, version).traits.omniscient

    def release(self, version: int, others: int) -> list[Trained]:
        """Release the tasks whose answers are sent now, by increasing client.

        Args:
            version: the newest version that the server sent.
            others: number of honest clients that the server waits for.
        """
        now = list[int]()
        for client, trained in sorted(self.held.items()):
            since = trained.update.version
            if timing.sends_now(self.part(client, since), Meanwhile(version - since, others)):
                now.append(client)
        return [self.held.pop(client) for client in now]

    def answers(self, trained: Trained, flying: Mapping[int, Trained], wait: Wait) -> Sequence[Answer]:
        """Return the answers of a client for one download: the honest one, or those of the attack.

        Args:
            trained: the finished task of the client.
            flying: the tasks that the server waits for.
            wait: holds the knowledge of omniscient attackers, shared by all that answer during one wait.
        """
        update = trained.update
        if update.client not in self:
            return (Answer(update.version, update.delta),)
        attack = self.part(update.client, update.version)
        if attack.traits.omniscient and wait.knowledge is None:
            wait.knowledge = self._knowledge([flying[client].update for client in sorted(flying)])
        rng = generator(self.seed, "attack", update.client, trained.turn)
        update = update._replace(memory=self.memories.get(update.client))
        forged = respond(attack, update, wait.knowledge, rng)
        if self.remembers:
            self.memories[update.client] = forged.memory
        answer, earlier = Answer(update.version, forged.delta), self.earlier.get(update.client, ())
        if self.recalls:
            self.earlier[update.client] = (*earlier, answer)[-self.recalls :]
        return timing.answers(attack, answer, earlier)

    def _knowledge(self, flying: Sequence[Update]) -> Knowledge:
        honest = [update for update in flying if update.client not in self]
        searches = self.traits.needs_rule
        turn, last = self.algorithm.carried(self.state) if searches and self.state is not None else (0, None)
        return Knowledge(
            torch.stack([update.delta for update in honest]) if honest else self._none,
            self.clients,
            tuple(update.client for update in honest),
            tuple(update for update in flying if update.client in self),
            self.algorithm.rule,
            self._weights(flying) if searches else None,
            turn,
            last,
        )

    def _weights(self, updates: Sequence[Update]) -> Mapping[int, float] | None:
        """Return the weights with which the rule would combine these updates, or None if all are 0."""
        if self.state is None:
            return None
        try:
            weights = self.algorithm.weights(self.state, [update.client for update in updates])
        except InfeasibleError:
            return None  # as many as are in flight cannot be weighed
        return weights if any(weights.values()) else None


class AttackerExecutor:
    """Attackers that train by their attack, one after the other, in this process.

    Args:
        adversary: the attack and its clients.
        trainer: of honest clients.
        exact: see `ExecutorFactory.executor`.

    Raises:
        InfeasibleError: the attack cannot train in place of that trainer.
    """

    def __init__(self, adversary: Adversary, trainer: LocalTrainer, *, exact: bool) -> None:
        check_trainer(adversary.attack, trainer.base)
        self.adversary, self.trainer, self.exact = adversary, trainer.base, exact

    def __call__(self, tasks: Iterable[LocalTask], /) -> Iterator[tuple[LocalTask, float]]:
        """See `Executor`."""
        for task in tasks:
            attack = self.adversary.part(task.client, task.version)
            previous, data = self.adversary.previous.get(task.client), self.adversary.data(task.client, attack)
            trainer, measured = self.trainer, self.exact and len(data)
            before = evaluate(trainer.model, task.start, data, trainer.task).loss if measured else None
            loss = train(attack, AttackTask(task, data, previous), trainer)
            yield task, loss if before is None else before
