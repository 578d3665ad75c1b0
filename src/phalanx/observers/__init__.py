"""Observers of a run: they stop it early, or show its metrics elsewhere.

    simulate(plan, observers=[EarlyStopping(patience=10), TensorBoard(Path("runs/board"))])

The services are optional: what one of them needs is imported when its observer is made.
"""

from phalanx.observers.early_stopping import EarlyStopping
from phalanx.observers.mlflow import MLflow
from phalanx.observers.progress_bar import ProgressBar
from phalanx.observers.tensorboard import TensorBoard
from phalanx.observers.wandb import WeightsAndBiases

__all__ = ["EarlyStopping", "MLflow", "ProgressBar", "TensorBoard", "WeightsAndBiases"]
