import math
from dataclasses import dataclass, field

import pytest
import torch

import phalanx
from phalanx.aggregators import Median
from phalanx.algorithms import ByzantineCFL, Catalyst, FedAsync, FedAvg
from phalanx.core import InfeasibleError, StalledError, Until
from phalanx.engine import LoopSettings
from phalanx.engine.connection import Arrivals, Reply
from phalanx.engine.participation import Participation
from toys import Scripted

START = torch.zeros(2)
pytestmark = pytest.mark.filterwarnings("ignore:threshold")  # two parameters are few for Byzantine CFL


def history(seen):
    return [(p.step, None if p.updates is None else p.updates.clients, dict(p.invalid), dict(p.lost)) for p in seen]


def test_a_round_is_a_step_on_all_updates():
    seen = []
    state = phalanx.run(
        FedAvg(), Scripted({0: [1.0], 1: [3.0]}), START, LoopSettings(until=Until(2)), observers=[seen.append]
    )
    assert state.version == 2
    assert state.model.tolist() == [4.0, 4.0]
    assert history(seen) == [(0, None, {}, {}), (1, (0, 1), {}, {}), (2, (0, 1), {}, {})]


def test_an_arrival_is_a_step_on_one_update():
    transport = Scripted({0: [1.0], 1: [3.0]})
    seen = []
    state = phalanx.run(FedAsync(mixing=0.5), transport, START, LoopSettings(until=Until(3)), observers=[seen.append])
    assert state.version == 3
    assert [p.updates.clients for p in seen[1:]] == [(0,), (1,), (0,)]
    assert [p.updates.versions for p in seen[1:]] == [(0,), (0,), (1,)]
    assert transport.sent == [{0: 0, 1: 0}, {0: 1}, {1: 2}], "who has arrived is served at once, nobody else"


def test_the_run_ends_before_the_first_arrival_past_its_time():
    state = phalanx.run(FedAvg(), Scripted({0: [1.0]}), START, LoopSettings(until=Until(steps=None, seconds=3.5)))
    assert state.version == 3


@pytest.mark.parametrize("algorithm", [FedAvg(), FedAvg(Median()), ByzantineCFL(threshold=-1.0)])
def test_a_client_that_sends_nan_changes_nothing_for_the_others(algorithm):
    honest = {0: [1.0, 2.0, 3.0], 1: [2.0], 2: [4.0]}
    without = phalanx.run(algorithm, Scripted(honest), START, LoopSettings(until=Until(3)))
    among = phalanx.run(algorithm, Scripted({**honest, 3: [math.nan]}), START, LoopSettings(until=Until(3)))
    assert torch.equal(without.model, among.model)


def test_a_nan_client_changes_nothing_for_others_in_asynchronous_runs():
    without = phalanx.run(FedAsync(), Scripted({0: [1.0], 1: [2.0]}), START, LoopSettings(until=Until(6)))
    among = phalanx.run(FedAsync(), Scripted({0: [1.0], 1: [2.0], 2: [math.nan]}), START, LoopSettings(until=Until(6)))
    assert torch.equal(without.model, among.model)


def test_refusals_and_losses_reach_observers_and_the_client_is_asked_again():
    transport = Scripted({0: [1.0], 1: [math.nan, 1.0], 2: [1.0]}, lost={2: [0]})
    seen = []
    phalanx.run(FedAvg(), transport, START, LoopSettings(until=Until(2)), observers=[seen.append])
    assert history(seen)[1] == (1, (0,), {1: "update holds 2 NaN of 2 values"}, {2: "silent"})
    assert history(seen)[2] == (2, (0, 1, 2), {}, {})
    assert transport.sent == [{0: 0, 1: 0, 2: 0}, {0: 1, 1: 1, 2: 1}]


def test_an_invalid_arrival_is_no_step_and_the_client_is_asked_again():
    transport = Scripted({0: [math.nan, 1.0], 1: [1.0]})
    seen = []
    phalanx.run(FedAsync(), transport, START, LoopSettings(until=Until(2)), observers=[seen.append])
    assert history(seen) == [
        (0, None, {}, {}),
        (0, None, {0: "update holds 2 NaN of 2 values"}, {}),
        (1, (1,), {}, {}),
        (2, (0,), {}, {}),
    ]


def test_all_invalid_ends_the_run_with_the_reasons():
    seen = []
    transport = Scripted({0: [math.nan], 1: [torch.zeros(5)]})
    with pytest.raises(StalledError, match="step 1: the answers of all 2 clients") as failure:
        phalanx.run(FedAvg(), transport, START, LoopSettings(until=Until(2)), observers=[seen.append])
    assert "client 0: update holds 2 NaN" in str(failure.value)
    assert "client 1: update has shape (5,), expected (2,)" in str(failure.value)
    assert seen[-1].invalid.keys() == {0, 1}


def test_an_asynchronous_run_ends_when_everybody_was_invalid_since_the_last_step():
    transport = Scripted({0: [1.0, math.nan], 1: [math.nan], 2: [1.0, math.nan]})
    seen = []
    with pytest.raises(StalledError, match="step 3"):
        phalanx.run(FedAsync(), transport, START, LoopSettings(until=Until(10)), observers=[seen.append])
    assert sum(p.updates is not None for p in seen) == 2


def test_clients_with_absurd_sizes_never_take_part():
    seen = []
    transport = Scripted({0: [1.0], 1: [9.0], 2: [3.0]}, sizes={0: 10, 1: 10**12, 2: 10})
    state = phalanx.run(FedAvg(), transport, START, LoopSettings(until=Until(1)), observers=[seen.append])
    assert state.model.tolist() == [2.0, 2.0]
    assert "reports 1,000,000,000,000 examples" in seen[0].invalid[1]
    with pytest.raises(InfeasibleError, match="No client can take part"):
        phalanx.run(FedAvg(), Scripted({0: [1.0]}, sizes={0: -1}), START, LoopSettings(until=Until(1)))


def test_duplicates_replays_and_strangers_do_not_count():
    bad = [1.0, Reply(0, 0, torch.full((2,), 100.0), 1.0), Reply(7, 0, torch.full((2,), 100.0), 1.0)]
    seen = []
    state = phalanx.run(
        FedAvg(), Scripted({0: [bad, 1.0], 1: [3.0]}), START, LoopSettings(until=Until(2)), observers=[seen.append]
    )
    assert state.model.tolist() == [4.0, 4.0]
    assert "duplicate" in seen[1].invalid[0]
    assert "unrequested" in seen[1].invalid[7]
    assert seen[2].invalid == {}


def test_excluded_clients_are_never_asked_again():
    transport = Scripted({0: [torch.tensor([1.0, 0.0])], 1: [torch.tensor([1.0, 0.1])], 2: [torch.tensor([-1.0, 0.0])]})
    state = phalanx.run(ByzantineCFL(threshold=0.5), transport, START, LoopSettings(until=Until(3)))
    assert state.benign == {0, 1}
    assert transport.sent == [{0: 0, 1: 0, 2: 0}, {0: 1, 1: 1}, {0: 2, 1: 2}]


@pytest.mark.parametrize(("attackers", "expected"), [(0, 0), (1, 1), (2, 2), (3, 3)])
def test_a_round_has_the_fixed_number_of_attackers(attackers, expected):
    bad, everybody = frozenset({3, 7, 8}), set(range(20))
    sample = Participation(0.25, 1, bad, attackers)
    drawn = [sample(everybody, attempt) for attempt in range(200)]
    assert {len(cohort) for cohort in drawn} == {5}
    assert {len(cohort & bad) for cohort in drawn} == {expected}
    assert set().union(*drawn) == everybody - (set() if attackers else bad)  # everybody's turn comes
    assert drawn == [Participation(0.25, 1, bad, attackers)(everybody, attempt) for attempt in range(200)]


def test_fewer_attackers_only_where_fewer_are_ready():
    sample = Participation(0.5, 0, frozenset({0, 1}), 2)
    assert len(sample({0, 2, 3, 4}, 0) & {0, 1}) == 1
    assert sample({0, 1}, 0) <= {0, 1}
    with pytest.raises(ValueError, match="attackers must be among the 2 Byzantine clients, got 3"):
        Participation(0.5, 0, frozenset({0, 1}), 3)


def test_participation_samples_rounds_and_is_refused_for_arrivals():
    transport = Scripted({i: [1.0] for i in range(10)})
    phalanx.run(FedAvg(), transport, START, LoopSettings(until=Until(30)), sample=Participation(0.3, seed=1))
    assert {len(round_) for round_ in transport.sent} == {3}
    assert len({tuple(round_) for round_ in transport.sent}) > 10, "rounds differ"
    assert {i for round_ in transport.sent for i in round_} == set(range(10)), "everybody comes to turn"
    with pytest.raises(InfeasibleError, match="FedAsync is asynchronous"):
        phalanx.run(FedAsync(), transport, START, LoopSettings(until=Until(1)), sample=Participation(0.3, seed=1))


def test_a_sampled_round_without_any_usable_update_is_repeated_with_others():
    transport = Scripted({0: [1.0], 1: [math.nan], 2: [math.nan]})
    state = phalanx.run(FedAvg(), transport, START, LoopSettings(until=Until(3)), sample=Participation(0.3, seed=0))
    assert state.version == 3
    assert len(transport.sent) > 3


def test_observers_cannot_disturb_what_the_engine_keeps():
    def vandal(progress):
        progress.invalid.clear()
        progress.lost.clear()

    state = phalanx.run(
        FedAvg(), Scripted({0: [1.0], 1: [math.nan, 1.0]}), START, LoopSettings(until=Until(3)), observers=[vandal]
    )
    assert state.model.tolist() == [3.0, 3.0]


def test_a_wait_that_brings_nothing_ends_the_run():
    class Silent(Scripted):
        def receive(self, *, every):
            self.now += 1.0
            return Arrivals()

    with pytest.raises(StalledError, match="brought nothing, and 2 clients have not answered"):
        phalanx.run(FedAvg(), Silent({0: [1.0], 1: [3.0]}), START, LoopSettings(until=Until(2)))


@pytest.mark.parametrize(
    ("until", "ends"), [(Until(), 30), (Until(steps=2), 2), (Until(seconds=40.0), 40), (Until(2, 40.0), 2)]
)
def test_a_limit_in_seconds_is_none_in_steps(until, ends):
    assert phalanx.run(FedAvg(), Scripted({0: [1.0]}), START, LoopSettings(until=Until.of(until))).version == ends


# The server's own training


@dataclass(frozen=True)
class Comparing(FedAsync):
    """FedAsync that notes the reference of each of its steps."""

    reference_every: int = 1
    shown: list[float] = field(default_factory=list)

    @property
    def traits(self):
        return super().traits._replace(reference_every=self.reference_every)

    def step(self, state, updates):
        self.shown.append(float(updates.reference[0]))
        assert updates.of({7}).reference is updates.reference
        return super().step(state, updates)


@pytest.mark.parametrize(("every", "trained"), [(1, [0, 1, 2, 3, 4]), (2, [0, 2, 4]), (4, [0, 4])])
def test_the_server_trains_once_for_each_version_or_less_often(every, trained):
    calls = []

    def reference(model, version):
        calls.append(version)
        return torch.full_like(model, float(version))

    algorithm = Comparing(reference_every=every)
    phalanx.run(
        algorithm, Scripted({0: [1.0], 1: [math.nan, 1.0]}), START, LoopSettings(until=Until(5)), reference=reference
    )
    assert calls == trained, "not for what was invalid"
    assert algorithm.shown == [float(version - version % every) for version in range(5)]


def test_who_needs_no_reference_gets_none():
    def reference(model, version):
        raise AssertionError

    seen = []
    phalanx.run(
        FedAvg(),
        Scripted({0: [1.0]}),
        START,
        LoopSettings(until=Until(2)),
        reference=reference,
        observers=[seen.append],
    )
    assert seen[1].updates.reference is None


def test_a_reference_that_is_not_there_or_not_finite_ends_the_run():
    with pytest.raises(InfeasibleError, match="Comparing needs the server's own training"):
        phalanx.run(Comparing(), Scripted({0: [1.0]}), START, LoopSettings(until=Until(1)))
    with pytest.raises(InfeasibleError, match="own training of version 0 gave values that are not finite"):
        phalanx.run(
            Comparing(), Scripted({0: [1.0]}), START, LoopSettings(until=Until(1)), reference=lambda m, v: m / 0
        )


# Clients that cannot be reached


class Intermittent(Scripted):
    """Client 0 cannot be reached until somebody has been asked `away` times."""

    def __init__(self, *args, away=2, **options):
        super().__init__(*args, **options)
        self.away = away

    def here(self, clients):
        return clients if len(self.sent) >= self.away else clients - {0}

    def receive(self, *, every):
        arrivals = super().receive(every=every)
        return arrivals._replace(back=frozenset({0} if len(self.sent) == self.away else ()))


@pytest.mark.parametrize("algorithm", [FedAsync(), FedAvg()])
def test_who_cannot_be_reached_is_asked_when_it_is_back(algorithm):
    transport = Intermittent({0: [1.0], 1: [2.0]})
    phalanx.run(algorithm, transport, START, LoopSettings(until=Until(4)))
    assert transport.sent[:2] == [{1: 0}, {1: 1}]
    assert transport.sent[2] == {0: 2, 1: 2}


def test_who_was_removed_for_good_is_not_asked_when_it_is_back():
    @dataclass(frozen=True)
    class Removes(FedAsync):
        def step(self, state, updates):
            state, ready = super().step(state, updates)
            verdicts = {**state.verdicts, 0: phalanx.core.Verdict(False, 0.0, None, "removed", True)}
            return state._replace(verdicts=verdicts), ready - {0}

    transport = Intermittent({0: [1.0], 1: [2.0]})
    phalanx.run(Removes(), transport, START, LoopSettings(until=Until(4)))
    assert all(0 not in sent for sent in transport.sent)


def test_a_part_of_a_round_is_no_round():
    class Half(Scripted):
        def receive(self, *, every):
            arrivals = super().receive(every=every)
            return arrivals._replace(replies=(arrivals.replies[0],), missing={1: "sleeps"})

    seen = []
    with pytest.raises(StalledError, match="No answer comes from 1 client, and the server would wait for ever"):
        phalanx.run(FedAvg(), Half({0: [1.0], 1: [3.0]}), START, LoopSettings(until=Until(2)), observers=[seen.append])
    assert [p.updates for p in seen] == [None]


def test_a_client_is_lost_ten_times_before_there_is_no_hope():
    transport = Scripted({0: [1.0]}, lost={0: list(range(9))})
    assert phalanx.run(FedAvg(), transport, START, LoopSettings(until=Until(1))).version == 1
    transport = Scripted({0: [1.0]}, lost={0: list(range(10))})
    with pytest.raises(StalledError, match="client 0: silent"):
        phalanx.run(FedAvg(), transport, START, LoopSettings(until=Until(1)))
    assert len(transport.sent) == 10


# Downloads that are sent ahead


class Ahead(Scripted):
    """Clients hold two downloads, and answer in the order in which they were sent."""

    prefetch = True

    def __post_init__(self):
        super().__post_init__()
        self.forgotten = []

    def forget(self, clients):
        self.forgotten.append(set(clients))
        self.queue = [one for one in self.queue if (one if isinstance(one, int) else one.client) not in clients]


def test_a_second_download_is_of_a_newer_version_and_its_age_is_what_it_is():
    """By hand: nobody has a second one at version 0; from the first arrival on each client has."""
    transport, seen = Ahead({0: [1.0], 1: [3.0]}), []
    phalanx.run(FedAsync(), transport, START, LoopSettings(until=Until(7)), observers=[seen.append])
    assert transport.sent == [{0: 0, 1: 0}, {0: 1, 1: 1}, {0: 2, 1: 2}, {0: 3}, {1: 4}, {0: 5}, {1: 6}]
    arrivals = [(p.step - 1, *p.updates.clients, *p.updates.versions) for p in seen[1:]]
    assert arrivals == [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1), (4, 0, 2), (5, 1, 2), (6, 0, 3)]
    models = [p.state.model for p in seen]
    assert all(torch.equal(p.updates.bases[0], models[p.updates.versions[0]]) for p in seen[1:])


def test_a_client_that_has_answered_a_version_does_not_answer_it_again():
    """As Catalyst and quorums count each client once for each version."""
    transport, seen = Ahead({0: [1.0], 1: [3.0], 2: [2.0]}), []
    algorithm = Catalyst(f=0, quorum=3)
    phalanx.run(algorithm, transport, START, LoopSettings(until=Until(9)), observers=[seen.append])
    assert transport.sent == [{0: 0, 1: 0, 2: 0}, {}, {}, {0: 1, 1: 1, 2: 1}, {}, {}, {0: 2, 1: 2, 2: 2}, {}, {}]
    assert not any("already" in v.reason for p in seen for v in p.state.verdicts.values())


def test_what_was_sent_ahead_is_next_when_the_first_is_invalid_or_lost():
    transport, seen = Ahead({0: [1.0], 1: [math.nan, 5.0], 2: [9.0, 7.0]}, lost={2: [0]}), []
    phalanx.run(FedAsync(), transport, START, LoopSettings(until=Until(4)), observers=[seen.append])
    assert transport.sent == [
        dict.fromkeys(range(3), 0),
        dict.fromkeys(range(3), 1),
        {},
        {},
        {0: 2, 1: 2, 2: 2},
        {0: 3, 1: 3},
    ]
    nan = {1: "update holds 2 NaN of 2 values"}
    assert history(seen)[1:5] == [
        (1, (0,), {}, {}),
        (1, None, nan, {}),
        (1, None, {}, {2: "silent"}),
        (2, (0,), {}, {}),
    ]
    arrivals = [(*p.updates.clients, *p.updates.versions, float(p.updates.deltas[0, 0])) for p in seen if p.updates]
    assert arrivals == [(0, 0, 1.0), (0, 1, 1.0), (1, 1, 5.0), (2, 1, 7.0)]


@dataclass(frozen=True)
class RemovesZero(FedAsync):
    """Removes client 0 for good when client 1 has reported."""

    def step(self, state, updates):
        assert 0 not in updates.clients or not state.verdicts or not state.verdicts[min(state.verdicts)].final
        state, ready = super().step(state, updates)
        if updates.clients == (1,):
            state = state._replace(verdicts={0: phalanx.core.Verdict(False, 0.0, None, "removed", True)})
            ready -= {0}
        return state, ready


def test_nothing_of_a_client_that_was_removed_reaches_the_rule():
    transport, seen = Ahead({0: [1.0], 1: [3.0]}), []
    phalanx.run(RemovesZero(), transport, START, LoopSettings(until=Until(6)), observers=[seen.append])
    assert [p.updates.clients for p in seen[1:]] == [(0,), (1,), (1,), (1,), (1,), (1,)]
    assert transport.forgotten[0] == {0}
    assert all(0 not in sent for sent in transport.sent[2:])
    assert all(not p.invalid for p in seen)


def test_downloads_are_not_sent_ahead_of_rounds():
    why = r"FedAvg is synchronous: .* Leave prefetch out, or choose an asynchronous algorithm, such as Quorum\(FedAvg"
    with pytest.raises(InfeasibleError, match=why):
        phalanx.run(FedAvg(), Ahead({0: [1.0]}), START, LoopSettings(until=Until(1)))
