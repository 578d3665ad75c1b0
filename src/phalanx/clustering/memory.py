"""The last updates of clients, remembered from round to round.

Where a round is a fifth of the clients, two clients are seldom in one round, and a cluster never is.  Updates of
different rounds can be compared as far as the model has not moved between them, and it hardly moves when a cluster
stands still, which is when a split is considered.  StoCFL (Zeng et al., "Stochastic Clustered Federated Learning",
2023) compares clients that were never in one round by a representation of each that the server keeps; here that is the
mean of a client's recent updates.

A cluster that is averaged over whoever reports comes to rest where those who report often are content, not where all
are, so that its average stays long, and a split is late or does not occur.  MIFA (Gu, Huang, Zhang and Huang, "Fast
Federated Learning in the Presence of Arbitrary Device Unavailability", 2021) averages the last update of every client
instead.  `reuse` does so with those that are recent: an old one would push on where the cluster has long arrived.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from msgspec import Meta

from phalanx.core import Updates, Vector
from phalanx.fields import CheckedFields, NonNegativeInt, PositiveInt


@dataclass(frozen=True)
class Memory(CheckedFields):
    """Remembers an update of each client: one vector as long as the model for each, and no more.

    Args:
        rounds: after how many rounds in which a client did not report what is remembered of it is dropped.
        rate: in (0, 1], how much of what is remembered is replaced by a new update: r <- r + rate (delta - r). 1 keeps
            the last update only.
        reuse: number of rounds after its own in which what is remembered of a client counts in the step of its cluster,
            if the client does not report. With 0 clients that report seldom count less, and splits come later. Verdicts
            name those who report: their weights, and those of what is remembered, add up to 1.
    """

    rounds: PositiveInt = 30
    rate: Annotated[float, Meta(gt=0, le=1)] = 1.0
    reuse: NonNegativeInt = 2


class Remembered(NamedTuple):
    """The memory of one client."""

    update: Vector  # mean of its recent updates, in memory of its own
    cluster: int  # of whose models these updates are changes
    round: int  # the last in which it reported


def recalled(
    memory: Memory, held: Mapping[int, Remembered], cluster: int, updates: Updates, now: int
) -> dict[int, Remembered]:
    """Return what is remembered after the clients of a cluster reported in round `now`, without what is too old."""
    new = {i: entry for i, entry in held.items() if now - entry.round < memory.rounds}
    for i, delta in zip(updates.clients, updates.deltas, strict=True):
        old = new.get(i)
        mixed = old is not None and old.cluster == cluster and memory.rate < 1
        update = old.update + memory.rate * (delta - old.update) if mixed and old else delta.clone()
        new[i] = Remembered(update, cluster, now)
    return new
