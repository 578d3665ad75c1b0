"""What newcomers check first: the rounds of FedAvg to 97 and 99 % on MNIST, next to those of McMahan et al. (2017).

python benchmarks/first_check.py [--only iid shards] [--data_dir FOLDER] [--jobs 2]

McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, Table 1: 100 clients of 600 examples, IID or of two shards; a perceptron with two layers of 200
(97 %, one epoch), or a network of two convolutions (99 %, five epochs).  C is the share of clients in a round, one
client for 0; B the size of minibatches.  They take the best of their rates for each entry, from grids with steps of
10^(1/3); here each rate has a column.  A cell: the first round with that test accuracy, the mean over seeds with half
of its 95 % interval, and "not by" the last round where a seed did not come there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from as_study import carry_out, markdown
from torch import nn
from typing_extensions import override

from phalanx import Run, Study, Until
from phalanx.data import MNIST, Shards, Uniform
from phalanx.experiments.results import Results
from phalanx.models import MLP, Model
from phalanx.training import LocalSGD

EVERYTHING = 600  # examples of a client
RATES = (0.0464, 0.1, 0.215)  # of their grid


@dataclass(frozen=True)
class TwoConvolutions(Model):
    """Their network of 1,663,370 parameters: two convolutions of 5 x 5, each pooled by two, and a layer of 512."""

    @override
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, classes),
        )  # fmt: skip


class Entry(NamedTuple):
    """An entry of Table 1."""

    share: float  # C
    batch: int  # B
    published: int  # rounds
    rounds: int  # of our runs


PERCEPTRON: Mapping[str, tuple[Entry, ...]] = {
    "iid": (
        Entry(0.0, 10, 316, 600),
        Entry(0.1, 10, 87, 150),
        Entry(0.2, 10, 77, 150),
        Entry(0.5, 10, 75, 120),
        Entry(1.0, 10, 70, 120),
    ),
    "shards": (
        Entry(0.0, 10, 3275, 5000),
        Entry(0.1, 10, 664, 1000),
        Entry(0.2, 10, 619, 1000),
    ),
    "shards_many": (Entry(0.5, 10, 443, 800), Entry(1.0, 10, 380, 800)),
    "iid_whole": (Entry(0.0, EVERYTHING, 1455, 3000), Entry(0.1, EVERYTHING, 1474, 3000)),
    "shards_whole": (Entry(0.0, EVERYTHING, 4278, 6000), Entry(0.1, EVERYTHING, 1796, 4000)),
}
CONVOLUTIONS: Mapping[str, tuple[Entry, ...]] = {
    "iid_cnn": (Entry(0.0, 10, 50, 100), Entry(0.1, 10, 18, 40)),
    "shards_cnn": (Entry(0.1, 10, 206, 400),),
}


def study(name: str) -> Study:
    """Return the study of some entries."""
    convolutions = name in CONVOLUTIONS
    base = Run(
        data=MNIST(),
        clients=100,
        partition=Shards(2) if name.startswith("shards") else Uniform(),
        model=TwoConvolutions() if convolutions else MLP((200, 200)),
        training=LocalSGD(epochs=5 if convolutions else 1, engine="compiled"),
    )
    entries: dict[str, dict[str, Any]] = {
        str(entry.share): {
            "participation": max(entry.share, 0.01),
            "training.batch_size": entry.batch,
            "until": Until(entry.rounds),
        }
        for entry in of(name)
    }
    grid: dict[str, Any] = {"C": entries, "training.lr": {str(rate): rate for rate in RATES}}
    return Study(base, grid, seeds=3, name=name, target=0.99 if convolutions else 0.97)


def of(name: str) -> tuple[Entry, ...]:
    """Return the entries of a study."""
    return (PERCEPTRON | CONVOLUTIONS)[name]


def table(results: Results) -> str:
    """Return the table in Markdown."""
    out = []
    for entry in of(results.name):
        row = [f"{entry.share:g}"]
        for rate in results.axes["training.lr"]:
            found = results.where({"C": str(entry.share), "training.lr": rate})
            there = results.estimate(found, "steps_to_target")
            row.append("-" if not found else f"not by {entry.rounds}" if there.failed else there.text())
        out.append([*row, str(entry.published)])
    head = ("C", *(f"rate {rate}" for rate in results.axes["training.lr"]), "published")
    return f"{results.name}\n\n{markdown(head, out)}\n"


if __name__ == "__main__":
    carry_out(__doc__, {name: study(name) for name in PERCEPTRON | CONVOLUTIONS}, table, "first_check")
