"""Common parts of the experiments: data and splits, methods and attackers, and runs by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from phalanx.aggregators import Clip, Mean, Median, MultiKrum
from phalanx.algorithms import RFFL, ByClass, FedAvg, FoolsGold, QFedAvg, SignSGD, Standalone
from phalanx.attacks import Attack, LabelFlip, RandomFreeRider, RandomInversion, RandomSigns, Rescale
from phalanx.core import Algorithm, Until
from phalanx.data import CIFAR10, MNIST, MR, SST, ClassImbalance, LinearRamp, Partition, Source, Uniform
from phalanx.experiments.papers.experiment import Scale
from phalanx.models import MLP, KimCNN, Model, XuLyuCifarCNN, XuLyuMnistCNN
from phalanx.runs.plan import Run
from phalanx.training.evaluation import Evaluation
from phalanx.training.sgd import ExponentialLR, LocalSGD
from phalanx.weighting import Ignore

UNIFORM, RAMP, CLASSES = "uniform", "powerlaw", "classimbalance"
SPLITS = (UNIFORM, RAMP, CLASSES)
OURS, FIXED, BY_CLASS, CLIPPED = "RFFL, replaced", "RFFL, Gamma", "RFFL, by class", "FedAvg, Gamma"
STANDALONE = "Standalone"
FAIR = ("RFFL", OURS, "FedAvg", "q-FFL", STANDALONE)  # methods of the tables without attackers
ROBUST = ("RFFL", FIXED, OURS, "FedAvg", CLIPPED, "FoolsGold", "Multi-Krum", "SignSGD", "Median", STANDALONE)
REPUTATION = ("RFFL", FIXED, OURS)  # methods that exclude participants
SHARED = ("FedAvg", "q-FFL")  # that serve all the same model, and have one more local epoch without attackers
FLIP, RIDE = "label-flipping", "free-riding"
SIGNS, RESCALE, INVERT = "sign-randomizing", "re-scaling", "value-inverting"
ATTACKS: Mapping[str, Attack] = {
    FLIP: LabelFlip(1, 7),
    SIGNS: RandomSigns(),
    RESCALE: Rescale(-100.0),
    INVERT: RandomInversion(),
    RIDE: RandomFreeRider(),
}
FLIPPED = 1  # the class of which the label flippers' examples are
FEW, MANY = 2, 11  # attackers: 20 % and 110 % of ten


@dataclass(frozen=True)
class Size:
    """The training on one scale.

    Args:
        model: the network.
        rounds: of the whole run.
        lr: learning rate at the start, with ten participants or more; five have 0.6 times that, as in the paper.
        decay: factor on it, for each round.
        batch_size: examples of a minibatch.
        each: examples of a participant, on average.
        gamma: the largest norm of an update, where it is fixed.
        every: rounds between two evaluations in the runs of Figure 1. Others are evaluated at the end.
    """

    model: Model
    rounds: int
    lr: float
    decay: float
    batch_size: int
    each: int
    gamma: float
    every: int

    def learning_rate(self, clients: int) -> ExponentialLR:
        """Return the clients' learning rate for each round."""
        return ExponentialLR(self.lr if clients > 5 else round(0.6 * self.lr, 6), self.decay)


SIZES: Mapping[tuple[str, Scale], Size] = {
    ("MNIST", "paper"): Size(XuLyuMnistCNN(), 60, 0.25, 0.977, 16, 600, 0.5, 6),
    ("MNIST", "quick"): Size(MLP((64,)), 20, 0.25, 0.93, 16, 600, 0.5, 5),
    ("CIFAR-10", "paper"): Size(XuLyuCifarCNN(), 200, 0.025, 0.977, 64, 2000, 0.15, 20),
    ("CIFAR-10", "quick"): Size(MLP((64,)), 20, 0.05, 0.93, 16, 200, 0.5, 20),
    ("MR", "paper"): Size(KimCNN(filters=128, widths=(3, 3, 3)), 100, 1.0, 0.977, 32, 1919, 1.0, 100),
    ("MR", "quick"): Size(KimCNN(1000, 32, 16), 20, 1.0, 0.977, 16, 200, 1.0, 20),
    ("SST", "paper"): Size(KimCNN(filters=128, widths=(3, 3, 3)), 100, 1.0, 0.977, 32, 1708, 1.0, 100),
    ("SST", "quick"): Size(KimCNN(1000, 32, 16), 20, 1.0, 0.977, 16, 200, 1.0, 20),
}
SMALLER = "At quick scale {what}. So accuracies lie below the published ones, and are to be compared with each other."
SMALLER_MNIST = SMALLER.format(
    what="a perceptron with 64 hidden units takes the place of the CNN, and there are 20 rounds instead of 60, in each "
    "of which the learning rate falls as in three"
)


@dataclass(frozen=True)
class Federation:
    """The data and the participants.

    Args:
        data: name of the data set.
        clients: honest participants.
        split: of the data among them.
    """

    data: str
    clients: int
    split: str

    @property
    def name(self) -> str:
        """The name in the names of cells."""
        return f"{self.data} / {self.clients} / {self.split}"

    def size(self, scale: Scale) -> Size:
        """Return the training."""
        return SIZES[self.data, scale]

    def base(self, scale: Scale, seed: int) -> Run:
        """Return the run without the method."""
        size = self.size(scale)
        training = LocalSGD(batch_size=size.batch_size, lr=size.learning_rate(self.clients))
        return Run(
            data=self._source(scale),
            clients=self.clients,
            partition=self._partition(scale),
            model=size.model,
            training=training,
            until=Until(steps=size.rounds),
            evaluation=Evaluation(every=size.every if (self.data, self.clients) == ("MNIST", 10) else size.rounds),
            seed=seed,
        )

    def _source(self, scale: Scale) -> Source:
        each = self.size(scale).each
        total = int((each + 0.5) * self.clients) if self.split == RAMP and self.data == "MNIST" else each * self.clients
        if self.data == "MNIST":
            limit = None if self.split == CLASSES else total
            return MNIST(standardize=True, limit=limit, padding=2) if scale == "paper" else MNIST(limit=limit)
        if self.data == "CIFAR-10":
            return CIFAR10(standardize=True, limit=_enough(total, scale) if self.split == CLASSES else total)
        known = {"MR": MR, "SST": SST}[self.data]
        model = self.size(scale).model
        assert isinstance(model, KimCNN)
        return known(vocabulary=model.vocabulary, limit=total if scale == "quick" else None)

    def _partition(self, scale: Scale) -> Partition:
        if self.split == CLASSES:
            most = 1700 if (self.data, self.clients) == ("CIFAR-10", 10) else self.size(scale).each
            return ClassImbalance(each=min(most, self.size(scale).each))
        return LinearRamp() if self.split == RAMP else Uniform()


def _enough(total: int, scale: Scale) -> int | None:
    """Return examples among which there are enough of the class that all hold; all at the paper's scale."""
    return 4 * total if scale == "quick" else None


class Enemy(NamedTuple):
    """Attackers in addition to the honest participants."""

    attack: str
    number: int


def carried_out(federation: Federation, method: str, scale: Scale, seed: int, enemy: Enemy | None = None) -> Run:
    """Return the run of a method, with additional attackers or without."""
    base, size = federation.base(scale, seed), federation.size(scale)
    run = replace(base, algorithm=algorithm(method, base.clients, size, enemy.number if enemy else 0))
    if method == STANDALONE:
        return run  # attackers do not affect participants that train alone, nor any examples
    if method == "q-FFL":
        run = replace(run, participation=0.8)
    if enemy is not None:
        final = Evaluation(every=size.rounds)
        return replace(run, attack=ATTACKS[enemy.attack], additional_byzantine=enemy.number, evaluation=final)
    if method in SHARED:
        run = replace(run, evaluation=replace(run.evaluation, local_epochs=1))
    return run


def algorithm(method: str, clients: int, size: Size, attackers: int = 0) -> Algorithm:
    """Return a method with its settings for these numbers of participants and attackers."""
    if method == BY_CLASS:
        side = 32 if isinstance(size.model, XuLyuMnistCNN) else 28  # of MNIST's images, which alone have this method
        return replace(RFFL.as_published(), agreement=ByClass.of(size.model, (1, side, side), 10), probation=10)
    n = clients + attackers
    krum = MultiKrum(f=n - round(0.8 * n), m=round(0.8 * n))
    known: dict[str, Algorithm] = {
        "RFFL": RFFL.as_published(),
        FIXED: replace(RFFL.as_published(), clip=size.gamma),
        OURS: replace(RFFL.as_published(), own="replaced", min_coherence=1.5),
        "FedAvg": FedAvg(),
        CLIPPED: FedAvg(aggregate=Clip(size.gamma) >> Mean()),
        "q-FFL": QFedAvg(q=0.1, lr=size.learning_rate(clients)),
        "FoolsGold": FoolsGold(confidence=1.0),
        "Multi-Krum": FedAvg(aggregate=krum, preprocess=Ignore()),
        "SignSGD": SignSGD(server_lr=ExponentialLR(0.01, round(0.1 ** (1 / size.rounds), 4)), momentum=0.8),
        "Median": FedAvg(aggregate=Median(), preprocess=Ignore()),
        STANDALONE: Standalone(),
    }
    return known[method]


def cell(federation: Federation, method: str, enemy: Enemy | None = None) -> str:
    """Return the name of a cell."""
    attackers = f" / {enemy.number} {enemy.attack}" if enemy and method != STANDALONE else ""
    return f"{federation.name} / {method}{attackers}"


def cells(
    federations: Sequence[Federation], methods: Sequence[str], scale: Scale, seed: int, enemy: Enemy | None = None
) -> dict[str, Run]:
    """Return a run for each federation and method, by name."""
    return {
        cell(f, method, enemy): carried_out(f, method, scale, seed, enemy) for f in federations for method in methods
    }
