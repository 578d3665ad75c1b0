"""The interface of attacks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch

from phalanx.aggregators import Aggregator
from phalanx.core import InfeasibleError, Matrix, Vector
from phalanx.data import Dataset


class Update(NamedTuple):
    """What an attacker would send if it were honest (on the data that it poisoned), and what it was sent."""

    client: int
    version: int  # of the download
    base: Vector  # the download
    delta: Vector  # trained minus received parameters, as the algorithm uploads it
    previous: Vector | None = None  # the download before this one; None at the first


class Answer(NamedTuple):
    """One message to the server: an update, and the version of the download that it claims to answer."""

    version: int
    delta: Vector


class Meanwhile(NamedTuple):
    """What has happened since an attacker was done with its task, and holds its answer back."""

    versions: int  # server updates since its download, as far as any client was sent a newer one
    others: int  # honest clients that the server waits for


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What an omniscient attacker sees beside that: the round, or what is in flight, and the server's rule.

    Args:
        honest: (h, d), every honest update of the round, or in flight; h can be 0.
        byzantine: the attackers, itself included; some of them may not take part in this round.
        clients: the h ids of the rows of `honest`, increasing.
        colluders: what the attackers that take part would send if they were honest, itself included, by increasing id.
        rule: the server's, if its algorithm has one.
        weights: with which the rule combines the updates of these clients; all alike if not given.
    """

    honest: Matrix
    byzantine: Set[int]
    clients: tuple[int, ...]
    colluders: tuple[Update, ...]
    rule: Aggregator | None = None
    weights: Mapping[int, float] | None = None
    _agreed: list[tuple["Attack", Vector]] = field(init=False, repr=False, default_factory=list)

    def outcome(self, forged: Vector) -> Vector:
        """What the server's rule makes of the honest updates if every attacker that takes part sends `forged`.

        Raises:
            InfeasibleError: the rule is not known.
        """
        if self.rule is None:
            raise InfeasibleError(
                "The server's rule is not known. Choose an algorithm that has a rule, such as FedAvg."
            )
        rows = torch.cat((self.honest, forged.expand(len(self.colluders), -1)))
        if self.weights is None:
            return self.rule(rows)
        ids = (*self.clients, *(update.client for update in self.colluders))
        return self.rule(rows, torch.tensor([self.weights[i] for i in ids], dtype=torch.float64, device=rows.device))

    def agreed(self, attack: "Attack", make: Callable[["Knowledge"], Vector]) -> Vector:
        """What the attackers send by common consent: computed by the first that asks, the same for all others."""
        for known, forged in self._agreed:
            if known is attack:
                return forged
        forged = make(self)
        self._agreed.append((attack, forged))
        return forged


class Attack:
    """Behaves honestly on every level; a subclass overrides the level on which it attacks.

    Attackers draw from streams of their own, so that they change no honest client's randomness.  An attack remembers
    nothing: what it sends depends on its fields and on what it is handed.
    """

    @property
    def omniscient(self) -> bool:
        """Whether `forge` needs to see what others send.  A subclass may set it as a class variable."""
        return False

    @property
    def needs_rule(self) -> bool:
        """Whether `forge` tries out the server's rule.  A subclass may set it as a class variable."""
        return False

    def poison(self, data: Dataset, rng: torch.Generator) -> Dataset:
        """The data that the attacker trains on, made once from its share."""
        return data

    def declare(self, size: int) -> int:
        """The number of examples that it claims to have."""
        return size

    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        """The update that it sends, of any content; `knowledge` is given to omniscient attacks only."""
        return update.delta

    def goal(self, test: Dataset) -> Dataset | None:
        """Test examples with the labels that the attacker wants, if any: its success is the accuracy on them."""
        return None

    # Time: when it answers, and with what

    @property
    def recalls(self) -> int:
        """How many of the answers that it sent last `answers` is shown.  A subclass may set it as a class variable."""
        return 0

    @property
    def holds_back(self) -> bool:
        """Whether it sends nothing until `speaks` says so.  A subclass may set it as a class variable."""
        return False

    def delay(self, seconds: float, rng: torch.Generator) -> float:
        """Seconds from its download to its answer, above 0, where it would take `seconds` if it were honest."""
        return seconds

    def speaks(self, meanwhile: Meanwhile) -> bool:
        """Whether it sends now what it holds back."""
        return True

    def answers(self, answer: Answer, earlier: Sequence[Answer]) -> Sequence[Answer]:
        """What it sends for one download: one answer, several, or none.

        Args:
            answer: the forged update, for the version that it was asked for.
            earlier: what it was about to send for its last downloads, the last one at the end: `recalls` of them, or
                fewer at the beginning.
        """
        return (answer,)


class Colluding(Attack, ABC):
    """An attack by agreement: whoever takes part in a round sends the same, made from what all of them see.

    Where no honest update is in sight, an attacker sends its own honest update: there is nothing to hide among.
    """

    omniscient: ClassVar[bool] = True

    @abstractmethod
    def collude(self, knowledge: Knowledge) -> Vector:
        """What every attacker sends; there is at least one honest update."""

    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        """See `Attack`."""
        seen = needed(self, knowledge)
        return seen.agreed(self, self.collude) if len(seen.honest) else update.delta


def needed(attack: Attack, knowledge: Knowledge | None) -> Knowledge:
    """The knowledge, if it was given.

    Raises:
        InfeasibleError: it was not.
    """
    if knowledge is None:
        name = type(attack).__name__
        raise InfeasibleError(
            f"{name} needs to see what others send, and was shown nothing. Only a simulation can show it."
        )
    return knowledge


def seen_by(attack: Attack, knowledge: Knowledge | None) -> Knowledge | None:
    """What a part of a combined attack is shown: nothing, unless it is omniscient."""
    return knowledge if attack.omniscient else None
