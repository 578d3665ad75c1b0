import msgspec
import pytest
import report_records as records

from phalanx.report import render
from phalanx.report.client_ledger import ClientLedger
from phalanx.report.figures import alone, reputation


def test_curves_threshold_and_exclusions_are_those_of_the_record() -> None:
    told = reputation.reputations(ClientLedger(records.make_reputations()))
    assert told.curves[0] == ([1, 2, 3, 4, 5], [0.01, 0.02, 0.03, 0.04, 0.05])
    assert told.curves[5] == ([1, 2], [0.06, 0.01])  # the last is what it was excluded with
    assert told.fell == {5: (2, 0.01)}
    assert told.threshold.y == pytest.approx([0.021, 0.022, 0.023, 0.024, 0.025])


def test_long_runs_are_thinned_and_keep_their_ends() -> None:
    record = records.make_reputations()
    last = record.history[-1]
    record.history.extend([msgspec.structs.replace(last, step=step) for step in range(6, 3001)])
    told = reputation.reputations(ClientLedger(record))
    assert len(told.curves[0].x) <= reputation.POINTS
    assert (told.curves[0].x[0], told.curves[0].x[-1]) == (1, 3000)
    assert told.curves[5] == ([1, 2], [0.06, 0.01])


def test_received_against_alone_by_hand() -> None:
    run, other = records.make_reputations(), records.make_alone()
    told = alone.against_alone(run, [run, other])
    assert told is not None
    assert told.alone == pytest.approx({c: 0.4 + 0.03 * c for c in range(5)})
    assert told.received == pytest.approx({c: 0.55 + 0.02 * c for c in range(5)})
    assert told.fairness.coefficient == pytest.approx(1)
    assert told.gain == pytest.approx(0.13)
    picture = alone.picture(ClientLedger(run), [run, other], "k")
    assert picture is not None
    assert "mean gain +13.0 points" in picture.caption


def test_only_the_same_participants_are_compared() -> None:
    run, other = records.make_reputations(), records.make_alone()
    assert alone.against_alone(other, [run, other]) is None
    assert alone.against_alone(run, [run]) is None
    other.config["seed"] = 1
    assert alone.against_alone(run, [run, other]) is None
    assert alone.against_alone(run, [run, records.make_alone(7)]) is None


def test_page_has_them_where_there_are_reputations_only() -> None:
    titles = "Reputations", "Received and standalone accuracy"
    both = render([records.make_reputations(), records.make_alone()], "t")
    assert all(both.count(f"<h3>{title}</h3>") == 1 for title in titles)
    plain = render([records.make(steps=2)], "t")
    assert not any(title in plain for title in titles)
