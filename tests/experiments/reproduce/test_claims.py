"""Verdicts on claims by hand, and the baselines without which there are none."""

import math
from dataclasses import replace

import pytest
from made import trace

from phalanx.aggregators import Median
from phalanx.algorithms import FedAvg, Standalone
from phalanx.attacks import SignFlip
from phalanx.data import MNIST
from phalanx.experiments.papers.claims import Claim, claims_table, judged, lead
from phalanx.experiments.papers.comparison import ComparedCell, Published, Sample, Table
from phalanx.experiments.papers.rendering import Rendering
from phalanx.experiments.papers.untrained import untrained
from phalanx.runs.plan import Run


@pytest.mark.parametrize(
    ("values", "least", "verdict"),
    [
        ([2.0, 2.4, 1.6], 0.0, "holds"),
        ([2.0, 2.4, 1.6], 5.0, "fails"),
        ([2.0, 2.4, 1.6], 1.9, "open"),
        ([20.0, 0.0, 5.0], 0.0, "open"),
        ([2.0], 0.0, "open"),  # one seed tests nothing
        ([1, 1, 1], None, "holds"),
        ([0, 0, 0], None, "fails"),
        ([1, 1, 0], None, "open"),
        ([1, 1], None, "open"),
    ],
)
def test_a_verdict_follows_from_the_seeds(values, least, verdict):
    (one,) = judged([Claim("It is so", values, least)])
    assert one.verdict == verdict


def test_many_claims_on_one_page_are_adjusted_for_their_number():
    claim = Claim("It is so", [2.0, 2.9, 1.1])  # t = 2 sqrt(3) / 0.9, with two degrees of freedom
    t = 2 * math.sqrt(3) / 0.9
    assert claim.p == pytest.approx(1 - t / math.sqrt(2 + t * t))
    clear = Claim("It is so", [2.0, 2.4, 1.6])  # p = 0.0131
    assert judged([clear])[0].verdict == "holds"
    assert {one.verdict for one in judged([clear] * 10)} == {"open"}


def test_a_claim_without_runs_is_not_judged():
    assert judged([Claim("It is so", []), Claim("So, too", [], None)]) == []


def test_the_table_shows_what_was_claimed_and_found():
    claims = [Claim("A leads B", [2.0, 2.4, 1.6], 5.0), Claim("Nobody leaves", [True, True, False], None)]
    assert claims_table(judged(claims)).rows == [
        ["A leads B", "fails", "+2.0 ± 1.0 points", "above 5", "3"],
        ["Nobody leaves", "open", "in 2 of 3 seeds", "yes", "3"],
    ]


def test_a_lead_is_taken_on_the_seeds_that_both_have():
    assert lead([(2, 5.0), (0, 3.0), (1, 9.0)], [(0, 1.0), (2, 1.5)]) == [2.0, 3.5]


PLAN = Run(data=MNIST(), algorithm=Standalone())
STUCK = replace(trace([0.1, 0.11]), received_accuracy={0: 0.1, 1: 0.114, 2: 0.9})
FINE = replace(trace([0.1, 0.9]), received_accuracy={0: 0.1, 1: 0.9, 2: 0.9})


def test_a_baseline_at_chance_is_named_with_its_cause():
    (said,) = untrained({"alone": (PLAN, [STUCK, FINE])})
    assert said.startswith("alone (seed 0): 2 of 3 models are at chance at the end.")
    assert "scaling of the inputs" in said
    served = replace(PLAN, algorithm=FedAvg())
    assert len(untrained({"all": (served, [trace([0.1, 0.1])])})) == 1
    assert untrained({"all": (served, [trace([0.1, 0.5])])}) == []


def test_only_baselines_without_an_attack_count():
    attacked = replace(PLAN, algorithm=FedAvg(), attack=SignFlip(), byzantine=0.2)
    robust = replace(PLAN, algorithm=FedAvg(aggregate=Median()))
    assert untrained({"a": (attacked, [trace([0.1, 0.1])]), "b": (robust, [trace([0.1, 0.1])])}) == []


def test_a_page_whose_baseline_has_learned_nothing_has_no_verdict():
    cell = ComparedCell(Sample.of([1.0, 1.1, 1.2]), None, Published(84.0))
    page = Rendering([Table("T", ["a"], [[cell]])], claims=[Claim("It is so", [2.0, 2.4, 1.6])])
    refused = page.unjudged(["alone: 6 of 10."])
    assert refused.claims == ()
    assert refused.tables[0].rows[0][0].difference is None
    assert refused.notes == ("Not judged: alone: 6 of 10.",)
