"""Common parts of the experiments: methods in two forms, attacks, federations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from papers.catalyst.populations import LabelsEach, Subset
from phalanx.algorithms import BASGD, Catalyst, FedAsync, Kardam
from phalanx.algorithms.staleness import Polynomial
from phalanx.attacks import Attack, RandomPerturbation, Rescale
from phalanx.core import Algorithm, Until
from phalanx.data import MNIST, Partition
from phalanx.experiments.papers.experiment import Scale
from phalanx.models import MLP, CoxCNN
from phalanx.runs.plan import Run
from phalanx.simulation import Normal
from phalanx.training.evaluation import Evaluation
from phalanx.training.sgd import LocalSGD

Form = Literal["authors", "ours"]
METHODS = ("FedAsync", "Kardam", "BASGD", "Catalyst")
FORMS: tuple[Form, ...] = ("authors", "ours")
NONE = "no attack"
ATTACKS: Mapping[str, Attack | None] = {
    NONE: None,
    "random perturbation": RandomPerturbation(0.1),
    "gradient inversion": Rescale(-10.0),
}
COST = "f declared, nobody attacks"  # the cost of a defence without attackers
CLOCK = Normal(100.0, 20.0)


@dataclass(frozen=True)
class Problem:
    """The task: data, model, clients and time.

    Args:
        run: the federation without an attack, of `honest` + `byzantine` clients.
        honest: clients, under attack.
        byzantine: number of additional clients that attack.
    """

    run: Run
    honest: int
    byzantine: int

    @property
    def lr(self) -> float:
        """The clients' learning rate."""
        return self.run.training.learning_rate(0)


def recipe(lr: float, batch_size: int = 50) -> LocalSGD:
    """Return the local training in the published program."""
    return LocalSGD(batch_size=batch_size, lr=lr, momentum=0.5, clip_norm=5.0)


LABELS: Partition = LabelsEach(7)
MNIST_FULL = Problem(
    Run(
        data=MNIST(standardize=True),
        clients=40,
        partition=LABELS,
        model=CoxCNN(),
        training=recipe(0.05),
        latency=CLOCK,
        until=Until(seconds=750.0),
        evaluation=Evaluation(every=10),
    ),
    honest=30,
    byzantine=10,
)


SMALL = (
    "Quick scale: 6,000 training images in all instead of 60,000, batches of 10 instead of 50, and a perceptron with "
    "64 hidden units instead of the convolutional network, tested on 2,000 images. So the numbers are to be compared "
    "with each other, and only roughly with the published ones."
)


def mnist(scale: Scale, seed: int) -> Problem:
    """Return the federation of Table 1 on MNIST: the paper's, or a tenth of the data and a perceptron."""
    if scale == "paper":
        return MNIST_FULL
    small = replace(
        MNIST_FULL.run,
        data=Subset(MNIST(standardize=True), 6000, 2000, seed),
        model=MLP((64,)),
        training=recipe(0.05, 10),
    )
    return replace(MNIST_FULL, run=small)


def algorithm(method: str, form: Form, f: int, lr: float) -> Algorithm:
    """Return a method against f attackers; in the authors' form FedAsync's mixing is the clients' learning rate.

    Raises:
        KeyError: there is no such method.
    """
    theirs = form == "authors"
    made: Mapping[str, Algorithm] = {
        "FedAsync": FedAsync(lr, Polynomial(1.0)) if theirs else FedAsync(),
        "Kardam": Kardam.as_in_catalyst(f) if theirs else Kardam(f),
        "BASGD": BASGD.as_in_catalyst(f) if theirs else BASGD(2 * f + 1, server_lr=ALONE if f == 0 else 1.0),
        "Catalyst": Catalyst.as_published(f) if theirs else Catalyst(f),
    }
    return made[method]


ALONE = 0.1  # server's learning rate of BASGD with one buffer: asynchronous SGD, in which 40 stale clients overshoot


def name(attack: str, method: str, form: str) -> str:
    """Return the name of a cell."""
    return f"{attack} / {method} / {form}"


def attacked(task: Problem, attack: str, seed: int) -> Run:
    """Return the federation of a task under an attack, or without one."""
    run = replace(task.run, seed=seed)
    if (forged := ATTACKS[attack]) is None:
        return run
    return replace(run, clients=task.honest, additional_byzantine=task.byzantine, attack=forged)


def cells(
    task: Problem,
    seed: int,
    attacks: Sequence[str] = tuple(ATTACKS),
    methods: Sequence[str] = METHODS,
    forms: Sequence[Form] = FORMS,
) -> dict[str, Run]:
    """Return a run for each attack, method and form, by name; f is 0 without an attack, as in the paper."""
    out = {}
    for attack in attacks:
        base = attacked(task, attack, seed)
        f = 0 if ATTACKS[attack] is None else task.byzantine
        for method in methods:
            for form in forms:
                out[name(attack, method, form)] = replace(base, algorithm=algorithm(method, form, f, task.lr))
    return out


def costs(task: Problem, seed: int) -> dict[str, Run]:
    """Return our form of the three defences, with f attackers declared and none present."""
    base = attacked(task, NONE, seed)
    return {
        name(COST, method, "ours"): replace(base, algorithm=algorithm(method, "ours", task.byzantine, task.lr))
        for method in METHODS[1:]
    }
