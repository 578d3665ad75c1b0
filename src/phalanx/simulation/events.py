"""The events of a simulation, and the results of one wait of the server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from phalanx.attacks import Answer, Knowledge, Update
from phalanx.core import ClientReport, Local, Vector
from phalanx.engine.connection import Reply


class Trained(NamedTuple):
    """A task of a client, with its honest update; until the client has trained, that and the loss are empty."""

    update: Update
    turn: int  # number of earlier tasks of the client
    loss: float
    local: Local | None  # local state of the client after the task, if its role has one
    asked: float  # time of the download, in virtual seconds
    wait: int  # number of earlier waits of the server
    report: ClientReport | None = None  # of the model that it used before it trained


class Finished(NamedTuple):
    """A client has finished a task; its update arrives."""

    client: int
    turn: int


class Released(NamedTuple):
    """An attacker sends the answer that it held back."""

    client: int
    turn: int


class TaskFailed(NamedTuple):
    """A task ends without an answer."""

    client: int
    turn: int
    why: str
    away: float  # seconds for which the client is unavailable from now on


class Back(NamedTuple):
    """A client is available again."""

    client: int


class ClientJoins(NamedTuple):
    """A client joins the federation."""

    client: int


Event = Finished | Released | TaskFailed | Back | ClientJoins


class Underway(NamedTuple):
    """The state of a simulation between two steps."""

    now: float  # virtual seconds
    events: tuple[tuple[float, int, Event], ...]  # heap of the clock
    tickets: int  # number of events scheduled so far
    waits: int  # number of waits so far
    version: int  # newest version that was sent
    turns: Mapping[int, int]  # number of tasks that each client has had
    flying: Mapping[int, Trained]  # current task of each client that has one, in the order of downloads
    held: tuple[int, ...]  # attackers that hold back their answer
    down: Mapping[int, float]  # until when each crashed client is unavailable
    locals: Mapping[int, Local]
    previous: Mapping[int, Vector]  # last download of each attacker
    earlier: Mapping[int, tuple[Answer, ...]]  # last forged answers of each attacker
    memories: Mapping[int, Any] = {}  # what each client remembers of its training
    remembered: Mapping[int, object] = {}  # what each attacker remembers of its turns


@dataclass
class Wait:
    """The results since the server began to wait."""

    replies: list[Reply] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    late: dict[int, str] = field(default_factory=dict)
    joined: dict[int, object] = field(default_factory=dict)
    back: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)  # clients whose task is over
    knowledge: Knowledge | None = None  # for omniscient attackers, built when the first one needs it

    def brought_something(self) -> bool:
        """Return whether there is a result that ends a wait for the next event."""
        return bool(self.replies or self.lost or self.joined or self.back)
