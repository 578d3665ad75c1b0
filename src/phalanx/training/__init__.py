"""Local training, models as flat vectors, and evaluation."""

from phalanx.training.augmentation import Compose, Flip, PadAndCrop, Transform
from phalanx.training.ditto import Ditto
from phalanx.training.evaluation import Evaluation
from phalanx.training.fedper import FedPer
from phalanx.training.local import LocalTrainer, LocalTraining
from phalanx.training.optimizer import LocalOptimizer
from phalanx.training.private_sgd import PrivateSGD
from phalanx.training.sgd import ExponentialLR, LocalSGD, Schedule, ServerTraining, StepLR, Trainer
from phalanx.training.task import Classification, MultiLabel, NextToken, Regression, Task
from phalanx.training.vector import FlatModule

__all__ = [
    "Classification",
    "Compose",
    "Ditto",
    "Evaluation",
    "ExponentialLR",
    "FedPer",
    "FlatModule",
    "Flip",
    "LocalOptimizer",
    "LocalSGD",
    "LocalTrainer",
    "LocalTraining",
    "MultiLabel",
    "NextToken",
    "PadAndCrop",
    "PrivateSGD",
    "Regression",
    "Schedule",
    "ServerTraining",
    "StepLR",
    "Task",
    "Trainer",
    "Transform",
]
