"""The worst case: the search finds the planted weakness of each defence, from records only, and the same one again."""

from dataclasses import replace

import pytest

from experiments.reproduce.made import trace
from phalanx import Run, Study, Until
from phalanx.aggregators import Mean, Median
from phalanx.algorithms import FedAsync, FedAvg
from phalanx.attacks import (
    ALIE,
    Flood,
    Gaussian,
    HoldBack,
    Linger,
    ReportTimes,
    Rescale,
    Scheduled,
    SignFlip,
    Together,
)
from phalanx.cli.configuration import Draft
from phalanx.cli.study_file import read_study
from phalanx.core import InfeasibleError
from phalanx.experiments import WorstOf, worst_of
from phalanx.experiments.shown.study_page import write
from phalanx.experiments.worst import FOUND, NAMED, NONE, with_worst
from phalanx.weighting import AsReported, Ignore

BASE = Run(clients=8, attack=SignFlip(), byzantine=2, until=Until(steps=2))
WORST = worst_of({"flip": SignFlip(), "noise": Gaussian(), "little": ALIE()}, budget=6, seeds=(7, 8))
STUDY = Study(BASE, {"algorithm.aggregate": {"mean": Mean(), "median": Median()}, "attack": WORST}, 2)


def planted(plan):
    """The accuracy of a run: a turned flip is worst for the mean, late noise for the median; seed 7 misleads."""
    if plan.algorithm.aggregate == Mean():
        weak = {Together(SignFlip(), Rescale(-3.0)): 0.1, SignFlip(): 0.3, Gaussian(): 0.2 if plan.seed == 7 else 0.5}
    else:
        weak = {Scheduled(Gaussian(), every=2): 0.3, Gaussian(): 0.5}
    return weak.get(plan.attack, 0.7)


class Recorded:
    def __init__(self, failing=None):
        self.seen, self.failing = [], failing

    def __call__(self, planned):
        self.seen += [one.plan for one in planned]
        return {
            one.plan.identity: trace([planted(one.plan)], one.plan.seed, failed=one.plan.attack == self.failing)
            for one in planned
        }


def attacks(results, defence):
    """The attacks under which a defence is measured, by their place on the axis."""
    return {row.labels["attack"]: row.plan.attack for row in results.where({"algorithm.aggregate": defence})}


def test_the_search_finds_the_weakness_of_each_defence_within_its_budget(tmp_path):
    recorded = Recorded()
    results = STUDY.found(recorded, tmp_path)
    assert attacks(results, "mean") == {NAMED: SignFlip(), FOUND: Together(SignFlip(), Rescale(-3.0))}
    assert attacks(results, "median") == {NAMED: Gaussian(), FOUND: Scheduled(Gaussian(), every=2)}
    named = AsReported(beyond_tolerance="remark")
    assert {plan.algorithm.preprocess for plan in recorded.seen} == {named}, "false sizes are not refused"
    searched = [plan for plan in recorded.seen if plan.seed in WORST.seeds]
    assert len(searched) <= 2 * WORST.runs
    assert len(recorded.seen) - len(searched) == 2 * 2 * 2, "defences, attacks, seeds"
    again = Recorded()
    STUDY.found(again, tmp_path)
    assert [plan.identity for plan in again.seen] == [plan.identity for plan in recorded.seen]


def test_one_seed_of_the_search_can_mislead_and_the_others_confirm(tmp_path):
    one = replace(STUDY, grid={**STUDY.grid, "attack": replace(WORST, seeds=(7,))})
    assert attacks(one.found(Recorded(), tmp_path), "mean")[NAMED] == Gaussian()


def test_an_attack_that_cannot_be_carried_out_is_no_candidate(tmp_path):
    results = STUDY.found(Recorded(failing=Scheduled(Gaussian(), every=2)), tmp_path)
    assert attacks(results, "median")[FOUND] != Scheduled(Gaussian(), every=2)
    nothing = STUDY.found(lambda planned: {one.plan.identity: trace([], failed=True) for one in planned}, tmp_path)
    assert nothing.rows == ()
    assert all(one.error for one in nothing.sought)


def test_sizes_and_timing_are_tried_where_they_can_matter():
    def tried(algorithm, **fields):
        plan = replace(BASE, algorithm=algorithm, **fields)
        return {type(one.second) for one in WORST.stronger([SignFlip()], lambda attack: replace(plan, attack=attack))
                if isinstance(one, Together) and one.first == SignFlip()}  # fmt: skip

    assert tried(FedAvg(preprocess=Ignore())) == {Rescale}
    assert tried(FedAvg()) == {Rescale, ReportTimes}
    assert tried(FedAsync(), until=Until(seconds=2.0)) >= {Rescale, Flood, Linger, HoldBack}


def test_where_nobody_attacks_there_is_nothing_to_search(tmp_path):
    recorded = Recorded()
    results = Study(BASE, {"byzantine": [0, 2], "attack": WORST}, 2).found(recorded, tmp_path)
    assert {row.labels["attack"] for row in results.where({"byzantine": "0"})} == {NONE}
    assert {plan.seed for plan in recorded.seen if plan.attack is None} == {0, 1}


def test_without_records_of_the_search_there_are_no_results(tmp_path):
    with pytest.raises(InfeasibleError, match="6 runs of the search without a record"):
        replace(STUDY, grid={**STUDY.grid, "attack": replace(WORST, seeds=(7,))}).results(tmp_path)


def test_the_score_of_a_defence_is_its_worst_accuracy_and_the_attack_can_be_run_alone(tmp_path):
    results = STUDY.found(Recorded(), tmp_path)
    assert len(results.rows) == 2 * 2 * 2
    assert results.axes["attack"] == (NAMED, FOUND)
    assert results.notes[0].startswith("mean: worst accuracy 10.0 %, under the attack worst found: Together(")
    assert results.notes[1].startswith("median: worst accuracy 30.0 %, under the attack worst found: Scheduled(")
    assert results.notes[1].endswith(f"Alone: phalanx run --config {tmp_path}/worst/2.yaml")
    write(results, tmp_path, "phalanx study x.yaml")
    draft = Draft(Run)
    draft.load(tmp_path / "worst" / "2.yaml")
    assert draft.make(Run).identity == results.alone["2.yaml"].identity
    assert with_worst(results, tmp_path).alone == results.alone


def test_compositions_are_drawn_by_their_number():
    assert [WORST.drawn(k) for k in range(9)] == [WORST.drawn(k) for k in range(9)]
    assert len({str(WORST.drawn(k)) for k in range(9)}) == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factors": (2.0,)}, "worst_of needs the factor 1"),
        ({"seeds": range(0)}, "worst_of needs the factor 1 and a seed"),
        ({"budget": -1}, "budget must be at least 0, got -1"),
        ({"refined": 0, "confirm": 0}, "refined must be at least 1, got 0; confirm must be at least 1, got 0"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        worst_of([SignFlip()], **options)


def test_the_search_has_seeds_of_its_own_and_its_axis_is_the_attack():
    with pytest.raises(InfeasibleError, match="The study uses the seed 7 of the search"):
        replace(STUDY, seeds=[7])
    with pytest.raises(InfeasibleError, match="worst_of needs attacks"):
        worst_of([])


def test_the_worst_case_in_a_file(tmp_path):
    path = tmp_path / "x.yaml"
    worst = "{worst_of: [SignFlip, Gaussian(std=2)], budget: 3, factors: [1, -2]}"
    text = f"base: {{clients: 8, byzantine: 2}}\ngrid: {{attack: {worst}}}"
    path.write_text(text)
    found = read_study(path).worst
    assert found == WorstOf({"SignFlip": SignFlip(), "Gaussian(std=2)": Gaussian(std=2.0)}, factors=(1, -2), budget=3)
    path.write_text(text.replace("budget: 3", "budget: few"))
    with pytest.raises(ValueError, match=r"grid\.attack\.budget must be an integer, got few"):
        read_study(path)
