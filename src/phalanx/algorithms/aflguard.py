"""AFLGuard: asynchronous training that accepts what lies near the server's own update.

Fang, Liu, Gong and Bentley, "AFLGuard: Byzantine-robust Asynchronous Federated Learning", 2022.  `AFLGuard` is its
server: with g_s, the change that the server's own training makes to the present model, the update g_i of a client is
used if its direction and its length are like that one's, which is

    |g_i - g_s| <= lambda |g_s|

and then added to the present model; else the model stays.

Where the paper leaves a choice:

* Some descriptions train on the server every so many versions only.  It is every version by default here, as g_s is
  that of the present model in the paper; `reference_every` makes it rarer.
* Its learning rate is that of a gradient.  Here updates are changes of several local steps, and 1 would add them whole:
  too much where many clients train at a time, who have started from much the same model and overshoot together.
* Every g_i is accepted that is zero, if lambda >= 1: it is as near as lambda allows, and changes nothing.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from phalanx.algorithms.arrivals import one_by_one
from phalanx.algorithms.zeno import own_change
from phalanx.core import Algorithm, Updates, Vector, Verdict


class AFLGuardState(NamedTuple):
    """What the server of `AFLGuard` carries over."""

    version: int  # t, updates used
    model: Vector  # theta^t
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class AFLGuard(Algorithm[AFLGuardState]):
    """Uses an update if it is no farther from the server's own than `radius` times the length of that.

    Stands any number of attackers, as each update is judged alone; the server must hold examples like the clients', and
    train as they do, so that lengths can be compared.  With `radius` below 1 an accepted update always goes down along
    the server's own; from 1 on it can be zero or stand still, and above 1 it can go up by `radius` - 1 of its length.

    Args:
        radius: lambda; 1.5 in the paper.
        server_lr: eta, factor on an accepted update.
        reference_every: for how many versions the server's own training serves.
    """

    synchronous: ClassVar[bool] = False
    can_join: ClassVar[bool] = True
    needs_reference: ClassVar[bool] = True

    radius: float = 1.5
    server_lr: float = 0.2
    reference_every: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.radius < float("inf") and 0 < self.server_lr < float("inf")):
            given = f"{self.radius} and {self.server_lr}"
            raise ValueError(f"radius and server_lr must be positive and finite, got {given}.")
        if self.reference_every < 1:
            raise ValueError(f"reference_every must be at least 1, got {self.reference_every}.")

    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[AFLGuardState, Set[int]]:
        """See `Algorithm`."""
        return AFLGuardState(0, model, {}), sizes.keys()

    def step(self, state: AFLGuardState, updates: Updates) -> tuple[AFLGuardState, Set[int]]:
        """See `Algorithm`."""
        g_s, verdicts = own_change(self, updates), dict[int, Verdict]()
        theta, t = state.model, state.version
        for i, _, _, g_i in one_by_one(updates):
            verdicts[i] = self._judge(g_i, g_s)
            if verdicts[i].accepted:
                theta = theta + self.server_lr * g_i
                t += 1
        return AFLGuardState(t, theta, verdicts), set(updates.clients)

    def _judge(self, g_i: Vector, g_s: Vector) -> Verdict:
        """Whether an update is used; the score is its distance in lengths of the server's own."""
        length = float(torch.linalg.vector_norm(g_s))
        if not length:
            return Verdict(False, 0.0, None, "the server's own change is zero")
        distance = float(torch.linalg.vector_norm(g_i - g_s)) / length
        if distance <= self.radius:
            return Verdict(True, 1.0, distance)
        why = f"{distance:.3g} lengths from the server's own change, allowed are {self.radius:g}"
        return Verdict(False, 0.0, distance, why)
