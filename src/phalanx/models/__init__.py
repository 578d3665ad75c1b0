"""The networks of the papers, one file per family, and a way to any other."""

from phalanx.models.cox import CoxCNN
from phalanx.models.lenet import LeNet
from phalanx.models.mlp import MLP
from phalanx.models.model import Model
from phalanx.models.module import TorchModule
from phalanx.models.reddi import CharLSTM
from phalanx.models.sattler import SattlerCNN, SattlerVGG
from phalanx.models.xu_lyu import XuLyuCifarCNN, XuLyuMnistCNN

__all__ = [
    "MLP",
    "CharLSTM",
    "CoxCNN",
    "LeNet",
    "Model",
    "SattlerCNN",
    "SattlerVGG",
    "TorchModule",
    "XuLyuCifarCNN",
    "XuLyuMnistCNN",
]
