"""Zeno++: asynchronous training that uses an update if it reduces the loss on the server's own examples.

Xie, Koyejo and Gupta, "Zeno++: Robust Fully Asynchronous SGD", 2020.  `ZenoPlusPlus` is its server: a candidate g is
scaled to the length of v, the gradient on the server's own examples, and used if the first-order estimate of the change
in the server's loss after a step along it is good enough:

    gamma <v, g> - rho |g|^2 >= -gamma epsilon

Where the paper leaves a choice:

* Clients send the change of several local steps, not a gradient, and so does the server's own training: v and g are
  minus these changes, and gamma = 1 takes a step as long as the server's own.  That is too long if many clients train
  at the same time: they start from similar models, and overshoot together.
* With |g| = |v| the test is one on the cosine, cos(v, g) >= rho / gamma - epsilon / |v|^2.  epsilon is in units of
  squared length: a value that is small for a gradient can be larger than |v|^2 for a change, and accept everything.  It
  is 0 by default, as in the authors' scripts, and rho / gamma is 0.01 as in those.
* v is computed for every k-th version only; k = 10 as in the authors' scripts.
* A zero candidate has no direction, and is not used; nor is any, if v is zero.
* The authors' code takes rho times the squared length of g before it is scaled to that of v.  The paper's text is
  followed.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

import torch
from typing_extensions import override

from phalanx.algorithms.arrivals import one_by_one
from phalanx.algorithms.rounds import no_proof
from phalanx.core import Algorithm, InfeasibleError, Pool, Setting, Traits, Updates, Vector, Verdict
from phalanx.fields import NonNegativeFloat, PositiveFloat, PositiveInt


class ZenoPlusPlusState(NamedTuple):
    """The server's state of `ZenoPlusPlus`."""

    version: int  # t, updates used
    model: Vector  # x_t
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class ZenoPlusPlus(Algorithm[ZenoPlusPlusState]):
    """Use of updates with a direction similar to the server's own, at the length of that.

    Tolerates any number of attackers, as each update is judged alone; the server must hold examples like the clients'.
    Updates of honest clients with examples unlike the server's are filtered.  An attacker's update with a small
    component along the server's own is used, whatever its other components: only one direction is tested.

    Args:
        server_lr: gamma, factor on an update of the server's own length.
        rho: the penalty on length. Updates are used if their cosine with the server's own is at least rho / server_lr.
        epsilon: tolerance of this condition, in units of the server's squared length.
        reference_every: k, number of versions for which the result of the server's own training is used.
    """

    server_lr: PositiveFloat = 0.2
    rho: NonNegativeFloat = 0.002
    epsilon: NonNegativeFloat = 0.0
    reference_every: PositiveInt = 10

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(synchronous=False, can_join=True, reference_every=self.reference_every)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rho > self.server_lr and not self.epsilon:
            raise ValueError(
                f"rho must be at most server_lr if epsilon is 0, got {self.rho} and {self.server_lr}: no cosine is "
                "rho / server_lr, and nothing would ever be used."
            )

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[ZenoPlusPlusState, Set[int]]:
        return ZenoPlusPlusState(0, model, {}), sizes.keys()

    @override
    def step(self, state: ZenoPlusPlusState, updates: Updates) -> tuple[ZenoPlusPlusState, Set[int]]:
        v, gamma, verdicts = -own_change(self, updates), self.server_lr, dict[int, Verdict]()
        x, t = state.model, state.version
        for i, _, _, delta in one_by_one(updates):
            g = _as_long_as(v, -delta)
            verdicts[i] = self._judge(v, g)
            if verdicts[i].accepted:
                x = x - gamma * g
                t += 1
        return ZenoPlusPlusState(t, x, verdicts), set(updates.clients)

    def _judge(self, v: Vector, g: Vector) -> Verdict:
        """Return the verdict on a candidate of the length of v; the score is the estimate of Definition 2."""
        squared = float(v.double() @ v.double())
        if not squared or not bool(g.any()):
            whose = "its" if squared else "the server's own"
            return Verdict(False, 0.0, None, f"{whose} change is zero, and has no direction")
        product = float(v.double() @ g.double())
        score, least = self.server_lr * product - self.rho * squared, -self.server_lr * self.epsilon
        if score >= least:
            return Verdict(True, 1.0, score)
        cosine = product / squared
        return Verdict(False, 0.0, score, f"descent {score:.3g} < {least:.3g}, cosine {cosine:.3g} to the server's own")

    @override
    def pools(self, setting: Setting, state: ZenoPlusPlusState | None = None) -> tuple[Pool, ...]:
        return (Pool.of_one(unproven=no_proof(self)),)


def own_change(algorithm: Algorithm, updates: Updates) -> Vector:
    """Return the change by the server's own training; raise `InfeasibleError` if the updates bring none."""
    if updates.reference is None:
        raise InfeasibleError(
            f"{type(algorithm).__name__} needs the server's own training, and was given none. "
            "Set `Updates.reference`, or let `phalanx.run` do so."
        )
    return updates.reference


def _as_long_as(v: Vector, g: Vector) -> Vector:
    """Return g scaled to the length of v; zero stays zero."""
    length = torch.linalg.vector_norm(g)
    return g * (torch.linalg.vector_norm(v) / length) if float(length) else g
