"""The reports of the clients of a run; see `phalanx.core.ClientReport`."""

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from phalanx.core import ClientReport
from phalanx.wording import percent

if TYPE_CHECKING:
    from phalanx.runs.schema import StepRecord

Metric = Literal["accuracy", "loss"]
POINTS = 0.1  # smallest fall of an accuracy that is one
DRAWN = "something draws the model away from its examples, such as an attacker or clients that are unlike it"


class Reported(NamedTuple):
    """The reports of one client in a run.

    Args:
        reports: by step, in order; at least one.
    """

    reports: dict[int, ClientReport]

    @property
    def last(self) -> ClientReport:
        """The last report."""
        return self.reports[self.step]

    @property
    def step(self) -> int:
        """The step of the last report."""
        return next(reversed(self.reports))

    def values(self, metric: Metric) -> list[float]:
        """Return a metric of the reports that have it, in order."""
        return [v for one in self.reports.values() if (v := getattr(one, metric)) is not None]


class ReportSpread(NamedTuple):
    """The last reports of several clients.

    Args:
        metric: "accuracy", or "loss" where most reports have no accuracy.
        values: the metric by client, as far as it is known.
    """

    metric: Metric
    values: dict[int, float]

    @property
    def in_words(self) -> tuple[str, str, str]:
        """The lowest value with its client, the median, and the highest with its client; dashes if none is known."""
        if not self.values:
            return "-", "-", "-"
        order = sorted(self.values, key=lambda client: (self.values[client], client))
        lowest, highest = order[0], order[-1]
        of = {client: f"{self.text(client)} ({client})" for client in (lowest, highest)}
        return of[lowest], self.median, of[highest]

    @property
    def median(self) -> str:
        """The median in words."""
        return self._text(median(self.values.values())) if self.values else "-"

    def text(self, client: int) -> str:
        """Return the value of a client in words."""
        return self._text(self.values[client])

    def _text(self, value: float) -> str:
        return percent(value) if self.metric == "accuracy" else f"{value:.3g}"


def reported(history: "Iterable[StepRecord]") -> dict[int, Reported]:
    """Return the reports of a run by client; those of a wait without a step belong to the step before."""
    found = dict[int, dict[int, ClientReport]]()
    for step in history:
        for client, report in step.reports.items():
            found.setdefault(client, {})[step.step] = report
    return {client: Reported(found[client]) for client in sorted(found)}


def metric_of(reports: Iterable[ClientReport]) -> Metric:
    """Return "accuracy" if most reports that measure something have one, else "loss": no single one decides."""
    measured = [r.accuracy is not None for r in reports if r.accuracy is not None or r.loss is not None]
    return "accuracy" if 2 * sum(measured) > len(measured) else "loss"


def spread(last: Mapping[int, ClientReport]) -> ReportSpread:
    """Return the spread of the last reports, by client."""
    metric = metric_of(last.values())
    values = {i: float(v) for i, report in last.items() if (v := getattr(report, metric)) is not None}
    return ReportSpread(metric, values)


class AccuracyFalls:
    """The clients whose last reported accuracy is far below their best so far, step by step.

    Far: by more than `POINTS`, and by more than two standard errors of the difference between two shares of as many
    examples as the client has.
    """

    def __init__(self) -> None:
        self._best = dict[int, tuple[float, int]]()  # by client, with its step
        self.now = dict[int, str]()  # by client that is far below its best at present, in words

    def add(self, step: int, reports: Mapping[int, ClientReport]) -> dict[int, str]:
        """Take in the reports of a step; return the clients that have fallen by it, and had not before, in words."""
        before = self.now.keys()
        self.now = {client: why for client, why in self.now.items() if client not in reports}
        for client, report in reports.items():
            if (accuracy := report.accuracy) is None:
                continue
            best, when = self._best.get(client, (-1.0, step))
            if accuracy > best:
                self._best[client] = accuracy, step
            elif report.examples > 0 and best - accuracy > (limit := noise(best, accuracy, report.examples)):
                self.now[client] = (
                    f"reports an accuracy of {percent(accuracy)} in step {step}, after {percent(best)} in step {when}, "
                    f"where up to {100 * limit:.1f} points count as noise"
                )
        return {client: why for client, why in self.now.items() if client not in before}


def noise(one: float, other: float, examples: int) -> float:
    """Return by how much two accuracies on so many examples each can differ by chance, and `POINTS` at least."""
    p = (one + other) / 2
    return max(POINTS, 2 * math.sqrt(2 * p * (1 - p) / examples))


def fallen(
    history: "Iterable[StepRecord]", names: Mapping[int, str], clients: Container[int] | None = None
) -> Iterator[str]:
    """Yield the clients whose last accuracy is far below their best, in words; see `AccuracyFalls`.

    Args:
        history: of a run.
        names: of its clients; not of all.
        clients: which are looked at; None: all.
    """
    falls = AccuracyFalls()
    for step in history:
        falls.add(step.step, step.reports)
    for client, why in sorted(falls.now.items()):
        if clients is not None and client not in clients:
            continue
        name = f" ({names[client]})" if names.get(client) else ""
        yield f"Client {client}{name} {why}: {DRAWN}."
