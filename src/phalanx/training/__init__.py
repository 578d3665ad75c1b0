"""Local training, models as flat vectors, and evaluation."""

from phalanx.training.evaluation import Evaluation
from phalanx.training.sgd import ExponentialLR, LocalSGD, Schedule, ServerTraining, StepLR, Trainer
from phalanx.training.vector import FlatModule

__all__ = [
    "Evaluation",
    "ExponentialLR",
    "FlatModule",
    "LocalSGD",
    "Schedule",
    "ServerTraining",
    "StepLR",
    "Trainer",
]
