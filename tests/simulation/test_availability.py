"""Clients that leave and return, fall silent, crash: each is accounted for, and no time is spent in place."""

import itertools
import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from untrained import ARRIVALS, ROUNDS, ById, arrivals, go, news

from phalanx.aggregators import Krum
from phalanx.algorithms import FedAvg
from phalanx.core import StalledError, Until
from phalanx.simulation import (
    Availability,
    AvailabilityTrace,
    Both,
    Constant,
    Crash,
    Crashes,
    Deadline,
    OnOff,
    Period,
    Silent,
    Workload,
)
from phalanx.simulation.availability import Attendance


@dataclass(frozen=True)
class Times(Availability):
    """Client 0 is there in these periods, all others always."""

    mine: tuple[tuple[float, float], ...]
    keeps: bool = True

    def periods(self, client, seed):
        return (Period(*p) for p in (self.mine if client == 0 else ((0.0, math.inf),)))


def test_who_is_away_at_the_beginning_is_asked_when_it_comes_with_the_model_of_that_time():
    seen = go(ARRIVALS, clients=2, latency=ById(1.0, 1.0), availability=Times(((2.5, math.inf),)), until=5)
    assert arrivals(seen) == [
        (1.0, (1,), (0,)),
        (2.0, (1,), (1,)),
        (3.0, (1,), (2,)),
        (3.5, (0,), (2,)),  # sent at 2.5, when two updates had been made
        (4.0, (1,), (3,)),
    ]


def test_a_round_is_of_those_who_are_there():
    seen = go(ROUNDS, clients=3, availability=Times(((0.0, 1.5), (3.0, math.inf))), until=5)
    assert [(now, clients) for now, clients, _ in arrivals(seen)] == [
        (1.0, (0, 1, 2)),  # asked at 0
        (3.0, (0, 1, 2)),  # asked at 1; client 0 leaves at 1.5, and answers when it is back at 3
        (4.0, (0, 1, 2)),
        (5.0, (0, 1, 2)),
        (6.0, (0, 1, 2)),
    ]
    seen = go(ROUNDS, clients=3, availability=Times(((0.0, 1.5), (3.0, 9.0)), keeps=False), until=3)
    assert arrivals(seen)[1:] == [(2.0, (1, 2), (1, 1)), (3.0, (1, 2), (2, 2))], "asked at 2, when it was away"
    assert news(seen, "lost") == [(2.0, {0: "left after 0.5 s, without an answer"})]


def test_time_jumps_over_the_absence_of_all():
    @dataclass(frozen=True)
    class Night(Availability):
        def periods(self, client, seed):
            return (Period(86_400.0 * day, 86_400.0 * day + 1.5) for day in itertools.count())

    for algorithm in (ROUNDS, ARRIVALS):
        seen = go(algorithm, clients=3, availability=Night(), until=8)
        nights = [now // 86_400 for now, _, _ in arrivals(seen)]
        assert nights[-1] > 0
        assert len(seen) == 9, "one call before the first step, and one after each"
    round_two = arrivals(go(ROUNDS, clients=3, availability=Night(), until=2))[1]
    assert round_two == (86_400.0, (0, 1, 2), (1, 1, 1)), "asked at 1, away at 2, back together"


def test_who_never_comes_back_is_named():
    with pytest.raises(StalledError, match="brought nothing, and 0 clients have not answered") as stalled:
        go(ARRIVALS, clients=1, availability=Times(((0.0, 1.5),)), until=9)
    assert "client 0: cannot be reached, and does not come back" in str(stalled.value)
    with pytest.raises(StalledError, match="brought nothing, and 0 clients have not answered") as stalled:
        go(ARRIVALS, clients=1, availability=Times(((0.0, 1.5),), keeps=False), until=9)
    assert "client 0: cannot be reached, and does not come back" in str(stalled.value)


def test_a_client_that_leaves_for_good_in_its_task_ends_no_round():
    gone = Times(((0.0, 1.5),))
    seen = go(ROUNDS, clients=3, latency=ById(1.0, 0.5, 0.5), availability=gone, until=4)
    assert arrivals(seen) == [
        (1.0, (0, 1, 2), (0, 0, 0)),
        (2.0, (1, 2), (1, 1)),  # asked at 1, and due at 2; client 0 left at 1.5
        (2.5, (1, 2), (2, 2)),
        (3.0, (1, 2), (3, 3)),
    ]
    assert news(seen, "lost") == [(2.0, {0: "left, and does not come back"})]
    seen = go(ARRIVALS, clients=2, latency=ById(1.0, 0.75), availability=gone, until=6)
    assert [clients for _, clients, _ in arrivals(seen)] == [(1,), (0,), (1,), (1,), (1,), (1,)]
    assert news(seen, "lost") == [(2.0, {0: "left, and does not come back"})]


def test_with_a_deadline_the_server_learns_by_it_who_left():
    seen = go(ROUNDS, clients=3, availability=Times(((0.0, 1.5),)), deadline=Deadline(4.0), until=3)
    assert [(now, clients) for now, clients, _ in arrivals(seen)] == [(1.0, (0, 1, 2)), (5.0, (1, 2)), (6.0, (1, 2))]
    assert news(seen, "lost") == [(5.0, {0: "no answer within 4 s"})]


@pytest.mark.filterwarnings("ignore:If 1 of 5 clients stay silent")
def test_a_round_of_too_few_after_clients_left_is_lost_and_those_who_return_take_part():
    """Krum needs five updates for f = 1: rounds 2 and 3 have four, and after that client 0 is back."""
    krum = FedAvg(aggregate=Krum(f=1))
    back = Times(((0.0, 1.5), (3.5, math.inf)), keeps=False)
    seen = go(krum, clients=5, availability=back, until=5)
    assert [p.state.version for p in seen] == [0, 1, 1, 1, 1, 2]
    why = seen[2].state.verdicts[1].reason
    assert why.startswith("round lost: Krum")
    gone = Times(((0.0, 1.5),))
    with pytest.raises(StalledError, match="10 rounds in a row were lost, the last one because Krum"):
        go(krum, clients=5, availability=gone, until=99)


def test_silent_clients_are_learnt_of_by_a_deadline():
    with pytest.raises(StalledError, match=r"No answer comes from 2 clients.*Set a deadline") as stalled:
        go(ROUNDS, clients=10, availability=Silent(0.2, after=2.5), until=9)
    assert str(stalled.value).count("sends nothing any more since 2.5 s") == 2
    seen = go(ROUNDS, clients=10, availability=Silent(0.2, after=2.5), deadline=Deadline(4.0), until=4)
    assert [now for now, _, _ in arrivals(seen)] == [1.0, 2.0, 6.0, 10.0]
    assert [len(clients) for _, clients, _ in arrivals(seen)] == [10, 10, 8, 8]
    assert [sorted(lost) for _, lost in news(seen, "lost")] == [sorted(news(seen, "lost")[0][1])] * 2
    assert set(news(seen, "lost")[0][1].values()) == {"no answer within 4 s"}


def test_in_an_asynchronous_run_each_download_has_its_deadline():
    seen = go(ARRIVALS, clients=2, latency=ById(10.0, 3.0), deadline=Deadline(4.0), until=4)
    assert arrivals(seen) == [(3.0, (1,), (0,)), (6.0, (1,), (1,)), (9.0, (1,), (2,)), (12.0, (1,), (3,))]
    assert news(seen, "lost") == [(4.0, {0: "no answer within 4 s"}), (8.0, {0: "no answer within 4 s"})]
    seen = go(ARRIVALS, clients=2, latency=ById(4.0, 3.0), deadline=Deadline(4.0), until=4)
    assert not news(seen, "lost"), "an answer at the deadline counts"


def test_silence_of_all_ends_the_run():
    with pytest.raises(StalledError, match="the answers of all 3 clients that are available were invalid or lost"):
        go(ARRIVALS, clients=3, availability=Silent(1.0), deadline=Deadline(5.0), until=9)
    with pytest.raises(StalledError, match="No answer comes from 3 clients"):
        go(ARRIVALS, clients=3, availability=Silent(1.0), until=9)


def test_a_crash_costs_the_task_and_the_client_comes_back():
    @dataclass(frozen=True)
    class Second(Availability):
        def crash(self, task: Workload, seconds, seed):
            return Crash(0.25 * seconds, 2.0) if (task.client, task.turn) == (0, 1) else None

    seen = go(ARRIVALS, clients=2, latency=ById(4.0, 3.0), availability=Second(), until=6)
    assert news(seen, "lost") == [(5.0, {0: "crashed after 1 s"})]
    assert [now for now, clients, _ in arrivals(seen) if clients == (0,)] == [4.0, 11.0], "asked again at 5 + 2"


def test_crashes_are_as_likely_as_asked_for_and_end_in_time():
    crashes = [Crashes(0.2, 30.0).crash(Workload(i), 10.0, seed=1) for i in range(4000)]
    found = [crash for crash in crashes if crash]
    assert len(found) / len(crashes) == pytest.approx(0.2, abs=0.02)
    assert all(0 < crash.after <= 10.0 and crash.back > 0 for crash in found)
    assert sum(crash.back for crash in found) / len(found) == pytest.approx(30, rel=0.1)
    assert sum(crash.after for crash in found) / len(found) == pytest.approx(5, rel=0.1)
    assert not any(Crashes(0.0).crash(Workload(i), 1.0, 0) for i in range(100))


@pytest.mark.parametrize("probability", [0.5, 1.0])
def test_crashing_runs_end_one_way_or_the_other(probability):
    options = {"clients": 5, "availability": Crashes(probability, 3.0), "until": 20}
    for algorithm in (ROUNDS, ARRIVALS):
        if probability == 1.0:
            with pytest.raises(StalledError, match="all 5 clients"):
                go(algorithm, **options)
        else:
            assert arrivals(go(algorithm, **options))[-1][0] > 0


def test_on_and_off_times_have_their_means_and_share():
    periods = list(itertools.islice(OnOff(100.0, 25.0).periods(3, seed=1), 4000))
    on = [p.end - p.begin for p in periods]
    off = [b.begin - a.end for a, b in itertools.pairwise(periods)]
    assert sum(on) / len(on) == pytest.approx(100, rel=0.05)
    assert sum(off) / len(off) == pytest.approx(25, rel=0.05)
    assert min(*on, *off) > 0
    there = [next(OnOff(100.0, 25.0).periods(i, seed=1)).begin == 0 for i in range(2000)]
    assert sum(there) / len(there) == pytest.approx(0.8, abs=0.03), "the first moment is like any other"


def test_both_intersects():
    @dataclass(frozen=True)
    class Fixed(Availability):
        mine: tuple[tuple[float, float], ...]

        def periods(self, client, seed):
            return (Period(*p) for p in self.mine)

    one, other = Fixed(((0.0, 4.0), (6.0, 9.0), (20.0, math.inf))), Fixed(((1.0, 2.0), (3.0, 7.0), (8.0, 30.0)))
    expected = [(1.0, 2.0), (3.0, 4.0), (6.0, 7.0), (8.0, 9.0), (20.0, 30.0)]
    assert list(Both(one, other).periods(0, 0)) == list(Both(other, one).periods(0, 0)) == expected
    both = Both(Crashes(1.0), Silent(0.5, 7.0))
    assert both.crash(Workload(0), 5.0, 1) == Crashes(1.0).crash(Workload(0), 5.0, 1)
    assert both.silent(4, 1) == Silent(0.5, 7.0).silent(4, 1)
    assert not Both(OnOff(answers=False), Silent()).keeps


@given(st.lists(st.floats(0.01, 5), min_size=2, max_size=20), st.lists(st.floats(0, 60), min_size=1, max_size=20))
def test_attendance_agrees_with_looking_through_all_periods(gaps, times):
    ends = list(itertools.accumulate(gaps))
    periods = [Period(a, b) for a, b in zip(ends[::2], ends[1::2], strict=False)]

    class Listed(Availability):
        def periods(self, client, seed):
            return iter(periods)

    attendance = Attendance(Listed(), 0)
    for at in sorted(times):
        assert attendance.period(0, at) == next((p for p in periods if p.end > at), None)


def test_a_trace_of_who_is_there(tmp_path):
    (path := tmp_path / "there.csv").write_text("client,begin,end\n0,0,1.5\n1,0,\n0,3,\n")
    availability = AvailabilityTrace(str(path))
    availability.check(2)
    assert list(availability.periods(0, 0)) == [(0.0, 1.5), (3.0, math.inf)]
    same = go(ROUNDS, clients=2, availability=Times(((0.0, 1.5), (3.0, math.inf))), until=4)
    assert arrivals(go(ROUNDS, clients=2, availability=availability, until=4)) == arrivals(same)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("client,begin\n0,0\n", "line 1: expected the columns client, begin, end, got client, begin"),
        ("client,begin,end\n0,2,1\n", "line 2: begin must be at least 0, and end after begin, got 2 and 1"),
        ("client,begin,end\n0,0,2\n0,1,3\n", "line 3: begin must be after 2, the end of the row before"),
        ("client,begin,end\n0,0,\n0,9,10\n", "line 3: begin must be after inf"),
        ("client,begin,end\n0,-1,5\n", "line 2: begin must be at least 0"),
        ("client,begin,end\n0,0,5\n", "has no row for client 1 and 1 other of clients 0 to 2"),
    ],
)
def test_a_trace_that_is_wrong_names_file_and_line(tmp_path, text, message):
    (path := tmp_path / "there.csv").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        AvailabilityTrace(str(path)).check(3)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: OnOff(on=0.0),
        lambda: OnOff(off=math.inf),
        lambda: Silent(share=1.2),
        lambda: Silent(after=-1.0),
        lambda: Crashes(probability=-0.1),
        lambda: Crashes(recovery=0.0),
        lambda: Deadline(0.0),
        lambda: Deadline(1.0, grace=-1),
    ],
)
def test_out_of_range(make):
    with pytest.raises(ValueError, match="must"):
        make()


def test_a_run_by_seconds_ends_though_nobody_is_there():
    seen = go(ARRIVALS, clients=1, availability=Times(((0.0, 1.5), (100.0, 200.0))), until=Until(seconds=50.0))
    assert arrivals(seen) == [(1.0, (0,), (0,))]
    assert go(ARRIVALS, clients=1, latency=Constant(2.0), until=Until(seconds=5.0))[-1].now == 4.0
