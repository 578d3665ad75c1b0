"""Whose updates a result lacks."""

from phalanx.core import Verdict
from phalanx.runs.missing import LISTED, gone, subset
from phalanx.runs.schema import ClientRecord, Exclusion, StepRecord

USED = Verdict(True, 0.5)


def step(number, used=(), **unused):
    """A step in which these clients' updates were used; and those without, with a reason, by field."""
    return StepRecord(
        step=number, version=number, seconds=0.0, verdicts=dict.fromkeys(used, USED),
        **{name: dict.fromkeys(who, "why") for name, who in unused.items()},
    )  # fmt: skip


def test_who_is_back_is_not_missing_and_the_first_step_of_the_last_absence_counts():
    history = [step(0), step(1, (0,), lost=(1, 2)), step(2, (0, 1), invalid=(2,)), step(3, (0,), lost=(1,))]
    assert gone(history) == {1: 3, 2: 1}
    assert gone([*history, step(4, (1, 2))]) == {}


def test_the_sentence_names_them_but_for_excluded_clients_and_known_attackers():
    history = [step(1, (0,), lost=(1, 2), invalid=(3, 4))]
    clients = {i: ClientRecord(name=f"clinic-{i}") for i in range(5)}
    clients |= {3: ClientRecord(byzantine=True), 4: ClientRecord(excluded=Exclusion(step=1)), 2: ClientRecord()}
    said = "The result is that of a subset: without client 1 (clinic-1) from step 1 on, 2 from step 1 on."
    assert subset(history, clients) == said
    assert subset([*history, step(2, (1, 2))], clients) == ""
    many = {i: ClientRecord() for i in range(LISTED + 3)}
    assert subset([step(1, lost=many)], many).endswith(f"{LISTED - 1} from step 1 on, and 3 more.")
