"""Every composition of algorithm, wrapper, preprocessing and participation says what it promises."""

import dataclasses
import itertools
import re

import pytest

from compositions import (
    ALGORITHMS,
    KINDS,
    PAGE,
    PARTICIPATION,
    PREPROCESSING,
    WRAPPERS,
    Leaves,
    N,
    carried_out,
    compositions,
    outcome,
    outcome_of,
    page,
    promised,
)
from phalanx.core import InfeasibleError, Until
from phalanx.runs.plan import Run


def test_some_of_all_compositions_are_guaranteed_or_say_why_not():
    """Whatever is raised but a refusal in words fails."""
    found = [outcome(*names) for names in itertools.islice(compositions(), 3, None, 29)]
    assert {o.kind for o in found} == set(KINDS)
    assert all(o.words for o in found)


def test_a_run_says_what_the_page_says():
    """But for weights as reported, which depend on the sizes that are."""
    for name, preprocess, part in itertools.product(
        ("FedAvg(Mean)", "FedAvg(Median)", "IFCA"), ("ignored",), PARTICIPATION
    ):
        algorithm = dataclasses.replace(ALGORITHMS[name], preprocess=PREPROCESSING[preprocess])
        plan = Run(algorithm=algorithm, clients=N, until=Until(2), **PARTICIPATION[part])
        said, page_says = carried_out(plan), promised(plan)
        assert (said.f, said.missing) == (page_says.f, page_says.missing)
        assert said.sentence.startswith("Tolerates" if said.f else "Promises nothing")


def cells():
    """The cells of the page that do not stand for a refusal, each with its reason or its number of attackers."""
    text = PAGE.read_text(encoding="utf-8")
    reasons, name = dict(re.findall(r"^(\d+)\. (.*)$", text, re.MULTILINE)), ""
    for line in text.splitlines():
        name = line[3:] if line.startswith("## ") else name
        row = [cell.strip() for cell in line.strip("|").split("|")]
        if name in ALGORITHMS and len(row) == 2 + len(PARTICIPATION) and row[0] != "wrapper" and row[0] != "---":
            where = name, row[0].strip("-"), row[1] if row[1] in PREPROCESSING else ""
            for part, cell in zip(PARTICIPATION, row[2:], strict=True):
                kind, _, words = cell.partition(" ")
                if kind != "x":
                    yield (*where, part), words if kind == "**y**" else reasons[words]


def test_the_page_says_what_is_promised():
    """Each cell: the number of attackers, or why there is none, in the words of the promise; nothing is trained."""
    found = list(cells())
    assert len(found) > 2500
    for (name, wrapper, preprocess, part), words in found:
        algorithm = ALGORITHMS[name]
        if preprocess:
            algorithm = dataclasses.replace(algorithm, preprocess=PREPROCESSING[preprocess])
        algorithm = WRAPPERS[wrapper](algorithm)
        examples = 20 if algorithm.needs_reference else 0
        plan = Run(algorithm=algorithm, clients=N, until=Until(2), server_examples=examples, **PARTICIPATION[part])
        assert outcome_of(promised(plan)).words.startswith(words.rstrip(".")), (name, wrapper, preprocess, part)


@pytest.mark.slow
def test_the_page_is_that_of_today():
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_composition_ends_because_a_client_leaves_in_its_task(name, wrapper):
    """Without a deadline, with all clients and with some of them in a round: the run takes all of its steps."""
    try:
        algorithm = WRAPPERS[wrapper](ALGORITHMS[name])
    except ValueError:
        pytest.skip("this wrapper does not take that algorithm")
    for share in (1.0, 0.75) if algorithm.synchronous else (1.0,):
        plan = Run(
            algorithm=algorithm, clients=N, until=Until(6 if algorithm.synchronous else 6 * N), participation=share,
            availability=Leaves(), server_examples=20 if algorithm.needs_reference else 0,
        )  # fmt: skip
        try:
            carried_out(plan)
        except InfeasibleError as refusal:
            pytest.skip(f"refused before the run: {refusal}")
