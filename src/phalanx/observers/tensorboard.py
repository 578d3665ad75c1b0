"""TensorBoard: `tensorboard --logdir FOLDER` shows the metrics while a run goes on."""

from pathlib import Path

from phalanx.engine.observer import Progress
from phalanx.observers.figures import figures, missing


class TensorBoard:
    """An observer that writes each step's metrics and numbers of updates for TensorBoard.

    Args:
        folder: where the event files go. A resumed run adds to them.

    Raises:
        InfeasibleError: the package tensorboard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (optional)
        except ImportError as error:
            raise missing("TensorBoard", "tensorboard") from error
        self._writer = SummaryWriter(str(folder))

    def __call__(self, progress: Progress) -> None:
        """See `Observer`."""
        for name, value in figures(progress).items():
            self._writer.add_scalar(name, value, progress.step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
