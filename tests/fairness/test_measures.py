"""Measures against scipy and by hand, and on the records of small runs."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.algorithms import FLHC, RFFL, FedAvg, Standalone
from phalanx.attacks import RandomFreeRider
from phalanx.core import InfeasibleError, Verdict
from phalanx.experiments.trace import Trace
from phalanx.fairness import (
    Correlation,
    Detection,
    below_threshold,
    collaborative_fairness,
    compare,
    detection,
    fairness_by_cluster,
    gains,
    received_accuracy,
    reputations,
    spread,
)
from phalanx.models import MLP
from phalanx.rng import numpy_generator
from phalanx.runs.record import Record
from phalanx.runs.schema import StepRecord
from phalanx.training.evaluation import Metrics
from summaries import summary


def named(values):
    return dict(enumerate(map(float, values)))


@pytest.mark.parametrize("n", [4, 5, 10, 40])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_fairness_is_scipys_pearson_with_fishers_interval(n, level):
    rng = numpy_generator(n, "accuracies")
    x = rng.uniform(0.5, 1.0, n)
    y = 0.3 * x + rng.uniform(0.0, 0.2, n)
    expected = stats.pearsonr(x, y)
    low, high = expected.confidence_interval(level)
    found = collaborative_fairness(named(x), named(y), level)
    assert found.coefficient == pytest.approx(expected.statistic)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert (found.level, found.participants) == (level, n)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    rng, true, hits = numpy_generator(0, "coverage"), 0.7, 0
    for _ in range(1000):
        x, noise = rng.standard_normal((2, 10))
        found = collaborative_fairness(named(x), named(true * x + math.sqrt(1 - true**2) * noise))
        hits += found.low <= true <= found.high
    assert 930 <= hits <= 970


def test_five_participants_tell_little():
    found = collaborative_fairness(named([1, 2, 3, 4, 5]), named([1, 2, 4, 3, 5]))
    assert found.coefficient == pytest.approx(0.9)
    assert found.low < 0.1
    assert str(found) == "90.0 % [8.6, 99.3]"


@pytest.mark.parametrize(("x", "y"), [([1, 2, 3, 4], [0.5] * 4), ([0.5] * 4, [1, 2, 3, 4])])
def test_there_is_no_fairness_where_all_are_alike(x, y):
    found = collaborative_fairness(named(x), named(y))
    assert found == Correlation(None, None, None, 0.95, 4)
    assert str(found) == "none (one of the two is the same for all)"


def test_perfect_and_few():
    assert collaborative_fairness(named([1, 2, 3, 4]), named([2, 4, 6, 8])).low == 1.0
    assert collaborative_fairness(named([1, 2, 3, 4]), named([-2, -4, -6, -8])).high == -1.0
    three = collaborative_fairness(named([1, 2, 3]), named([1, 3, 2]))
    assert (three.coefficient, three.low) == (pytest.approx(0.5), None)
    assert str(three) == "50.0 %"


@pytest.mark.parametrize("other", [{0: 0.5, 2: 0.6}, {0: 0.5}, {}])
def test_different_participants_are_refused(other):
    with pytest.raises(InfeasibleError, match="must be of the same participants, at least two"):
        collaborative_fairness({0: 0.5, 1: 0.6}, other)
    with pytest.raises(InfeasibleError, match="Run both with the same clients and attackers"):
        gains({0: 0.5, 1: 0.6}, other)
    with pytest.raises(ValueError, match="level must lie in"):
        collaborative_fairness({0: 0.5, 1: 0.6}, {0: 0.5, 1: 0.6}, level=1.0)


def test_fairness_is_perfect_within_clusters_that_are_unlike():
    """Each cluster is rewarded in order; over both there is hardly a correlation, as the second has the easier task."""
    alone, received = named([0.5, 0.6, 0.7, 0.5, 0.6, 0.7]), named([0.6, 0.7, 0.8, 0.85, 0.9, 0.95])
    found = fairness_by_cluster(alone, received, {1: (0, 1, 2), 2: (3, 4, 5, 99)})
    assert [round(each.coefficient, 12) for each in found.values()] == [1.0, 1.0]
    assert [each.participants for each in found.values()] == [3, 3], "99 attacks, and has no accuracy"
    assert collaborative_fairness(alone, received).coefficient < 0.6
    assert fairness_by_cluster(alone, received, {0: range(6)}) == {0: collaborative_fairness(alone, received)}


def test_a_cluster_of_one_has_no_fairness():
    found = fairness_by_cluster(named([0.5, 0.6]), named([0.6, 0.7]), {3: (0,), 4: (), 5: (1,)})
    assert [(each.coefficient, each.participants) for each in found.values()] == [(None, 1), (None, 0), (None, 1)]


def test_gains_and_spread_by_hand():
    assert gains({3: 0.5, 1: 0.9}, {1: 0.8, 3: 0.7}) == pytest.approx({1: -0.1, 3: 0.2})
    three = spread(named([0.5, 0.7, 0.9]))
    assert (three.mean, three.best, three.worst, three.variance) == pytest.approx((0.7, 0.9, 0.5, 800 / 3))
    eleven = spread(named(np.arange(11) / 10))
    assert eleven.worst == pytest.approx(0.05), "a tenth of eleven is two, rounded up"
    with pytest.raises(InfeasibleError, match="at least one participant"):
        spread({})


PLAN = Run(
    clients=6,
    model=MLP((8,)),
    training=LocalSGD(batch_size=16, lr=0.1),
    attack=RandomFreeRider(),
    additional_byzantine=2,
    until=Until(6),
)


@pytest.fixture(scope="module")
def records():
    def carried_out(algorithm):
        return simulate(Run(**{**vars_of(PLAN), "algorithm": algorithm}))

    return {"alone": carried_out(Standalone()), "rffl": carried_out(RFFL()), "fedavg": carried_out(FedAvg())}


def vars_of(plan):
    return {name: getattr(plan, name) for name in plan.__dataclass_fields__}


def test_of_a_run_with_free_riders(records):
    found = compare(records["alone"], records["rffl"])
    assert found.gain.keys() == set(range(6)), "attackers have no gain"
    assert found.received.mean == pytest.approx(records["rffl"].summary.final.accuracy)
    assert found.mean_gain == pytest.approx(found.received.mean - found.alone.mean)
    assert found.detection.after.keys() == {6, 7}
    assert found.detection.excluded == 1.0
    assert found.detection.longest <= 5
    assert found.detection.honest == {}
    assert "excluded   100.0 % of the attackers, 0 honest" in str(found)


def test_of_a_run_in_which_all_get_the_same(records):
    found = compare(records["alone"], records["fedavg"])
    assert found.fairness.coefficient is None
    assert found.received.variance == 0.0
    assert found.detection == Detection({6: None, 7: None}, 0.0, {})
    assert found.detection.longest is None


def test_of_a_run_with_clusters(records):
    run = simulate(dataclasses.replace(PLAN, algorithm=FLHC(rounds=2, clusters=2)))
    found = compare(records["alone"], run)
    clusters = run.history[-1].state["clusters"]
    assert len(clusters) == 2
    assert {v: each.participants for v, each in found.by_cluster.items()} == {
        v: len(set(who) - {6, 7}) for v, who in clusters.items()
    }
    assert all(f"  cluster {v}  {each}" in str(found) for v, each in found.by_cluster.items())
    assert compare(records["alone"], records["fedavg"]).by_cluster == {}


def test_a_record_and_its_trace_tell_the_same_of_exclusions(records):
    assert detection(records["rffl"]) == detection(
        Trace.of(dataclasses.replace(PLAN, algorithm=RFFL()), records["rffl"])
    )


def test_reputations_over_rounds(records):
    found = reputations(records["rffl"])
    assert found.keys() >= set(range(6))
    assert list(found[0]) == [1, 2, 3, 4, 5, 6]
    assert sum(found[i][6] for i in range(6)) == pytest.approx(1)
    gone = detection(records["rffl"]).after
    assert below_threshold(records["rffl"]) == gone
    for client, step in gone.items():
        assert step not in found.get(client, {})
    with pytest.raises(InfeasibleError, match=r"keeps none\. Run RFFL"):
        reputations(records["fedavg"])


def line(step, scores, threshold=0.1):
    verdicts = {i: Verdict(True, 0.5, score) for i, score in scores.items()}
    state = {"reputation": scores, "threshold": threshold}
    return StepRecord(step=step, version=step, seconds=1.0, state=state, verdicts=verdicts)


BEGUN = StepRecord(step=0, version=0, seconds=0.0, metrics=Metrics(accuracy=0.5))


def test_below_the_threshold_is_told_without_an_exclusion():
    history = [BEGUN, line(1, {0: 0.5, 1: 0.2}), line(2, {0: 0.5, 1: 0.05}), line(3, {0: 0.05, 1: 0.01})]
    assert below_threshold(Record({}, history, summary())) == {0: 3, 1: 2}


def test_a_record_without_the_figure_says_what_to_do():
    with pytest.raises(InfeasibleError, match=r"no step has received_accuracy\. Repeat the run"):
        received_accuracy(Record({}, [BEGUN], summary()))
