"""A federation under attack, with and without a defence.  Runs in seconds: python examples/quickstart.py"""

from dataclasses import replace

from phalanx import Run, simulate
from phalanx.algorithms import ByzantineCFL, FedAvg
from phalanx.attacks import Rescale

attacked = Run(clients=20, byzantine=6, attack=Rescale(-10.0))  # on scikit-learn's handwritten digits

for algorithm in (FedAvg(), ByzantineCFL()):
    record = simulate(replace(attacked, algorithm=algorithm))
    final, found = record.summary.final, record.summary.detection
    print(f"{record.name}: accuracy {final.accuracy:.1%}, {found.true_positives} of 6 attackers excluded")
