"""The plan shared by server and clients: the network, the algorithm, and the training settings."""

from phalanx import LocalSGD
from phalanx.aggregators import GeometricMedian
from phalanx.algorithms import FedAvg
from phalanx.models import MLP
from phalanx.weighting import Ignore

LIARS = 1  # hospitals that may lie, of four: about their sizes, their updates, or when they answer
algorithm = FedAvg(aggregate=GeometricMedian(), preprocess=Ignore())
training = LocalSGD(epochs=2, batch_size=16, lr=0.1)
network = MLP((32,))  # for the inputs and classes of the schema
