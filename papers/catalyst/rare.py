"""Common parts of Figure 3 and `late_labels`: late clients, and labels that only they hold."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from papers.catalyst import setting
from papers.catalyst.populations import ALL, COMMON, LabelGroups, LateOnes, RareLabels, Subset
from phalanx.algorithms import FLAME, Catalyst, FedAvg, Quorum
from phalanx.algorithms.staleness import Undiscounted
from phalanx.core import Algorithm, Until
from phalanx.data import MNIST
from phalanx.experiments.papers.experiment import Scale
from phalanx.experiments.trace import Trace
from phalanx.models import MLP, CoxCNN
from phalanx.runs.plan import Run
from phalanx.simulation import Normal
from phalanx.training.evaluation import Evaluation

LABELS = (8, 9)
RARE_SHARE = (974 + 1009) / 10_000  # of MNIST's test images
CLIENTS, LATE, FACTOR = 40, 28, 1.5
SECONDS = 3000.0
DESCRIBED = (
    f"{CLIENTS} clients; the last {LATE} take {FACTOR:g} times as long, and they alone hold the images of "
    f"{LABELS[0]} and {LABELS[1]}, in addition to their share of the others. Times are N(100, 5) s, nobody attacks."
)
SMALL = (
    "Quick scale: 6,000 training images in all, batches of 10, a perceptron with 64 hidden units instead of the "
    "paper's convolutional network; all 10,000 test images."
)
LATE_PATH, NO_PATH = "Catalyst", "no late updates"


def base(scale: Scale, seed: int) -> Run:
    """Return the federation; its groups measure the accuracy on common labels and on all labels."""
    quick = scale == "quick"
    source = MNIST(standardize=True)
    return Run(
        data=Subset(source, 6000, None, seed) if quick else source,
        clients=CLIENTS,
        partition=RareLabels(LABELS, LATE),
        groups=LabelGroups(LABELS, LATE),
        model=MLP((64,)) if quick else CoxCNN(),
        training=setting.recipe(0.05, 10 if quick else 50),
        latency=LateOnes(Normal(100.0, 5.0), LATE, FACTOR),
        until=Until(seconds=SECONDS),
        evaluation=Evaluation(every=20),
        seed=seed,
    )


def methods(f: int) -> dict[str, Algorithm]:
    """Return the compared algorithms, by label."""
    quorum = max(2, 2 * f + 1)
    return {
        LATE_PATH: Catalyst(f),
        NO_PATH: Catalyst(f, window=1),
        "late not judged": Catalyst(f, judge_late=False),
        "not judged, x 5": Catalyst(f, judge_late=False, late_lr=5.0, staleness=Undiscounted()),
        "FLAME in a quorum": Quorum(FLAME(f), quorum),
        "FedAvg in a quorum": Quorum(FedAvg(), quorum),
    }


def runs(scale: Scale, seed: int, f: int, labels: Sequence[str]) -> dict[str, Run]:
    """Return a run for each of these methods, by label."""
    made = methods(f)
    return {label: replace(base(scale, seed), algorithm=made[label]) for label in labels}


def with_rare(trace: Trace) -> Trace:
    """Return the trace with curves "all" and "rare": accuracy on all test images, and on those of the rare labels.

    All clients are served one model, of which the groups measure the accuracy on common and on all labels.
    """
    common, everything = (trace.curves.get(f"group_accuracy {group}", ()) for group in (COMMON, ALL))
    rare = tuple(
        None if a is None or c is None else max(0.0, (a - (1 - RARE_SHARE) * c) / RARE_SHARE)
        for a, c in zip(everything, common, strict=True)
    )
    curves: Mapping[str, tuple[float | None, ...]] = {**trace.curves, "all": tuple(everything), "rare": rare}
    return replace(trace, curves=curves)
