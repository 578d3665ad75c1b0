"""Attacks by time: when an attacker answers, how often, and with which of its updates.

They change nothing of what is in an update: `Together` joins them with an attack that does.  A server that keeps its
own record of what it sent to whom refuses answers that nobody asked for, second copies and wrong versions; an old
update under a new version it cannot tell from a new one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from phalanx.attacks.attack import Answer, Attack, Meanwhile


@dataclass(frozen=True)
class Flood(Attack):
    """Answers at once, so that it is served more often than anybody else.

    Whoever mixes in each arrival gives a client as much of the model as it is fast: the server cannot know how long
    honest work takes.  Cox et al., "Asynchronous Byzantine Federated Learning", 2024, grant attackers arbitrarily fast
    communication.

    Args:
        seconds: from its download to its answer.
    """

    seconds: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be positive and finite, got {self.seconds}: time would stand still.")

    def delay(self, seconds: float, rng: torch.Generator) -> float:
        """See `Attack`."""
        return self.seconds


@dataclass(frozen=True)
class Linger(Attack):
    """Takes longer than it would need: its updates are always late.

    In a round without a deadline everybody waits for it.  In an asynchronous run it aims at what the server does with
    late updates, where fewer others stand beside it.

    Args:
        factor: on the time that an honest client would take in its place.
        seconds: that it waits beside.
    """

    factor: float = 10.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"factor must be at least 1 and finite, got {self.factor}.")
        if not 0 <= self.seconds < math.inf:
            raise ValueError(f"seconds must be at least 0 and finite, got {self.seconds}.")

    def delay(self, seconds: float, rng: torch.Generator) -> float:
        """See `Attack`."""
        return self.factor * seconds + self.seconds


@dataclass(frozen=True)
class HoldBack(Attack):
    """Is silent until the server needs it, or until it is late by so many versions.

    Waiting until nobody else is under way, it speaks when a server that collects a quorum has heard all others and
    still lacks somebody: it decides then when the server goes on.  A round has no end before it.

    Args:
        versions: server updates after which it answers; null: when the server waits for no honest client any more.
    """

    holds_back: ClassVar[bool] = True

    versions: int | None = None

    def __post_init__(self) -> None:
        if self.versions is not None and self.versions < 1:
            raise ValueError(f"versions must be at least 1, got {self.versions}.")

    def speaks(self, meanwhile: Meanwhile) -> bool:
        """See `Attack`."""
        return meanwhile.others == 0 if self.versions is None else meanwhile.versions >= self.versions


@dataclass(frozen=True)
class Replay(Attack):
    """Sends an old update of its own again, and not the one that it was asked for.

    With the version that it was asked for, nothing at the door tells it from a new one: the algorithm sees an update
    that points where the model came from.  With its old version, the server's own record says otherwise.

    Args:
        age: how many of its tasks ago it was made. Until it has had so many, it sends what it has made.
        claims_old: whether it names the version that the update was made for.
    """

    age: int = 1
    claims_old: bool = False

    def __post_init__(self) -> None:
        if self.age < 1:
            raise ValueError(f"age must be at least 1, got {self.age}.")

    @property
    def recalls(self) -> int:
        """See `Attack`."""
        return self.age

    def answers(self, answer: Answer, earlier: Sequence[Answer]) -> Sequence[Answer]:
        """See `Attack`."""
        if len(earlier) < self.age:
            return (answer,)
        old = earlier[-self.age]
        return (old if self.claims_old else Answer(answer.version, old.delta),)


@dataclass(frozen=True)
class Duplicate(Attack):
    """Sends its answer several times, to count as several clients.

    Args:
        copies: in all, at least 2.
    """

    copies: int = 3

    def __post_init__(self) -> None:
        if self.copies < 2:
            raise ValueError(f"copies must be at least 2, got {self.copies}.")

    def answers(self, answer: Answer, earlier: Sequence[Answer]) -> Sequence[Answer]:
        """See `Attack`."""
        return (answer,) * self.copies


@dataclass(frozen=True)
class ClaimVersion(Attack):
    """Claims that its update answers another version, to pass for fresh or to reach the path of late updates.

    A server that believed it would weigh the update by an age that the attacker chose.

    Args:
        ahead: added to the version that it was asked for; negative: an older one.
        honest_too: whether it answers what it was asked beside that, so that it is served again.
    """

    ahead: int = 1
    honest_too: bool = False

    def __post_init__(self) -> None:
        if not self.ahead:
            raise ValueError("ahead must not be 0: that would be the version that it was asked for.")

    def answers(self, answer: Answer, earlier: Sequence[Answer]) -> Sequence[Answer]:
        """See `Attack`."""
        lie = Answer(answer.version + self.ahead, answer.delta)
        return (lie, answer) if self.honest_too else (lie,)
