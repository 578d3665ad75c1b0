"""Weights & Biases: the metrics of each step, kept on this machine until `wandb sync` uploads them."""

from typing import Any, Literal

from phalanx.engine.observer import Progress
from phalanx.observers.figures import figures, missing


class WeightsAndBiases:
    """An observer that logs each step's metrics and numbers of updates to Weights & Biases.

    Args:
        project: name of the project.
        mode: "offline" keeps the metrics on this machine, "online" sends them.
        options: of `wandb.init`.

    Raises:
        InfeasibleError: the package wandb is not installed.
    """

    def __init__(self, project: str, mode: Literal["offline", "online"] = "offline", **options: Any) -> None:
        try:
            import wandb  # noqa: PLC0415  (optional)
        except ImportError as error:
            raise missing("WeightsAndBiases", "wandb") from error
        self._run = wandb.init(project=project, mode=mode, **options)

    def __call__(self, progress: Progress) -> None:
        """See `Observer`."""
        self._run.log(figures(progress), step=progress.step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()
