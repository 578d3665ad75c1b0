"""The plan shared by server and clients: the model, the algorithm, and the training settings."""

from torch import nn

from phalanx import LocalSGD
from phalanx.aggregators import TrimmedMean
from phalanx.algorithms import FedAvg

FEATURES, DIAGNOSES = 64, 10

algorithm = FedAvg(aggregate=TrimmedMean(0.25))
training = LocalSGD(epochs=2, batch_size=16, lr=0.1)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, DIAGNOSES))
