"""Federated learning algorithms, one file per paper."""

from phalanx.algorithms.aflguard import AFLGuard
from phalanx.algorithms.agreement import ByClass
from phalanx.algorithms.async_filter import AsyncFilter
from phalanx.algorithms.async_momentum import AsyncMomentum
from phalanx.algorithms.async_rffl import AsyncRFFL
from phalanx.algorithms.basgd import BASGD
from phalanx.algorithms.benign_clusters import BenignClusters
from phalanx.algorithms.byzantine_cfl import AboveNoise, AtOnce, ByzantineCFL, IfUnlike
from phalanx.algorithms.catalyst import Catalyst, Inverse
from phalanx.algorithms.centrally_private import CentrallyPrivate
from phalanx.algorithms.challenge import Challenge
from phalanx.algorithms.clustered_fl import ClusteredFL, Relative
from phalanx.algorithms.demoa import DeMoA
from phalanx.algorithms.fedasync import FedAsync
from phalanx.algorithms.fedavg import FedAvg
from phalanx.algorithms.fedbuff import FedBuff
from phalanx.algorithms.feddyn import FedDyn
from phalanx.algorithms.fednova import FedNova
from phalanx.algorithms.flame import FLAME
from phalanx.algorithms.flhc import FLHC
from phalanx.algorithms.fltrust import FLTrust
from phalanx.algorithms.foolsgold import FoolsGold
from phalanx.algorithms.hidden import Permuted, Rotated
from phalanx.algorithms.ifca import IFCA
from phalanx.algorithms.kardam import Kardam
from phalanx.algorithms.low_rank import Adapter, LowRankProducts
from phalanx.algorithms.per_cluster import PerCluster
from phalanx.algorithms.private import Private
from phalanx.algorithms.qfedavg import QFedAvg
from phalanx.algorithms.quorum import Quorum
from phalanx.algorithms.reputation import MedianNorm, PerLayer, Whole
from phalanx.algorithms.rewarded import Rewarded
from phalanx.algorithms.rffl import RFFL
from phalanx.algorithms.scaffold import SCAFFOLD
from phalanx.algorithms.server_alone import ServerAlone
from phalanx.algorithms.server_optimizers import FedAdagrad, FedAdam, FedAvgM, FedYogi
from phalanx.algorithms.signsgd import SignSGD
from phalanx.algorithms.staleness import Exponential, Hinge, Polynomial, Staleness, Undiscounted
from phalanx.algorithms.standalone import Standalone
from phalanx.algorithms.stocfl import StoCFL
from phalanx.algorithms.unsent import Unsent
from phalanx.algorithms.worker_momentum import WorkerMomentum
from phalanx.algorithms.zeno import ZenoPlusPlus
from phalanx.core import Algorithm

__all__ = [
    "BASGD",
    "FLAME",
    "FLHC",
    "IFCA",
    "RFFL",
    "SCAFFOLD",
    "AFLGuard",
    "AboveNoise",
    "Adapter",
    "Algorithm",
    "AsyncFilter",
    "AsyncMomentum",
    "AsyncRFFL",
    "AtOnce",
    "BenignClusters",
    "ByClass",
    "ByzantineCFL",
    "Catalyst",
    "CentrallyPrivate",
    "Challenge",
    "ClusteredFL",
    "DeMoA",
    "Exponential",
    "FLTrust",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedAvgM",
    "FedBuff",
    "FedDyn",
    "FedNova",
    "FedYogi",
    "FoolsGold",
    "Hinge",
    "IfUnlike",
    "Inverse",
    "Kardam",
    "LowRankProducts",
    "MedianNorm",
    "PerCluster",
    "PerLayer",
    "Permuted",
    "Polynomial",
    "Private",
    "QFedAvg",
    "Quorum",
    "Relative",
    "Rewarded",
    "Rotated",
    "ServerAlone",
    "SignSGD",
    "Staleness",
    "Standalone",
    "StoCFL",
    "Undiscounted",
    "Unsent",
    "Whole",
    "WorkerMomentum",
    "ZenoPlusPlus",
]
