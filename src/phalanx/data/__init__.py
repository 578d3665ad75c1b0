"""Data: examples with labels, where they come from, and how they are dealt to clients.

`Source.load()` gives two `Dataset`s, `Partition.split()` says which client holds which examples of the first.  An
example has one label or a sequence of them.
"""

from phalanx.data.dataset import NO_LABEL, Dataset
from phalanx.data.groups import Groups, PermutedLabels, RotatedImages, SwappedLabels
from phalanx.data.holdings import holdings, plot_holdings
from phalanx.data.partition import (
    ClassImbalance,
    Dirichlet,
    DirichletMultinomialSizes,
    LinearRamp,
    LognormalSizes,
    Natural,
    Partition,
    PowerLaw,
    Shards,
    Uniform,
)
from phalanx.data.shakespeare import Shakespeare
from phalanx.data.sources import CIFAR10, MNIST, Digits, FashionMNIST, HuggingFace, InMemory, Source

__all__ = [
    "CIFAR10",
    "MNIST",
    "NO_LABEL",
    "ClassImbalance",
    "Dataset",
    "Digits",
    "Dirichlet",
    "DirichletMultinomialSizes",
    "FashionMNIST",
    "Groups",
    "HuggingFace",
    "InMemory",
    "LinearRamp",
    "LognormalSizes",
    "Natural",
    "Partition",
    "PermutedLabels",
    "PowerLaw",
    "RotatedImages",
    "Shakespeare",
    "Shards",
    "Source",
    "SwappedLabels",
    "Uniform",
    "holdings",
    "plot_holdings",
]
