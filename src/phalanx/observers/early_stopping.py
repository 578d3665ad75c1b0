"""Early stopping: a run ends when a metric has not improved for some evaluations."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from msgspec import Meta
from typing_extensions import override

from phalanx.core import InfeasibleError
from phalanx.engine.observer import Progress, StopRunError
from phalanx.fields import INFINITE, CheckedFields, PositiveInt
from phalanx.runs.schema import StepRecord
from phalanx.training.evaluation import Metrics

Metric = Literal["accuracy", "loss", "worst_client_accuracy", "attack_success"]
LOWER = ("loss", "attack_success", "perplexity", "Error", "Distance", "Loss")  # ends of metrics that improve by falling
SHARES = ("accuracy", "worst_client_accuracy")  # which are NaN if the task has no accuracy


@dataclass(eq=False)
class EarlyStopping(CheckedFields):
    """An observer that stops a run when a metric has not improved for some evaluations.

    The record has the status "stopped" and the reason.  A run that goes on is stopped where it would have been without
    the interruption; without this observer, a stopped run goes on to its end.

    Args:
        patience: number of evaluations in a row without an improvement after which the run stops.
        metric: "accuracy" or "worst_client_accuracy", which should rise, "loss" or "attack_success", which should fall;
            or a metric of the run's task, such as "AUROC": one whose name ends in Error, Distance or Loss should fall.
            None: the accuracy, or the loss if the task has no accuracy.  A metric class of your own is called as it is
            written in `metrics` of the task, "my_metric.Balanced".
        least: by how much the metric must be better than its best value to count as an improvement.

    Raises:
        InfeasibleError: at the first evaluation, if that does not have the metric; `simulate` then returns a record
            with the status "failed" and this reason.
    """

    patience: PositiveInt
    metric: Metric | str | None = None
    least: Annotated[float, Meta(ge=0), INFINITE] = 0.0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        self._forget()

    def _forget(self) -> None:
        self._watched: str | None = self.metric
        self._best: float | None = None
        self._at = self._without = 0  # the step of the best value, and evaluations since

    def __call__(self, progress: Progress) -> None:
        """See `Observer`."""
        if progress.step == 0:  # of this run, or of the next one that it is given to
            self._forget()
        if progress.metrics is not None:
            self._note(progress.step, self._value(progress.metrics))
        if self._without >= self.patience:
            found = "was never finite" if self._best is None else f"was best after step {self._at} ({self._best:.4g})"
            name = str(self._watched)
            name = name.replace("_", " ") if name in get_args(Metric) else name
            raise StopRunError(f"early stopping: the {name} {found} and did not improve in {self.patience} evaluations")

    def catch_up(self, history: Sequence[StepRecord], /) -> None:
        """See `CatchingUp`."""
        self._forget()
        for step in history:
            if step.metrics is not None:
                value = self._value(step.metrics)
                self._note(step.step, float("nan") if value is None else value)

    def _value(self, measured: Metrics) -> float | None:
        """Return the metric that is watched; raise `InfeasibleError` if the first evaluation does not have it."""
        known = {name: getattr(measured, name) for name in get_args(Metric)} | dict(measured.extra)
        if self._watched is None:
            defined = known["accuracy"] is not None and not math.isnan(known["accuracy"])
            self._watched = "accuracy" if defined or known["loss"] is None else "loss"
        lacking = {name for name in SHARES if measured.loss is not None and known[name] != known[name]}  # NaN
        names = [name for name, value in known.items() if value is not None and name not in lacking]
        if self._watched not in (names if self._best is None and not self._without else known):
            raise InfeasibleError(
                f"Early stopping watches {self._watched!r}, which this run does not measure. It measures "
                f"{', '.join(names)}."
            )
        return known.get(self._watched)

    def _note(self, step: int, value: float | None) -> None:
        """Take in an evaluation; None is none."""
        if value is None:
            return
        sign = -1 if str(self._watched).endswith(LOWER) else 1
        if value == value and (self._best is None or sign * (value - self._best) > self.least):  # noqa: PLR0124  (NaN)
            self._best, self._at, self._without = value, step, 0
        else:
            self._without += 1
