"""Data: examples with labels, their sources, and partitions among clients.

`Source.load()` returns a train and a test `Dataset`, and `Partition.split()` divides the examples of the first among
clients.  An example has one label or a sequence of labels.
"""

from phalanx.data.agnews import AGNews
from phalanx.data.dataset import NO_LABEL, Dataset
from phalanx.data.groups import Groups, PermutedLabels, RotatedImages, SwappedLabels, Topics
from phalanx.data.held_out import HeldOut
from phalanx.data.holdings import holdings, plot_holdings
from phalanx.data.images import ImageFolder, ImageTable
from phalanx.data.partition import (
    ClassImbalance,
    ClassSplit,
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
from phalanx.data.sentiment import MR, SST
from phalanx.data.shakespeare import Shakespeare
from phalanx.data.sources import CIFAR10, MNIST, Digits, FashionMNIST, HuggingFace, InMemory, Source
from phalanx.data.table_files import CSV, Parquet
from phalanx.data.table_schema import Schema
from phalanx.data.tables import TableReading
from phalanx.data.wikitext import WikiText2

__all__ = [
    "CIFAR10",
    "CSV",
    "MNIST",
    "MR",
    "NO_LABEL",
    "SST",
    "AGNews",
    "ClassImbalance",
    "ClassSplit",
    "Dataset",
    "Digits",
    "Dirichlet",
    "DirichletMultinomialSizes",
    "FashionMNIST",
    "Groups",
    "HeldOut",
    "HuggingFace",
    "ImageFolder",
    "ImageTable",
    "InMemory",
    "LinearRamp",
    "LognormalSizes",
    "Natural",
    "Parquet",
    "Partition",
    "PermutedLabels",
    "PowerLaw",
    "RotatedImages",
    "Schema",
    "Shakespeare",
    "Shards",
    "Source",
    "SwappedLabels",
    "TableReading",
    "Topics",
    "Uniform",
    "WikiText2",
    "holdings",
    "plot_holdings",
]
