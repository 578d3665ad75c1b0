from dataclasses import replace
from typing import Any

import pytest
import report_records as records
from report_records import alter

from phalanx.core import Verdict
from phalanx.report import render
from phalanx.report.client_ledger import ClientLedger
from phalanx.report.figures import participation, shares, staleness, timeline
from phalanx.report.flights import ACCEPTED, FILTERED, INVALID, LOST, UNDECIDED, asynchronous, flights
from phalanx.report.lateness import rows
from phalanx.report.speed import speed
from phalanx.report.troubles import troubles
from phalanx.runs.record import Record
from phalanx.runs.schema import ClientRecord, StepRecord
from phalanx.training.evaluation import Metrics
from summaries import summary


def verdict(accepted: bool = True, weight: float = 1.0, **more: Any) -> Verdict:
    return Verdict(accepted, weight, **more)


WAITS = verdict(weight=0.0, reason="waits", waits=True)


def line(step: int, version: int, seconds: float, accuracy: float | None = None, **more: Any) -> StepRecord:
    metrics = None if accuracy is None else Metrics(accuracy=accuracy)
    return StepRecord(step=step, version=version, seconds=seconds, metrics=metrics, **more)


# Three clients; 2 attacks.  Two answers to one version make a step, in which late ones count too, as in Catalyst.
HISTORY = [
    line(0, 0, 0.0, accuracy=0.1),
    line(1, 0, 1.0, verdicts={0: WAITS}, versions={0: 0}),
    line(2, 1, 2.0, verdicts={0: verdict(weight=0.5), 2: verdict(weight=0.5)}, versions={2: 0}, accuracy=0.4),
    line(3, 1, 3.0, verdicts={1: WAITS}, versions={1: 0}),
    line(3, 1, 3.5, invalid={0: "delta holds NaN"}),
    line(4, 1, 4.0, verdicts={2: WAITS}, versions={2: 1}),
    line(5, 1, 4.5, verdicts={2: verdict(False, 0.0, reason="again")}, versions={2: 0}, lost={1: "left"}),
    line(6, 2, 6.0, verdicts={0: verdict(weight=0.7), 1: verdict(weight=0.3), 2: verdict(False, 0.0)},
         versions={0: 1}, accuracy=0.8),
    line(7, 2, 9.0, verdicts={1: WAITS}, versions={1: 1}),
]  # fmt: skip


def small(history: list[StepRecord] = HISTORY) -> Record:
    clients = {c: ClientRecord(reported=9, size=9, byzantine=c == 2) for c in range(3)}
    config = {"algorithm": {"class_path": "phalanx.algorithms.Catalyst"}, "attack": None, "byzantine": 1}
    return Record(config, history, summary(name="Catalyst", steps=7, clients=clients))


def test_each_task_by_hand() -> None:
    assert [tuple(flight) for flight in flights(small())] == [
        (0, 0.0, 1.0, 1, 0, ACCEPTED, 0.5),  # decided by the next line
        (2, 0.0, 2.0, 2, 0, ACCEPTED, 0.5),
        (1, 0.0, 3.0, 3, 1, ACCEPTED, 0.3),
        (0, 1.0, 3.5, 3, None, INVALID, 0.0),  # of which version is not told
        (2, 2.0, 4.0, 4, 0, FILTERED, 0.0),
        (2, 4.0, 4.5, 5, 1, FILTERED, 0.0),  # at once, and not what waits
        (1, 3.0, 4.5, 5, None, LOST, 0.0),
        (0, 3.5, 6.0, 6, 0, ACCEPTED, 0.7),
        (1, 4.5, 9.0, 7, 1, UNDECIDED, 0.0),
    ]  # fmt: skip


def test_flights_agree_with_lines_on_a_longer_record() -> None:
    record = records.make_async(300)
    told = [flight for flight in flights(record) if flight.age is not None]
    assert len(told) == 300
    for flight, before, here in zip(told, record.history, record.history[1:], strict=False):
        assert flight.came == here.seconds
        assert flight.age == before.version - here.versions[flight.client]
        assert (flight.fate == ACCEPTED) == here.verdicts[flight.client].accepted
        assert 0 <= flight.sent <= flight.came


def test_one_verdict_on_two_updates_counts_for_both() -> None:
    history = [*HISTORY[:3], line(3, 1, 3.0, verdicts={0: WAITS}, versions={0: 0}),
               line(4, 2, 4.0, verdicts={0: verdict(weight=0.6)}, versions={0: 1})]  # fmt: skip
    assert [(f.age, f.fate, f.weight) for f in flights(small(history))[2:]] == [(1, ACCEPTED, 0.3), (0, ACCEPTED, 0.3)]


def test_rounds_tell_no_ages_and_late_ones_do() -> None:
    rounds = records.make(steps=3)
    assert not asynchronous(rounds)
    assert flights(rounds) == ()
    history = [line(0, 0, 0.0), line(1, 1, 1.0, verdicts={0: verdict(), 2: verdict()}),
               line(2, 2, 2.0, verdicts={0: verdict(), 1: verdict()}, versions={0: 1, 1: 0})]  # fmt: skip
    assert [(f.client, f.age) for f in flights(small(history))] == [(0, 0), (2, 0), (0, 0), (1, 1)]


def test_histogram_and_shares_by_hand() -> None:
    ledger = ClientLedger(small())
    told = staleness.histogram(ledger, flights(ledger.record))
    assert told.size == 1
    assert told.shares == {"honest": [0.5, 0.5], "Byzantine": [pytest.approx(2 / 3), pytest.approx(1 / 3)]}
    assert told.spoken[0] == "Honest: 4 updates, median age 0.5, largest 1"
    of = shares.shares(ledger, flights(ledger.record))
    assert of.came == {0: pytest.approx(2 / 7), 1: pytest.approx(2 / 7), 2: pytest.approx(3 / 7)}
    assert of.accepted == {0: pytest.approx(2 / 7), 1: pytest.approx(1 / 7), 2: pytest.approx(1 / 7)}


def test_histogram_of_old_updates_is_binned() -> None:
    ledger = ClientLedger(records.make_async(2000))
    told = staleness.histogram(ledger, flights(ledger.record))
    assert told.size == 2
    assert all(len(s) <= staleness.BINS and sum(s) == pytest.approx(1) for s in told.shares.values())


def test_table_by_age() -> None:
    told = [(row.age, row.truth, [cell.text for cell in row.cells]) for row in rows(ClientLedger(small()))]
    assert told == [
        ("fresh", "honest", ["2", "100.0 %", "0.0 %", "0.0 %", "0.6"]),
        ("fresh", "Byzantine", ["2", "50.0 %", "50.0 %", "0.0 %", "0.5"]),
        ("1 version", "honest", ["2", "50.0 %", "0.0 %", "50.0 %", "0.3"]),
        ("1 version", "Byzantine", ["1", "0.0 %", "100.0 %", "0.0 %", "–"]),
    ]


def test_timeline_shows_all_of_few_clients() -> None:
    ledger = ClientLedger(small())
    told = timeline.timeline(ledger, flights(ledger.record))
    assert [group.clients for group in told.groups] == [(0, 1), (2,)]
    assert told.flights == flights(ledger.record)
    assert (told.end, told.whole, told.steps) == (9.0, 9.0, (2.0, 6.0))


def test_timeline_of_many_clients_is_cut_by_its_rule() -> None:
    record = records.make_async(3000, clients=100)
    for client in record.summary.clients:
        alter(record, client, byzantine=client >= 75)
    ledger = ClientLedger(record)
    told = timeline.timeline(ledger, flights(record))
    assert [len(group.clients) for group in told.groups] == [18, 6]
    assert len(told.flights) == timeline.BARS
    assert told.end == told.flights[-1].came < told.whole
    counts = [sum(f.client == c for f in flights(record)) for c in told.groups[0].clients]
    assert counts == sorted(counts, reverse=True)
    picture = timeline.picture(ledger, flights(record), "k")
    assert picture is not None
    assert "Of 100 clients 24 have a lane" in picture.caption
    assert "these clients finished 400 tasks" in picture.caption


def test_time_to_accuracy() -> None:
    slow = replace(small(), history=[line(0, 0, 0.0, accuracy=0.0), line(1, 1, 50.0, accuracy=0.5)])
    told = speed([small(), slow])
    assert told is not None
    assert told.columns == ("50 % of the best (40.0 %)", "80 % of the best (64.0 %)", "90 % of the best (72.0 %)")
    words = [[cell.text for cell in row] for row in told.rows]
    assert words == [["2.0 s", "6.0 s", "6.0 s"], ["50.0 s", "never", "never"]]
    assert speed([records.make(steps=2)]) is None


def test_what_waits_is_neither_accepted_nor_filtered() -> None:
    waiting = verdict(False, 0.0, reason="waits", waits=True)
    history = [*HISTORY[:1], line(1, 0, 1.0, verdicts={0: WAITS, 1: waiting}), *HISTORY[2:3]]
    ledger = ClientLedger(small(history))
    mosaic = participation._mosaic(ledger)
    assert mosaic.weight[0, 1] == 0.5
    assert not mosaic.weight[0, 0] >= 0  # NaN: nothing was accepted
    assert mosaic.event[:, 0].tolist() == [0, 0, 0]
    assert troubles(history, ("filtered", "remark")) == []
    assert (ledger.times["accepted", 0], ledger.times["filtered", 1]) == (1, 0)


@pytest.mark.slow
def test_page_has_them_where_there_are_ages_only() -> None:
    new = ("Ages of the updates", "Shares of the updates", "Tasks over time", "Verdicts on late updates",
           "Time to accuracy")  # fmt: skip
    page = render([small()], "t")
    assert all(words in page for words in new)
    assert not any(words in render([records.make(steps=2)], "t") for words in new)
