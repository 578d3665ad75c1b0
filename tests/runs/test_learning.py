"""Models that have learned nothing are named at the end of a run."""

from dataclasses import replace

from phalanx.algorithms import Standalone
from phalanx.attacks import SignFlip
from phalanx.core import Until
from phalanx.data import Digits
from phalanx.runs.learning import at_chance, stuck
from phalanx.runs.plan import Run
from phalanx.runs.session import simulate
from phalanx.training.sgd import LocalSGD

LONG = Run(data=Digits(), algorithm=Standalone(), clients=4, until=Until(steps=2), training=LocalSGD(lr=50.0), seed=0)


def test_a_run_whose_participants_learn_nothing_says_so():
    said = stuck(simulate(LONG), LONG)
    assert said.startswith("4 of 4 participants are at chance after 2 rounds. Likely, models saturate or diverge")


def test_a_run_that_learns_says_nothing():
    fine = replace(LONG, training=LocalSGD(lr=0.1), until=Until(steps=5))
    assert stuck(simulate(fine), fine) == ""


def test_nothing_is_said_of_attacked_runs():
    attacked = replace(LONG, attack=SignFlip(), byzantine=1)
    assert stuck(simulate(attacked), attacked) == ""


def test_the_accuracy_of_a_guess_is_chance():
    assert at_chance([0.1, 0.12, 0.121, 0.9], LONG) == (2, 4)
