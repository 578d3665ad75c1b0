"""Whose updates a result lacks, who never came, and whose accuracy has fallen."""

from types import SimpleNamespace

from phalanx.core import ROUND_LOST, ClientReport, Verdict
from phalanx.runs.card import _by_clients
from phalanx.runs.missing import LISTED, SUSPENDED, counts, gone, lost_rounds, never, subset, suspended
from phalanx.runs.reports import fallen
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


def test_who_was_suspended_is_named_with_the_step_and_the_reason():
    assert suspended([step(1, lost=(1,), invalid=(2,))], {}) == "", "for another reason than that alone"
    history = [step(0), *(StepRecord(step=k, version=k, seconds=0.0, lost={1: f"silent{SUSPENDED}"}) for k in range(9))]
    history[2] = StepRecord(step=1, version=1, seconds=0.0, lost={4: "late"}, invalid={0: f"holds NaN{SUSPENDED}"})
    said = suspended(history[:3], {1: ClientRecord(name="Lyon")})
    assert said == "Suspended: client 1 (Lyon) in step 0, after: silent; client 0 in step 1, after: holds NaN."
    assert suspended(history * 2, {}).endswith("; and 6 times more.")


def test_who_never_enrolled_is_named():
    assert never({}) == ""
    assert never({2: "Lyon", 0: ""}) == "Never enrolled: client 0, 2 (Lyon)."
    assert never(dict.fromkeys(range(LISTED + 2), "")).endswith(f"{LISTED - 1}, and 2 more.")


def test_the_card_says_of_which_steps_the_reports_are_and_whose():
    def said(*steps):
        history = [
            StepRecord(step=k, version=k, seconds=0.0, reports={i: ClientReport(50, 0.5, share)})
            for k, i, share in steps
        ]
        clients = {1: ClientRecord(name="Lyon"), 2: ClientRecord()}
        return _by_clients(SimpleNamespace(history=history, summary=SimpleNamespace(clients=clients)))

    assert said() == "none"
    stale = said((2, 1, 0.9), (7, 2, 0.8), (8, 2, 0.5))
    assert "each in its last step, 2 to 8, and nobody has checked: client 2 50.0 %, Lyon 90.0 %" in stale
    assert "reported in step 3, and nobody" in said((3, 1, 0.9))


def test_rounds_without_a_result_are_counted_and_so_are_accepted_updates():
    lost = Verdict(False, 0.0, reason=f"{ROUND_LOST}two of four.")
    history = [step(1, (0, 1)), StepRecord(step=2, version=1, seconds=0.0, verdicts={0: lost}), step(3, (1,))]
    assert lost_rounds(history) == "1 round lost, the first one because two of four."
    assert lost_rounds([history[0]]) == ""
    assert counts(history, (0, 1, 2)) == {0: 1, 1: 2, 2: 0}


def test_a_client_whose_accuracy_has_fallen_is_named_and_chance_is_not():
    def reports(*shares, examples=59):
        return [
            StepRecord(step=k, version=k, seconds=0.0, reports={1: ClientReport(examples, 0.5, share)})
            for k, share in enumerate(shares, 1)
        ]

    (said,) = fallen(reports(0.6, 0.93, 0.49), {1: "Budapest"})
    assert "where up to 16.7 points count as noise" in said
    assert [*fallen(reports(0.6, 0.93, 0.49), {}, clients=[2])] == []
    assert said.startswith("Client 1 (Budapest) reports an accuracy of 49.0 % in step 3, after 93.0 % in step 2")
    assert [*fallen(reports(0.6, 0.92, 0.88), {})] == []
    assert [*fallen(reports(0.9, 0.7, examples=10), {})] == [], "two of ten examples are chance"
    assert [*fallen(reports(0.9, 0.82, examples=10**6), {})] == [], "and eight points no ruin"
    assert [*fallen(reports(0.9, None), {})] == []
    assert [*fallen(reports(0.9, 0.1, examples=0), {})] == []
