"""Whether the baselines of a table have learned anything: without that, the table says nothing about the others."""

from collections.abc import Mapping, Sequence

from phalanx.aggregators import Mean
from phalanx.algorithms import FedAvg, Standalone
from phalanx.data import CIFAR10, MNIST, MR, Digits, FashionMNIST
from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run

MARGIN = 0.02  # above the accuracy of a guess, up to which a model counts as being at chance
CLASSES: Mapping[type, int] = {MNIST: 10, FashionMNIST: 10, CIFAR10: 10, Digits: 10, MR: 2}
CAUSE = "Its models saturate or diverge: look at the scaling of the inputs, and try a smaller learning rate."


def untrained(cells: Mapping[str, tuple[Run, Sequence[Trace]]]) -> list[str]:
    """Return a sentence for each baseline, without an attack, of which half of the models or more end at chance.

    Args:
        cells: a run and its traces, by cell. Baselines are `Standalone` and plain `FedAvg`.
    """
    out = []
    for cell, (plan, traces) in cells.items():
        for trace in traces if _baseline(plan) and not _attacked(plan) else ():
            stuck, of = at_chance(trace, plan)
            if of and 2 * stuck >= of:
                out.append(f"{cell} (seed {trace.seed}): {stuck} of {of} models are at chance at the end. {CAUSE}")
    return out


def _baseline(plan: Run) -> bool:
    algorithm = plan.algorithm
    return isinstance(algorithm, Standalone) or (type(algorithm) is FedAvg and isinstance(algorithm.aggregate, Mean))


def _attacked(plan: Run) -> bool:
    return plan.attack is not None


def at_chance(trace: Trace, plan: Run) -> tuple[int, int]:
    """Return how many models, the participants' or the server's, are at chance, and of how many; 0, 0 if unknown."""
    source: object = plan.data
    while hasattr(source, "source"):  # a part of a data set
        source = source.source
    classes, final = CLASSES.get(type(source)), trace.final()
    values = [*trace.received_accuracy.values()] or ([] if final is None else [final])
    if classes is None or trace.failed:
        return 0, 0
    return sum(value <= 1 / classes + MARGIN for value in values), len(values)
