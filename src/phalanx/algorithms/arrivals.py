"""Common parts of algorithms on arrivals: single updates, and rounds made of them."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from typing_extensions import override

from phalanx.core import Algorithm, State, Updates, Vector, Verdict
from phalanx.wording import plural


class Arrival(NamedTuple):
    """The update of one client."""

    client: int
    version: int  # of the model that it was sent
    base: Vector  # that model
    delta: Vector  # trained minus received parameters


def one_by_one(updates: Updates) -> Iterator[Arrival]:
    """Yield the updates as if they had arrived one after the other."""
    return map(Arrival, updates.clients, updates.versions, updates.bases, updates.deltas)


class OneByOne(Algorithm[State]):
    """An algorithm that uses updates one by one, also where several arrive in a step."""

    @override
    def step(self, state: State, updates: Updates) -> tuple[State, Set[int]]:
        after: Any = state
        verdicts = dict[int, Verdict]()
        for arrival in one_by_one(updates):
            after = self._receive(after, arrival)
            verdicts |= after.verdicts
        return after._replace(verdicts=verdicts), set(updates.clients)

    @abstractmethod
    def _receive(self, state: State, arrival: Arrival) -> State:
        """Return the state after one update, with its verdict and those on updates that waited for it."""


def age_in_words(tau: int) -> str:
    """Return the age of an update in words, for verdicts; empty if it is fresh."""
    return f"{plural(tau, 'update')} old" if tau else ""


def alone(updates: Updates, client: int) -> Updates:
    """Return the update of one client in memory of its own; a row of a round would hold that of the whole round."""
    one = updates.of({client})
    return replace(one, deltas=one.deltas.clone())


def merged(parts: Iterable[Updates], reference: Vector | None = None) -> Updates:
    """Return updates of different clients as those of one round.

    Args:
        parts: of any number of clients each.
        reference: that of the round.
    """
    parts = list(parts)
    rows = sorted((c, k, row) for k, part in enumerate(parts) for row, c in enumerate(part.clients))
    starts = list(accumulate(map(len, parts), initial=0))
    order = [starts[k] + row for _, k, row in rows]
    return Updates(
        tuple(c for c, _, _ in rows),
        tuple(parts[k].versions[row] for _, k, row in rows),
        tuple(parts[k].bases[row] for _, k, row in rows),
        torch.cat([part.deltas for part in parts])[order],
        torch.cat([part.losses for part in parts])[order],
        reference,
    )
