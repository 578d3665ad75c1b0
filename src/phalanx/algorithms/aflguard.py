"""AFLGuard: asynchronous training that accepts updates near the server's own.

Fang, Liu, Gong and Bentley, "AFLGuard: Byzantine-robust Asynchronous Federated Learning", 2022.  `AFLGuard` is its
server: with g_s, the change that the server's own training makes to the current model, the update g_i of a client is
used if its direction and its length are similar to those of g_s, which is

    |g_i - g_s| <= lambda |g_s|

and then added to the current model; else the model does not change.

Where the paper leaves a choice:

* Some descriptions train on the server once in several versions only.  The default here is every version, since g_s is
  that of the current model in the paper; `reference_every` makes it rarer.
* Its learning rate is that of a gradient.  Here updates are changes of several local steps, and 1 would add them whole:
  too much if many clients train at the same time, which start from similar models and overshoot together.
* A zero g_i is accepted if lambda >= 1: it is as near as lambda allows, and changes nothing.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

import torch
from typing_extensions import override

from phalanx.algorithms.arrivals import one_by_one
from phalanx.algorithms.rounds import no_proof
from phalanx.algorithms.zeno import own_change
from phalanx.core import Algorithm, Pool, Setting, Traits, Updates, Vector, Verdict
from phalanx.fields import PositiveFloat, PositiveInt


class AFLGuardState(NamedTuple):
    """The server's state of `AFLGuard`."""

    version: int  # t, updates used
    model: Vector  # theta^t
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class AFLGuard(Algorithm[AFLGuardState]):
    """Use of updates whose distance from the server's own is at most `radius` times the length of that.

    Tolerates any number of attackers, as each update is judged alone; the server must hold examples like the clients',
    and train as they do, so that lengths can be compared.  With `radius` below 1 an accepted update always descends
    along the server's own; from 1 on it can be zero, and above 1 it can ascend by `radius` - 1 of its length.

    Args:
        radius: lambda; 1.5 in the paper.
        server_lr: eta, factor on an accepted update.
        reference_every: number of versions for which the result of the server's own training is used.
    """

    radius: PositiveFloat = 1.5
    server_lr: PositiveFloat = 0.2
    reference_every: PositiveInt = 1

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(synchronous=False, can_join=True, reference_every=self.reference_every)

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[AFLGuardState, Set[int]]:
        return AFLGuardState(0, model, {}), sizes.keys()

    @override
    def step(self, state: AFLGuardState, updates: Updates) -> tuple[AFLGuardState, Set[int]]:
        g_s, verdicts = own_change(self, updates), dict[int, Verdict]()
        theta, t = state.model, state.version
        for i, _, _, g_i in one_by_one(updates):
            verdicts[i] = self._judge(g_i, g_s)
            if verdicts[i].accepted:
                theta = theta + self.server_lr * g_i
                t += 1
        return AFLGuardState(t, theta, verdicts), set(updates.clients)

    def _judge(self, g_i: Vector, g_s: Vector) -> Verdict:
        """Return the verdict on an update; the score is its distance in lengths of the server's own."""
        length = float(torch.linalg.vector_norm(g_s))
        if not length:
            return Verdict(False, 0.0, None, "the server's own change is zero")
        distance = float(torch.linalg.vector_norm(g_i - g_s)) / length
        if distance <= self.radius:
            return Verdict(True, 1.0, distance)
        why = f"{distance:.3g} lengths from the server's own change, allowed are {self.radius:g}"
        return Verdict(False, 0.0, distance, why)

    @override
    def pools(self, setting: Setting, state: AFLGuardState | None = None) -> tuple[Pool, ...]:
        return (Pool.of_one(unproven=no_proof(self)),)
