"""Studies as values: axes, names, exclusions, settings that go together; what is refused."""

from dataclasses import replace

import pytest

from phalanx import Run, Study, Until
from phalanx.aggregators import Krum, Mean, Median, TrimmedMean
from phalanx.algorithms import FedAvg
from phalanx.attacks import Gaussian, SignFlip
from phalanx.core import InfeasibleError
from phalanx.data import Dirichlet
from phalanx.experiments.grid import Derived, applied

BASE = Run(clients=8, attack=SignFlip(), byzantine=2, until=Until(steps=2))
RULES = [Mean(), Median(), Krum(f=2)]
ATTACKS = {"none": None, "flip": SignFlip(), "noise": Gaussian(std=2.0)}


def test_the_runs_are_the_product_of_axes_and_seeds_in_order():
    study = Study(BASE, {"algorithm.aggregate": RULES, "attack": ATTACKS}, seeds=[3, 5])
    assert len(study.planned) == 3 * 3 * 2
    assert study.planned[0].labels == {"algorithm.aggregate": "Mean", "attack": "none"}
    assert [one.plan.seed for one in study.planned[:4]] == [3, 5, 3, 5]
    assert study.planned[-1].name == "Krum(f=2), noise (seed 5)"
    by_hand = replace(BASE, algorithm=replace(BASE.algorithm, aggregate=Krum(f=2)), attack=Gaussian(2.0), seed=5)
    assert study.planned[-1].plan.identity == by_hand.identity


def test_without_an_attack_nobody_is_byzantine_and_the_others_keep_the_number_of_the_base():
    study = Study(BASE, {"attack": ATTACKS}, seeds=1)
    assert [one.plan.byzantine for one in study.planned] == [0, 2, 2]
    assert study.planned[0].plan == replace(BASE, attack=None, byzantine=0)


def test_settings_that_go_together_are_an_axis_with_a_free_name():
    threat = {"none": {"attack": None}, "many": {"attack": SignFlip(), "byzantine": 3}}
    split = {"iid": {}, "skewed": {"partition": Dirichlet(0.1), "partition.alpha": 0.5}}
    study = Study(BASE, {"threat": threat, "split": split}, seeds=1)
    assert [one.plan.byzantine for one in study.planned] == [0, 0, 3, 3]
    assert study.planned[1].plan.partition == Dirichlet(0.5)  # the longer path is inside of the shorter
    assert study.planned[0].plan.partition == BASE.partition


def test_an_exclusion_leaves_out_the_cells_that_it_describes_and_no_others():
    exclude = [{"algorithm.aggregate": ["Mean", "Krum(f=2)"], "attack": "none"}]
    study = Study(BASE, {"algorithm.aggregate": RULES, "attack": ATTACKS}, 1, exclude)
    names = [tuple(one.labels.values()) for one in study.planned]
    assert len(names) == 7
    assert ("Median", "none") in names
    assert not {("Mean", "none"), ("Krum(f=2)", "none")} & set(names)


def test_a_study_is_a_value():
    assert Study(BASE, {"attack": ATTACKS}, 2) == Study(BASE, {"attack": ATTACKS}, [0, 1])
    assert Study(BASE, {"attack": ATTACKS}, 2) != Study(BASE, {"attack": ATTACKS}, 3)


@pytest.mark.parametrize(
    ("grid", "options", "message"),
    [
        ({"atack": [SignFlip()]}, {}, "atack is no field of a run, so each value of this axis must be a mapping"),
        ({"attack": []}, {}, "The axis attack has no values"),
        ({"attack": [SignFlip(), SignFlip()]}, {}, "two values named alike"),
        ({"seed": [1, 2]}, {}, "seed is no axis"),
        ({"algorithm.aggregte": [Mean()]}, {}, "algorithm is FedAvg, which has no field aggregte. It has: aggregate"),
        ({"x": {"a": {"attack": SignFlip()}}, "attack": ATTACKS}, {}, "attack is set by two axes"),
        ({"algorithm.aggregate": [Krum(f=4)]}, {}, r"The cell {algorithm.aggregate: Krum\(f=4\)} cannot"),
        ({"byzantine": [2, 9]}, {}, "The cell {byzantine: 9} cannot be carried out: byzantine must be"),
        ({"attack": ATTACKS}, {"exclude": [{"rule": "x"}]}, "exclude names the axis rule, which there is not"),
        ({"attack": ATTACKS}, {"exclude": [{"attack": "flap"}]}, "exclude names flap, which attack does not have"),
        ({"attack": ATTACKS}, {"exclude": [{"attack": list(ATTACKS)}]}, "exclude leaves no run"),
        ({"attack": ATTACKS}, {"seeds": 0}, "seeds must be"),
        ({"attack": ATTACKS}, {"seeds": [1, 1]}, "different integers"),
        ({"attack": ATTACKS}, {"name": "../x"}, "name must be usable"),
        ({"attack": ATTACKS}, {"measures": {"loss": len}}, "as a figure that each run has, got loss. Rename it"),
        ({"attack": ATTACKS}, {"measures": {"lines": lambda _: 1}}, "lines must be a function at the top of a file"),
    ],
)  # fmt: skip
def test_wrong_studies_are_refused_before_any_run(grid, options, message):
    with pytest.raises(InfeasibleError, match=message):
        Study(BASE, grid, **options)


def test_a_target_is_an_accuracy():
    with pytest.raises(ValueError, match=r"target must lie in \(0, 1\], got 1.5: it is an accuracy"):
        Study(BASE, {"attack": ATTACKS}, target=1.5)


def test_a_study_of_too_many_runs_is_refused_without_making_them_all(monkeypatch):
    monkeypatch.setattr("phalanx.experiments.study.MOST", 9)
    with pytest.raises(InfeasibleError, match="The study has more than 100,000 runs"):
        Study(BASE, {"until.steps": list(range(1, 90))}, 10)


def test_values_of_a_field_are_applied_together():
    both = applied(BASE, {"clients": 30, "byzantine": 20})  # neither alone fits the other's old value
    assert (both.clients, both.byzantine) == (30, 20)


def made_for(run):
    """A rule for the number of attackers, and who is honest in a run of this seed."""
    if run["byzantine"] > 3:
        raise ValueError("too many attackers")
    return {"algorithm": FedAvg(TrimmedMean(run["byzantine"] / run["clients"])), "until": Until(run["seed"])}


def test_a_value_can_depend_on_the_rest_of_the_run():
    grid = {"rule": {"trimmed": Derived(made_for), "mean": {}}, "byzantine": [0, 2, 4]}
    study = Study(replace(BASE, attack=SignFlip(), byzantine=1), grid, seeds=[1, 5], leave_out=True)
    derived = [one.plan for one in study.planned if one.labels["rule"] == "trimmed"]
    n = BASE.clients
    assert [plan.algorithm.aggregate.beta for plan in derived] == [0.0, 0.0, 2 / n, 2 / n]
    assert [plan.until.steps for plan in derived] == [1, 5, 1, 5]
    assert [plan.attack for plan in derived] == [None, None, SignFlip(), SignFlip()], "0 attackers, no attack"
    assert study.infeasible == {("trimmed", "4"): "too many attackers"}
    assert len(study.planned) == (2 + 3) * 2
    with pytest.raises(InfeasibleError, match=r"trimmed.*too many attackers.*add it to exclude"):
        replace(study, leave_out=False)
