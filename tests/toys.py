"""Small federations that the tests share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from phalanx.core import Setting, Updates, Vector
from phalanx.engine.connection import Arrivals, Reply
from phalanx.promises import promise


def updates(rows: Sequence[Sequence[float]], clients: Sequence[int] | None = None, **fields: object) -> Updates:
    """Updates with these deltas, made from version 0 and a zero base unless told otherwise."""
    deltas = torch.tensor(rows, dtype=torch.float32)
    m, d = deltas.shape
    defaults = {
        "clients": tuple(range(m) if clients is None else clients),
        "versions": (0,) * m,
        "bases": (torch.zeros(d),) * m,
        "losses": torch.ones(m),
    }
    return Updates(deltas=deltas, **{**defaults, **fields})


@dataclass
class Scripted:
    """A transport whose clients answer what a script says: `answers[client]` is a list of deltas, one per download.

    A delta can be a float (every entry), a tensor, or any object; a list stands for several replies to one download.
    """

    answers: Mapping[int, list[object]]
    d: int = 2
    sizes: Mapping[int, object] | None = None
    lost: Mapping[int, list[int]] = field(default_factory=dict)  # client -> turns in which it does not answer
    now: float = 0.0
    sent: list[dict[int, int]] = field(default_factory=list)  # version of each download, per send
    queue: list[Reply | int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.turns = dict.fromkeys(self.answers, 0)

    @property
    def lossy(self):
        return bool(self.lost)

    def enroll(self) -> Mapping[int, object]:
        return self.sizes or dict.fromkeys(self.answers, 10)

    def send(self, downloads: Mapping[int, Vector], version: int) -> None:
        self.sent.append(dict.fromkeys(downloads, version))
        for client in downloads:
            turn = self.turns[client]
            self.turns[client] += 1
            if turn in self.lost.get(client, []):
                self.queue.append(client)
                continue
            answer = self.answers[client][min(turn, len(self.answers[client]) - 1)]
            for one in answer if isinstance(answer, list) else [answer]:
                self.queue.append(one if isinstance(one, Reply) else Reply(client, version, self.delta(one), 1.0))

    def delta(self, value: object) -> object:
        return torch.full((self.d,), float(value)) if isinstance(value, (int, float)) else value

    def receive(self, *, every: bool) -> Arrivals:
        self.now += 1.0
        count = len(self.queue) if every else 1
        due, self.queue = self.queue[:count], self.queue[count:]
        replies = tuple(reply for reply in due if isinstance(reply, Reply))
        return Arrivals(replies, {}, {client: "silent" for client in due if isinstance(client, int)})


def close(a: Tensor, b: Sequence[float], tolerance: float = 1e-6) -> bool:
    return torch.allclose(a.double(), torch.tensor(b, dtype=torch.float64), atol=tolerance)


def remarks(algorithm, sizes, *, asked=None, lossy=False):
    """What a run with these settings warns of."""
    return promise(algorithm, Setting(len(sizes), sizes, drawn=asked, lossy=lossy)).remarks


def waiting(algorithm, state, clients=5):
    """The size of the quorum that is nearest to come together, the answers that it has, and the remedy."""
    pools = [pool for pool in algorithm.pools(Setting(clients), state) if pool.there is not None]
    return min(((pool.smallest, pool.there, pool.smaller) for pool in pools), key=lambda found: found[0] - found[1])
