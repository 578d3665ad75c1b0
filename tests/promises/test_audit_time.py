"""The audit of a promise costs less than a fiftieth of a round."""

import time
from itertools import pairwise

import pytest
import torch

from phalanx import Run, Until, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import FedAvg
from phalanx.promises import combine, watched
from phalanx.training import Evaluation
from phalanx.weighting import Ignore

REPEATS, CALLS = 20, 100


def least(of):
    """The shortest of some durations, which other processes disturb least, in seconds."""

    def once():
        begun = time.perf_counter()
        of()
        return time.perf_counter() - begun

    return min(once() for _ in range(REPEATS))


def shortest_round(clients):
    """The shortest time between two reports of a run on digits with default training, in seconds."""
    marks = []
    plan = Run(
        algorithm=FedAvg(Median(), Ignore()), clients=clients, until=Until(REPEATS), evaluation=Evaluation(every=1000)
    )
    simulate(plan, observers=[lambda _: marks.append(time.perf_counter())], models=None)
    return min(after - before for before, after in pairwise(marks))


@pytest.mark.parametrize("clients", [5, 20, 100])
def test_an_audit_takes_less_than_a_fiftieth_of_a_round(clients):
    rows, owners, rule = torch.randn(clients, 8), list(range(clients)), Median()
    weights = torch.ones(clients)

    def plain():
        for _ in range(CALLS):
            combine(rule, rows, weights, owners, "round")

    def audited():
        with watched(2) as shares:
            plain()
        assert len(shares) == CALLS

    audit = (least(audited) - least(plain)) / CALLS
    assert audit < 0.02 * shortest_round(clients)
