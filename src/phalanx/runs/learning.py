"""Whether models have learned anything, or are at chance at the end of a run."""

from collections.abc import Mapping, Sequence

from phalanx.data import CIFAR10, MNIST, MR, Digits, FashionMNIST
from phalanx.runs.plan import Run
from phalanx.runs.record import Record
from phalanx.wording import plural

MARGIN = 0.02  # above the accuracy of a guess, up to which a model counts as being at chance
CLASSES: Mapping[type, int] = {MNIST: 10, FashionMNIST: 10, CIFAR10: 10, Digits: 10, MR: 2}  # about equally frequent
CAUSE = "Likely, models saturate or diverge: look at the scaling of the inputs, or try a smaller learning rate."


def at_chance(values: Sequence[float], plan: Run) -> tuple[int, int]:
    """Return how many accuracies, shares, are those of a guess, and of how many; 0, 0 if the classes are not known."""
    source: object = plan.data
    while hasattr(source, "source"):  # a part of a data set
        source = source.source
    classes = CLASSES.get(type(source))
    return (0, 0) if classes is None else (sum(value <= 1 / classes + MARGIN for value in values), len(values))


def stuck(record: Record, plan: Run) -> str:
    """Return a sentence on a run without an attack if models that participants receive are at chance, or ""."""
    measured = [(step.step, step.metrics.received_accuracy) for step in record.history if step.metrics is not None]
    if plan.attack is not None or not measured or not measured[-1][1]:
        return ""
    last, accuracies = measured[-1]
    count, of = at_chance([value for value in accuracies.values() if value is not None], plan)
    return (
        f"{count} of {plural(of, 'participant')} are at chance after {plural(last, 'round')}. {CAUSE}" if count else ""
    )
