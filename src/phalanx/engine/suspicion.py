"""Suspicious clients: whose updates stand out, by how much, and how sure that is, under every rule.

Each update of a step is compared with the others of that step that started from the same model: with their median by
coordinate, which needs an honest majority and no sizes.  An update that is too long, too short, turned away, too far,
noise, a copy of another or of the last change of the model, or of a client whose reported size stands out is
*outlying*, with the reason in words.

One outlying update proves nothing.  A client is *suspicious* when the evidence against it reaches `SUSPICIOUS`: a bet
that the client is outlying in at least `BET` of its updates, against an honest client, which is in at most `HONEST` of
them.  The bet may begin at any update, with weight 1 / (t (t + 1)) for update t.  As long as an honest client is
outlying with probability at most `HONEST` in each update, whatever happened before, the evidence is a martingale or
less, so it ever reaches 100 with probability at most 1 % (Ville 1939): whatever the number of rounds.  That premise
was measured, not proven: `benchmarks/suspicion.py`.

Nothing here excludes a client or changes a number of a run.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from phalanx.aggregators import Median
from phalanx.core import Algorithm, AnyState, InfeasibleError, Matrix, Updates, Vector
from phalanx.wording import plural

SUSPICIOUS = 100.0  # evidence from which on a client is suspicious: false alarms are at most 1 in 100
HONEST, BET = 0.05, 0.5  # probabilities that an update is outlying: of an honest client at most, and of the bet
FEWEST = 4  # updates that are compared with each other
LONG, SHORT = 12.0, 0.001  # times the median length of the others
FAR = 8.0  # times the median distance of the others from the median
FEW = 2.0  # times as much among fewer than `CROWD` updates, of which a few short ones move the median
AGAINST = -0.7  # cosine to the median
PULL = -1.5  # the same times the length, in median lengths of the others
SIMILAR = 2.0  # times the median length of the others, of updates that are compared as those of as many examples
NOISE, KIN = 4.0, 12.0  # largest cosine to another update times sqrt(d): below for noise, above for others
UNRELATED, RELATED = 0.125, 0.6  # the same as a share of that of others, and what that must be
CROWD = 8  # updates, from which on noise is recognised by its cosine alone
REPEATED, REPEATS = 0.97, 0.3  # cosine to the last change of the model, and distance in cosine by that of others
LED = 0.98  # cosine to the result, from which on the last change was that of a client itself
UNLIKE = 0.9  # cosine of others to the last change, from which on nobody's says anything
COPY = 1e-4  # distance of two updates, in lengths, below which one is a copy; far below that of honest ones
LARGE = 100.0  # times the median reported size
MOST = 1e12  # evidence that is not counted further
RECENT = 32  # clients whose last update is kept, where updates arrive one by one
COORDINATES = 65_536  # coordinates of which the share is estimated, evenly spaced


def by_number(client: int) -> str:
    """Return a client in words, where nobody has named it."""
    return f"client {client}"


@dataclass(frozen=True, slots=True)
class Conduct:
    """The figures of one update, and the evidence against its client so far.

    Args:
        distance: Euclidean distance to the result of the step, in units of the parameters; None if there is no result.
        cosine: of the angle to the result; None if there is none, or one of the two is zero.
        coordinates: share of the coordinates in which it is among the nearer half of the updates to the result; None if
            there is no result.
        counted: share of the reported size that counted as weight, relative to the client of whom most counted; below 1
            for truncated sizes. None if sizes are not known.
        outlying: why the update stands out, in words; empty if it does not.
        updates: number of updates of the client that were judged.
        evidence: against the client. An honest client ever reaches e with a probability of at most 1 / e.
        since: number of updates after which its client became suspicious, for good; None if it is not.
    """

    distance: float | None = None
    cosine: float | None = None
    coordinates: float | None = None
    counted: float | None = None
    outlying: str = ""
    updates: int = 0
    evidence: float = 1.0
    since: int | None = None

    @property
    def suspicious(self) -> bool:
        """Whether the client is suspicious."""
        return self.since is not None

    @property
    def newly(self) -> bool:
        """Whether the client became suspicious by this update."""
        return self.since == self.updates and bool(self.outlying)


def conduct(
    updates: Updates,
    result: Vector | None,
    before: Mapping[int, Conduct],
    *,
    sizes: Mapping[int, int] | None = None,
    weights: Mapping[int, float] | None = None,
    recent: Mapping[int, Vector] | None = None,
    change: Vector | None = None,
    named: Callable[[int], str] = by_number,
) -> dict[int, Conduct]:
    """Return the conduct of the clients in a step, by client.

    Args:
        updates: of the step.
        result: what the rule made of them; None if it made nothing, or several results.
        before: the last conduct of each client that has one.
        sizes: as reported, of all clients.
        weights: of the clients in the step.
        recent: the last update of other clients, with which those of the step are compared as well, whatever they
            started from: where updates arrive one by one.
        change: the last change of the model before the step; None if it is not known, or updates arrive one by one.
        named: a client in words.
    """
    reasons = defaultdict[int, list[str]](list)
    judged = set[int]()
    led = {client for client, last in before.items() if (last.cosine or 0.0) > LED}
    for rows, clients in _pools(updates, recent):
        if len(clients) >= FEWEST:
            judged.update(clients)
            now = sum(client in updates.clients for client in clients)
            for k, found in _outlying(rows, clients, now, named, change=change, led=led).items():
                reasons[clients[k]] += found
    for client, why in _large(sizes or {}).items():
        if client in updates.clients:
            reasons[client].append(why)
            judged.add(client)
    counted = _counted(updates, sizes, weights)
    near = _nearness(updates.deltas, result)
    out = dict[int, Conduct]()
    for k, client in enumerate(updates.clients):
        last = before.get(client, Conduct())
        outlying = "; ".join(reasons[client])
        t, e, since = last.updates, last.evidence, last.since
        if client in judged:
            t, e = t + 1, _bet(last, bool(outlying))
            since = t if since is None and e >= SUSPICIOUS else since
        out[client] = Conduct(*near[k], counted.get(client), outlying, t, e, since)
    return out


def _bet(last: Conduct, outlying: bool) -> float:
    """Return the evidence after one more update: a mixture of bets that begin at each update."""
    t = last.updates + 1
    ratio = BET / HONEST if outlying else (1 - BET) / (1 - HONEST)
    begun = last.evidence - 1 / t  # what has been won so far; 1 / t is the weight of the bets that have not begun
    return min((max(begun, 0.0) + 1 / (t * (t + 1))) * ratio + 1 / (t + 1), MOST)


def _pools(updates: Updates, recent: Mapping[int, Vector] | None) -> Iterator[tuple[Matrix, list[int]]]:
    """Yield the updates that are compared with each other, those from the same model, and their clients."""
    if recent is not None:
        others = {client: row for client, row in recent.items() if client not in updates.clients}
        yield torch.stack([*updates.deltas, *others.values()]), [*updates.clients, *others]
        return
    pools = defaultdict[tuple[int, int], list[int]](list)
    for k, (base, version) in enumerate(zip(updates.bases, updates.versions, strict=True)):
        pools[base.data_ptr(), version].append(k)
    for members in pools.values():
        rows = updates.deltas if len(members) == len(updates) else updates.deltas[members]
        yield rows, [updates.clients[k] for k in members]


def _outlying(
    rows: Matrix,
    clients: list[int],
    now: int,
    named: Callable[[int], str],
    *,
    change: Vector | None,
    led: Collection[int],
) -> dict[int, list[str]]:
    """Return, by row, why it stands out among these.

    Args:
        rows: updates.
        clients: whose they are.
        now: how many of the first rows came in this step; the others came before.
        named: a client in words.
        change: the last change of the model, if it is known.
        led: clients whose own update that was.
    """
    centre = Median()(rows)
    lengths = torch.linalg.vector_norm(rows, dim=1).double()
    distances = torch.linalg.vector_norm(rows - centre, dim=1).double()
    cosines = _cosines(rows, centre, lengths)
    copies = _copies(rows, lengths, clients, now, named)
    found = defaultdict[int, list[str]](list)
    repeats = _cosines(rows, change, lengths) if change is not None else [0.0] * len(clients)
    kin, crowd, root = _kin(rows, lengths), len(clients) >= CROWD, math.sqrt(rows.shape[1])
    far = 1.0 if crowd else FEW
    of_others = [*zip(*map(_of_others, (lengths.tolist(), distances.tolist(), kin, repeats)), strict=True)]
    for k, (usual, apart, related, theirs) in enumerate(of_others):
        length, distance, cosine, nearest, repeat = (
            float(lengths[k]),
            float(distances[k]),
            cosines[k],
            kin[k],
            repeats[k],
        )
        like = usual / SIMILAR < length < usual * SIMILAR
        if length > far * LONG * usual:
            found[k].append(f"its update is {_times(length, usual)} as long as those of others")
        elif length < SHORT * usual:
            found[k].append(f"its update is next to nothing, {length / usual:.2g} times as long as those of others")
        elif distance > far * FAR * apart:
            found[k].append(f"its update is {_times(distance, apart)} as far from the others as they are")
        if cosine < AGAINST or cosine * length < PULL * usual:
            found[k].append(f"its update points against the others, cosine {cosine:.2f}")
        elif crowd and nearest * root < NOISE and related * root > KIN:
            found[k].append("its update has nothing in common with any other, like noise")
        elif related > RELATED and nearest < UNRELATED * related and like:
            found[k].append(
                f"its update has next to nothing in common with any other, cosine {nearest:.2f}, like noise"
            )
        if clients[k] not in led and repeat > REPEATED and 1 - repeat < REPEATS * (1 - theirs) and theirs < UNLIKE:
            found[k].append(f"its update repeats the last change of the model, cosine {repeat:.2f}")
        if k in copies:
            found[k].append(copies[k])
    return found


def _of_others(values: Sequence[float]) -> list[float]:
    """Return, for each of two or more values, the median of the others."""
    order = sorted(range(len(values)), key=lambda k: values[k])
    out, left = [0.0] * len(values), len(values) - 1
    for rank, k in enumerate(order):
        low, high = (values[order[i + (i >= rank)]] for i in ((left - 1) // 2, left // 2))
        out[k] = (low + high) / 2
    return out


def _kin(rows: Matrix, lengths: torch.Tensor) -> list[float]:
    """Return the largest size of a cosine of each row to another."""
    scale = torch.outer(lengths, lengths)
    cosines = torch.where(scale > 0, (rows @ rows.T).double() / scale, 0.0).abs().fill_diagonal_(0.0)
    return cosines.amax(1).tolist()


def _cosines(rows: Matrix, centre: Vector, lengths: torch.Tensor) -> list[float]:
    """Return the cosine of each row to a vector; 0 where one of the two is zero."""
    scale = lengths * float(torch.linalg.vector_norm(centre))
    return torch.where(scale > 0, (rows @ centre).double() / scale, 0.0).tolist()


def _copies(
    rows: Matrix, lengths: torch.Tensor, clients: list[int], now: int, named: Callable[[int], str]
) -> dict[int, str]:
    """Return, by row, which clients sent the same, and whose came first if that is known: nobody is accused alone."""
    order = sorted(range(len(clients)), key=lambda k: float(lengths[k]))
    found = defaultdict[int, set[int]](set)
    for at, k in enumerate(order):
        for j in order[at + 1 :]:
            if not float(lengths[k]) > 0 or float(lengths[j] - lengths[k]) > COPY * float(lengths[k]):
                break
            if float(torch.linalg.vector_norm(rows[j] - rows[k])) <= COPY * float(lengths[k]):
                found[k] |= {k, j}
                found[j] |= {k, j}
    why = dict[int, str]()
    for k, same in found.items():
        who = " and ".join(named(client) for client in sorted(clients[j] for j in same))
        before = [named(client) for client in sorted(clients[j] for j in same if j >= now)]
        first = f"that of {' and '.join(before)} came first" if before and k < now else "which was first is not known"
        why[k] = f"{who} sent the same update, and no two clients train the same: one of them may be honest; {first}"
    return why


def _large(sizes: Mapping[int, int]) -> dict[int, str]:
    """Return why reported sizes stand out."""
    if len(sizes) < FEWEST:
        return {}
    usual = median(sizes.values())
    return {
        client: f"it reports {size:,} examples, {_times(size, usual)} as many as others"
        for client, size in sizes.items()
        if size > LARGE * usual
    }


def _counted(
    updates: Updates, sizes: Mapping[int, int] | None, weights: Mapping[int, float] | None
) -> dict[int, float]:
    """Return the share of each reported size that counted, relative to the client of whom most counted."""
    if not sizes or not weights:
        return {}
    shares = {i: weights[i] / sizes[i] for i in updates.clients if i in sizes and i in weights}
    most = max(shares.values(), default=0.0)
    return {i: share / most for i, share in shares.items()} if most > 0 else {}


def _nearness(rows: Matrix, result: Vector | None) -> list[tuple[float | None, float | None, float | None]]:
    """Return distance, cosine and share of near coordinates of each row to the result."""
    if result is None or result.shape != rows.shape[1:]:
        return [(None, None, None)] * len(rows)
    lengths = torch.linalg.vector_norm(rows, dim=1).double()
    distances = torch.linalg.vector_norm(rows - result, dim=1).tolist()
    step = -(-rows.shape[1] // COORDINATES)
    apart = (rows[:, ::step] - result[::step]).abs()
    near = (apart <= Median()(apart)).double().mean(1).tolist()
    defined = bool(result.any())
    cosines = [c if defined and n > 0 else None for c, n in zip(_cosines(rows, result, lengths), lengths, strict=True)]
    return list(zip(distances, cosines, near, strict=True))


def _times(value: float, usual: float) -> str:
    """Return a ratio in words."""
    if usual == 0:
        return "infinitely many times"
    return f"{value / usual:,.0f} times" if value >= 10 * usual else f"{value / usual:.1f} times"


def in_words(found: Conduct) -> str:
    """Return why a client is suspicious."""
    return f"{found.outlying}; in {plural(found.updates, 'update')}, evidence {found.evidence:.3g}"


class Watch:
    """The conduct of the clients of a run, step by step.

    Where updates arrive one by one, each is compared with the last ones of `RECENT` other clients. These are not part
    of a checkpoint: a resumed run of this kind judges again when enough have come. Nor is the last change of the model,
    with which the updates of the first step after a resumption are not compared.

    Args:
        algorithm: of the run.
        history: the conduct of each step so far, of a resumed run.
        named: a client in words.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any],
        history: Iterable[Mapping[int, Conduct]] = (),
        named: Callable[[int], str] = by_number,
    ) -> None:
        self._named = named
        self._algorithm = algorithm
        self._last = dict[int, Conduct]()
        for step in history:
            self._last |= step
        self._model: Vector | None = None
        self._change: Vector | None = None
        self._recent = dict[int, Vector]()

    def __call__(self, state: AnyState, updates: Updates | None) -> dict[int, Conduct]:
        """Return the conduct of the clients with an update in this step, which led to `state`."""
        before, self._model = self._model, state.model
        if updates is None:
            return {}
        sizes: Mapping[int, int] | None = getattr(state, "sizes", None)
        recent = None if self._algorithm.traits.synchronous else self._recent
        result = None if before is None else self._result(state, before)
        weights = self._weights(state, updates)
        change = self._change if self._algorithm.traits.synchronous else None
        found = conduct(
            updates, result, self._last, sizes=sizes, weights=weights, recent=recent, change=change, named=self._named
        )
        self._last |= found
        if before is not None and not torch.equal(state.model, before):
            self._change = state.model - before
        if not self._algorithm.traits.synchronous:
            for client, row in zip(updates.clients, updates.deltas, strict=True):
                self._recent.pop(client, None)
                self._recent[client] = row.clone()
            for client in [*self._recent][:-RECENT]:
                del self._recent[client]
        return found

    def _result(self, state: AnyState, before: Vector) -> Vector | None:
        """Return what the rule made of the updates, or else the change of the model; None if nothing has changed."""
        if state.model is before or torch.equal(state.model, before):
            return None
        aggregate = self._algorithm.carried(state)[1]
        return state.model - before if aggregate is None else aggregate

    def _weights(self, state: AnyState, updates: Updates) -> Mapping[int, float] | None:
        try:
            return self._algorithm.weights(state, updates.clients)
        except (InfeasibleError, KeyError):  # no weights for these clients; they are for the record only
            return None
