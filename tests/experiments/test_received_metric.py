"""The accuracy that honest clients are served, as a figure of studies."""

from dataclasses import replace

from phalanx import Run, Until, simulate
from phalanx.attacks import SignFlip
from phalanx.experiments.results import METRICS, Row
from phalanx.experiments.trace import Trace


def test_it_is_the_mean_over_honest_clients_and_absent_where_a_record_does_not_say_it():
    plan = Run(clients=4, byzantine=1, attack=SignFlip(), until=Until(1))
    trace = Trace.of(plan, simulate(plan))
    assert len(trace.received_accuracy) == 3
    known = replace(trace, received_accuracy={0: 0.5, 2: 1.0})
    assert Row({}, known).value("received_accuracy") == 0.75
    assert Row({}, replace(trace, received_accuracy={})).value("received_accuracy") is None
    assert METRICS["received_accuracy"].scale == 100
