"""The networks of the papers, one file per family; `TorchModule` and `GivenModule` for any other network."""

from phalanx.models.cox import CoxCNN
from phalanx.models.given import GivenModule
from phalanx.models.kim import KimCNN
from phalanx.models.lenet import LeNet
from phalanx.models.mlp import MLP
from phalanx.models.model import Model
from phalanx.models.module import TorchModule
from phalanx.models.partly import LoRA, PartlyTrained
from phalanx.models.reddi import CharLSTM
from phalanx.models.resnet import ResNet18
from phalanx.models.sattler import SattlerCifarCNN, SattlerCNN, SattlerVGG
from phalanx.models.transformer import CausalTransformer
from phalanx.models.word_lstm import WordLSTM
from phalanx.models.xu_lyu import XuLyuCifarCNN, XuLyuMnistCNN

__all__ = [
    "MLP",
    "CausalTransformer",
    "CharLSTM",
    "CoxCNN",
    "GivenModule",
    "KimCNN",
    "LeNet",
    "LoRA",
    "Model",
    "PartlyTrained",
    "ResNet18",
    "SattlerCNN",
    "SattlerCifarCNN",
    "SattlerVGG",
    "TorchModule",
    "WordLSTM",
    "XuLyuCifarCNN",
    "XuLyuMnistCNN",
]
