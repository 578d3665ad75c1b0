import statistics

import pytest

from phalanx.simulation import (
    Bandwidth,
    Constant,
    LatencyTrace,
    Lognormal,
    Normal,
    Parts,
    PerExample,
    Stragglers,
    Workload,
    Zipf,
)

MANY = range(4000)


def test_constant():
    assert Constant(2.5).seconds(Workload(3, 7), seed=0) == 2.5


def test_normal_is_drawn_once_per_client_with_the_moments_asked_for():
    latency = Normal(100, 20)
    draws = [latency.seconds(Workload(i), seed=1) for i in MANY]
    assert statistics.mean(draws) == pytest.approx(100, abs=1.5)
    assert statistics.stdev(draws) == pytest.approx(20, abs=1)
    assert draws[:10] == [latency.seconds(Workload(i, 5), seed=1) for i in range(10)]
    assert draws[:10] != [latency.seconds(Workload(i), seed=2) for i in range(10)]


def test_normal_is_folded_and_positive():
    assert min(Normal(0.1, 10).seconds(Workload(i), seed=0) for i in MANY) > 0


def test_lognormal_median_and_redraw():
    latency = Lognormal(2.0, 1.0, each_turn=True)
    draws = [latency.seconds(Workload(0, turn), seed=1) for turn in MANY]
    assert statistics.median(draws) == pytest.approx(2.0, rel=0.06)
    assert len(set(draws)) == len(draws)


def test_what_is_drawn_once_is_what_is_drawn_for_the_first_task():
    for once, anew in ((Lognormal(), Lognormal(each_turn=True)), (Zipf(), Zipf(each_turn=True))):
        assert [once.seconds(Workload(i, 9), 3) for i in range(50)] == [
            anew.seconds(Workload(i, 0), 3) for i in range(50)
        ]


def test_zipf_times_are_multiples_with_the_probabilities_asked_for():
    latency = Zipf(shortest=0.5, exponent=1.0, levels=4)
    draws = [latency.seconds(Workload(i), seed=1) / 0.5 for i in MANY]
    harmonic = 1 + 1 / 2 + 1 / 3 + 1 / 4
    for k in (1, 2, 3, 4):
        assert draws.count(k) / len(draws) == pytest.approx(1 / k / harmonic, abs=0.025)
    assert set(draws) == {1, 2, 3, 4}
    assert {Zipf(2.0, levels=1).seconds(Workload(i), 0) for i in range(20)} == {2.0}


def test_bandwidth_by_hand():
    """10 MB down at 80 Mbit/s is one second, 5 MB up at 10 Mbit/s is four, and half a second there and back."""
    task = Workload(0, download=10_000_000, upload=5_000_000)
    assert Bandwidth(80.0, 10.0, round_trip=0.5).seconds(task, 0) == pytest.approx(5.5)
    assert Bandwidth(round_trip=0.0).seconds(Workload(0), 0) == 1e-3, "nothing is sent in no time"
    drawn = [Bandwidth(80.0, 10.0, 0.0, sigma=1.0).seconds(task._replace(client=i), 1) for i in MANY]
    assert statistics.median(drawn) == pytest.approx(5.0, rel=0.1)
    again = Bandwidth(80.0, 10.0, 0.0, sigma=1.0).seconds(task._replace(turn=8), 1)
    assert again == drawn[0], "one client has one bandwidth"


def test_times_in_proportion_to_examples_and_of_two_parts():
    assert PerExample(Constant(0.25)).seconds(Workload(0, examples=12), 0) == 3.0
    assert PerExample().seconds(Workload(0, examples=0), 0) == 1e-3, "who holds nothing takes a moment all the same"
    assert Parts(PerExample(Constant(0.25)), Constant(2.0)).seconds(Workload(0, examples=12), 0) == 5.0


def test_a_fixed_share_is_slower_by_the_factor():
    latency = Stragglers(Constant(2.0), share=0.25, factor=7.0)
    times = [latency.seconds(Workload(i, clients=10), seed=4) for i in range(10)]
    assert sorted(set(times)) == [2.0, 14.0]
    assert times.count(14.0) == 3, "2.5 clients, rounded up"
    assert times == [latency.seconds(Workload(i, turn=6, clients=10), seed=4) for i in range(10)]
    assert {Stragglers(share=0.0).seconds(Workload(i, clients=10), 0) for i in range(10)} == {1.0}


def test_a_trace_gives_times_in_order_and_begins_again(tmp_path):
    (path := tmp_path / "times.csv").write_text("client,seconds\n1,5\n0, 2.5\n0,3\n\n")
    latency = LatencyTrace(str(path))
    latency.check(2)
    assert [latency.seconds(Workload(0, turn), 0) for turn in range(4)] == [2.5, 3.0, 2.5, 3.0]
    assert latency.seconds(Workload(1, 9), 0) == 5.0
    path.write_text("turn,client,seconds\n0,0,2.5\n0,1,5\n1,0,3\n")
    assert [LatencyTrace(str(path)).seconds(Workload(0, turn), 0) for turn in range(3)] == [2.5, 3.0, 2.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected the columns client, seconds and optionally turn, got nothing"),
        ("client,second\n0,1\n", "line 1: expected the columns client, seconds"),
        ("client,seconds,client\n0,1,0\n", "line 1: expected the columns client, seconds"),
        ("client,seconds\n", "has no row after its header"),
        ("client,seconds\n0,1\n1\n", r"line 3: expected 2 cells \(client, seconds\), got 1"),
        ("client,seconds\n0,fast\n", "line 2: seconds must be a number of seconds, got 'fast'"),
        ("client,seconds\n0,inf\n", "line 2: seconds must be a number of seconds, got 'inf'"),
        ("client,seconds\n0,0\n", "line 2: seconds must be positive, got 0"),
        ("client,seconds\n-1,1\n", "line 2: client must be an integer of at least 0, got '-1'"),
        ("client,turn,seconds\n0,0,1\n0,2,1\n", "line 3: expected turn 1 of the client, got turn 2"),
        ("client,seconds\n0,1\n2,1\n", "no times for 1, 3 of clients 0 to 3"),
    ],
)
def test_a_trace_that_is_wrong_names_file_and_line(tmp_path, text, message):
    (path := tmp_path / "times.csv").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        LatencyTrace(str(path)).check(4)
    assert str(path) in str(error.value)


def test_a_trace_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match=r"There is no file nowhere\.csv"):
        LatencyTrace("nowhere.csv").check(1)
    (path := tmp_path / "times.csv").write_bytes(b"client,seconds\n0,1\n1,\xff\n")
    with pytest.raises(ValueError, match="line 3: the text is not UTF-8"):
        LatencyTrace(str(path)).check(1)


def test_the_fingerprint_is_of_the_content(tmp_path):
    (path := tmp_path / "times.csv").write_text("client,seconds\n0,1\n")
    before = LatencyTrace(str(path)).fingerprint
    assert Stragglers(PerExample(LatencyTrace(str(path)))).fingerprint == before
    path.write_text("client,seconds\n0,2\n")
    assert LatencyTrace(str(path)).fingerprint != before
    assert Parts(Constant(), Lognormal()).fingerprint is None
    assert Parts(Constant(), LatencyTrace(str(path))).fingerprint is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constant(0),
        lambda: Constant(float("inf")),
        lambda: Normal(0, 1),
        lambda: Normal(1, -1),
        lambda: Lognormal(1, -1),
        lambda: Zipf(exponent=0.0),
        lambda: Zipf(levels=0),
        lambda: Zipf(shortest=-1.0),
        lambda: Bandwidth(download=0.0),
        lambda: Bandwidth(sigma=-1.0),
        lambda: Stragglers(share=1.5),
        lambda: Stragglers(factor=0.5),
    ],
)
def test_out_of_range(make):
    with pytest.raises(ValueError, match="must"):
        make()
