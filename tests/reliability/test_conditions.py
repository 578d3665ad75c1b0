"""The changes of `conditions.py` are still of the code."""

import pytest

from reliability.conditions import CONDITIONS, ROOT


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.name)
def test_each_change_is_of_one_place(condition):
    assert (ROOT / "src/phalanx" / condition.file).read_text().count(condition.before) == 1
    assert condition.before != condition.after
    assert all((ROOT / "tests" / name).is_file() for name in condition.tests)
