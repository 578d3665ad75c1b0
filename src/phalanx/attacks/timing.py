"""Attacks on timing: when an attacker joins and answers, how often, and with which of its updates.

They do not change the content of updates: `Together` combines them with an attack that does.  A server that records
what it sent to each client refuses unrequested answers, duplicates and wrong versions; but it cannot distinguish an old
update that claims the current version from a new one.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from msgspec import Meta
from typing_extensions import override

from phalanx.attacks.attack import Attack, each
from phalanx.core import Vector
from phalanx.fields import NonNegativeFloat, PositiveFloat, PositiveInt


class Answer(NamedTuple):
    """A message to the server: an update, and the version of the download that it claims to start from."""

    version: int
    delta: Vector


class Meanwhile(NamedTuple):
    """The events since an attacker has finished its task and holds back its answer."""

    versions: int  # server updates since its download that were sent to any client
    others: int  # honest clients that the server waits for


class Delaying(Attack, ABC, hooks=("delay",)):
    """An attack that answers earlier or later than an honest client."""

    @abstractmethod
    def delay(self, seconds: float, rng: torch.Generator) -> float:
        """Return the seconds from its download to its answer, above 0; an honest client would take `seconds`."""


class Withholding(Attack, ABC, hooks=("sends_now",)):
    """An attack that holds back its answer."""

    @abstractmethod
    def sends_now(self, meanwhile: Meanwhile) -> bool:
        """Return whether it now sends the answer that it holds back."""


class Answering(Attack, ABC, hooks=("answers",)):
    """An attack that sends several answers, none, or old ones."""

    @property
    def recalls(self) -> int:
        """Number of its last answers that `answers` receives."""
        return 0

    @abstractmethod
    def answers(self, answer: Answer, earlier: Sequence[Answer]) -> Sequence[Answer]:
        """Return the answers that it sends for one download: one, several, or none.

        Args:
            answer: the forged update, with the version of the download.
            earlier: the forged updates of its last downloads, the latest at the end: as many as it `recalls`, or fewer
                at the beginning.
        """


class Joining(Attack, ABC, hooks=("joins_after",)):
    """An attack that joins after the run has begun."""

    @abstractmethod
    def joins_after(self) -> float:
        """Return the seconds from the begin of the run to when it joins, above 0."""


def joins_after(attack: Attack | None) -> float:
    """Return the seconds from the begin of the run to when an attacker joins; 0 if it takes part from the start."""
    return max((one.joins_after() for one in each(attack, Joining)), default=0.0)


def changes_timing(attack: Attack | None) -> bool:
    """Return whether an attack does anything but join at the start and answer each task once, as soon as it can."""
    return any(each(attack, kind) for kind in (Joining, Delaying, Withholding, Answering))


def delay(attack: Attack, seconds: float, rng: torch.Generator) -> float:
    """Return the seconds from a download to the answer of an attacker; an honest client would take `seconds`."""
    for one in each(attack, Delaying):
        seconds = one.delay(seconds, rng)
    return seconds


def holds_back(attack: Attack) -> bool:
    """Return whether an attacker holds back its answer until `sends_now`."""
    return bool(each(attack, Withholding))


def sends_now(attack: Attack, meanwhile: Meanwhile) -> bool:
    """Return whether an attacker now sends the answer that it holds back: when all do that hold one back."""
    return all(one.sends_now(meanwhile) for one in each(attack, Withholding))


def recalls(attack: Attack) -> int:
    """Return the number of its last answers that an attacker keeps for `answers`."""
    return max((one.recalls for one in each(attack, Answering)), default=0)


def answers(attack: Attack, answer: Answer, earlier: Sequence[Answer]) -> Sequence[Answer]:
    """Return the answers of an attacker for one download: those of the next attack for each of the one before."""
    sent: Sequence[Answer] = (answer,)
    for one in each(attack, Answering):
        sent = [a for before in sent for a in one.answers(before, earlier)]
    return sent


@dataclass(frozen=True)
class JoinLate(Joining):
    """Joins after the run has begun, when the weights of the others are made.  It sees nothing.

    With a false size, by `Together(JoinLate(), ReportSize())`, it aims at what is computed at the start: bounds of
    weights and promises.  Only some algorithms take in clients that come late, such as `Quorum`.

    Args:
        after: time at which it joins, in virtual seconds; with the default latency of one second, in rounds.
    """

    after: PositiveFloat = 10.0

    @override
    def joins_after(self) -> float:
        return self.after


@dataclass(frozen=True)
class Flood(Delaying):
    """Answers at once, so that it takes part more often than any other client.

    If a server mixes in each arriving update, the influence of a client grows with its speed, and the server cannot
    know how long honest work takes.  Cox et al., "Asynchronous Byzantine Federated Learning", 2024, assume attackers
    with arbitrarily fast communication.

    Args:
        seconds: seconds from its download to its answer.
    """

    seconds: PositiveFloat = 0.01

    @override
    def delay(self, seconds: float, rng: torch.Generator) -> float:
        return self.seconds


@dataclass(frozen=True)
class Linger(Delaying):
    """Takes longer than it needs, so that its updates are always late.

    In a round without a deadline all others wait for it.  In an asynchronous run it targets the server's treatment of
    late updates, where there are fewer honest ones.

    Args:
        factor: factor on the time that an honest client would take in its place.
        seconds: seconds to wait in addition.
    """

    factor: Annotated[float, Meta(ge=1)] = 10.0
    seconds: NonNegativeFloat = 0.0

    @override
    def delay(self, seconds: float, rng: torch.Generator) -> float:
        return self.factor * seconds + self.seconds


@dataclass(frozen=True)
class HoldBack(Withholding):
    """Holds back its update until the server waits for no one else, or until it is late by a number of versions.

    By default it answers when a server that collects a quorum has received all other updates and still lacks one: then
    the attacker decides when the server continues.  A round does not end before its answer.

    Args:
        versions: number of server updates after which it answers; null: when the server no longer waits for an honest
            client.
    """

    versions: PositiveInt | None = None

    @override
    def sends_now(self, meanwhile: Meanwhile) -> bool:
        return meanwhile.others == 0 if self.versions is None else meanwhile.versions >= self.versions


@dataclass(frozen=True)
class Replay(Answering):
    """Sends one of its old updates again instead of the current one.

    If it claims the current version, the server cannot distinguish it from a new update: the algorithm sees an update
    that points back to where the model came from.  If it claims the old version, the server's records contradict it.

    Args:
        age: age of the update, in tasks of the attacker. In its first `age` tasks it sends the current update.
        claims_old: whether it claims the old version, for which the update was computed.
    """

    age: PositiveInt = 1
    claims_old: bool = False

    @property
    @override
    def recalls(self) -> int:
        return self.age

    @override
    def answers(self, answer: Answer, earlier: Sequence[Answer]) -> Sequence[Answer]:
        if len(earlier) < self.age:
            return (answer,)
        old = earlier[-self.age]
        return (old if self.claims_old else Answer(answer.version, old.delta),)


@dataclass(frozen=True)
class Duplicate(Answering):
    """Sends its answer several times, to count as several clients.

    Args:
        copies: number of copies in all, at least 2.
    """

    copies: Annotated[int, Meta(ge=2)] = 3

    @override
    def answers(self, answer: Answer, earlier: Sequence[Answer]) -> Sequence[Answer]:
        return (answer,) * self.copies


@dataclass(frozen=True)
class ClaimVersion(Answering):
    """Claims another version than that of its download, so that its update counts as newer or older than it is.

    A server that believes it gives the update a staleness that the attacker chose.

    Args:
        ahead: number to add to the version of the download; negative for an older version.
        honest_too: whether it also sends the honest answer, so that it gets another task.
    """

    ahead: int = 1
    honest_too: bool = False

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ahead:
            raise ValueError("ahead must not be 0, which is the true version.")

    @override
    def answers(self, answer: Answer, earlier: Sequence[Answer]) -> Sequence[Answer]:
        claim = Answer(answer.version + self.ahead, answer.delta)
        return (claim, answer) if self.honest_too else (claim,)
