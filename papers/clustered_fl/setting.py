"""Common parts of the experiments: the local training, and data of which every client holds a few."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from typing_extensions import override

from papers.clustered_fl.watching import Alternating, Watched
from phalanx.algorithms import ClusteredFL
from phalanx.core import Until
from phalanx.data import CIFAR10, MNIST, Dataset, Dirichlet, Partition, Source, SwappedLabels, Uniform
from phalanx.experiments.trace import Trace
from phalanx.models import LeNet, Model, SattlerCifarCNN
from phalanx.rng import numpy_generator
from phalanx.runs.plan import Run
from phalanx.training.evaluation import Evaluation
from phalanx.training.sgd import LocalSGD

NEVER = ClusteredFL(
    min_round=1_000_000, memory=None
)  # federated learning as clustered federated learning without splits
BATCH, EPOCHS = 100, 3  # of all experiments of the paper
TESTS = 2000  # test images, drawn at random
ROOT = "0"  # the cluster of all clients, as a trace names it
SILENT = (
    "The paper tells no learning rates, no sizes of its networks, and two of the pairs of labels: lr = 0.1, `LeNet` on "
    "MNIST, `SattlerCifarCNN` on CIFAR-10 and the pairs (1, 7), (3, 5), (4, 9), (2, 8) are ours. Pixels are "
    "standardised."
)


@dataclass(frozen=True)
class Drawn(Source):
    """Some examples of a data set, drawn at random.

    Args:
        source: the data set.
        examples: how many train examples, at most those that there are.
        tests: how many test examples; all if not given.
        balanced: as many train examples of each class, instead of as it comes.
        seed: of the draw.
    """

    public_name: ClassVar[str] = "papers.clustered_fl.Drawn"

    source: Source = MNIST()
    examples: int = 2000
    tests: int | None = None
    balanced: bool = False
    seed: int = 0

    @override
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """See `Source`.

        Raises:
            ValueError: there are fewer examples, or fewer of a class.
        """
        train, test = self.source.load(data_dir)
        return self._some(train, self.examples, "train", self.balanced), self._some(test, self.tests, "test")

    def _some(self, data: Dataset, count: int | None, part: str, balanced: bool = False) -> Dataset:
        if count is None:
            return data
        kinds = [data.y == c for c in range(data.classes)] if balanced else [torch.ones(len(data), dtype=torch.bool)]
        each, rest = divmod(count, len(kinds))
        if each < 1 or rest or each > min(int(kind.sum()) for kind in kinds):
            of = f"{count / len(kinds):g} of each class" if balanced else f"{count:,}"
            raise ValueError(f"Of the {len(data):,} examples of the {part} part {of} cannot be drawn.")
        rng = numpy_generator(self.seed, "drawn", part)
        drawn = [rng.choice(kind.nonzero().flatten().numpy(), each, replace=False) for kind in kinds]
        return data.of(torch.from_numpy(np.concatenate(drawn)).sort().values)


def leaves(trace: Trace) -> int:
    """Return the number of clusters at the end; 0 if there are too many for the trace."""
    return (len(trace.state["born"][-1]) + 1) // 2 if "born" in trace.state else 0


# Swapped labels: Figures 5 and 6

GROUPS = SwappedLabels()
CLIENTS = 20
ROUNDS = 50
LR = 0.1
MODELS: Mapping[str, Model] = {"MNIST": LeNet(), "CIFAR-10": SattlerCifarCNN()}
SOURCES: Mapping[str, Source] = {"MNIST": MNIST(standardize=True), "CIFAR-10": CIFAR10(standardize=True)}
DEALT: Mapping[str, Partition] = {
    "as it comes": Uniform(),
    "balanced": Dirichlet(1e9),  # for each client equal numbers of each class, within one
}


def swapped(data: str, each: int, seed: int, dealt: str = "as it comes") -> Run:
    """Return federated learning of clients that swap labels; both gaps are measured in each round.

    Args:
        data: name of the data set.
        each: examples of a client.
        seed: of everything.
        dealt: how examples are drawn and dealt.
    """
    return Run(
        algorithm=Watched(NEVER, GROUPS, gradients=True),
        data=Drawn(SOURCES[data], CLIENTS * each, TESTS, balanced=dealt == "balanced", seed=seed),
        clients=CLIENTS,
        partition=DEALT[dealt],
        groups=GROUPS,
        model=MODELS[data],
        training=LocalSGD(epochs=EPOCHS, batch_size=BATCH, lr=Alternating(LR)),
        until=Until(steps=2 * ROUNDS),
        evaluation=Evaluation(every=2 * ROUNDS),
        seed=seed,
    )


class Gaps(NamedTuple):
    """The measurements on the whole federation, round by round, from the first."""

    updates: list[float]  # separation gap of updates, at the model that they start from
    gradients: list[float]  # of gradients, at the model after the round
    correct: list[bool]  # whether the bi-partition of the updates divides no group


def gaps(trace: Trace) -> Gaps:
    """Return the columns of a run of `swapped`, of which every second round measures gradients."""
    learned, measured = slice(0, None, 2), slice(1, None, 2)
    updates = [seen[ROOT] for seen in trace.state["gaps"][learned]]
    gradients = [seen[ROOT] for seen in trace.state["gradient_gaps"][measured]]
    return Gaps(updates, gradients, [seen[ROOT] for seen in trace.state["correct"][learned]])
