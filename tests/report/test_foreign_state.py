"""Pages of records whose observed figures have another form than those of Phalanx's algorithms."""

import dataclasses

import msgspec
import pytest

from phalanx import Run, Until, simulate
from phalanx.algorithms import RFFL, ByzantineCFL, Challenge, ClusteredFL
from phalanx.data import PermutedLabels
from phalanx.models import MLP
from phalanx.report import render
from phalanx.runs.found_clusters import found_clusters
from phalanx.runs.observed import FORMS, observed, observed_tree
from phalanx.training import LocalSGD

JUNK = [
    5, [1], {"0": 5}, {0: [1, 2]}, {0: 1, 1: 0},
    {0: {"clients": [0, 1, 2], "alpha": [[1.0]], "decision": [1], "gap": "wide", "alpha_cross": {}, "mean": "long"}},
]  # fmt: skip
ALGORITHMS = [ClusteredFL(min_round=2), RFFL(challenge=Challenge()), ByzantineCFL(threshold=0.2)]


@pytest.fixture(scope="module")
def records():
    run = Run(clients=6, groups=PermutedLabels(2), model=MLP((8,)), training=LocalSGD(epochs=1), until=Until(4))
    return [simulate(dataclasses.replace(run, algorithm=algorithm)) for algorithm in ALGORITHMS]


def test_figures_of_algorithms_have_their_form(records):
    names = {name for record in records for step in record.history for name in step.state} & FORMS.keys()
    assert names == FORMS.keys()
    for record in records:
        for step in record.history[1:]:
            for name in step.state.keys() & FORMS.keys():
                assert (observed(step, name) is None) == (step.state[name] is None), name
        assert (observed_tree(record.history[-1]) is not None) == ("parents" in record.history[-1].state)


@pytest.mark.parametrize("name", FORMS)
def test_a_page_is_made_whatever_they_are(records, name):
    for record in records:
        if name not in record.history[-1].state:
            continue
        for junk in JUNK:
            strange = [
                msgspec.structs.replace(step, state={**step.state, name: junk}) if step.state else step
                for step in record.history
            ]
            other = dataclasses.replace(record, history=strange)
            assert "</html>" in render([other], "t")
            assert isinstance(found_clusters(strange, record.summary.clients), str)


@pytest.mark.parametrize("parents", [{0: 0}, {0: 1, 1: 0}, {1: None}, {0: None, 1: 5}])
def test_what_is_no_tree_is_none(records, parents):
    step = records[0].history[-1]
    wrong = msgspec.structs.replace(step, state={**step.state, "parents": parents, "born": dict.fromkeys(parents, 0)})
    assert observed_tree(step) is not None
    assert observed_tree(wrong) is None
