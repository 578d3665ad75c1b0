"""Which federations the tables without attackers are about."""

from papers.rffl.fairness import WithoutAttackers, grid
from papers.rffl.setting import RAMP, SPLITS

MNIST = WithoutAttackers(grid({"MNIST": (10, 20)}, SPLITS), lambda f: (str(f.clients),))
OTHERS = WithoutAttackers(
    (*grid({"CIFAR-10": (10,)}, SPLITS), *grid({"MR": (5,), "SST": (5,)}, (RAMP,))),
    lambda f: (f"{f.data}, {f.clients} participants",),
)
FIVE = WithoutAttackers(grid({"MNIST": (5,), "CIFAR-10": (5,)}, SPLITS), lambda f: (f.data,))
