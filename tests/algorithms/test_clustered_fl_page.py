"""docs/clustered-fl.md: examples are run, and the table of thresholds is that of the code."""

import dataclasses
import doctest
import re
from pathlib import Path

import jaxtyping
import pytest

from phalanx.algorithms import ClusteredFL

PAGE = Path(__file__).parents[2] / "docs" / "clustered-fl.md"


@pytest.fixture
def _as_a_user_sees_it():
    """Without the checks of shapes that only tests have."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.mark.usefixtures("_as_a_user_sees_it")
def test_what_the_page_shows_is_what_comes_out():
    examples = "\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    test = doctest.DocTestParser().get_doctest(examples, {}, PAGE.name, str(PAGE), 0)
    assert len(test.examples) > 8
    report: list[str] = []
    failed = doctest.DocTestRunner(verbose=False).run(test, out=report.append).failed
    assert not failed, "".join(report)


def test_the_defaults_on_the_page_are_those_of_the_code():
    told = dict(re.findall(r"^\| `(\w+)` \| `?([^|`]+?)`? \|", PAGE.read_text(), re.MULTILINE))
    defaults = {f.name: f.default for f in dataclasses.fields(ClusteredFL)}
    assert len(told) == 7
    for name, value in told.items():
        words = str(defaults[name]).replace("share=", "")
        assert words in (value, f"{value}.0"), name
