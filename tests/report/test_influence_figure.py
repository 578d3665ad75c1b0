import msgspec
import pytest
import report_records as records

from phalanx.aggregators.influence import Influence
from phalanx.report import render
from phalanx.report.figures import influence


def measured(*found):
    """A record with what was found in each step."""
    record = records.make(steps=len(found))
    record.config["influence"] = 4
    for at, influences in enumerate(found, 1):
        records.alter_step(record, at, influences=influences)
    return record


def test_curves_are_those_of_the_largest_of_each_step() -> None:
    three = Influence(3.0, "bound", 1.0)
    record = measured((three,), (three, Influence(5.0, "exact", 2.0)), (), (three, Influence(None, "unbounded", 9.0)))
    value, length = influence.curves(record)
    assert value.x == length.x == [1, 2, 4]
    assert value.y == pytest.approx([3, 5, float("nan")], nan_ok=True)
    assert length.y == [1, 2, 9]


def test_the_page_shows_them_only_where_they_were_measured() -> None:
    page = render([measured((Influence(3.0, "bound", 1.0),), (Influence(None, "unknown", 2.0),))], "t")
    assert page.count("<h3>What 4 attackers could have done</h3>") == 1
    assert "Known in 1 of 2 steps." in page
    assert "could have done" not in render([records.make(steps=2)], "t")


def test_nothing_known_is_drawn_as_well() -> None:
    page = render([measured((Influence(None, "unknown", None),))], "t")
    assert "Known in 0 of 1 step." in page


def test_a_record_holds_it() -> None:
    step = measured((Influence(3.0, "bound", 1.0),)).history[1]
    assert msgspec.to_builtins(step)["influences"] == ({"value": 3.0, "kind": "bound", "length": 1.0},)
