"""Federated learning algorithms, one file per paper."""

from phalanx.algorithms.aflguard import AFLGuard
from phalanx.algorithms.agreement import ByClass
from phalanx.algorithms.async_rffl import AsyncRFFL
from phalanx.algorithms.basgd import BASGD
from phalanx.algorithms.byzantine_cfl import AboveNoise, ByzantineCFL
from phalanx.algorithms.catalyst import Catalyst, Inverse
from phalanx.algorithms.clustered_fl import ClusteredFL, Relative
from phalanx.algorithms.fedasync import FedAsync
from phalanx.algorithms.fedavg import FedAvg
from phalanx.algorithms.fedbuff import FedBuff
from phalanx.algorithms.flame import FLAME
from phalanx.algorithms.foolsgold import FoolsGold
from phalanx.algorithms.hidden import Permuted, Rotated
from phalanx.algorithms.kardam import Kardam
from phalanx.algorithms.private import Private
from phalanx.algorithms.qfedavg import QFedAvg
from phalanx.algorithms.quorum import Quorum
from phalanx.algorithms.reputation import MedianNorm, PerLayer, Whole
from phalanx.algorithms.rffl import RFFL
from phalanx.algorithms.signsgd import SignSGD
from phalanx.algorithms.staleness import Exponential, Hinge, Polynomial, Staleness, Undiscounted
from phalanx.algorithms.standalone import Standalone
from phalanx.algorithms.zeno import ZenoPlusPlus
from phalanx.core import Algorithm

__all__ = [
    "BASGD",
    "FLAME",
    "RFFL",
    "AFLGuard",
    "AboveNoise",
    "Algorithm",
    "AsyncRFFL",
    "ByClass",
    "ByzantineCFL",
    "Catalyst",
    "ClusteredFL",
    "Exponential",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FoolsGold",
    "Hinge",
    "Inverse",
    "Kardam",
    "MedianNorm",
    "PerLayer",
    "Permuted",
    "Polynomial",
    "Private",
    "QFedAvg",
    "Quorum",
    "Relative",
    "Rotated",
    "SignSGD",
    "Staleness",
    "Standalone",
    "Undiscounted",
    "Whole",
    "ZenoPlusPlus",
]
