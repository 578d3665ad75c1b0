"""Agreement on what a client could not know: what a free rider cannot earn by sending back what it was sent.

Ours.  The cosine of an update with those of the others measures how well it predicts them, and the last change of the
model predicts them well.  So what a client knew when it trained is taken out first, of its update and of the others':

    K_i    the changes of the server's model up to the version that client i was sent, those of its own downloads, and
           what it sent before
    P_i    the projection onto what is orthogonal to K_i;  u_i an update at length one;  o_i = sum_{k != i} w_k u_k
    c_i    <P_i u_i, P_i o_i> / |P_i o_i|: the part of the update that is new, and agrees

Any linear combination of K_i is worth zero, whatever its coefficients, and a change of long ago about zero.  The models
up to the version that a client was sent count as known to it, also where it was sent a part: free riders pool them.
Noise that is added is a part that does not agree.

Two updates of which one is a copy of the other agree in more than in what all agree on.  With e_j what is left of
P_i u_j without its part along the sum of the others, all but i and j:

    p_ij   cosine of e_i and e_j;  c_i is multiplied by min(1, 2 (1 - max_j p_ij))

Equal updates are worth nothing, to all who sent them: the server does not see who copied.  Updates of honest clients
reach a p of 0.5 in one pair of a hundred, on digits.

What is not bounded: a copy of another's update of the same round with noise, or a mean of several such copies.  Where
updates arrive one by one, a slow free rider that sends what a faster partner was sent since its own download earns by
it; and a client that was fast has hardly anything to agree on.  A client that trained and stops keeps a reputation
until it has faded.

Of the server's models some are kept: that of version v while it is at most `models` times as old as the largest power
of two that divides v.  That is about `models` log2(t) models after t versions; others are near their span.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from phalanx.core import Matrix, Vector, Weights
from phalanx.fields import CheckedFields, PositiveInt
from phalanx.numerics.linalg import direction, gram

NOTHING = 1e-4  # of a squared length: less is rounding
ALIKE = 0.5  # p_ij up to which two updates are not taken for copies


class Earned(NamedTuple):
    """What a client has earned."""

    average: float = 0.0  # moving average of its c_i, from zero
    judged: int = 0  # how many those are

    def after(self, c_i: float, fade: float) -> "Earned":
        """Return it after one more c_i, where the past has the weight `fade`."""
        return Earned(fade * self.average + (1 - fade) * c_i, self.judged + 1)

    def reputation(self, fade: float) -> float | None:
        """Return the average over the weight that it has had so far, at least 0; None before the first c_i."""
        return max(self.average, 0.0) / (1 - fade**self.judged) if self.judged else None


class Known(NamedTuple):
    """What clients know, and have earned: see `Unsent`."""

    models: Mapping[int, Vector] = {}  # the server's, of some versions
    sent: Mapping[int, tuple[Vector, ...]] = {}  # directions of each client's updates, the latest at the end
    served: Mapping[int, tuple[Vector, ...]] = {}  # the downloads that each client answered, the latest at the end
    earned: Mapping[int, Earned] = {}  # of clients that have been judged; kept elsewhere by `Rewarded`

    def of(self, clients: Collection[int]) -> "Known":
        """Return what is known of some clients only."""
        return Known(
            self.models,
            {i: rows for i, rows in self.sent.items() if i in clients},
            {i: rows for i, rows in self.served.items() if i in clients},
            {i: earned for i, earned in self.earned.items() if i in clients},
        )

    def with_agreements(self, agreements: Mapping[int, float], fade: float) -> "Known":
        """Return it after clients have been judged."""
        new = {i: self.earned.get(i, Earned()).after(c_i, fade) for i, c_i in agreements.items()}
        return self._replace(earned={**self.earned, **new})

    def quotas(self, clients: Collection[int], fade: float) -> dict[int, float]:
        """Return what each client has earned, over the largest; see `quotas_of`."""
        return quotas_of({i: self.earned.get(i, Earned()).reputation(fade) for i in clients})[1]


def quotas_of(reputations: Mapping[int, float | None]) -> tuple[dict[int, float], dict[int, float]]:
    """Return reputations, where clients without one have the mean, and each over the largest; 1 if all are zero."""
    known = [r for r in reputations.values() if r is not None]
    mean = sum(known) / len(known) if known else 1.0
    filled = {i: mean if r is None else r for i, r in reputations.items()}
    best = max(filled.values(), default=0.0)
    return filled, {i: r / best if best > 0 else 1.0 for i, r in filled.items()}


class JudgedUpdate(NamedTuple):
    """An update that is judged, or with which others are compared."""

    delta: Vector
    weight: float  # of its direction in the aggregate; 0 if it is not used
    version: int = 0  # of the download that it answers
    base: Vector | None = None  # that download, if it is a model


@dataclass(frozen=True)
class Unsent(CheckedFields):
    """Rewards for agreement on what a client could not know when it trained.

    The server keeps some of its models, and the last updates of each client, and compares all updates in pairs: for
    tens of clients, not for thousands.  It needs models of many more parameters than there are vectors kept.

    Args:
        models: number of past models that are kept for each doubling of the age.
        own: number of a client's last downloads and updates for which it is not rewarded again.
    """

    models: PositiveInt = 4
    own: PositiveInt = 4

    def seen(self, known: Known, version: int, model: Vector) -> Known:
        """Return what is known with the server's model of a version, which is served from now on."""
        models = {**known.models, version: model}
        kept = {v: w for v, w in models.items() if v == 0 or version - v <= self.models * (v & -v)}
        return known._replace(models=kept)

    def after(self, known: Known, sent: Mapping[int, JudgedUpdate]) -> Known:
        """Return what is known after clients have sent updates, which have been judged."""
        rows = {i: u for i, one in sent.items() if (u := direction(one.delta)) is not None}
        bases = {i: one.base for i, one in sent.items() if one.base is not None}
        return known._replace(
            sent={**known.sent, **{i: (*known.sent.get(i, ()), u)[-self.own :] for i, u in rows.items()}},
            served={**known.served, **{i: (*known.served.get(i, ()), w)[-self.own :] for i, w in bases.items()}},
        )

    def judged(
        self,
        known: Known,
        sent: Mapping[int, JudgedUpdate],
        clients: Collection[int],
        fade: float,
        *,
        copies: bool = False,
    ) -> Known:
        """Return what is known and earned after clients have been judged by their last updates; see `agreements`."""
        earned = known.with_agreements(self.agreements(known, sent, clients, copies=copies), fade)
        return self.after(earned, {i: sent[i] for i in clients})

    def agreements(
        self, known: Known, sent: Mapping[int, JudgedUpdate], judged: Collection[int], *, copies: bool = False
    ) -> dict[int, float]:
        """Return c_i of each judged client; 0 for an update that is zero, known, or a copy.

        Args:
            known: before these updates.
            sent: the last update of each client, those judged among them.
            judged: the clients to judge.  Clients with whose updates nothing can be compared are left out.
            copies: copies count as others do, since a `Challenge` tells who trained.
        """
        units = {i: u for i, one in sent.items() if (u := direction(one.delta)) is not None}
        ids = sorted(units)
        judged = [i for i in judged if any(sent[k].weight for k in ids if k != i)]
        if not judged:
            return {}
        w = torch.tensor([sent[k].weight for k in ids], dtype=torch.float64)
        rows = torch.stack([units[k] for k in ids])
        bases = {i: _orthonormal(self._vectors(known, i, sent[i]), rows) for i in judged if i in units}
        found = gram(torch.cat([rows, *bases.values()])).cpu()
        m, start, agreements = len(ids), len(ids), dict.fromkeys(judged, 0.0)
        for i, basis in bases.items():
            A = found[start : start + len(basis), :m]
            start += len(basis)
            agreements[i] = _agreement(found[:m, :m] - A.T @ A, w, ids.index(i), copies=copies)
        return agreements

    def _vectors(self, known: Known, client: int, one: JudgedUpdate) -> list[Vector]:
        """Return vectors that span K_i."""
        models = [known.models[v] for v in sorted(known.models) if v <= one.version]
        served = known.served.get(client, ()) + (() if one.base is None else (one.base,))
        changes = [new - old for row in (models, served) for old, new in pairwise(row)]
        if one.base is not None and models:
            changes.append(one.base - models[-1])
        rows = (direction(change) for change in changes)
        return [*(u for u in rows if u is not None), *known.sent.get(client, ())]


def _orthonormal(vectors: list[Vector], like: Matrix) -> Float[Tensor, "k d"]:
    """Return orthonormal rows whose span has all vectors, (k, d), of the type of `like`."""
    if not vectors:
        return like[:0]
    columns: Tensor = torch.linalg.qr(torch.stack(vectors).double().T)[0]
    return columns.T.to(like.dtype).contiguous()


def _agreement(S: Float[Tensor, "m m"], w: Weights, i: int, *, copies: bool) -> float:
    """Return c_i.

    Args:
        S: inner products of P_i u_k.
        w: weights of all k.
        i: the row of the client that is judged.
        copies: see `Unsent.agreements`.
    """
    w = w.clone()
    w[i] = 0.0
    along = S @ w
    length = float(w @ along)
    if length < NOTHING * float(w.sum()) ** 2:
        return 0.0
    part: float = float(along[i]) / math.sqrt(length)
    return part if copies else part * min(1.0, max(0.0, (1 - _copied(S, i)) / (1 - ALIKE)))


def _copied(S: Float[Tensor, "m m"], i: int) -> float:
    """Return max_j p_ij, at least 0; an update without a part of its own is no copy.

    Args:
        S: inner products of P_i u_k.
        i: the row that is judged.
    """
    along, own = S.sum(1), S.diagonal()
    length = S.sum() - 2 * (along[i] + along) + own[i] + own + 2 * S[i]  # of the sum of all but i and j, squared
    o_i, o_j = along[i] - own[i] - S[i], along - own - S[i]
    e_ii, e_jj, e_ij = own[i] - o_i**2 / length, own - o_j**2 / length, S[i] - o_i * o_j / length
    p = e_ij / (e_ii * e_jj).clamp(min=NOTHING**2) ** 0.5
    clear = (length > NOTHING) & (e_ii > NOTHING) & (e_jj > NOTHING)
    clear[i] = False
    return float(torch.where(clear, p, 0.0).clamp(0, 1).max())
