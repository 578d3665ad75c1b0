"""Catalyst and its rivals, each with the same tuning budget, in the federation of Catalyst's Table 1.

python benchmarks/rivals.py [--only default tuned] [--jobs 2] [--data_dir FOLDER]

31 honest clients with 7 of the 10 labels of MNIST each, 6,000 examples in all, a perceptron of 64 hidden units, 750
virtual seconds; under attack another ten clients.  f = 10 is declared in all cells, also where nobody attacks.  Each
method is run with its defaults and the rate of the table, 0.05, and tuned: of eight of its settings, drawn at random,
with the one that is best over the four cells, on examples held out of training, with another seed.  Accuracy of the
last model, in percent, mean and 95 % interval; the mean over the cells, and Catalyst minus the method there, with p of
a paired t test by Holm.
"""

from dataclasses import replace

from as_study import carry_out, leads, markdown

from papers.catalyst.setting import LABELS, MNIST_FULL
from phalanx import Study
from phalanx.algorithms import BASGD, Catalyst, FedAsync, Kardam
from phalanx.attacks import ALIE, RandomPerturbation, Rescale
from phalanx.data import MNIST
from phalanx.experiments import Tuning
from phalanx.experiments.results import Results
from phalanx.models import MLP
from phalanx.training import Evaluation, LocalSGD

F, RATES = 10, (0.01, 0.02, 0.05, 0.1, 0.2)
OURS = "Catalyst"
TUNED = Study(
    replace(
        MNIST_FULL.run,
        data=MNIST(standardize=True, limit=6000),
        clients=31,  # Kardam needs more than 3f
        partition=LABELS,
        model=MLP((64,)),
        training=LocalSGD(batch_size=10, lr=0.05, momentum=0.5, clip_norm=5.0),
        evaluation=Evaluation(every=10**6),
        attack=RandomPerturbation(0.1),
        additional_byzantine=F,
    ),
    {
        "algorithm": {
            OURS: Catalyst(F),
            "BASGD": BASGD(2 * F + 1),
            "Kardam": Kardam(F, compared="own"),
            "FedAsync": FedAsync(),
        },
        "attack": {
            "none": None,
            "random perturbation": RandomPerturbation(0.1),
            "gradient inversion": Rescale(-10.0),
            "ALIE": ALIE(),
        },
    },
    seeds=5,
    name="tuned",
    tuning=Tuning(
        "algorithm",
        {
            OURS: {"training.lr": RATES, "algorithm.late_lr": (0.5, 1.0)},
            "BASGD": {"training.lr": RATES, "algorithm.server_lr": (0.5, 1.0)},
            "Kardam": {"training.lr": RATES, "algorithm.server_lr": (0.05, 0.1, 0.2, 0.4)},
            "FedAsync": {"training.lr": RATES, "algorithm.mixing": (0.2, 0.6)},
        },
        settings=8,
    ),
)


def table(results: Results) -> str:
    """Return the table, with what was chosen below it."""
    attacks = results.axes["attack"]
    by_attack = results.table("algorithm", "attack")
    overall, ahead = results.table("algorithm"), leads(results, "algorithm", OURS)
    rows = [
        [
            name,
            *(by_attack[name][attack].text(100.0) for attack in attacks),
            overall[name]["accuracy"].text(100.0),
            *ahead.get(name, ("-", "-")),
        ]
        for name in results.axes["algorithm"]
    ]
    head = ("method", *attacks, "mean", f"{OURS} minus it", "p")
    return "\n".join([results.name, "", markdown(head, rows), "", *results.notes])


if __name__ == "__main__":
    carry_out(__doc__, {"default": replace(TUNED, tuning=None, name="default"), "tuned": TUNED}, table, "rivals")
