"""Every composition of algorithm, wrapper, preprocessing and participation says what it promises."""

import dataclasses
import itertools
import re

import pytest

from compositions import (
    ALGORITHMS,
    ANY,
    KINDS,
    NONE,
    PAGE,
    PARTICIPATION,
    PREPROCESSING,
    WRAPPERS,
    Leaves,
    N,
    carried_out,
    cell,
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
    """The cells of the page: what they name, with the cell and its reason, if it has one."""
    text = PAGE.read_text(encoding="utf-8")
    reasons, names = dict(re.findall(r"^(\d+)\. (.*)$", text, re.MULTILINE)), list[str]()
    for line in text.splitlines():
        names = line[3:].split(", ") if line.startswith("## ") else names
        row = [part.strip() for part in line.strip("|").split("|")]
        if names and names[0] in ALGORITHMS and len(row) == 2 + len(PARTICIPATION) and row[0] not in ("wrapper", "---"):
            sizes = list(PREPROCESSING) if row[1] == ANY else ["" if s == NONE else s for s in row[1].split(", ")]
            for name, wrapper, size in itertools.product(names, row[0].split(", "), sizes):
                for part, shown in zip(PARTICIPATION, row[2:], strict=True):
                    where = name, "" if wrapper == NONE else wrapper, size, part
                    yield where, (shown, reasons.get(shown[1:], ""))


def test_the_page_has_each_composition_once():
    assert sorted(where for where, _ in cells()) == sorted(compositions())


def test_the_page_says_what_is_promised():
    """Each cell that is no refusal: the number of attackers, or why there is none; nothing is trained."""
    for (name, wrapper, preprocess, part), (shown, reason) in cells():
        if shown.startswith("x"):
            continue
        algorithm = ALGORITHMS[name]
        if preprocess:
            algorithm = dataclasses.replace(algorithm, preprocess=PREPROCESSING[preprocess])
        algorithm = WRAPPERS[wrapper](algorithm)
        examples = 20 if algorithm.needs_reference else 0
        plan = Run(algorithm=algorithm, clients=N, until=Until(2), server_examples=examples, **PARTICIPATION[part])
        found = outcome_of(promised(plan))
        if found.kind == "guaranteed":
            assert shown == cell(found, {}), (name, wrapper, preprocess, part)
        else:
            assert shown.startswith("-"), (name, wrapper, preprocess, part)
            assert reason, (name, wrapper, preprocess, part)
            assert found.words.startswith(reason.rstrip(".")), (name, wrapper, preprocess, part)


@pytest.mark.slow
def test_the_page_is_that_of_today():
    assert PAGE.read_text(encoding="utf-8") == page({names: outcome(*names) for names in compositions()})


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
