"""Data: examples with labels, where they come from, and how they are dealt to clients.

`Source.load()` gives two `Dataset`s, `Partition.split()` says which client holds which examples of the first.
"""

from phalanx.data.dataset import Dataset
from phalanx.data.holdings import holdings, plot_holdings
from phalanx.data.partition import (
    ClassImbalance,
    Dirichlet,
    LinearRamp,
    LognormalSizes,
    Partition,
    PowerLaw,
    Shards,
    Uniform,
)
from phalanx.data.sources import CIFAR10, MNIST, Digits, FashionMNIST, HuggingFace, InMemory, Source

__all__ = [
    "CIFAR10",
    "MNIST",
    "ClassImbalance",
    "Dataset",
    "Digits",
    "Dirichlet",
    "FashionMNIST",
    "HuggingFace",
    "InMemory",
    "LinearRamp",
    "LognormalSizes",
    "Partition",
    "PowerLaw",
    "Shards",
    "Source",
    "Uniform",
    "holdings",
    "plot_holdings",
]
