"""The plan shared by server and clients: the model, the algorithm, and the training settings."""

from torch import nn

from phalanx import LocalSGD
from phalanx.aggregators import Median
from phalanx.algorithms import FedAvg
from phalanx.weighting import Ignore

FEATURES, DIAGNOSES = 64, 10

LIARS = 1  # hospitals that may lie, of four: about their sizes, their updates, or when they answer
algorithm = FedAvg(aggregate=Median(), preprocess=Ignore())
training = LocalSGD(epochs=2, batch_size=16, lr=0.1)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, DIAGNOSES))
