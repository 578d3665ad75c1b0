"""Federated learning algorithms, one file per paper."""

from phalanx.algorithms.byzantine_cfl import ByzantineCFL
from phalanx.algorithms.fedasync import FedAsync
from phalanx.algorithms.fedavg import FedAvg
from phalanx.core import Algorithm

__all__ = ["Algorithm", "ByzantineCFL", "FedAsync", "FedAvg"]
