"""The compositions that `phalanx choose` chooses among, each made for a number of attackers.

Rules get the updates of clients that weigh alike, or by sizes that are truncated: a size that counts as reported
promises nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phalanx.aggregators import (
    AdaptiveClip,
    Aggregator,
    Bulyan,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    NearestNeighborMixing,
    TrimmedMean,
)
from phalanx.algorithms import (
    BASGD,
    AsyncMomentum,
    Catalyst,
    ClusteredFL,
    FedAvg,
    PerCluster,
    Quorum,
    Standalone,
    WorkerMomentum,
)
from phalanx.core import Algorithm
from phalanx.experiments.leaderboard.defences import Defence, Setup, algorithm
from phalanx.weighting import Ignore, Truncate

HELD = 0.45  # the share of the weight that truncation leaves the attackers of a round
HELD_OF_FASTEST = 0.49  # of the first 2f + 1 answers
MEAN, ALONE = "FedAvg, reported sizes", "Standalone"  # not promised anything; nothing shared


@dataclass(frozen=True)
class Composition:
    """An algorithm that can be chosen.

    Args:
        defence: its name, and what makes it; the name is that of its records.
        words: what it is, as a clause.
        asynchronous: whether it serves clients as they come, without rounds.
        groups: whether it finds clients that learn different things, and gives each group its own model.
    """

    defence: Defence
    words: str
    asynchronous: bool = False
    groups: bool = False

    @property
    def name(self) -> str:
        """The name."""
        return self.defence.name


def _mixed(s: Setup) -> Aggregator:
    return NearestNeighborMixing(s.f) >> TrimmedMean(s.share)


def _clipped(s: Setup) -> Aggregator:
    return AdaptiveClip(s.f) >> _mixed(s)


def _alike(rule: Aggregator) -> FedAvg:
    return FedAvg(aggregate=rule, preprocess=Ignore())


def _truncated(s: Setup, held: float = HELD) -> Truncate:
    return Truncate(s.share, held, scope="subset")


def _of(name: str, make: Callable[[Setup], Algorithm[Any]], words: str, **more: bool) -> Composition:
    return Composition(algorithm(name, lambda s, _: make(s)), words, **more)


COMPOSITIONS: tuple[Composition, ...] = (
    _of(MEAN, lambda s: FedAvg(), "the mean by reported sizes"),
    _of(ALONE, lambda s: Standalone(), "each client trains alone"),
    _of("FedAvg(Median)", lambda s: _alike(Median()), "the median of each entry"),
    _of("FedAvg(TrimmedMean)", lambda s: _alike(TrimmedMean(s.share)), "the mean of each entry without the ends"),
    _of("FedAvg(GeometricMedian)", lambda s: _alike(GeometricMedian()), "the point nearest to all updates"),
    _of("FedAvg(Krum)", lambda s: _alike(Krum(s.f)), "the update that is nearest to its neighbours"),
    _of("FedAvg(MultiKrum)", lambda s: _alike(MultiKrum(s.f)), "the mean of the updates nearest to their neighbours"),
    _of("FedAvg(Bulyan)", lambda s: _alike(Bulyan(s.f)), "a trimmed mean of what Krum selects"),
    _of("FedAvg(NNM >> TrimmedMean)", lambda s: _alike(_mixed(s)), "a trimmed mean of updates mixed with neighbours"),
    _of(
        "FedAvg(AdaptiveClip >> NNM >> TrimmedMean)",
        lambda s: _alike(_clipped(s)),
        "a trimmed mean of updates that are clipped, and mixed with neighbours",
    ),
    _of(
        "FedAvg(TrimmedMean), truncated sizes",
        lambda s: FedAvg(TrimmedMean(HELD), _truncated(s)),
        "a trimmed mean by sizes that are truncated",
    ),
    _of(
        "FedAvg(Median), truncated sizes",
        lambda s: FedAvg(Median(), _truncated(s)),
        "the median by sizes that are truncated",
    ),
    _of(
        "WorkerMomentum(NNM >> TrimmedMean)",
        lambda s: WorkerMomentum(_alike(_mixed(s)), 0.9),
        "clients send their momentum; a trimmed mean of updates mixed with neighbours",
    ),
    _of("PerCluster(Median)", lambda s: PerCluster(_alike(Median())), "the median in each group", groups=True),
    _of(
        "PerCluster(NNM >> TrimmedMean)",
        lambda s: PerCluster(_alike(_mixed(s))),
        "a trimmed mean of updates mixed with neighbours, in each group",
        groups=True,
    ),
    _of(
        "ClusteredFL(Median)",
        lambda s: ClusteredFL(aggregate=Median(), preprocess=Ignore()),
        "groups by Sattler et al. (2019), the median in each",
        groups=True,
    ),
    _of(
        "Quorum(Median)",
        lambda s: Quorum(_alike(Median()), s.n - s.f),
        "the median of the first answers",
        asynchronous=True,
    ),
    _of(
        "Quorum(NNM >> TrimmedMean)",
        lambda s: Quorum(_alike(_mixed(s)), s.n - s.f),
        "a trimmed mean of the first answers, mixed with neighbours",
        asynchronous=True,
    ),
    _of("Catalyst", lambda s: Catalyst(s.f), "Cox et al. (2024), with late updates", asynchronous=True),
    _of(
        "Catalyst(Median), truncated sizes",
        lambda s: Catalyst(s.f, aggregate=Median(), preprocess=_truncated(s, HELD_OF_FASTEST)),
        "Cox et al. (2024), with late updates, by sizes that are truncated",
        asynchronous=True,
    ),
    _of("BASGD", lambda s: BASGD(min(2 * s.f + 1, s.n)), "the median of buffers that clients share", asynchronous=True),
    _of(
        "AsyncMomentum",
        lambda s: AsyncMomentum(weight_by="clients"),
        "momentum of each client, kept by the server, a step for each answer",
        asynchronous=True,
    ),
    _of(
        "PerCluster(Quorum(Median))",
        lambda s: PerCluster(Quorum(_alike(Median()), 2 * s.f + 1)),
        "the median of the first answers of each group",
        asynchronous=True,
        groups=True,
    ),
)
