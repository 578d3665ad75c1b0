"""The interface of attacks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from typing_extensions import override

from phalanx.core import InfeasibleError, Matrix, Rule, Vector
from phalanx.fields import CheckedFields

K = TypeVar("K", bound="Attack")


class Role(NamedTuple):
    """The position of one attacker in one download."""

    client: int
    version: int  # version of the download
    attackers: tuple[int, ...]  # ids of all attackers of the run, increasing

    @property
    def rank(self) -> int:
        """The number of attackers with a lower id."""
        return self.attackers.index(self.client)


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

    def __or__(self, other: "AttackTraits") -> "AttackTraits":
        """Return what two attacks declare together."""
        return AttackTraits(*map(max, self, other))


HOOKS: dict[str, type["Attack"]] = {}  # the base that has each hook besides `forge`


class Attack(CheckedFields):
    """A client that forges its update, and is honest otherwise; other bases are asked for what else an attack does.

    Those are `Poisoning`, `Training`, `Misreporting`, `Joining`, `Delaying`, `Withholding`, `Answering`, `Remembering`,
    `Varying` and `Combining`; an attack can derive from several.  A hook of another base is refused when the class is
    defined.

    Attackers draw from random streams of their own, so honest clients draw the same numbers with and without them.  An
    attack has no state: what it does depends only on its fields and arguments.  What an attacker remembers from turn to
    turn is an argument and a result of `Remembering.respond`.  A subclass is a frozen dataclass: its fields identify a
    run.

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

    @override
    def __init_subclass__(cls, *, hooks: tuple[str, ...] = (), **options: Any) -> None:
        """Refuse methods that nothing would call.

        Args:
            hooks: names of the methods by which subclasses attack, of a new base.
            options: those of other bases.

        Raises:
            TypeError: the class has a hook of a base from which it does not derive.
        """
        super().__init_subclass__(**options)
        HOOKS.update(dict.fromkeys(hooks, cls))
        for hook, base in HOOKS.items():
            if callable(getattr(cls, hook, None)) and not issubclass(cls, base):
                raise TypeError(
                    f"{cls.__name__}.{hook} would not be called, since {cls.__name__} is no "
                    f"phalanx.attacks.{base.__name__}. Derive it from that base: class {cls.__name__}({base.__name__})"
                )

    @property
    def traits(self) -> AttackTraits:
        """What the attack declares.  A subclass may set it as a class variable."""
        return AttackTraits()

    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        """Return the update that the attacker sends; only omniscient attacks receive `knowledge`."""
        return update.delta


HONEST = Attack()


class Remembering(Attack, ABC, hooks=("respond",)):
    """An attack with a memory of its earlier turns: a subclass defines `respond` in place of `forge`."""

    @property
    def remembers(self) -> bool:
        """Whether it has a memory with these fields."""
        return True

    @abstractmethod
    def respond(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Forged:
        """Return the update that the attacker sends, and its new memory; `update.memory` is the old one."""

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        return self.respond(update, knowledge, rng).delta


class Varying(Attack, ABC, hooks=("part",)):
    """An attack that depends on the attacker or the version."""

    @property
    def varies(self) -> bool:
        """Whether it does with these fields."""
        return True

    @abstractmethod
    def part(self, role: Role) -> Attack:
        """Return the attack that one attacker performs for one download: what it trains, forges and answers."""


class Combining(Remembering, hooks=("each",)):
    """An attack made of others, which do all that they do alone, but forge as its `respond` lets them."""

    @property
    @abstractmethod
    def inside(self) -> tuple[Attack, ...]:
        """The attacks that it is made of, in their order."""

    @property
    @override
    def remembers(self) -> bool:
        return any(map(remembers, self.inside))

    def each(self, kind: type[K]) -> tuple[K, ...]:
        """Return the attacks of a kind inside, at any depth, in their order."""
        return tuple(one for attack in self.inside for one in each(attack, kind))


class Colluding(Attack, ABC, hooks=("collude",)):
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


def each(attack: Attack | None, kind: type[K]) -> tuple[K, ...]:
    """Return the attacks of a kind, in their order: those that an attack is made of, and itself; none of None."""
    inside = attack.each(kind) if isinstance(attack, Combining) else ()
    return (*inside, attack) if isinstance(attack, kind) else inside


def remembers(attack: Attack | None) -> bool:
    """Return whether an attack has a memory of earlier turns."""
    return any(one.remembers for one in each(attack, Remembering))


def varies(attack: Attack | None) -> bool:
    """Return whether an attack depends on the attacker or the version."""
    return any(one.varies for one in each(attack, Varying))


def part(attack: Attack, role: Role) -> Attack:
    """Return the attack that one attacker performs for one download."""
    return attack.part(role) if isinstance(attack, Varying) else attack


def respond(attack: Attack, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Forged:
    """Return the update that an attacker sends, and its new memory; it sees the others if the attack is omniscient."""
    seen = knowledge if attack.traits.omniscient else None
    if isinstance(attack, Remembering):
        return attack.respond(update, seen, rng)
    return Forged(attack.forge(update, seen, rng), update.memory)
