"""The ranges of options that their documentation states: both ends, just inside, just outside, and far inside."""

import dataclasses
import math

import pytest

from phalanx.aggregators import Median
from phalanx.algorithms import (
    BASGD,
    FLAME,
    FLHC,
    IFCA,
    RFFL,
    SCAFFOLD,
    AFLGuard,
    AsyncFilter,
    AsyncMomentum,
    AsyncRFFL,
    BenignClusters,
    ByClass,
    ByzantineCFL,
    Catalyst,
    CentrallyPrivate,
    ClusteredFL,
    DeMoA,
    Exponential,
    FedAdam,
    FedAsync,
    FedAvg,
    FedAvgM,
    FedBuff,
    FedDyn,
    FLTrust,
    FoolsGold,
    Hinge,
    IfUnlike,
    Kardam,
    MedianNorm,
    PerCluster,
    Polynomial,
    Private,
    QFedAvg,
    Quorum,
    Relative,
    Rewarded,
    SignSGD,
    StoCFL,
    WorkerMomentum,
    ZenoPlusPlus,
)
from phalanx.algorithms.byzantine_cfl import AboveNoise
from phalanx.clustering import Memory, Peel
from phalanx.engine.guard import Guard
from phalanx.engine.lost import LostRounds
from phalanx.engine.participation import Participation
from phalanx.weighting import Ignore, Truncate

PRIVATE = CentrallyPrivate(FedAvg(preprocess=Ignore()), clip=1.0, noise_multiplier=1.0)
CLUSTERED = ClusteredFL(eps1=1.0, eps2=0.5)
REAL = [  # "[": the end is in the range; "?": whether an infinite end is, is left open
    (AFLGuard(), "radius", "(0, inf)"),
    (AFLGuard(), "server_lr", "(0, inf)"),
    (ByClass(0, 2, 1), "least", "(-1, 1)"),
    (AsyncFilter(), "server_lr", "(0, inf)"),
    (AsyncMomentum(), "momentum", "[0, 1)"),
    (AsyncMomentum(), "server_lr", "(0, inf)"),
    (AsyncRFFL(), "fade", "[0, 1)"),
    (AsyncRFFL(), "threshold", "[0, 1)"),
    (BASGD(), "server_lr", "(0, inf)"),
    (BASGD(), "momentum", "[0, 1)"),
    (BenignClusters(f=1, threshold=0.0), "threshold", "[-1, 1)"),
    (ByzantineCFL(), "threshold", "[-1, 1)"),
    (AboveNoise(), "margin", "[0, 1)"),
    (AboveNoise(), "factor", "[1, inf)"),
    (IfUnlike(), "gap", "(0, 2)"),
    (IfUnlike(), "deficit", "(0, 2)"),
    (Catalyst(f=1), "late_lr", "(0, inf)"),
    (PRIVATE, "clip", "(0, inf)"),
    (PRIVATE, "noise_multiplier", "[0, inf)"),
    (PRIVATE, "quantile", "[0, 1]"),
    (PRIVATE, "clip_rate", "(0, inf)"),
    (PRIVATE, "count_noise", "(0, inf)"),
    (CLUSTERED, "eps1", "(0, inf?"),
    (CLUSTERED, "eps2", "[0, inf?"),
    (CLUSTERED, "gamma_max", "[0, 1)"),
    (CLUSTERED, "min_gap", "[0, 2)"),
    (CLUSTERED, "min_reported", "(0, 1]"),
    (Relative(0.5), "share", "(0, inf?"),
    (DeMoA(), "momentum", "[0, 1)"),
    (DeMoA(), "server_lr", "(0, inf)"),
    (FedAdam(FedAvg()), "server_lr", "(0, inf)"),
    (FedAdam(FedAvg()), "beta1", "[0, 1)"),
    (FedAdam(FedAvg()), "beta2", "[0, 1)"),
    (FedAdam(FedAvg()), "tau", "(0, inf)"),
    (FedAsync(), "mixing", "(0, 1]"),
    (FedAvg(), "server_lr", "(0, inf?"),
    (FedAvgM(FedAvg()), "momentum", "[0, 1)"),
    (FedBuff(size=3), "server_lr", "(0, inf)"),
    (FedDyn(), "alpha", "(0, inf)"),
    (FLAME(f=1), "epsilon", "(0, inf)"),
    (FLAME(f=1, epsilon=1.0), "delta", "(0, 1)"),
    (FLTrust(), "server_lr", "(0, inf)"),
    (FoolsGold(), "confidence", "(0, inf)"),
    (FoolsGold(), "server_lr", "(0, inf?"),
    (IFCA(k=2), "share", "(0, 1]"),
    (IFCA(k=2), "spread", "(0, 1]"),
    (Kardam(f=1), "server_lr", "(0, inf)"),
    (Kardam(f=1, mixing=True), "server_lr", "(0, 1]"),
    (MedianNorm(), "factor", "(0, inf)"),
    (PerCluster(FedAvg()), "min_gap", "(0, 2)"),
    (PerCluster(FedAvg()), "min_reported", "(0.5, 1]"),
    (PerCluster(FedAvg()), "memory", "[0, 1)"),
    (Private(FedAvg(), clip=1.0, noise_multiplier=1.0), "clip", "(0, inf)"),
    (Private(FedAvg(), clip=1.0, noise_multiplier=1.0), "noise_multiplier", "[0, inf)"),
    (QFedAvg(q=1.0, lr=0.1), "q", "[0, inf)"),
    (QFedAvg(q=1.0, lr=0.1), "lr", "(0, inf)"),
    (Rewarded(FedAvg()), "fade", "[0, 1)"),
    (Rewarded(FedAvg()), "sharpness", "[0, inf)"),
    (RFFL(), "fade", "[0, 1]"),
    (RFFL(), "threshold", "[0, 1)"),
    (RFFL(), "clip", "(0, inf)"),
    (RFFL(), "min_coherence", "[0, inf?"),
    (SCAFFOLD(), "server_lr", "(0, inf?"),
    (SignSGD(), "server_lr", "(0, inf)"),
    (SignSGD(), "momentum", "[0, 1)"),
    (SignSGD(), "weight_decay", "[0, inf)"),
    (Polynomial(0.5), "a", "[0, inf?"),
    (Hinge(), "a", "[0, inf?"),
    (Exponential(0.1), "a", "[0, inf?"),
    (StoCFL(), "tau", "[-1, 1]"),
    (StoCFL(), "pull", "[0, 1)"),
    (WorkerMomentum(FedAvg()), "momentum", "[0, 1)"),
    (ZenoPlusPlus(epsilon=0.1), "server_lr", "(0, inf)"),
    (ZenoPlusPlus(epsilon=0.1), "rho", "[0, inf)"),
    (ZenoPlusPlus(), "epsilon", "[0, inf)"),
    (Memory(), "rate", "(0, 1]"),
    (Peel(1), "gap", "(0, 2)"),
    (Truncate(0.1, 0.5), "alpha", "[0, 1)"),
    (Truncate(0.1, 0.5), "alpha_star", "(0, 1)"),
    (Truncate(0.1, 0.5), "delta", "(0, 1)"),
    (Guard(), "max_norm", "(0, 1e18)"),
    (Participation(0.5, 0), "share", "(0, 1]"),
]
INTEGERS = [  # the least that each can be
    (AFLGuard(), "reference_every", 1),
    (ByClass(0, 2, 1), "start", 0),
    (ByClass(0, 2, 1), "classes", 2),
    (ByClass(0, 2, 1), "features", 1),
    (ByClass(0, 2, 1), "patience", 0),
    (AsyncFilter(), "window", 1),
    (AsyncMomentum(), "start", 1),
    (AsyncRFFL(), "warmup", 0),
    (BASGD(), "buffers", 1),
    (BASGD(buffers=4), "reassign_after", 4),
    (BenignClusters(f=1, threshold=0.0), "f", 1),
    (ByzantineCFL(), "retest_after", 1),
    (IfUnlike(), "memory", 1),
    (Catalyst(f=1), "f", 0),
    (Catalyst(f=1), "window", 1),
    (Catalyst(f=0), "quorum", 2),
    (Catalyst(f=2), "quorum", 5),
    (Catalyst(f=1), "least_age", 1),
    (CLUSTERED, "min_round", 0),
    (CLUSTERED, "patience", 1),
    (CLUSTERED, "min_cluster_size", 2),
    (CLUSTERED, "min_part_size", 1),
    (CLUSTERED, "cached", 1),
    (CLUSTERED, "leave_after", 1),
    (FedBuff(size=3), "size", 1),
    (FLAME(f=1), "f", 0),
    (FLHC(), "rounds", 0),
    (FLHC(), "patience", 1),
    (FLTrust(), "reference_every", 1),
    (FoolsGold(), "last", 1),
    (Hinge(), "b", 0),
    (IFCA(k=2), "k", 1),
    (IFCA(k=2), "patience", 0),
    (Kardam(f=1), "f", 0),
    (Kardam(f=1), "patience", 1),
    (Kardam(f=1), "memory", 1),
    (PerCluster(FedAvg()), "min_turns", 1),
    (PerCluster(FedAvg()), "min_part_size", 2),
    (PerCluster(FedAvg()), "cached", 1),
    (Quorum(FedAvg(aggregate=Median()), k=3), "k", 1),
    (RFFL(), "warmup", 0),
    (RFFL(), "probation", 0),
    (ZenoPlusPlus(), "reference_every", 1),
    (Memory(), "reuse", 0),
    (Memory(), "rounds", 1),
    (Peel(1), "at_most", 1),
    (Peel(1), "rounds", 1),
    (Truncate(0.1, 0.5, scope="subset"), "drawn", 1),
    (Guard(), "max_staleness", 0),
    (Guard(), "max_size", 1),
    (LostRounds(), "most", 1),
]


def named(value):
    return type(value).__name__ if dataclasses.is_dataclass(value) else str(value)


def is_fine(settings, option, value):
    try:
        dataclasses.replace(settings, **{option: value})
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(("settings", "option", "interval"), REAL, ids=named)
def test_a_real_option_has_its_range(settings, option, interval):
    low, high = (float(end) for end in interval[1:-1].split(", "))
    step, inside = 1e-9, low + 1e6 if high == math.inf else (low + high) / 2
    below_high = inside if high == math.inf else high - step * max(1.0, abs(high))
    fine = {low + step: True, inside: True, below_high: True}
    fine |= {low: interval[0] == "[", low - step: False, low - 1.0: False}
    if interval[-1] != "?":
        fine |= {high: interval[-1] == "]", high * (1 + step) + step: False}
    assert {value: is_fine(settings, option, value) for value in fine} == fine
    assert not is_fine(settings, option, math.nan)


@pytest.mark.parametrize(("settings", "option", "least"), INTEGERS, ids=named)
def test_a_whole_option_has_its_least_value(settings, option, least):
    fine = {least - 2: False, least - 1: False, least: True, least + 1: True, least + 100: True}
    assert {value: is_fine(settings, option, value) for value in fine} == fine
