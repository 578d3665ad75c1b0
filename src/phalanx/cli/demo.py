"""The demonstration: one federation, three algorithms, without and under attack.

Twenty clients share scikit-learn's handwritten digits.  Six of them reverse their updates and multiply them by
ten.  The average follows them, the coordinate-wise median loses accuracy, clustered federated learning excludes
them.  `runs()` is the whole experiment.
"""

from dataclasses import replace

from phalanx.aggregators import Median
from phalanx.algorithms import ByzantineCFL, FedAvg
from phalanx.attacks import Rescale
from phalanx.core import Algorithm, Until
from phalanx.data import Digits
from phalanx.models import MLP
from phalanx.runs.plan import Run
from phalanx.training.sgd import LocalSGD

ALGORITHMS: dict[str, Algorithm] = {
    "FedAvg": FedAvg(),
    "median": FedAvg(aggregate=Median()),
    "Byzantine CFL": ByzantineCFL(),
}
WHY = (
    "Accuracies show how these attackers fared; a promise is about any others as well. Who excludes attackers and "
    "takes the mean of the rest promises nothing: one whose updates resemble honest ones stays in, and decides where "
    "a mean is."
)


def runs(seed: int = 0) -> dict[str, Run]:
    """Return the six runs, by name."""
    clean = Run(
        data=Digits(),
        clients=20,
        model=MLP((512,)),
        training=LocalSGD(epochs=2, batch_size=16, lr=0.2),
        until=Until(steps=40),
        seed=seed,
    )
    attacked = replace(clean, attack=Rescale(-10.0), byzantine=6)
    return {
        f"{name}, {scenario}": replace(base, algorithm=algorithm)
        for scenario, base in (("clean", clean), ("attacked", attacked))
        for name, algorithm in ALGORITHMS.items()
    }
