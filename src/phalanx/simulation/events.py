"""What can happen on the clock of a simulation, and what has happened during one wait."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from phalanx.attacks import Answer, Knowledge, Update
from phalanx.core import Local, Reply, Vector


class Trained(NamedTuple):
    """A client is done with a task; its honest update is on its way."""

    update: Update
    turn: int  # how often the client had trained before
    loss: float
    local: Local | None  # what the client remembers from then on, where its role remembers
    asked: float  # when, in virtual seconds
    wait: int  # how many waits there were before


class Speaks(NamedTuple):
    """An attacker sends what it held back."""

    trained: Trained


class Broken(NamedTuple):
    """A task ends without an answer."""

    client: int
    turn: int
    why: str
    away: float  # seconds for which the client cannot be reached from now on


class Back(NamedTuple):
    """A client can be reached again."""

    client: int


class Comes(NamedTuple):
    """A client takes part from now on."""

    client: int


Event = Trained | Speaks | Broken | Back | Comes


class Underway(NamedTuple):
    """What a simulation carries from step to step."""

    now: float  # virtual seconds
    events: tuple[tuple[float, int, Event], ...]  # the clock's heap
    tickets: int  # that the clock has given out
    waits: int  # so far
    version: int  # the newest that was sent
    turns: Mapping[int, int]  # how often each client has trained
    flying: Mapping[int, Trained]  # the task of each client that has one, in the order of asking
    held: tuple[int, ...]  # attackers that hold their answer back
    down: Mapping[int, float]  # until when those cannot be reached that have crashed
    locals: Mapping[int, Local]
    previous: Mapping[int, Vector]  # what each attacker was sent last
    earlier: Mapping[int, tuple[Answer, ...]]  # what each attacker was about to send last


@dataclass
class Wait:
    """What has happened since the server began to wait."""

    replies: list[Reply] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    late: dict[int, str] = field(default_factory=dict)
    joined: dict[int, object] = field(default_factory=dict)
    back: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)  # clients whose task is over
    knowledge: Knowledge | None = None  # of an omniscient attacker, once one has asked

    def brought_something(self) -> bool:
        """Whether a wait for the next event is over."""
        return bool(self.replies or self.lost or self.joined or self.back)
