"""Federated learning algorithms, one file per paper."""

from phalanx.algorithms.byzantine_cfl import ByzantineCFL
from phalanx.algorithms.clustered_fl import ClusteredFL, Relative
from phalanx.algorithms.fedasync import FedAsync
from phalanx.algorithms.fedavg import FedAvg
from phalanx.algorithms.wrappers import Permuted, Rotated
from phalanx.core import Algorithm

__all__ = ["Algorithm", "ByzantineCFL", "ClusteredFL", "FedAsync", "FedAvg", "Permuted", "Relative", "Rotated"]
