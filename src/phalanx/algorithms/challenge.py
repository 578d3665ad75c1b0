"""Challenges: each client is sent a model with a secret shift of its own, and is paid only if its updates go back.

Ours.  What an update looks like does not tell who trained: a copy with noise, and the mean of some updates, look like
the update of a client with much data.  So the server asks each client something else.  With w the server's model, of d
entries, and g_i drawn for each update of client i, d standard normal numbers:

    e_i    g_i / |g_i|;  client i downloads what it would, plus s_i |w| e_i, and answers by an update u_i
    s_i    `strength` (1 + (`doubt` - 1) (1 - p_i)): a client that has proven nothing gets a longer shift, which shows
           more of its training; one that is proven trains on a better model
    v_i    u_i without its part along o, the mean direction of past updates, which all have in common
    a_i    -sqrt(d) <v_i, e_i> / |v_i|, within -3 and 3: how far u_i goes back, in standard deviations of chance
    Z_i    sum fade^k a_i / sqrt(sum fade^2k), over its answers, of which the latest has k = 0
    b_ij   as a_i, not cut, with the shift e_j of another client: how far u_i goes back from what i was not sent; for
           the h clients j whose shift was drawn when client i downloaded, or later
    c_i    (S + T) / sqrt(2), with S = sum b_ij / sqrt(h) and T = sum (b_ij^2 - 1) / sqrt(2 h): of copies of a few
           updates T is large, of means of many S
    Y_i    of c_i as Z_i of a_i
    p_i    min(1, max(0, Z_i - `sure`)) (1 - min(1, max(0, Y_i - `sure`))), and 1 for fewer than `warmup` answers: the
           quota of client i is multiplied by it, and all are divided by the largest again, so that it is one.  What
           `Unsent` compares an update with counts by p_k, too.  If all p_k are zero, quotas stay as they are

A run in which nobody's training shows, for too few or too noisy answers, so pays as without challenges; its figure
`proven` is zero for all, and its report says so of each client.

Training goes back: a step of SGD at rate eta, on a loss of Hessian H, adds -eta H s_i |w| e_i to what it would do
without the shift.  More steps and more examples add more; of the rate a_i is independent.

**What is bounded.**  All directions of e_i are equally probable, whatever else is known.  So the a_i of a client whose
updates do not depend on the downloads that they answer are independent, symmetric, of variance at most one, and about
normal: whatever it sends of other clients' updates, of the same step as well, and however much noise it adds.  At any
time after `warmup` answers it is paid with probability Phi(-`sure`), 0.6 % by default; at most twice that if it sends
nothing more once it is ahead (Lévy's inequality).

A copy answers the shift of another client, which a copier does not know and cannot take off.  An update that depends on
client i's own data and download, and on what came before, is independent of the e_j with which it is compared: they
were drawn later than all that.  So a client that trains has Y_i above `sure` with a probability of about Phi(-`sure`),
whatever others do to make it look like a copy.

**What is not.**  A client can go back without training, by what it knows of its shift: the change between two of its
downloads has the shift of the second, less that of the first, and so has the difference between the downloads of two
clients.  `Unsent` pays nothing for the last changes of one's own downloads.  With both a client has to take such a
change off an update of the same step that is not found to be a copy: one that answers an older shift than its own, as
happens where few of many take part, and without rounds; or one whose sender shows it its download as well, which is as
good as training on the sender's data, and is paid like that.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float
from msgspec import Meta
from torch import Tensor

from phalanx.core import Matrix, Updates, Vector
from phalanx.fields import CheckedFields, NonNegativeFloat, NonNegativeInt, PositiveFloat
from phalanx.numerics.linalg import direction, norms
from phalanx.rng import Entropy, numpy_generator

MOST = 3.0  # one answer that is forged would be worth up to sqrt(d)
BLOCK = 2**24  # entries that are multiplied at once, of all updates and shifts


class ShiftAnswers(NamedTuple):
    """The answers of a client so far."""

    total: float = 0.0  # sum fade^k a_i
    squares: float = 0.0  # sum fade^2k
    given: int = 0
    asked: int = 0  # how many shifts there were
    of_others: float = 0.0  # sum fade^k c_i
    compared: float = 0.0  # sum fade^2k of the answers that have a c_i

    def after(self, a_i: float, fade: float, c_i: float | None = None) -> "ShiftAnswers":
        """Return them after one more; c_i is None if it was compared with no other shift."""
        return ShiftAnswers(
            fade * self.total + a_i,
            fade**2 * self.squares + 1,
            self.given + 1,
            self.asked,
            fade * self.of_others + (c_i or 0.0),
            fade**2 * self.compared + (c_i is not None),
        )

    @property
    def z(self) -> float:
        """Z_i; 0 before the first answer."""
        return self.total / math.sqrt(self.squares) if self.given else 0.0

    @property
    def copies(self) -> float:
        """Y_i; 0 before the first comparison."""
        return self.of_others / math.sqrt(self.compared) if self.compared else 0.0


class Asked(NamedTuple):
    """What clients are asked and have answered; see `Challenge`."""

    shifts: Mapping[int, Vector] = {}  # of the next download of each client
    drawn: Mapping[int, int] = {}  # the version of the model when they were drawn
    answers: Mapping[int, ShiftAnswers] = {}
    common: Vector | None = None  # o
    heard: int = 0  # how many updates that is the mean of

    def of(self, clients: Collection[int]) -> "Asked":
        """Return it for some clients only."""
        shifts = {i: shift for i, shift in self.shifts.items() if i in clients}
        drawn = {i: self.drawn[i] for i in shifts}
        answers = {i: one for i, one in self.answers.items() if i in clients}
        return self._replace(shifts=shifts, drawn=drawn, answers=answers)

    def shifted(self, client: int, model: Vector) -> Vector:
        """Return what a client downloads in place of a model."""
        return model + self.shifts[client] if client in self.shifts else model

    def unshifted(self, client: int, model: Vector) -> Vector:
        """Return a model that a client has made of its download, without the shift of that."""
        return model - self.shifts[client] if client in self.shifts else model


@dataclass(frozen=True)
class Challenge(CheckedFields):
    """Payment only for those who go back from secret shifts of what they download: see the top of the file.

    The server keeps one more vector for each client.  A shift costs as much as drawing a model, and each update is
    multiplied with all shifts.  Models that are evaluated and kept have no shift.

    Args:
        strength: length of the shift of a client that is proven, as a share of that of the server's model.
        doubt: how many times as long the shift of a client is that has proven nothing, at least 1.
        sure: standard deviations beyond chance from which on a client is paid; one more, and it is paid in full.
        warmup: number of a client's first answers up to which it is paid anyway.
        fade: weight of the past in what is proven, in (0, 1].
        seed: of the shifts in a simulation; None: they are drawn by the operating system, and no run can be repeated.
    """

    strength: PositiveFloat = 0.1
    doubt: Annotated[float, Meta(ge=1)] = 3.0
    sure: NonNegativeFloat = 2.5
    warmup: NonNegativeInt = 8
    fade: Annotated[float, Meta(gt=0, le=1)] = 0.95
    seed: int | None = 0

    def after(self, asked: Asked, updates: Updates, model: Vector, version: int, of: int) -> Asked:
        """Return it after updates have been judged, with new shifts for those who sent them.

        Args:
            asked: before the updates.
            updates: the updates.
            model: the server's model, with which they are answered.
            version: its version.
            of: number of all clients: o is the mean of about so many updates.
        """
        answers, shifts, drawn = dict(asked.answers), dict(asked.shifts), dict(asked.drawn)
        length = float(norms(model[None])[0])
        for i, a_i, c_i in _answers(asked, updates):
            answers[i] = answers.get(i, ShiftAnswers()).after(a_i, self.fade, c_i)
        for i in updates.clients:
            shifts.pop(i, None)
            one = answers.get(i, ShiftAnswers())
            if length > 0:
                strength = self.strength * (1 + (self.doubt - 1) * (1 - self._paid(one)))
                shifts[i], drawn[i] = strength * length * self._direction(i, one.asked, model), version
                one = one._replace(asked=one.asked + 1)
            answers[i] = one
        drawn = {i: drawn[i] for i in shifts}
        return _with_common(Asked(shifts, drawn, answers, asked.common, asked.heard), updates.deltas, of)

    def _direction(self, client: int, turn: int, like: Vector) -> Vector:
        """Return e_i."""
        source = Entropy() if self.seed is None else numpy_generator(self.seed, "challenge", client, turn)
        g_i = torch.from_numpy(source.standard_normal(len(like))).to(like.device)
        return (g_i / norms(g_i[None])[0]).to(like.dtype)

    def training(self, asked: Asked, clients: Collection[int]) -> frozenset[int]:
        """Return the clients that are seen to train: they have proven something by their answers, warm-up or not."""
        answers = {i: asked.answers.get(i, ShiftAnswers()) for i in clients}
        return frozenset(i for i, one in answers.items() if self._proven(one) > 0)

    def proven(self, asked: Asked, clients: Collection[int]) -> dict[int, float]:
        """Return p_i of each client."""
        answers = {i: asked.answers.get(i, ShiftAnswers()) for i in clients}
        return {i: self._paid(one) for i, one in answers.items()}

    def _paid(self, one: ShiftAnswers) -> float:
        """Return p_i."""
        return self._proven(one) if one.given >= self.warmup else 1.0

    def _proven(self, one: ShiftAnswers) -> float:
        """Return p_i as if there were no warm-up."""
        back, copied = (min(1.0, max(0.0, z - self.sure)) for z in (one.z, one.copies))
        return back * (1 - copied)


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


def _answers(asked: Asked, updates: Updates) -> list[tuple[int, float, float | None]]:
    """Return i, a_i and c_i of each client that was asked; c_i is None without another shift to compare with."""
    places = [k for k, i in enumerate(updates.clients) if i in asked.shifts]
    whose = sorted(asked.shifts)
    if not places:
        return []
    answering = updates.deltas if len(places) == len(updates.clients) else updates.deltas[places]
    b = _going_back(answering, [asked.shifts[j] for j in whose], asked.common)
    drawn = torch.tensor([asked.drawn[j] for j in whose])
    found = list[tuple[int, float, float | None]]()
    for k, b_i in zip(places, b, strict=True):
        i = updates.clients[k]
        other = drawn >= updates.versions[k]
        other[whose.index(i)] = False
        a_i = float(b_i[whose.index(i)].clamp(-MOST, MOST))
        found.append((i, a_i, _copied(b_i[other]) if bool(other.any()) else None))
    return found


def _copied(b_i: Vector) -> float:
    """Return c_i."""
    h = len(b_i)
    return (float(b_i.sum()) + (float(b_i.square().sum()) - h) / math.sqrt(2)) / math.sqrt(2 * h)


def _going_back(updates: Matrix, shifts: Sequence[Vector], common: Vector | None) -> Float[Tensor, "m n"]:
    """Return (m, n), b_ij of each update and shift, float64 on the CPU; 0 if nothing is left of an update."""
    m, d = updates.shape
    o = torch.zeros(d, dtype=torch.float64, device=updates.device) if common is None else common.double()
    step = max(1, BLOCK // (m + len(shifts)))
    parts = [slice(k, k + step) for k in range(0, d, step)]
    along = sum((updates[:, part].double() @ o[part] for part in parts), o.new_zeros(m))
    along /= (o @ o).clamp(min=torch.finfo(torch.float64).tiny)
    products, squares = updates.new_zeros(m, len(shifts), dtype=torch.float64), along.new_zeros(m)
    for part in parts:
        v = updates[:, part].double() - along[:, None] * o[part]
        squares += v.square().sum(1)
        products += v @ torch.stack([shift[part].double() for shift in shifts]).T
    sizes = squares.sqrt()[:, None] * torch.stack([torch.linalg.vector_norm(shift.double()) for shift in shifts])
    return torch.where(sizes > 0, -math.sqrt(d) * products / sizes, 0.0).cpu()


def _with_common(asked: Asked, updates: Matrix, of: int) -> Asked:
    """Return it with o after updates."""
    total, count = updates.new_zeros(updates.shape[1]), 0
    for update in updates:
        if (u := direction(update)) is not None:
            total, count = total.add_(u), count + 1
    if not count:
        return asked
    mean, heard = total / count, min(asked.heard + count, max(of, count))
    common = mean if asked.common is None else asked.common + (mean - asked.common) * (count / heard)
    return asked._replace(common=common, heard=heard)
