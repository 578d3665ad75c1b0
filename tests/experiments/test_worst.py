"""The worst case: the search finds the planted weakness of each defence, from records only, and the same one again."""

from dataclasses import replace

import pytest

from experiments.reproduce.made import trace
from phalanx import Run, Study, Until
from phalanx.aggregators import Mean, Median
from phalanx.attacks import Gaussian, ReportTimes, Rescale, Scheduled, SignFlip, Together
from phalanx.cli.configuration import Draft
from phalanx.cli.study_file import read_study
from phalanx.core import InfeasibleError
from phalanx.experiments import WorstOf, worst_of
from phalanx.experiments.shown.study_page import write
from phalanx.experiments.worst import COMPOSED, Search, with_worst

BASE = Run(clients=8, attack=SignFlip(), byzantine=2, until=Until(steps=2))
WORST = worst_of({"flip": SignFlip(), "noise": Gaussian()}, budget=6, seeds=(7, 8))
STUDY = Study(BASE, {"algorithm.aggregate": {"mean": Mean(), "median": Median()}, "attack": WORST}, 2)


def planted(plan):
    """The accuracy of a run: the mean is weak against a turned and doubled flip, the median against late noise."""
    if plan.algorithm.aggregate == Mean():
        return 0.1 if plan.attack == Together(Together(SignFlip(), Rescale(-3.0)), ReportTimes(10.0)) else (
            0.2 if plan.attack == Together(SignFlip(), Rescale(-3.0)) else 0.6)  # fmt: skip
    return 0.3 if plan.attack == Scheduled(Gaussian(), every=2) else 0.7 + 0.01 * (plan.attack != Gaussian())


class Recorded:
    def __init__(self, failing=None):
        self.seen, self.failing = [], failing

    def __call__(self, planned):
        self.seen += [one.plan for one in planned]
        return {
            one.plan.identity: trace([planted(one.plan)], one.plan.seed, failed=one.plan.attack == self.failing)
            for one in planned
        }


def defences():
    return [
        next(one for one in STUDY.planned if one.labels["algorithm.aggregate"] == name) for name in ("mean", "median")
    ]


def test_the_search_finds_the_weakness_of_each_defence_within_its_budget():
    recorded = Recorded()
    mean, median = Search(WORST, defences(), recorded).result()
    assert mean["flip"] == Together(Together(SignFlip(), Rescale(-3.0)), ReportTimes(10.0))
    assert median["noise"] == Scheduled(Gaussian(), every=2)
    assert len(recorded.seen) == 2 * WORST.runs
    assert {plan.seed for plan in recorded.seen} == {7, 8}
    again = Recorded()
    assert Search(WORST, defences(), again).result() == [mean, median]
    assert [plan.identity for plan in again.seen] == [plan.identity for plan in recorded.seen]


def test_an_attack_that_cannot_be_carried_out_is_no_candidate():
    _, median = Search(WORST, defences(), Recorded(failing=Scheduled(Gaussian(), every=2))).result()
    assert median["noise"] == Gaussian()


def test_without_records_of_the_search_there_are_no_results(tmp_path):
    with pytest.raises(InfeasibleError, match="24 runs of the search without a record"):
        replace(STUDY, grid={**STUDY.grid, "attack": replace(WORST, seeds=(7,))}).results(tmp_path)


def test_the_score_of_a_defence_is_its_worst_accuracy_and_the_attack_can_be_run_alone(tmp_path):
    results = STUDY._results(Recorded(), tmp_path)
    assert len(results.rows) == 2 * 3 * 2
    assert results.axes["attack"] == ("flip", "noise", COMPOSED)
    assert results.notes[0].startswith("mean: worst accuracy 10.0 %, under flip: Together(")
    assert results.notes[1].startswith("median: worst accuracy 30.0 %, under noise: Scheduled(")
    assert results.notes[1].endswith(f"Alone: phalanx run --config {tmp_path}/worst/2.yaml")
    write(results, tmp_path, "phalanx study x.yaml")
    draft = Draft(Run)
    draft.load(tmp_path / "worst" / "2.yaml")
    assert draft.make(Run).identity == results.alone["2.yaml"].identity
    assert with_worst(results, tmp_path).alone == results.alone


def test_compositions_are_drawn_by_their_number():
    assert [WORST.drawn(k) for k in range(9)] == [WORST.drawn(k) for k in range(9)]
    assert len({str(WORST.drawn(k)) for k in range(9)}) == 9


@pytest.mark.parametrize("options", [{"factors": (2.0,)}, {"budget": -1}, {"seeds": ()}])
def test_wrong_options_are_refused(options):
    with pytest.raises(InfeasibleError, match="worst_of needs the factor 1"):
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
