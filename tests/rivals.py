"""Asynchronous federations on the digits, as the tests of asynchronous algorithms run them."""

from functools import cache

from phalanx import LocalSGD, Record, Run, Until, simulate
from phalanx.attacks import Attack
from phalanx.core import Algorithm
from phalanx.models import MLP
from phalanx.simulation import Normal
from phalanx.training.evaluation import Evaluation

ATTACKERS = 4  # of 20


@cache
def run(algorithm: Algorithm, attack: Attack | None = None, steps: int = 600) -> Record:
    """Twenty clients on the digits, of whom four attack, for so many arrivals; they take 100 s, more or less."""
    return simulate(
        Run(
            algorithm,
            model=MLP((64,)),
            training=LocalSGD(lr=0.1),
            attack=attack,
            byzantine=ATTACKERS if attack else 0,
            latency=Normal(100, 20),
            until=Until(steps),
            evaluation=Evaluation(every=steps),
            server_examples=100 if algorithm.traits.needs_reference else 0,
        )
    )


def accuracy(algorithm: Algorithm, attack: Attack | None = None, steps: int = 600) -> float:
    """Accuracy of the last model of such a run."""
    return float(run(algorithm, attack, steps).summary.final.accuracy)
