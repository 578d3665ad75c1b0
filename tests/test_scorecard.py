"""The scorecard: its page follows from the records, and our own column from our rules."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def benchmarks():
    """The modules of the scorecard by name; nothing is left behind."""
    before = {*sys.modules}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        names = ("conformance", "scorecard", "contestants.ours", "contestants.outcomes")
        yield {name: importlib.import_module(name) for name in names}
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(FOLDER)):
            del sys.modules[name]


def test_the_page_is_made_from_the_records(benchmarks):
    card = benchmarks["scorecard"]
    assert set(card.stored()) == {"byzfl", "byzpy", "strategies", "ours"}
    assert card.page(card.stored()) == card.PAGE.read_text(encoding="utf-8"), "python benchmarks/scorecard.py --render"


def test_our_column_is_what_our_rules_do(benchmarks):
    card, outcomes = benchmarks["scorecard"], benchmarks["contestants.outcomes"].outcomes

    class Here:
        def ask(self, _, rule, parameters, inputs):
            sent = json.loads(json.dumps(inputs))
            return outcomes(benchmarks["contestants.ours"], rule, parameters, sent)

    recorded = card.stored()["ours"]["verdicts"]
    met = {
        case: {rule: {form: verdict[0] for form, verdict in forms.items()} for rule, forms in rules.items()}
        for case, rules in card.verdicts(Here()).items()
    }
    for case, rules in recorded.items():
        for rule, forms in rules.items():
            assert met[case][rule] == {form: verdict[0] for form, verdict in forms.items()}, (case, rule)
    assert met.keys() == recorded.keys()


def test_judges_see_what_is_wrong(benchmarks):
    cases = {case.name: case for case in benchmarks["conformance"].CASES}
    fine, nan = np.ones(50).tolist(), [float("nan"), *np.ones(49)]

    def judge(name, *results, **more):
        return cases[name].judge([{"result": result, "changed": False, **more} for result in results])

    assert judge("nan", fine) == (True, "in range")
    assert judge("nan", nan) == (False, "NaN")
    assert judge("far", [1e9] * 50).met is False
    assert judge("copies", [2.0] * 50).met is False
    assert cases["copies"].judge([{"error": "IndexError: 3"}]) == (False, "IndexError")
    assert cases["nan"].judge([{"error": "ValueError: NaN"}]) == (True, "ValueError")
    assert judge("none", fine) == (False, "a result")
    assert judge("none", None) == (True, "no result")
    assert [judge("declared", [share, 0, 0]).met for share in (0.1, 0.6, -0.1)] == [True, False, False]
    assert [judge("even", [value]).met for value in (2.0, 1.5, 4.0)] == [None, True, False]
    assert judge("ties", [5.0], [5.0]).said != judge("ties", [5.0], [-5.0]).said
    assert [judge("offset", [0.0], [8192 + off]).met for off in (0.0, 0.001, 0.02)] == [True, True, False]
    assert [judge("twice", [1.0], [1.0 + off]).met for off in (0.0, 1e-16, 1e-15)] == [True, True, False]
    assert judge("arguments", fine, changed=True) == (False, "overwritten")
