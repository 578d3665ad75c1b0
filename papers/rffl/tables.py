"""All tables of results: fairness and accuracy without attackers, and ten participants under attack."""

from collections.abc import Mapping
from functools import partial

from papers.rffl.fairness import WithoutAttackers, grid
from papers.rffl.robustness import WithAttackers
from papers.rffl.setting import FEW, FLIP, INVERT, MANY, RAMP, RESCALE, RIDE, SIGNS, SPLITS, UNIFORM
from phalanx.experiments.papers.experiment import Exhibit, Scale

MNIST = WithoutAttackers(grid({"MNIST": (10, 20)}, SPLITS), lambda f: (str(f.clients),))
OTHERS = WithoutAttackers(
    (*grid({"CIFAR-10": (10,)}, SPLITS), *grid({"MR": (5,), "SST": (5,)}, (RAMP,))),
    lambda f: (f"{f.data}, {f.clients} participants",),
)
FIVE = WithoutAttackers(grid({"MNIST": (5,), "CIFAR-10": (5,)}, SPLITS), lambda f: (f.data,))
MNIST_MINUTES: Mapping[Scale, float] = {"quick": 2.5, "paper": 65.0}
OTHERS_MINUTES: Mapping[Scale, float] = {"quick": 3.0, "paper": 430.0}
FIVE_MINUTES: Mapping[Scale, float] = {"quick": 2.5, "paper": 900.0}
COMPARABLE = "RFFL is comparable to FedAvg in many cases, and mostly outperforms standalone training."

ATTACKED = {  # by number of the table: split, attack, number of attackers
    5: (UNIFORM, FLIP, FEW),
    6: (UNIFORM, FLIP, MANY),
    7: (UNIFORM, SIGNS, FEW),
    8: (UNIFORM, RESCALE, FEW),
    9: (UNIFORM, INVERT, FEW),
    13: (UNIFORM, RIDE, FEW),
    14: (RAMP, FLIP, FEW),
    15: (RAMP, SIGNS, FEW),
    16: (RAMP, RESCALE, FEW),
    17: (RAMP, INVERT, FEW),
    18: (RAMP, RIDE, FEW),
    19: (UNIFORM, SIGNS, MANY),
    20: (UNIFORM, RESCALE, MANY),
    21: (UNIFORM, INVERT, MANY),
    22: (UNIFORM, RIDE, MANY),
}

EXPERIMENTS = {
    "table1": Exhibit(
        "Fairness of RFFL, FedAvg and q-FFL on MNIST, 10 and 20 participants, three splits",
        "RFFL rewards participants by what they contribute: its fairness is high, some of it near the limit of 100 %.",
        MNIST_MINUTES, MNIST.runs, partial(MNIST.fairness, "table1"),
    ),
    "table2": Exhibit(
        "Fairness on CIFAR-10, MR and SST",
        "As on MNIST, the fairness of RFFL is far above that of FedAvg and q-FFL.",
        OTHERS_MINUTES, OTHERS.runs, partial(OTHERS.fairness, "table2"),
    ),
    "table3": Exhibit(
        "Maximum accuracy on MNIST, 10 and 20 participants, three splits", COMPARABLE,
        MNIST_MINUTES, MNIST.runs, partial(MNIST.accuracy, "table3"),
    ),
    "table4": Exhibit(
        "Maximum accuracy on CIFAR-10, MR and SST", COMPARABLE,
        OTHERS_MINUTES, OTHERS.runs, partial(OTHERS.accuracy, "table4"),
    ),
    "table11": Exhibit(
        "Fairness with 5 participants on MNIST and CIFAR-10, three splits",
        "With five participants, too, the fairness of RFFL is far above that of FedAvg and q-FFL.",
        FIVE_MINUTES, FIVE.runs, partial(FIVE.fairness, "table11"),
    ),
    "table12": Exhibit(
        "Maximum accuracy with 5 participants on MNIST and CIFAR-10, three splits",
        "With five participants, too, RFFL is comparable to FedAvg in many cases.",
        FIVE_MINUTES, FIVE.runs, partial(FIVE.accuracy, "table12"),
    ),
    **{f"table{k}": WithAttackers(f"table{k}", *values).exhibit for k, values in ATTACKED.items()},
}  # fmt: skip
