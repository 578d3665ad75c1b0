"""The interface of attacks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from typing_extensions import override

from phalanx.core import InfeasibleError, Matrix, Rule, Vector
from phalanx.data import Dataset
from phalanx.fields import CheckedFields
from phalanx.training.local import LocalTask, LocalTrainer


class Role(NamedTuple):
    """The position of one attacker in one download."""

    client: int
    version: int  # version of the download
    attackers: tuple[int, ...]  # ids of all attackers of the run, increasing

    @property
    def rank(self) -> int:
        """The number of attackers with a lower id."""
        return self.attackers.index(self.client)


class AttackTask(NamedTuple):
    """One training task of an attacker."""

    task: LocalTask  # that of an honest client
    data: Dataset  # its poisoned data
    previous: Vector | None = None  # the previous download; None at the first one


class Forged(NamedTuple):
    """The update that an attacker sends, and its memory until its next turn."""

    delta: Vector
    memory: object = None  # immutable, of kinds that a checkpoint keeps; see `phalanx.runs.packing`


class Update(NamedTuple):
    """The update that an attacker would send if it were honest (on its poisoned data), with its download."""

    client: int
    version: int  # version of the download
    base: Vector  # the downloaded parameters
    delta: Vector  # trained minus downloaded parameters, as the algorithm uploads it
    previous: Vector | None = None  # the previous download; None at the first one
    memory: object = None  # what the attacker remembers of its last turn; None at the first one


class Answer(NamedTuple):
    """A message to the server: an update, and the version of the download that it claims to start from."""

    version: int
    delta: Vector


class Meanwhile(NamedTuple):
    """The events since an attacker has finished its task and holds back its answer."""

    versions: int  # server updates since its download that were sent to any client
    others: int  # honest clients that the server waits for


@dataclass(frozen=True, eq=False)
class Knowledge:
    """The view of an omniscient attacker: all updates of the round, or in flight, and the server's rule.

    Args:
        honest: (h, d), the honest updates of the round, or in flight; h can be 0.
        byzantine: ids of all attackers, itself included; some of them may not take part in this round.
        clients: ids of the h clients whose updates are the rows of `honest`, increasing.
        colluders: the updates that the attackers in this round would send if they were honest, itself included, by
            increasing id.
        rule: the rule of the server, if its algorithm has one.
        weights: weights with which the rule combines the updates of these clients; equal if not given.
        turn: number of the server's next call of its rule.
        last: (d,), the last result of the rule, if it starts from there.
    """

    honest: Matrix
    byzantine: Set[int]
    clients: tuple[int, ...]
    colluders: tuple[Update, ...]
    rule: Rule | None = None
    weights: Mapping[int, float] | None = None
    turn: int = 0
    last: Vector | None = None
    _agreed: list[tuple["Attack", Vector]] = field(init=False, repr=False, default_factory=list)

    def outcome(self, forged: Vector, *, carried: bool = False) -> Vector:
        """Return the server's aggregate if every attacker in this round sends `forged`.

        Args:
            forged: (d,), the update.
            carried: whether the rule draws as in this turn and starts from its last result, as on the server; otherwise
                it is called as for the first time.

        Raises:
            InfeasibleError: if the rule is not known, or has no result.
        """
        if self.rule is None:
            raise InfeasibleError(
                "The server's rule is not known. Choose an algorithm with a field `aggregate`: FedAvg."
            )
        rows = torch.cat((self.honest, forged.expand(len(self.colluders), -1)))
        turn, last = (self.turn, self.last) if carried else (0, None)
        if self.weights is None:
            return self.rule(rows, turn=turn, previous=last)
        ids = (*self.clients, *(update.client for update in self.colluders))
        weights = torch.tensor([self.weights[i] for i in ids], dtype=torch.float64, device=rows.device)
        return self.rule(rows, weights, turn=turn, previous=last)

    def agreed(self, attack: "Attack", make: Callable[["Knowledge"], Vector]) -> Vector:
        """Return the update that all attackers send: computed at the first call, the same at all others."""
        for known, forged in self._agreed:
            if known == attack:
                return forged
        forged = make(self)
        self._agreed.append((attack, forged))
        return forged


class AttackTraits(NamedTuple):
    """What an attack declares: a value, which a simulation reads."""

    omniscient: bool = False  # `forge` needs to see the updates of others
    needs_rule: bool = False  # `forge` evaluates the server's rule
    remembers: bool = False  # `respond` uses a memory of earlier turns
    trains: bool = False  # `train` differs from honest training
    has_parts: bool = False  # `part` depends on the attacker or the version
    recalls: int = 0  # number of its last answers that `answers` receives
    holds_back: bool = False  # it holds back its answer until `sends_now` is true

    def __or__(self, other: "AttackTraits") -> "AttackTraits":
        """Return what two attacks declare together."""
        return AttackTraits(*map(max, self, other))  # type: ignore[arg-type]  # each is of the type of its field


class Attack(CheckedFields):
    """A client that is honest in every respect; a subclass overrides the methods by which it attacks.

    Attackers draw from random streams of their own, so honest clients draw the same numbers with and without them.  An
    attack has no state: what it does depends only on its fields and arguments.  What an attacker remembers from turn to
    turn is an argument and a result of `respond`.  A subclass is a frozen dataclass: its fields identify a run.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Half(Attack):
        ...     def forge(self, update, knowledge, rng):
        ...         return -update.delta / 2
        >>> honest = Update(client=3, version=0, base=torch.zeros(2), delta=torch.tensor([1.0, 2.0]))
        >>> Half().forge(honest, None, torch.Generator())
        tensor([-0.5000, -1.0000])
        >>> from phalanx import Run, Until, simulate
        >>> simulate(Run(attack=Half(), byzantine=2, clients=7, until=Until(steps=2))).summary.steps
        2
    """

    @property
    def traits(self) -> AttackTraits:
        """What the attack declares.  A subclass may set it as a class variable."""
        return AttackTraits()

    def part(self, role: Role) -> "Attack":
        """Return the attack that one attacker performs for one download: what it trains, forges and answers."""
        return self

    def poison(self, data: Dataset, rng: torch.Generator) -> Dataset:
        """Return the data that the attacker trains on, from its share of the data."""
        return data

    def check_trainer(self, honest: LocalTrainer) -> None:
        """Raise InfeasibleError if `train` cannot take the place of this trainer."""

    def train(self, job: AttackTask, honest: LocalTrainer) -> float:
        """Train, write the change to `job.task.row`, and return the loss as the trainer of honest clients does."""
        return honest.train(job.task, job.data)

    def reported_size(self, size: int) -> int:
        """Return the number of examples that the attacker reports, if it has `size` examples."""
        return size

    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        """Return the update that the attacker sends; only omniscient attacks receive `knowledge`."""
        return update.delta

    def respond(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Forged:
        """Return the update that the attacker sends, and its new memory; `update.memory` is the old one."""
        return Forged(self.forge(update, knowledge, rng), update.memory)

    def goal(self, test: Dataset) -> Dataset | None:
        """Return test examples with the labels that the attacker wants, if any: its success is the accuracy on them."""
        return None

    # Timing: when it answers, and with which updates

    def delay(self, seconds: float, rng: torch.Generator) -> float:
        """Return the seconds from its download to its answer, above 0; an honest client would take `seconds`."""
        return seconds

    def sends_now(self, meanwhile: Meanwhile) -> bool:
        """Return whether it now sends the answer that it holds back."""
        return True

    def answers(self, answer: Answer, earlier: Sequence[Answer]) -> Sequence[Answer]:
        """Return the answers that it sends for one download: one, several, or none.

        Args:
            answer: the forged update, with the version of the download.
            earlier: the forged updates of its last downloads, the latest at the end: `AttackTraits.recalls` of them, or
                fewer at the beginning.
        """
        return (answer,)


HONEST = Attack()


class Remembering(Attack, ABC):
    """An attack with a memory of its earlier turns: a subclass defines `respond` in place of `forge`."""

    @property
    @override
    def traits(self) -> AttackTraits:
        return AttackTraits(remembers=True)

    @abstractmethod
    @override
    def respond(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Forged: ...

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        return self.respond(update, knowledge, rng).delta


class Colluding(Attack, ABC):
    """An attack in which all attackers of a round send the same update, computed from all that they see.

    If there is no honest update to see, an attacker sends its own honest update, since it has nothing to hide among.
    """

    @property
    @override
    def traits(self) -> AttackTraits:
        return AttackTraits(omniscient=True)

    @abstractmethod
    def collude(self, knowledge: Knowledge) -> Vector:
        """Return the update that every attacker sends; there is at least one honest update."""

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        seen = needed(self, knowledge)
        return seen.agreed(self, self.collude) if len(seen.honest) else update.delta


def needed(attack: Attack, knowledge: Knowledge | None) -> Knowledge:
    """Return the knowledge, which must be given.

    Raises:
        InfeasibleError: if it is not.
    """
    if knowledge is None:
        name = type(attack).__name__
        raise InfeasibleError(f"{name} needs to see the updates of other clients, which only a simulation can show it.")
    return knowledge


def seen_by(attack: Attack, knowledge: Knowledge | None) -> Knowledge | None:
    """Return the knowledge for a part of a combined attack: None unless that part is omniscient."""
    return knowledge if attack.traits.omniscient else None
