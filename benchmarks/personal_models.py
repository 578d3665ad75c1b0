"""Personal layers and personal models on unlike clients, with and without attackers, against one model for all.

python benchmarks/personal_models.py
"""

from statistics import mean

from phalanx import Run, Until, simulate
from phalanx.aggregators import Mean, Median
from phalanx.algorithms import FedAvg
from phalanx.attacks import Rescale
from phalanx.data import Dirichlet
from phalanx.models import MLP
from phalanx.training import Ditto, Evaluation, FedPer, LocalSGD, LocalTraining
from phalanx.weighting import Ignore

SEEDS, ROUNDS = range(3), 30
SGD = LocalSGD(batch_size=16, lr=0.1)
TRAININGS: dict[str, LocalTraining] = {
    "LocalSGD": SGD,
    "FedPer": FedPer(("1.*",), SGD),
    "Ditto": Ditto(SGD, strength=0.1),
}


def accuracies(training: LocalTraining, seed: int, attackers: int, rule: Mean | Median) -> tuple[float, float]:
    """Return the mean and the lowest accuracy of honest clients, each on its own distribution of labels."""
    plan = Run(
        algorithm=FedAvg(aggregate=rule, preprocess=Ignore()),
        partition=Dirichlet(0.1),
        model=MLP((64,)),
        training=training,
        attack=Rescale(-10.0) if attackers else None,
        byzantine=attackers,
        until=Until(ROUNDS),
        evaluation=Evaluation(every=ROUNDS),
        seed=seed,
    )
    (*_, last) = (step.metrics for step in simulate(plan).history if step.metrics is not None)
    known = [accuracy for accuracy in last.client_accuracy.values() if accuracy is not None]
    return mean(known), min(known)


def main() -> None:
    for attackers, rule in ((0, Mean()), (6, Mean()), (6, Median())):
        for name, training in TRAININGS.items():
            found = [accuracies(training, seed, attackers, rule) for seed in SEEDS]
            shown = ", ".join(f"{100 * one:.1f} (lowest {100 * least:.1f})" for one, least in found)
            print(f"{attackers} attackers, {rule.title:<6} {name:<8} {shown}", flush=True)


if __name__ == "__main__":
    main()
