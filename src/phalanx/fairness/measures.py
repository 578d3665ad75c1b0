"""Measures of fairness, from the records of runs.

Collaborative fairness is Equation 1 of Xu and Lyu, "Towards Building a Robust and Fair Federated Learning System",
2020: Pearson's correlation of the participants' standalone accuracy with the accuracy of the models that they receive.
It does not say whether anybody gains: the standalone models themselves correlate perfectly.  So gains are reported with
it, and its confidence interval, which is wide for five or ten participants.

The worst 10 % and the variance are those of Li, Sanjabi, Beirami and Smith, "Fair Resource Allocation in Federated
Learning", 2020, who define fairness as equal accuracy for all.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, correlation, fmean, pvariance
from typing import Protocol, runtime_checkable

from typing_extensions import override

from phalanx.core import InfeasibleError
from phalanx.runs.observed import observed
from phalanx.runs.record import Record
from phalanx.runs.summary import exclusions
from phalanx.wording import percent

Accuracies = Mapping[int, float]  # client -> share of the test examples, from 0 to 1


@dataclass(frozen=True)
class Correlation:
    """Pearson's correlation coefficient of two accuracies, over participants.

    Args:
        coefficient: in [-1, 1]; None where one of the two is the same for all, so that there is none.
        low: lower end of the confidence interval; None without a coefficient, or for fewer than four participants.
        high: upper end.
        level: the share of such intervals that contain the true value.
        participants: their number.
    """

    coefficient: float | None
    low: float | None
    high: float | None
    level: float
    participants: int

    @override
    def __str__(self) -> str:
        if self.coefficient is None:
            return "none (one of the two is the same for all)"
        within = "" if self.low is None or self.high is None else f" [{100 * self.low:.1f}, {100 * self.high:.1f}]"
        return f"{100 * self.coefficient:.1f} %{within}"


@dataclass(frozen=True)
class Spread:
    """The distribution of accuracies over participants.

    Args:
        mean: of all.
        best: the largest.
        worst: mean of the smallest tenth, at least one participant.
        variance: mean squared distance from the mean, in squared percentage points.
    """

    mean: float
    best: float
    worst: float
    variance: float


@dataclass(frozen=True)
class Detection:
    """The Byzantine and honest clients that were excluded, and when.

    Args:
        after: by Byzantine client, the step in which it was excluded; None if it stayed.
        excluded: share of them that was excluded; None if there are none.
        honest: by honest client that was excluded, the step.
    """

    after: Mapping[int, int | None]
    excluded: float | None
    honest: Mapping[int, int]

    @property
    def longest(self) -> int | None:
        """The step after which all of them were excluded; None if one stayed, or if there are none."""
        steps = [step for step in self.after.values() if step is not None]
        return max(steps) if steps and len(steps) == len(self.after) else None


@runtime_checkable
class ExcludedClient(Protocol):
    """A client that was excluded."""

    @property
    def client(self) -> int:
        """Its id."""

    @property
    def step(self) -> int:
        """The step from which on it was excluded."""


@runtime_checkable
class TraceLike(Protocol):
    """A short record of a run, such as the trace that a reproduced table keeps of it."""

    @property
    def byzantine(self) -> Sequence[int]:
        """Ids of the Byzantine clients."""

    @property
    def excluded(self) -> Sequence[ExcludedClient]:
        """The excluded clients."""


def received_accuracy(record: Record) -> dict[int, float]:
    """Return the accuracy of each honest client's model at the end of a run.

    It is that on the client's own test examples where clients own some (`DataRecord.client_tests`), and else that on
    the whole test set.

    Raises:
        InfeasibleError: the record has no such figure.
    """
    own = record.summary.data is not None and record.summary.data.client_tests == "own"
    field = "client_accuracy" if own else "received_accuracy"
    measured = [found for step in record.history if (m := step.metrics) and (found := getattr(m, field))]
    if not measured:
        raise InfeasibleError(
            f"The record of {record.name} does not say what each client received: no step has received_accuracy. "
            "Repeat the run with this version of Phalanx."
        )
    return {i: accuracy for i, accuracy in measured[-1].items() if accuracy is not None}


def collaborative_fairness(standalone: Accuracies, received: Accuracies, level: float = 0.95) -> Correlation:
    """Return Pearson's correlation of standalone and received accuracy, with Fisher's confidence interval.

    The interval assumes pairs drawn from a normal distribution, which accuracies of few participants hardly are: it is
    a rough guide to how much of the coefficient can be chance.

    Args:
        standalone: accuracy of the model that each participant trains alone.
        received: accuracy of its model in the federation.
        level: of the interval, in (0, 1).

    Raises:
        InfeasibleError: the two are not about the same participants, or there are fewer than two.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1), got {level}.")
    x, y = _paired(standalone, received)
    n = len(x)
    if len(set(x)) == 1 or len(set(y)) == 1:
        return Correlation(None, None, None, level, n)
    r = correlation(x, y)
    if n < 4:
        return Correlation(r, None, None, level, n)
    if abs(r) >= 1:
        return Correlation(math.copysign(1.0, r), math.copysign(1.0, r), math.copysign(1.0, r), level, n)
    z, margin = math.atanh(r), NormalDist().inv_cdf((1 + level) / 2) / math.sqrt(n - 3)
    return Correlation(r, math.tanh(z - margin), math.tanh(z + margin), level, n)


def fairness_by_cluster(
    standalone: Accuracies, received: Accuracies, clusters: Mapping[int, Collection[int]], level: float = 0.95
) -> dict[int, Correlation]:
    """Return the collaborative fairness within each cluster, by its number.

    Clients of different clusters are served models of different tasks, so a correlation over all of them measures how
    hard the tasks are, too.  A cluster of one participant has no coefficient.

    Args:
        standalone: as in `collaborative_fairness`.
        received: as in `collaborative_fairness`.
        clusters: clients by cluster; those without accuracies, such as attackers, are left out.
        level: of the intervals, in (0, 1).

    Raises:
        InfeasibleError: the accuracies are not about the same participants.
    """
    _paired(standalone, received)
    found = dict[int, Correlation]()
    for v, clients in clusters.items():
        among = [i for i in clients if i in standalone]
        x, y = ({i: accuracies[i] for i in among} for accuracies in (standalone, received))
        alone = Correlation(None, None, None, level, len(among))
        found[v] = collaborative_fairness(x, y, level) if len(among) > 1 else alone
    return found


def gains(standalone: Accuracies, received: Accuracies) -> dict[int, float]:
    """Return the gain of each participant: received minus standalone accuracy.

    Raises:
        InfeasibleError: the two are not about the same participants.
    """
    x, y = _paired(standalone, received)
    return {i: b - a for i, a, b in zip(sorted(standalone), x, y, strict=True)}


def spread(accuracies: Accuracies) -> Spread:
    """Return mean, best, worst tenth and variance of accuracies.

    Raises:
        InfeasibleError: there are none.
    """
    if not accuracies:
        raise InfeasibleError("The spread of accuracies needs at least one participant, got none.")
    ordered = sorted(accuracies.values())
    tenth = math.ceil(len(ordered) / 10)
    return Spread(fmean(ordered), ordered[-1], fmean(ordered[:tenth]), 1e4 * pvariance(ordered))


def detection(run: Record | TraceLike) -> Detection:
    """Return when the Byzantine clients of a run were excluded, and which honest ones were."""
    if isinstance(run, Record):
        byzantine = {i for i, client in run.summary.clients.items() if client.byzantine}
        gone = {i: exclusion.step for i, exclusion in exclusions(run.history).items()}
    else:
        byzantine, gone = set(run.byzantine), {one.client: one.step for one in run.excluded}
    after = {i: gone.get(i) for i in sorted(byzantine)}
    share = sum(step is not None for step in after.values()) / len(after) if after else None
    return Detection(after, share, {i: gone[i] for i in sorted(gone.keys() - byzantine)})


def reputations(record: Record) -> dict[int, dict[int, float]]:
    """Return the reputation of each client that has one, step by step: client -> step -> reputation.

    Raises:
        InfeasibleError: the algorithm keeps no reputations.
    """
    if not any(observed(step, "reputation") for step in record.history):
        raise InfeasibleError(f"The record of {record.name} has no reputations: its algorithm keeps none. Run RFFL.")
    out = dict[int, dict[int, float]]()
    for step in record.history:
        for i, reputation in (observed(step, "reputation") or {}).items():
            out.setdefault(i, {})[step.step] = reputation
    return dict(sorted(out.items()))


def below_threshold(record: Record) -> dict[int, int]:
    """Return the clients whose reputation was ever below the threshold, with the first step in which it was.

    That is when a client is excluded, unless there is a warm-up or a probation.

    Raises:
        InfeasibleError: the algorithm keeps no reputations.
    """
    reputations(record)
    out = dict[int, int]()
    for step in record.history:
        threshold = observed(step, "threshold")
        for i, verdict in step.verdicts.items():
            if threshold is not None and verdict.score is not None and verdict.score < threshold:
                out.setdefault(i, step.step)
    return dict(sorted(out.items()))


@dataclass(frozen=True)
class Comparison:
    """A comparison of a run with what its participants reach alone.

    Args:
        fairness: correlation of standalone with received accuracy.
        gain: received minus standalone accuracy of each participant.
        alone: spread of standalone accuracies.
        received: spread of received accuracies.
        detection: the excluded clients.
        by_cluster: the correlation within each cluster at the end, by its number; empty if the algorithm has none.
    """

    fairness: Correlation
    gain: Mapping[int, float]
    alone: Spread
    received: Spread
    detection: Detection
    by_cluster: Mapping[int, Correlation] = field(default_factory=dict)

    @property
    def mean_gain(self) -> float:
        """Mean gain of the participants."""
        return fmean(self.gain.values())

    @override
    def __str__(self) -> str:
        worst, best = min(self.gain.values()), max(self.gain.values())
        excluded = self.detection.excluded
        lines = [
            f"fairness   {self.fairness}",
            *(f"  cluster {v:<3}{fairness}" for v, fairness in self.by_cluster.items()),
            f"accuracy   mean {percent(self.received.mean)}, best {percent(self.received.best)}, "
            f"worst tenth {percent(self.received.worst)}, variance {self.received.variance:.2f}",
            f"alone      mean {percent(self.alone.mean)}, best {percent(self.alone.best)}",
            f"gain       mean {100 * self.mean_gain:+.1f}, from {100 * worst:+.1f} to {100 * best:+.1f} points",
            f"excluded   {'nobody attacks' if excluded is None else f'{percent(excluded)} of the attackers'}"
            f", {len(self.detection.honest)} honest",
        ]
        return "\n".join(lines)


def compare(standalone: Record, run: Record, level: float = 0.95) -> Comparison:
    """Compare a run with that of `Standalone` with the same data, model, training and seed.

    Args:
        standalone: record of the participants that train alone. Its attackers are left out.
        run: record of the federation.
        level: of the confidence interval.

    Raises:
        InfeasibleError: the two are not about the same honest participants.
    """
    alone, received = received_accuracy(standalone), received_accuracy(run)
    return Comparison(
        collaborative_fairness(alone, received, level),
        gains(alone, received),
        spread(alone),
        spread(received),
        detection(run),
        fairness_by_cluster(alone, received, observed(run.history[-1], "clusters") or {}, level),
    )


def _paired(standalone: Accuracies, received: Accuracies) -> tuple[list[float], list[float]]:
    """Return both accuracies in the order of participants."""
    if standalone.keys() != received.keys() or len(standalone) < 2:
        raise InfeasibleError(
            "Standalone and received accuracies must be of the same participants, at least two. "
            f"Got {sorted(standalone)} and {sorted(received)}. Run both with the same clients and attackers."
        )
    ids = sorted(standalone)
    return [standalone[i] for i in ids], [received[i] for i in ids]
