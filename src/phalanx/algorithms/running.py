"""Sums, ranks and shares that change with one client, and need no pass over the others.

What is here is immutable: a changed copy shares all but a block of values with the original.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from phalanx.core import Vector

T = TypeVar("T")
BLOCK = 512  # values that are copied for one that changes
GONE = -1.0  # in place of a weight
TICK = 2.0**-60  # unit of sums of weights: as integers they are exact, in any order


@dataclass(frozen=True, eq=False)
class Slots(Mapping[int, T]):
    """A mapping with fixed keys.

    Args:
        places: of the keys, in order; shared by all copies.
        blocks: the values.
    """

    places: Mapping[int, int]
    blocks: tuple[tuple[T, ...], ...]

    @classmethod
    def of(cls, values: Mapping[int, T]) -> "Slots[T]":
        """Return a copy of a mapping."""
        return cls({key: place for place, key in enumerate(values)}, _blocks(values.values()))

    @override
    def __getitem__(self, key: int) -> T:
        place = self.places[key]
        return self.blocks[place // BLOCK][place % BLOCK]

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(self.places)

    @override
    def __len__(self) -> int:
        return len(self.places)

    def changed(self, key: int, value: T) -> "Slots[T]":
        """Return a copy with another value for a key that is there."""
        n, place = divmod(self.places[key], BLOCK)
        block = (*self.blocks[n][:place], value, *self.blocks[n][place + 1 :])
        return replace(self, blocks=(*self.blocks[:n], block, *self.blocks[n + 1 :]))


@dataclass(frozen=True, eq=False)
class Shares(Mapping[int, float]):
    """Shares that sum to one, of clients with a weight; those without one have the mean of the others.

    Args:
        weights: of all clients; None for one without a weight, `GONE` for one that has left.
        mean: of the weights; if it is zero, all shares are equal.
        count: number of clients that are there.
        top: the largest weight, or the mean if there is none.
    """

    weights: Slots[float | None]
    mean: float
    count: int
    top: float

    @property
    def largest(self) -> float:
        """The largest share."""
        return 1 / self.count if self.mean == 0 else self.top / (self.mean * self.count)

    @override
    def __getitem__(self, key: int) -> float:
        weight = self.weights[key]
        if weight == GONE:
            raise KeyError(key)
        if self.mean == 0:
            return 1 / self.count
        return (self.mean if weight is None else weight) / (self.mean * self.count)

    @override
    def __iter__(self) -> Iterator[int]:
        return (key for key, weight in self.weights.items() if weight != GONE)

    @override
    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True)
class Ranked:
    """Values of clients in increasing order, as pairs of a value and a client.

    Args:
        blocks: the pairs.
    """

    blocks: tuple[tuple[tuple[float, int], ...], ...] = ()

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, int]]) -> "Ranked":
        """Return these pairs."""
        return cls(_blocks(sorted(pairs)))

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    def __getitem__(self, rank: int) -> tuple[float, int]:
        return self.between(rank, rank + 1)[0]

    def between(self, first: int, end: int) -> list[tuple[float, int]]:
        """Return the pairs of these ranks."""
        found = list[tuple[float, int]]()
        for block in self.blocks:
            if first < len(block) and end > 0:
                found += block[max(first, 0) : end]
            first, end = first - len(block), end - len(block)
            if end <= 0:
                break
        return found

    def below(self, value: float) -> int:
        """Return the number of pairs with a smaller value."""
        return self._place((value,))[2]

    def rank(self, pair: tuple[float, int]) -> int:
        """Return the number of smaller pairs."""
        return self._place(pair)[2]

    def up_to(self, value: float) -> int:
        """Return the number of pairs with a value that is no larger."""
        n = bisect_right(self.blocks, value, key=lambda block: block[-1][0])
        inside = bisect_right(self.blocks[n], value, key=lambda pair: pair[0]) if n < len(self.blocks) else 0
        return sum(map(len, islice(self.blocks, n))) + inside

    def without(self, pair: tuple[float, int]) -> tuple["Ranked", int]:
        """Return a copy without a pair that is there, and the rank it had."""
        n, place, rank = self._place(pair)
        block = (*self.blocks[n][:place], *self.blocks[n][place + 1 :])
        return Ranked((*self.blocks[:n], *((block,) if block else ()), *self.blocks[n + 1 :])), rank

    def including(self, pair: tuple[float, int]) -> tuple["Ranked", int]:
        """Return a copy with one more pair, and the rank it has."""
        if not self.blocks:
            return Ranked(((pair,),)), 0
        n, place, rank = self._place(pair)
        if n == len(self.blocks):
            n, place = n - 1, len(self.blocks[-1])
        block = (*self.blocks[n][:place], pair, *self.blocks[n][place:])
        return Ranked(
            (*self.blocks[:n], *(_blocks(block) if len(block) > 2 * BLOCK else (block,)), *self.blocks[n + 1 :])
        ), rank

    def _place(self, pair: tuple[float] | tuple[float, int]) -> tuple[int, int, int]:
        """Return the block of the first pair that is no smaller, its place there, and its rank."""
        n = bisect_left(self.blocks, pair, key=lambda block: block[-1])
        place = bisect_left(self.blocks[n], pair) if n < len(self.blocks) else 0
        return n, place, sum(map(len, islice(self.blocks, n))) + place


class LastSent(NamedTuple):
    """What a client has sent last."""

    row: Vector | None  # None if it has sent nothing
    length: float  # the norm of that, zero for None
    weight: float | None  # None for one that has no weight yet


@dataclass(frozen=True, eq=False)
class Clipped:
    """The weighted sum of the rows of many clients, each clipped to a norm that may change with each row.

    The sums are in float64 with what their additions lost, since a row can be far longer than the others before it is
    replaced, and its rounding error would stay.  They are computed again after as many changes as there are clients.

    Args:
        lengths: of the rows of all clients.
        near: how many of the shortest rows are summed up as they are, and not at length one.  Of rows as long as the
            largest norm it may be some: both is the same.
        sums: of rows with a weight, near and others; of rows without one, near and others; and what these lost.
        ticks: the sum of the weights, in units of `TICK`.
        unweighted: number of rows without a weight.
        left: number of changes until the sums are computed again.
    """

    lengths: Ranked
    near: int
    sums: Float[Tensor, "2 4 d"]
    ticks: int = 0
    unweighted: int = 0
    left: int = 0

    @classmethod
    def of(cls, sent: Mapping[int, LastSent], d: Vector, largest: Callable[[Ranked], float]) -> "Clipped":
        """Return the sums of the rows of these clients.

        Args:
            sent: by each client.
            d: any vector of the length of the rows, on their device.
            largest: returns the largest norm for these lengths.
        """
        lengths = Ranked.of((one.length, i) for i, one in sent.items())
        near = lengths.up_to(largest(lengths))
        sums = torch.zeros(2, 4, len(d), dtype=torch.float64, device=d.device)
        made = cls(lengths, near, sums, left=len(sent))
        ticks = unweighted = 0
        for rank, (_, i) in enumerate(lengths.between(0, len(sent))):
            _add(sums, sent[i], rank >= near, 1)
            ticks, unweighted = ticks + _ticks(sent[i]), unweighted + _counts(sent[i])
        return replace(made, ticks=ticks, unweighted=unweighted)

    def replaced(
        self, i: int, old: LastSent, length: float, largest: Callable[[Ranked], float], sent: Callable[[int], LastSent]
    ) -> tuple["Clipped", float]:
        """Return the sums without a client, its new length among the lengths, and the largest norm for these.

        Args:
            i: the client.
            old: what it had sent.
            length: of what it has sent now.
            largest: as in `of`.
            sent: returns what another client has sent.
        """
        sums = self.sums.clone()
        lengths, rank = self.lengths.without((old.length, i))
        _add(sums, old, rank >= self.near, -1)
        near = self.near - (rank < self.near)
        lengths, rank = lengths.including((length, i))
        near += rank < near
        radius = largest(lengths)
        now = min(max(near, lengths.below(radius)), lengths.up_to(radius))
        for _, j in lengths.between(min(near, now), max(near, now)):
            if j != i:
                _add(sums, sent(j), now < near, 1)
                _add(sums, sent(j), now > near, -1)
        ticks, unweighted = self.ticks - _ticks(old), self.unweighted - _counts(old)
        return Clipped(lengths, now, sums, ticks, unweighted, self.left - 1), radius

    def mean(self, radius: float, otherwise: float) -> Vector | None:
        """Return the weighted mean of the rows, each clipped to a norm, in float64; None if the weights are zero.

        It is 0 if all rows are zero, but for that of one client, which may be the one that is left out.

        Args:
            radius: the largest norm, as `replaced` returned it.
            otherwise: the weight of a row without one.
        """
        mass = self.ticks * TICK + otherwise * self.unweighted
        if mass <= 0:
            return None
        sums = self.sums[0] + self.sums[1]
        if self.lengths.up_to(0.0) >= len(self.lengths) - 1:
            return torch.zeros_like(sums[0])  # and no rounding error, which would be a direction like any other
        total = sums[0] + otherwise * sums[2]
        if self.near < len(self.lengths):
            total += radius * (sums[1] + otherwise * sums[3])
        return total / mass

    def including(self, i: int, new: LastSent) -> "Clipped":
        """Return the sums with what a client has sent, whose length is among the lengths."""
        sums = self.sums.clone()
        _add(sums, new, self.lengths.rank((new.length, i)) >= self.near, 1)
        return replace(self, sums=sums, ticks=self.ticks + _ticks(new), unweighted=self.unweighted + _counts(new))

    def without(self, i: int, length: float) -> "Clipped":
        """Return a copy without the length of a client that is not in the sums."""
        lengths, rank = self.lengths.without((length, i))
        return replace(self, lengths=lengths, near=self.near - (rank < self.near))


def _add(sums: Float[Tensor, "2 4 d"], one: LastSent, far: bool, sign: int) -> None:
    """Add a row to the sum that it belongs to, in place, or subtract it; note what the addition loses (Knuth 1969)."""
    if one.row is not None and one.length > 0:
        weight = sign * (1.0 if one.weight is None else one.weight) / (one.length if far else 1.0)
        k, added = 2 * (one.weight is None) + far, one.row.double() * weight
        before, after = sums[0, k], sums[0, k] + added
        arrived = after - before
        sums[1, k] += (before - (after - arrived)) + (added - arrived)
        sums[0, k] = after


def _ticks(one: LastSent) -> int:
    return round((one.weight or 0.0) / TICK)


def _counts(one: LastSent) -> int:
    return int(one.weight is None and one.row is not None)


def _blocks(values: Iterable[T]) -> tuple[tuple[T, ...], ...]:
    every = tuple(values)
    return tuple(every[k : k + BLOCK] for k in range(0, len(every), BLOCK))
