"""Figures of runs: the participants' accuracies by a method, compared with those alone."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import NormalDist, fmean
from typing import NamedTuple

from papers.rffl.setting import REPUTATION, STANDALONE, Enemy, Federation, cell
from phalanx.experiments.papers.comparison import ComparedCell, Sample
from phalanx.experiments.papers.published import Published
from phalanx.experiments.trace import Trace
from phalanx.fairness import Correlation, collaborative_fairness, detection, gains

Records = Mapping[str, Sequence[Trace]]


class Pair(NamedTuple):
    """A run, and that of the same participants alone."""

    alone: Trace
    run: Trace

    @property
    def fairness(self) -> Correlation:
        """The correlation of received and standalone accuracy."""
        return collaborative_fairness(self.alone.received_accuracy, self.run.received_accuracy)

    @property
    def gain(self) -> float:
        """The mean gain over participants, in points."""
        return 100 * fmean(gains(self.alone.received_accuracy, self.run.received_accuracy).values())

    @property
    def gain_of_best(self) -> float:
        """The gain of the participant with the best model of this run, in points."""
        best = max(self.run.received_accuracy, key=lambda i: self.run.received_accuracy[i])
        return 100 * (self.run.received_accuracy[best] - self.alone.received_accuracy[best])

    @property
    def best_over_best(self) -> float:
        """The best accuracy of the run minus the best standalone accuracy, in points."""
        return 100 * (max(self.run.received_accuracy.values()) - max(self.alone.received_accuracy.values()))


def traces(records: Records, federation: Federation, method: str, enemy: Enemy | None = None) -> Sequence[Trace]:
    """Return all traces of a cell."""
    return records.get(cell(federation, method, enemy), ())


def pairs(records: Records, federation: Federation, method: str, enemy: Enemy | None = None) -> list[Pair]:
    """Return the finished runs of a cell, by seed, if the standalone run of that seed is known, too."""
    done = [t for t in traces(records, federation, method, enemy) if not t.failed]
    alone = {t.seed: t for t in traces(records, federation, STANDALONE) if not t.failed}
    return [Pair(alone[t.seed], t) for t in done if t.seed in alone]


def compared_by(
    found: Sequence[Trace],
    figure: Callable[[Trace], float | None],
    published: Published | None = None,
) -> ComparedCell:
    """Return a comparison of some figure of each trace, over seeds."""
    values = [value for t in found if not t.failed and (value := figure(t)) is not None]
    remark = published.remark if published else ""
    return ComparedCell(Sample.of(values), None, published, remark, len(found) - len(values))


def best(trace: Trace) -> float | None:
    """Return the accuracy of the best participant's model at the end, in percent."""
    return 100 * max(trace.received_accuracy.values(), default=math.nan) if trace.received_accuracy else None


def mean(trace: Trace) -> float | None:
    """Return the mean accuracy over participants at the end, in percent."""
    return 100 * fmean(trace.received_accuracy.values()) if trace.received_accuracy else None


def interval(found: Iterable[Correlation], level: float = 0.95) -> str:
    """Return the common confidence interval of the correlations of several runs, in percent; "" if none has one.

    The mean of Fisher's z over the runs: with k runs of n participants, its deviation is 1 / sqrt(k (n - 3)).
    """
    known = [c for c in found if c.coefficient is not None and abs(c.coefficient) < 1 and c.participants > 3]
    if not known:
        return ""
    z = fmean(math.atanh(c.coefficient or 0.0) for c in known)
    margin = NormalDist().inv_cdf((1 + level) / 2) / math.sqrt(sum(c.participants - 3 for c in known))
    return f"{100 * math.tanh(z - margin):.1f} to {100 * math.tanh(z + margin):.1f}"


def signed(values: Iterable[float], decimals: int = 1) -> str:
    """Return `+1.4`, or `+1.4 ± 0.2` with half of the 95 % interval over several seeds; "-" for none."""
    return Sample.of(values).text(decimals, signed=True)


def attackers_removed(found: Sequence[Trace], method: str) -> str:
    """Return `2 of 2 by round 2`, for each seed, once if all are equal; "-" for methods that exclude nobody."""
    if method not in REPUTATION:
        return "-"
    texts = []
    for trace in found:
        seen = detection(trace)
        gone = [step for step in seen.after.values() if step is not None]
        texts.append(f"{len(gone)} of {len(seen.after)}" + (f" by round {max(gone)}" if gone else ""))
    return ", ".join(texts) if len(set(texts)) > 1 else "".join(texts[:1])


def honest_removed(found: Sequence[Trace], method: str) -> str:
    """Return the number of excluded honest participants, for each seed, once if all are equal; "-" as above."""
    if method not in REPUTATION:
        return "-"
    texts = [str(len(detection(trace).honest)) for trace in found]
    return ", ".join(texts) if len(set(texts)) > 1 else "".join(texts[:1])
