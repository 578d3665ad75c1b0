"""The results of a study, or of runs on disk: a row for each run, and what follows from the rows."""

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from phalanx.core import InfeasibleError
from phalanx.experiments.grid import Labels
from phalanx.experiments.sought import Sought
from phalanx.experiments.statistics import Estimate, EstimateTable, PairedTest, holm, paired
from phalanx.experiments.trace import Trace
from phalanx.installation import optional
from phalanx.runs.found_clusters import are_groups, rand_index
from phalanx.runs.plan import Run

if TYPE_CHECKING:
    from pandas import DataFrame

NEAR = 0.95  # of the best cell's accuracy: the target of the time to accuracy if none is given
EXTRA = "extra "  # before the name of a curve: a metric of the task other than accuracy and loss
FLOAT = 4  # bytes of a parameter in an upload


class Metric(NamedTuple):
    """A figure of a run.

    Args:
        title: with its unit.
        of: returns it, given the target of the time to accuracy; None if it was not measured or not finite.
        scale: factor on it where it is shown.
        has: returns whether a run is of a kind that has it; one that does not has not failed.
    """

    title: str
    of: Callable[[Trace, float | None], float | None]
    scale: float = 1.0
    has: Callable[[Trace], bool] = lambda _: True


def _final(title: str, curve: str, scale: float = 1.0) -> Metric:
    return Metric(title, lambda trace, _: trace.final(curve), scale, lambda trace: curve in trace.curves)


def _megabytes(trace: Trace, _: float | None) -> float | None:
    return None if trace.uploads is None else trace.uploads * trace.dimension * FLOAT / 1e6


def _by_client(title: str, field: str) -> Metric:
    """Return the mean over honest clients of a field of the trace; None where the record does not say it."""

    def mean(trace: Trace, _: float | None) -> float | None:
        found: Mapping[int, float] = getattr(trace, field)
        return statistics.fmean(found.values()) if found else None

    return Metric(title, mean, 100.0, lambda trace: bool(getattr(trace, field)))


def _found(trace: Trace, _: float | None) -> float | None:
    """Return 1 if the clusters of honest clients are the groups, and 0 if not; None where there are not both."""
    return None if (found := are_groups(*_grouped(trace))) is None else float(found)


def _grouped(trace: Trace) -> tuple[Sequence[Sequence[int]], Mapping[int, int], Sequence[int]]:
    return trace.clusters, trace.groups, trace.byzantine


def _has_both(trace: Trace) -> bool:
    return are_groups(*_grouped(trace)) is not None


def _reached(over: str) -> Callable[[Trace, float | None], float | None]:
    """Return a function to the step or second of the first evaluation with at least the target accuracy."""

    def reached(trace: Trace, target: float | None) -> float | None:
        pairs = zip(trace.curves.get(over, ()), trace.curves.get("accuracy", ()), strict=False)
        return next((at for at, value in pairs if None not in (value, target) and value >= target), None)  # type: ignore[operator]

    return reached


METRICS = {
    "accuracy": _final("Accuracy at the end, %", "accuracy", 100.0),
    "best_accuracy": Metric(
        "Best accuracy, %", lambda trace, _: trace.best(), 100.0, lambda trace: "accuracy" in trace.curves
    ),
    "received_accuracy": _by_client("Accuracy that honest clients are served, %", "received_accuracy"),
    "client_accuracy": _by_client("Accuracy of clients on their own examples, %", "client_accuracy"),
    "worst_client_accuracy": _final("Accuracy for the worst client, %", "worst_client_accuracy", 100.0),
    "attack_success": _final("Success of the attack, %", "attack_success", 100.0),
    "groups_found": Metric("Runs whose clusters are the groups, %", _found, 100.0, _has_both),
    "rand_index": Metric(
        "Adjusted Rand index of clusters and groups", lambda trace, _: rand_index(*_grouped(trace)), has=_has_both
    ),
    "loss": _final("Loss at the end, nats", "loss"),
    "honest_excluded": Metric("Honest clients excluded", lambda trace, _: float(trace.honest_excluded)),
    "virtual_seconds": _final("Virtual seconds", "seconds"),
    "wall_seconds": Metric("Seconds of one process", lambda trace, _: trace.wall_seconds),
    "megabytes": Metric("Megabytes uploaded", _megabytes),
    "steps_to_target": Metric("Steps to the target accuracy", _reached("step")),
    "seconds_to_target": Metric("Virtual seconds to the target accuracy", _reached("seconds")),
}


@dataclass(frozen=True)
class Row:
    """A run with its place in the study.

    Args:
        labels: the name of its value, by axis.
        trace: its record.
        plan: the run; None if it is known by its record only.
    """

    labels: Labels
    trace: Trace
    plan: Run | None = None

    def value(
        self, metric: str, target: float | None = None, known: Mapping[str, Metric] | None = None
    ) -> float | None:
        """Return a figure; None if it was not measured, was not finite, or the run failed.

        Args:
            metric: its name.
            target: the accuracy of `steps_to_target` and `seconds_to_target`.
            known: the figures that there are, as in `Results.metrics`; those of this run if not given.
        """
        figure = _metric(metric, metrics_of([self]) if known is None else known)
        return None if self.trace.failed else figure.of(self.trace, target)


def metrics_of(rows: Iterable[Row]) -> dict[str, Metric]:
    """Return the figures of runs by name: METRICS, other metrics of their tasks, and measures that are numbers."""
    curves = dict.fromkeys(curve for row in rows for curve in row.trace.curves if curve.startswith(EXTRA))
    names = {curve: curve.removeprefix(EXTRA) for curve in curves}
    own = dict.fromkeys(
        name for row in rows for name, value in row.trace.measured.items() if isinstance(value, int | float | None)
    )
    finals = {name: _final(f"{name} at the end", curve) for curve, name in names.items()}
    return METRICS | finals | {name: _measured(name) for name in own}


def _measured(name: str) -> Metric:
    return Metric(name, lambda trace, _: trace.measured.get(name), has=lambda trace: name in trace.measured)


def _metric(name: str, known: Mapping[str, Metric]) -> Metric:
    if name not in known:
        raise InfeasibleError(f"There is no metric {name}. There are: {', '.join(known)}.")
    return known[name]


@dataclass(frozen=True)
class Results:
    """The runs of a study that have a record.

    Args:
        name: of the study.
        axes: the names of the values, by axis.
        rows: the runs.
        missing: number of runs that have no record.
        given_target: accuracy for the time to accuracy; None: 95 % of the best cell's.
        notes: sentences on how the runs were chosen.
        alone: runs of which configuration files are written, by the name of the file in the folder `worst`.
        sought: what the search for the worst attack has tried on each defence; see `phalanx.experiments.worst`.
    """

    name: str
    axes: Mapping[str, Sequence[str]]
    rows: Sequence[Row]
    missing: int = 0
    given_target: float | None = None
    notes: Sequence[str] = ()
    alone: Mapping[str, Run] = field(default_factory=dict)
    sought: Sequence[Sought] = ()

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        """The figures by name: METRICS, other metrics of the tasks, such as "AUROC", and measures that are numbers."""
        return metrics_of(self.rows)

    @property
    def target(self) -> float | None:
        """The accuracy for the time to accuracy; None if none was measured."""
        if self.given_target is not None:
            return self.given_target
        means = [e.mean for _, rows in self.cells() if (e := self.estimate(rows, "accuracy")).mean is not None]
        return NEAR * max(mean for mean in means if mean is not None) if means else None

    def cells(self) -> Iterator[tuple[tuple[str, ...], list[Row]]]:
        """Yield the names of the values of each cell, with its runs."""
        by_cell = dict[tuple[str, ...], list[Row]]()
        for row in self.rows:
            by_cell.setdefault(tuple(row.labels[axis] for axis in self.axes), []).append(row)
        yield from by_cell.items()

    def where(self, at: Mapping[str, str]) -> list[Row]:
        """Return the runs with these values, by axis.

        Raises:
            InfeasibleError: there is no such axis.
        """
        for axis in at:
            self._check(axis)
        return [row for row in self.rows if all(row.labels[axis] == value for axis, value in at.items())]

    def _check(self, axis: str) -> None:
        if axis not in self.axes:
            raise InfeasibleError(f"There is no axis {axis}. There are: {', '.join(self.axes)}.")

    def estimate(self, rows: Iterable[Row], metric: str = "accuracy") -> Estimate:
        """Return the mean of a figure over seeds, with its 95 % interval.

        Of runs in several cells, each seed counts once, with the mean over its cells: runs with one seed have clients
        and data in common, and are not independent.  A seed with a run that has no value counts as failed; runs of a
        kind that has no such figure are left out.

        Args:
            rows: the runs.
            metric: of `metrics`.
        """
        by_seed = dict[int, list[float | None]]()
        target = self.target if metric.endswith("_target") else None
        for row in rows:
            if row.trace.failed or _metric(metric, self.metrics).has(row.trace):
                by_seed.setdefault(row.trace.seed, []).append(row.value(metric, target, self.metrics))
        whole = [[v for v in values if v is not None] for values in by_seed.values() if None not in values]
        return Estimate.of(map(statistics.fmean, whole), len(by_seed) - len(whole))

    def table(
        self, rows: str, columns: str | None = None, metric: str = "accuracy", at: Mapping[str, str] | None = None
    ) -> EstimateTable:
        """Return the estimates of a figure, by the values of two axes: a mapping, shown as a table.

        Args:
            rows: the axis of the rows.
            columns: the axis of the columns; None: one column, named by the metric.
            metric: of `metrics`.
            at: values of other axes. Over those that are not named, the mean is taken for each seed.
        """
        here = self.where(at or {})
        for axis in filter(None, (rows, columns)):
            self._check(axis)
        figure = _metric(metric, self.metrics)
        out = dict[str, dict[str, Estimate]]()
        for row in self.axes[rows]:
            of_row = [one for one in here if one.labels[rows] == row]
            inner = {metric: of_row} if columns is None else {
                column: [one for one in of_row if one.labels[columns] == column] for column in self.axes[columns]
            }  # fmt: skip
            out[row] = {column: self.estimate(found, metric) for column, found in inner.items()}
        return EstimateTable(out, rows, figure.title, figure.scale)

    def tests(self, axis: str, metric: str = "accuracy", at: Mapping[str, str] | None = None) -> list[PairedTest]:
        """Return paired t tests between all pairs of values of an axis, the smallest p first.

        A pair has one difference for each seed: the mean over all cells, of the axes not named in `at`, in which both
        have a run.  p is adjusted by Holm's correction for the number of pairs.  Pairs with fewer than two common seeds
        are left out.

        Args:
            axis: of the methods.
            metric: of `metrics`.
            at: values of other axes.
        """
        self._check(axis)
        target = self.target if metric.endswith("_target") else None
        found = dict[str, dict[tuple[Any, ...], float]]()
        for row in self.where(at or {}):
            others = tuple(value for name, value in row.labels.items() if name != axis)
            if (value := row.value(metric, target, self.metrics)) is not None:
                found.setdefault(row.labels[axis], {})[row.trace.seed, *others] = value
        pairs = list[tuple[str, str, list[float]]]()
        for one, other in itertools.combinations([name for name in self.axes[axis] if name in found], 2):
            differences = _by_seed(found[one], found[other])
            pairs += [(one, other, differences)] if len(differences) > 1 else []
        ps = [paired(differences) for *_, differences in pairs]
        tests = [
            PairedTest(one, other, Estimate.of(differences), p, adjusted)
            for (one, other, differences), p, adjusted in zip(pairs, ps, holm(ps), strict=True)
        ]
        return sorted(tests, key=lambda test: test.p)

    def frame(self) -> "DataFrame":
        """Return a table of pandas with a row for each run: axes, seed, the figures of `metrics`, status, identity.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        frame: DataFrame = optional("pandas", "frame", "tables").DataFrame(self.records())
        return frame

    def records(self) -> list[dict[str, Any]]:
        """Return the rows of `frame` as mappings."""
        target = self.target
        return [
            {
                **row.labels,
                "seed": row.trace.seed,
                **{metric: row.value(metric, target, self.metrics) for metric in self.metrics},
                "steps": row.trace.steps,
                "byzantine_filtered": row.trace.filtered.get("byzantine"),
                "honest_filtered": row.trace.filtered.get("honest"),
                "status": row.trace.status,
                "error": row.trace.error,
                "identity": row.trace.identity,
            }
            for row in self.rows
        ]


def _by_seed(one: Mapping[tuple[Any, ...], float], other: Mapping[tuple[Any, ...], float]) -> list[float]:
    """Return one difference for each seed: the mean over common cells; keys begin with the seed."""
    differences = dict[int, list[float]]()
    for key in one.keys() & other.keys():
        differences.setdefault(key[0], []).append(one[key] - other[key])
    return [statistics.fmean(sorted(values)) for _, values in sorted(differences.items())]
