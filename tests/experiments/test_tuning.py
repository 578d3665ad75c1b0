"""Equal chances: the same number of settings for each method, chosen on seeds and examples of their own."""

from dataclasses import replace

import pytest
import torch

from experiments.reproduce.made import trace
from phalanx import Run, Study, Until
from phalanx.aggregators import Krum, Mean
from phalanx.attacks import SignFlip
from phalanx.cli.study_file import read_study
from phalanx.core import InfeasibleError
from phalanx.data import Digits, HeldOut
from phalanx.experiments import Tuning
from phalanx.experiments.results import Results, Row
from phalanx.experiments.tuning import NoSettingError

BASE = Run(clients=9, attack=SignFlip(), byzantine=2, until=Until(steps=2))
GRID = {"algorithm.aggregate": {"mean": Mean(), "krum": Krum(f=2)}, "attack": {"none": None, "flip": SignFlip()}}
LRS = {"training.lr": [0.3, 0.1, 0.03]}
TUNING = Tuning("algorithm.aggregate", {"krum": {"algorithm.aggregate.f": [1, 2], **LRS}, "all": LRS}, 3, (50, 51))
STUDY = Study(BASE, GRID, 2, [{"algorithm.aggregate": "mean", "attack": "flip"}], tuning=TUNING)


def test_each_method_has_the_same_number_of_settings_in_the_same_cells():
    found = [one.labels["algorithm.aggregate"].partition(":")[0] for one in STUDY.trial.planned]
    assert found.count("krum") == 3 * 2 * 2  # settings, attacks, seeds
    assert found.count("mean") == 3 * 2, "one attack is excluded for it"
    assert {one.plan.seed for one in STUDY.trial.planned} == {50, 51}
    assert {one.plan.data for one in STUDY.trial.planned} == {HeldOut(Digits(), 0.2)}


def test_the_best_setting_of_each_method_is_used_and_said():
    def score(plan):
        return 0.9 - abs(plan.training.lr - 0.1)

    trial = STUDY.trial
    rows = [Row(one.labels, trace([score(one.plan)], one.plan.seed)) for one in trial.planned]
    tuned, notes = STUDY.tuned(Results("trial", {n: tuple(v) for n, v in trial.axes.items()}, rows))
    mean = [one.plan for one in tuned.planned if one.labels["algorithm.aggregate"] == "mean"]
    assert {plan.training.lr for plan in mean} == {0.1}
    assert {plan.data for plan in mean} == {Digits()}
    assert len(tuned.planned) == len(STUDY.planned)
    assert notes[0].startswith("mean: training.lr 0.1, chosen among 3 settings by an accuracy of 90.0 % on held-out")


def test_tuning_has_conditions_of_its_own_and_a_failure_counts_as_nothing():
    study = replace(STUDY, exclude=(), tuning=replace(TUNING, grid={"attack": {"flip": SignFlip()}}))
    assert {one.plan.attack for one in study.trial.planned} == {SignFlip()}

    def found(failing):
        rows = [
            Row(one.labels, trace([one.plan.training.lr], one.plan.seed, failed=failing(one.plan)))
            for one in study.trial.planned
        ]
        return study.tuned(Results("trial", {n: tuple(v) for n, v in study.trial.axes.items()}, rows))

    _, notes = found(lambda plan: plan.training.lr == 0.3 and plan.seed == 50)
    assert notes[0].startswith("mean: training.lr 0.3, chosen among 3 settings by an accuracy of 15.0 %"), notes
    with pytest.raises(NoSettingError, match="mean: no setting gave a result in the tuning runs"):
        found(lambda plan: True)


def test_a_method_whose_tuning_runs_are_all_left_out_has_no_setting():
    study = Study(
        replace(BASE, clients=4, byzantine=1),
        {"algorithm.aggregate": {"krum": Krum(1)}},
        tuning=Tuning("algorithm.aggregate", {"all": LRS}, 3, (50,)),
        leave_out=True,
    )
    assert not study.trial.planned
    with pytest.raises(NoSettingError, match=r"krum: no setting .* all are left out, as no run can be carried out"):
        study.tuned(Results("trial", {n: tuple(v) for n, v in study.trial.axes.items()}, []))


def test_each_value_of_an_option_is_judged_whether_it_is_drawn_or_not():
    """Of 40 settings three are drawn, and -1 is in none of them."""
    rates = {"training.lr": [0.001 * k for k in range(1, 40)] + [-1.0]}
    tuning = Tuning("algorithm.aggregate", {"all": rates}, 3, (50,))
    assert not any("-1" in name for name in tuning.candidates("mean"))
    with pytest.raises(InfeasibleError, match=r"tuning\.options of mean, training\.lr -1\.0: lr must be"):
        replace(STUDY, tuning=tuning)
    wrong = Tuning("algorithm.aggregate", {"all": {"training.speed": [1.0, 2.0, 3.0]}}, 3, (50,))
    with pytest.raises(InfeasibleError, match="has no field speed"):
        replace(STUDY, tuning=wrong)


def test_a_study_is_not_evaluated_before_its_tuning_is_complete():
    with pytest.raises(InfeasibleError, match="2 tuning runs without a record"):
        STUDY.tuned(Results("trial", {}, [], missing=2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"axis": "rule"}, "tuning.axis is rule, which is no axis"),
        ({"seeds": (1, 50)}, "The study uses the seed 1, on which its settings are chosen"),
        ({"settings": 4}, "mean has 3 settings to choose from, and each method gets 4"),
        ({"options": {"krim": LRS}}, "tuning.options names krim"),
        ({"settings": 0}, "settings must be at least 1, got 0"),
        ({"held_out": 1.0}, r"held_out must lie in \(0, 1\), got 1.0"),
        ({"grid": {"algorithm.aggregate": [Mean()]}}, "tuning.grid names algorithm.aggregate, which is no other axis"),
    ],
)
def test_unequal_chances_and_common_seeds_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(STUDY, tuning=replace(TUNING, **change))


def test_held_out_examples_are_training_examples_and_no_others():
    train, _ = Digits().load()
    rest, held = HeldOut(Digits(), 0.25).load()
    assert len(held) == round(0.25 * len(train))
    assert sorted(torch.cat([rest.x, held.x]).flatten(1).tolist()) == sorted(train.x.flatten(1).tolist())
    assert torch.equal(HeldOut(Digits(), 0.25).load()[1].x, held.x)
    assert not torch.equal(HeldOut(Digits(), 0.25, seed=1).load()[1].x, held.x)
    with pytest.raises(ValueError, match="leaves a part empty"):
        HeldOut(Digits(), 0.0001).load()


def test_tuning_in_a_file(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(
        "base: {clients: 9}\n"
        "grid: {algorithm.aggregate: {mean: Mean, krum: Krum(f=2)}}\n"
        "seeds: 2\n"
        "tuning: {axis: algorithm.aggregate, settings: 2, seeds: [9],\n"
        "  options: {all: {training.lr: [0.1, 0.2]}, krum: {algorithm.aggregate.f: [1, 2]}}}\n"
    )
    tuning = read_study(path).tuning
    assert tuning == Tuning(
        "algorithm.aggregate", {"all": {"training.lr": [0.1, 0.2]}, "krum": {"algorithm.aggregate.f": [1, 2]}}, 2, [9]
    )
    path.write_text(path.read_text().replace("settings", "setting"))
    with pytest.raises(ValueError, match="The tuning of a study has no option 'setting'"):
        read_study(path)
