import subprocess
import sys
from typing import Any

import pytest
import report_records as records

from phalanx.core import Verdict
from phalanx.report.troubles import troubles
from phalanx.runs.schema import StepRecord


def line(step: int, **more: Any) -> StepRecord:
    return StepRecord(step=step, version=step, seconds=float(step), **more)


HISTORY = [
    line(1, invalid={3: "norm 12.5 is above 10", 1: "norm 3e-07 is above 10"}, lost={2: "left"}),
    line(2, verdicts={4: Verdict(False, 0.0, 1.0, "norm 5 is above 10")}),
    line(2, lost={2: "left"}, invalid={5: "delta holds NaN"}),
    line(7, invalid={3: "norm 12.5 is above 10"}, verdicts={4: Verdict(True, 1.0, reason="clipped")}),
]


def test_reasons_that_differ_in_numbers_only_are_one() -> None:
    assert [tuple(trouble) for trouble in troubles(HISTORY)] == [
        ("invalid", "norm 12.5 is above 10", 1, (1, 3), 3, 1, 7),
        ("invalid", "delta holds NaN", 0, (5,), 1, 2, 2),
        ("lost", "left", 0, (2,), 2, 1, 2),
    ]


def test_one_and_many_are_the_same_reason() -> None:
    told = {0: "update is 1 server update old, allowed are 0", 1: "update is 6 server updates old, allowed are 0"}
    told |= {2: "1 update old", 3: "12 updates old", 4: "no answer within 3 s"}
    found = troubles([line(1, invalid=told)])
    assert [(t.reason, t.others, t.clients) for t in found] == [
        ("1 update old", 1, (2, 3)),
        ("update is 1 server update old, allowed are 0", 1, (0, 1)),
        ("no answer within 3 s", 0, (4,)),
    ]


@pytest.mark.parametrize(
    ("kinds", "found"),
    [(("filtered",), ["norm 5 is above 10"]), (("remark", "lost"), ["clipped", "left"]), ((), [])],
)
def test_only_the_kinds_that_are_asked_for_in_that_order(kinds: tuple[str, ...], found: list[str]) -> None:
    assert [trouble.reason for trouble in troubles(HISTORY, kinds)] == found


def test_missing_reason_and_nothing_at_all() -> None:
    silent = [line(1, verdicts={0: Verdict(False, 0.0)})]
    assert [t.reason for t in troubles(silent, ("filtered", "invalid"))] == [""]
    assert troubles([]) == []


def test_every_update_of_a_record_is_counted() -> None:
    history = records.make_async(700).history
    (invalid,) = troubles(history)
    assert (invalid.clients, invalid.count, invalid.first) == ((11,), 1, 611)
    late = sum(not verdict.accepted for step in history for verdict in step.verdicts.values())
    assert [t.count for t in troubles(history, ("filtered",))] == [late]


@pytest.mark.slow
def test_import_is_light() -> None:
    code = "import sys, phalanx.report.troubles; print([m for m in ('matplotlib', 'jinja2') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "[]\n"
