"""Every composition of algorithm, wrapper, preprocessing and participation says what it promises."""

import html
import itertools
import random
import re
import warnings

import pytest

from compositions import (
    ALGORITHMS,
    COMMAND,
    KINDS,
    PAGE,
    PARTICIPATION,
    WRAPPERS,
    Leaves,
    N,
    carried_out,
    cell,
    cells,
    composed,
    compositions,
    outcome,
    outcome_of,
    page,
    promised,
    short,
)
from phalanx.attacks import ReportSize
from phalanx.core import InfeasibleError, Until
from phalanx.models import MLP
from phalanx.runs.card import card
from phalanx.runs.plan import Run
from phalanx.runs.session import simulate


def test_some_of_all_compositions_are_guaranteed_or_say_why_not():
    """Whatever is raised but a refusal in words fails."""
    found = [outcome(*names) for names in itertools.islice(compositions(), 3, None, 29)]
    assert {o.kind for o in found} == set(KINDS)
    assert all(o.words for o in found)


def chosen(name, wrapper, preprocess):
    """The algorithm of a composition, with what it needs of a run."""
    algorithm = composed(name, wrapper, preprocess)
    return algorithm, 20 if algorithm.traits.needs_reference else 0


def says_what_the_page_says(name, wrapper, preprocess, part):
    """Carry out one step, with a client that reports a million examples; check the words of warnings, record and card.

    The page's promise is for any sizes; a run whose sizes count may promise more, or give another reason.
    """
    algorithm, examples = chosen(name, wrapper, preprocess)
    plan = Run(
        algorithm=algorithm, clients=N, until=Until(1), server_examples=examples, **PARTICIPATION[part],
        model=MLP(()), attack=ReportSize(1_000_000), byzantine=1,
    )  # fmt: skip
    page_says, seen, by_size = promised(plan), [], preprocess in ("as reported", "truncated once")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            record = simulate(plan, observers=[seen.append])
        except InfeasibleError:  # with these sizes the run does not begin
            if preprocess == "ignored":
                raise
            return 0
    said, summary = seen[0].promise, record.summary
    where = name, wrapper, preprocess, part
    if said.f:
        assert said.f == page_says.f or (said.f > page_says.f and by_size), where
        assert said.sentence.startswith("Tolerates any "), where
    else:
        assert not page_says.f, where
        assert said.sentence == page_says.sentence or by_size, where
        assert said.sentence.startswith("Promises nothing: "), where
    assert record.history[0].promise.text == summary.promise.text == said.text, where
    assert (record.history[0].promise.f, summary.promise.f) == (said.f, said.f), where
    assert {*said.remarks} <= {str(warning.message) for warning in caught}, where
    assert {*said.remarks} <= {*summary.remarks}, where
    section = card(record).split("## What the run promises\n")[1].split("\n## ")[0]
    read = re.sub(r"\\(.)", r"\1", html.unescape(section)).split("\n")
    assert {f"- {words}" for words in (*said.text, *said.remarks)} <= {*read}, where
    return said.f


def working():
    """The cells of the page that are not refused: what they name."""
    return [where for where, (shown, _) in cells() if not shown.startswith("x")]


def test_runs_say_what_the_page_says():
    """Of ten compositions, drawn with the seed 34."""
    found = [says_what_the_page_says(*where) for where in random.Random(34).sample(working(), 10)]
    assert 0 < sum(map(bool, found)) < len(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_runs_say_what_the_page_says(name):
    """Each of its cells that is not refused."""
    for where in working():
        if where[0] == name:
            says_what_the_page_says(*where)


@pytest.mark.exports
def test_the_page_has_each_composition_once():
    """Those of every exported algorithm: `ALGORITHMS` takes in the new ones."""
    assert sorted(where for where, _ in cells()) == sorted(compositions()), f"run `{COMMAND}`"


def test_the_page_says_what_is_promised():
    """Each cell that is no refusal: the number of attackers, or why there is none; nothing is trained."""
    for (name, wrapper, preprocess, part), (shown, reason) in cells():
        if shown.startswith("x"):
            continue
        algorithm, examples = chosen(name, wrapper, preprocess)
        plan = Run(algorithm=algorithm, clients=N, until=Until(2), server_examples=examples, **PARTICIPATION[part])
        found = outcome_of(promised(plan))
        if found.kind == "guaranteed":
            assert shown == cell(found, {}), (name, wrapper, preprocess, part)
        else:
            assert shown.startswith("-"), (name, wrapper, preprocess, part)
            assert reason == short(found.words), (name, wrapper, preprocess, part)


@pytest.mark.slow
def test_the_page_is_that_of_today():
    """All compositions are carried out."""
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
    for share in (1.0, 0.75) if algorithm.traits.synchronous else (1.0,):
        plan = Run(
            algorithm=algorithm, clients=N, participation=share,
            until=Until(6 if algorithm.traits.synchronous else 6 * N),
            availability=Leaves(), server_examples=20 if algorithm.traits.needs_reference else 0,
        )  # fmt: skip
        try:
            carried_out(plan)
        except InfeasibleError as refusal:
            pytest.skip(f"refused before the run: {refusal}")
