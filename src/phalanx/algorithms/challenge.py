"""Challenges: each client is sent a model with a secret shift of its own, and is paid only if its updates go back.

Ours.  What an update looks like does not tell who trained: a copy with noise, and the mean of some updates, look like
the update of a client with much data.  So the server asks each client something else.  With w the server's model, of d
entries, and g_i drawn for each update of client i, d standard normal numbers:

    e_i    g_i / |g_i|;  client i downloads what it would, plus `strength` |w| e_i, and answers by an update u_i
    v_i    u_i without its part along o, the mean direction of past updates, which all have in common
    a_i    -sqrt(d) <v_i, e_i> / |v_i|, within -3 and 3: how far u_i goes back, in standard deviations of chance
    Z_i    sum fade^k a_i / sqrt(sum fade^2k), over its answers, of which the latest has k = 0
    p_i    min(1, max(0, Z_i - `sure`)), and 1 for fewer than `warmup` answers: the quota of client i is multiplied by
           it, and all are divided by the largest again, so that it is one.  What `Unsent` compares an update with
           counts by p_k, too.  If all p_k are zero, quotas stay as they are

A run in which nobody's training shows, for too few or too noisy answers, so pays as without challenges; its figure
`proven` is zero for all, and its report says so of each client.

Training goes back: a step of SGD at rate eta, on a loss of Hessian H, adds -eta H `strength` |w| e_i to what it would
do without the shift.  More steps and more examples add more; of the rate a_i is independent.

**What is bounded.**  All directions of e_i are equally probable, whatever else is known.  So the a_i of a client whose
updates do not depend on the downloads that they answer are independent, symmetric, of variance at most one, and about
normal: whatever it sends of other clients' updates, of the same step as well, and however much noise it adds.  At any
time after `warmup` answers it is paid with probability Phi(-`sure`), 0.6 % by default; at most twice that if it sends
nothing more once it is ahead (Lévy's inequality).

**What is not.**  A client can go back without training, by what it knows of its shift: the change between two of its
downloads has the shift of the second, less that of the first, and so has the difference between the downloads of two
clients.  `Unsent` pays nothing for the last changes of one's own downloads.  With both a client has to take such a
change off a copy of an update of the same step.  Others are paid no less for that: `p_i` is at most one.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from msgspec import Meta

from phalanx.core import Matrix, Vector
from phalanx.fields import CheckedFields, NonNegativeFloat, NonNegativeInt, PositiveFloat
from phalanx.numerics.linalg import direction, norms
from phalanx.rng import Entropy, numpy_generator

MOST = 3.0  # one answer that is forged would be worth up to sqrt(d)


class ShiftAnswers(NamedTuple):
    """The answers of a client so far."""

    total: float = 0.0  # sum fade^k a_i
    squares: float = 0.0  # sum fade^2k
    given: int = 0
    asked: int = 0  # how many shifts there were

    def after(self, a_i: float, fade: float) -> "ShiftAnswers":
        """Return them after one more."""
        return ShiftAnswers(fade * self.total + a_i, fade**2 * self.squares + 1, self.given + 1, self.asked)

    @property
    def z(self) -> float:
        """Z_i; 0 before the first answer."""
        return self.total / math.sqrt(self.squares) if self.given else 0.0


class Asked(NamedTuple):
    """What clients are asked and have answered; see `Challenge`."""

    shifts: Mapping[int, Vector] = {}  # of the next download of each client
    answers: Mapping[int, ShiftAnswers] = {}
    common: Vector | None = None  # o
    heard: int = 0  # how many updates that is the mean of

    def of(self, clients: Collection[int]) -> "Asked":
        """Return it for some clients only."""
        shifts = {i: shift for i, shift in self.shifts.items() if i in clients}
        return self._replace(shifts=shifts, answers={i: one for i, one in self.answers.items() if i in clients})

    def shifted(self, client: int, model: Vector) -> Vector:
        """Return what a client downloads in place of a model."""
        return model + self.shifts[client] if client in self.shifts else model

    def unshifted(self, client: int, model: Vector) -> Vector:
        """Return a model that a client has made of its download, without the shift of that."""
        return model - self.shifts[client] if client in self.shifts else model


@dataclass(frozen=True)
class Challenge(CheckedFields):
    """Payment only for those who go back from secret shifts of what they download: see the top of the file.

    The server keeps one more vector for each client.  A shift costs as much as drawing a model.

    Args:
        strength: length of a shift, as a share of that of the server's model.
        sure: standard deviations beyond chance from which on a client is paid; one more, and it is paid in full.
        warmup: number of a client's first answers up to which it is paid anyway.
        fade: weight of the past in what is proven, in (0, 1].
        seed: of the shifts in a simulation; None: they are drawn by the operating system, and no run can be repeated.
    """

    strength: PositiveFloat = 0.1
    sure: NonNegativeFloat = 2.5
    warmup: NonNegativeInt = 8
    fade: Annotated[float, Meta(gt=0, le=1)] = 0.95
    seed: int | None = 0

    def after(self, asked: Asked, clients: Collection[int], updates: Matrix, model: Vector, of: int) -> Asked:
        """Return it after updates have been judged, with new shifts for those who sent them.

        Args:
            asked: before the updates.
            clients: who sent them, in order.
            updates: (m, d).
            model: the server's model, with which they are answered.
            of: number of all clients: o is the mean of about so many updates.
        """
        answers, shifts = dict(asked.answers), dict(asked.shifts)
        length = self.strength * float(norms(model[None])[0])
        for i, u_i in zip(clients, updates, strict=True):
            one = answers.get(i, ShiftAnswers())
            if i in shifts:
                one = one.after(_answer(u_i, shifts.pop(i), asked.common), self.fade)
            if length > 0:
                shifts[i] = length * self._direction(i, one.asked, model)
                one = one._replace(asked=one.asked + 1)
            answers[i] = one
        return _with_common(Asked(shifts, answers, asked.common, asked.heard), updates, of)

    def _direction(self, client: int, turn: int, like: Vector) -> Vector:
        """Return e_i."""
        source = Entropy() if self.seed is None else numpy_generator(self.seed, "challenge", client, turn)
        g_i = torch.from_numpy(source.standard_normal(len(like))).to(like.device)
        return (g_i / norms(g_i[None])[0]).to(like.dtype)

    def proven(self, asked: Asked, clients: Collection[int]) -> dict[int, float]:
        """Return p_i of each client."""
        answers = {i: asked.answers.get(i, ShiftAnswers()) for i in clients}
        return {
            i: min(1.0, max(0.0, one.z - self.sure)) if one.given >= self.warmup else 1.0 for i, one in answers.items()
        }


def proven_quotas(quotas: Mapping[int, float], proven: Mapping[int, float]) -> dict[int, float]:
    """Return quotas times what is proven, over the largest; unchanged if no client of all has proven anything.

    Args:
        quotas: of the clients that are paid.
        proven: p_i of all clients, those among them.
    """
    if not any(proven.values()):
        return dict(quotas)
    paid = {i: quota * proven[i] for i, quota in quotas.items()}
    best = max(paid.values(), default=0.0)
    return {i: each / best if best > 0 else 0.0 for i, each in paid.items()}


def _answer(update: Vector, shift: Vector, common: Vector | None) -> float:
    """Return a_i; 0 if nothing is left of the update."""
    v_i, e_i = update.double(), shift.double()
    if common is not None and bool(common.any()):
        o = common.double()
        v_i = v_i - (v_i @ o) / (o @ o) * o
    size = float(torch.linalg.vector_norm(v_i) * torch.linalg.vector_norm(e_i))
    a_i = -math.sqrt(len(v_i)) * float(v_i @ e_i) / size if size > 0 else 0.0
    return min(MOST, max(-MOST, a_i))


def _with_common(asked: Asked, updates: Matrix, of: int) -> Asked:
    """Return it with o after updates."""
    units = [u for update in updates if (u := direction(update)) is not None]
    if not units:
        return asked
    mean, heard = torch.stack(units).mean(0), min(asked.heard + len(units), max(of, len(units)))
    common = mean if asked.common is None else asked.common + (mean - asked.common) * (len(units) / heard)
    return asked._replace(common=common, heard=heard)
