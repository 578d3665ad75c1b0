"""MLflow: the metrics of each step in the active run of its tracking server."""

from phalanx.engine.observer import Progress
from phalanx.observers.figures import figures, missing


class MLflow:
    """An observer that logs each step's metrics and numbers of updates to MLflow's active run.

    `mlflow.start_run()` begins one, before or around `simulate`; if there is none, MLflow begins one of its own.

    Raises:
        InfeasibleError: the package mlflow is not installed.
    """

    def __init__(self) -> None:
        try:
            import mlflow  # noqa: PLC0415  (optional)
        except ImportError as error:
            raise missing("MLflow", "mlflow") from error
        self._log = mlflow.log_metrics

    def __call__(self, progress: Progress) -> None:
        """See `Observer`."""
        self._log(figures(progress), step=progress.step)
