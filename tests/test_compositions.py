"""Every composition of algorithm, wrapper, preprocessing and participation says what it promises."""

import itertools

import pytest

from compositions import KINDS, PAGE, compositions, outcome, page


def test_some_of_all_compositions_are_guaranteed_or_say_why_not():
    """Whatever is raised but a refusal in words fails."""
    found = [outcome(*names) for names in itertools.islice(compositions(), 3, None, 29)]
    assert {o.kind for o in found} == set(KINDS)
    assert all(o.words for o in found)


@pytest.mark.slow
def test_the_page_is_that_of_today():
    assert PAGE.read_text(encoding="utf-8") == page()
