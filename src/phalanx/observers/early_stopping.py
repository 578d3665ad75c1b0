"""Early stopping: a run ends when a metric has not improved for some evaluations."""

from collections.abc import Sequence
from typing import Literal, get_args

from phalanx.core import Progress, Stop
from phalanx.runs.schema import StepRecord

Metric = Literal["accuracy", "loss", "worst_client_accuracy", "attack_success"]
LOWER = ("loss", "attack_success")  # metrics that improve when they fall


class EarlyStopping:
    """An observer that stops a run when a metric has not improved for some evaluations.

    The record has the status "stopped" and the reason.  A run that goes on is stopped where it would have been without
    the interruption; without this observer, a stopped run goes on to its end.

    Args:
        patience: number of evaluations in a row without an improvement after which the run stops, at least 1.
        metric: "accuracy" or "worst_client_accuracy", which should rise, "loss" or "attack_success", which should fall.
        least: by how much the metric must be better than its best value to count as an improvement.
    """

    def __init__(self, patience: int, metric: Metric = "accuracy", least: float = 0.0) -> None:
        if patience < 1:
            raise ValueError(f"patience must be at least 1, got {patience}.")
        if metric not in get_args(Metric):
            raise ValueError(f"metric must be one of {', '.join(get_args(Metric))}, got {metric!r}.")
        if not least >= 0:
            raise ValueError(f"least must be at least 0, got {least}.")
        self.patience, self.metric, self.least = patience, metric, least
        self._forget()

    def _forget(self) -> None:
        self._best: float | None = None
        self._at = self._without = 0  # the step of the best value, and evaluations since

    def __call__(self, progress: Progress) -> None:
        """See `Observer`."""
        if progress.step == 0:  # of this run, or of the next one that it is given to
            self._forget()
        self._note(progress.step, getattr(progress.metrics, self.metric, None))
        if self._without >= self.patience:
            found = "was never finite" if self._best is None else f"was best after step {self._at} ({self._best:.4g})"
            name = self.metric.replace("_", " ")
            raise Stop(f"early stopping: the {name} {found} and did not improve in {self.patience} evaluations")

    def catch_up(self, history: Sequence[StepRecord], /) -> None:
        """See `CatchingUp`."""
        self._forget()
        for step in history:
            if step.metrics is not None:
                value = getattr(step.metrics, self.metric)
                self._note(step.step, float("nan") if value is None else value)

    def _note(self, step: int, value: float | None) -> None:
        """Take in an evaluation; None is none."""
        if value is None:
            return
        sign = -1 if self.metric in LOWER else 1
        if value == value and (self._best is None or sign * (value - self._best) > self.least):  # noqa: PLR0124  (NaN)
            self._best, self._at, self._without = value, step, 0
        else:
            self._without += 1
