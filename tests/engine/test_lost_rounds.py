"""Rounds that are lost: too few updates, or none that the rule has a result for.  The run goes on, and says so."""

import math
from dataclasses import dataclass

import pytest
import torch

import phalanx
from phalanx.aggregators import Krum, Mean, Median
from phalanx.algorithms import BASGD, Catalyst, ClusteredFL, FedAsync, FedAvg, FedBuff, Quorum
from phalanx.core import Algorithm, InfeasibleError, StalledError, TooFewError, Until
from phalanx.engine import LoopSettings, LostRounds
from phalanx.weighting import Truncate
from toys import Scripted, close, updates, waiting

START = torch.zeros(2)
WAIT = LostRounds("wait")


@dataclass(frozen=True)
class AtLeast(Median):
    """The median of rows, of which it asks for some number that no trial shows."""

    least: int = 3

    def aggregate(self, points):
        if len(points) < self.least:
            raise TooFewError(f"needs at least {self.least} updates, got {len(points)}.")
        return super().aggregate(points)


@dataclass(frozen=True)
class Refuses(Mean):
    """The mean, which has no result for rows that exceed a limit."""

    limit: float = 10.0

    def choose(self, points):
        if float(points.matrix.max()) > self.limit:
            raise InfeasibleError("no result for these rows.")
        return super().choose(points)


def seen_in(algorithm, transport, until, **options):
    seen = []
    state = phalanx.run(
        algorithm, transport, START, LoopSettings(until=Until(until), **options), observers=[seen.append]
    )
    return state, seen


def test_a_lost_round_counts_as_a_step_and_changes_nothing():
    """The third client is silent in the second of four rounds."""
    transport = Scripted({0: [1.0], 1: [1.0], 2: [1.0]}, lost={2: [1]})
    state, seen = seen_in(FedAvg(AtLeast()), transport, until=4)
    assert [p.step for p in seen] == [0, 1, 2, 3, 4]
    assert [p.state.version for p in seen] == [0, 1, 1, 2, 3]
    assert close(state.model, [3.0, 3.0])
    lost = seen[2]
    assert torch.equal(lost.state.model, seen[1].state.model)
    assert lost.lost == {2: "silent"}
    assert lost.updates.clients == (0, 1)
    assert {i: (v.accepted, v.weight, v.final, v.reason) for i, v in lost.state.verdicts.items()} == dict.fromkeys(
        (0, 1), (False, 0.0, False, "round lost: needs at least 3 updates, got 2.")
    )
    assert transport.sent == [{0: 0, 1: 0, 2: 0}, {0: 1, 1: 1, 2: 1}, {0: 1, 1: 1, 2: 1}, {0: 2, 1: 2, 2: 2}]


def test_a_lost_round_that_is_waited_for_is_no_step():
    transport = Scripted({0: [1.0], 1: [1.0], 2: [1.0]}, lost={2: [1, 2]})
    state, seen = seen_in(FedAvg(AtLeast()), transport, until=4, lost_rounds=WAIT)
    assert [p.step for p in seen] == [0, 1, 1, 1, 2, 3, 4]
    assert close(state.model, [4.0, 4.0])
    assert len(transport.sent) == 6
    why = "round lost: needs at least 3 updates, got 2."
    assert seen[2].lost == seen[3].lost == {0: why, 1: why, 2: "silent"}
    assert seen[2].updates is seen[3].updates is None


@pytest.mark.parametrize("then", ["skip", "wait"])
def test_a_run_whose_every_round_is_lost_ends_after_as_many_as_stated(then):
    transport = Scripted({0: [1.0], 1: [1.0], 2: [1.0]}, lost={2: range(100)})
    seen = []
    with pytest.raises(
        StalledError, match=r"4 rounds in a row were lost, the last one because needs at least 3"
    ) as why:
        phalanx.run(
            FedAvg(AtLeast()),
            transport,
            START,
            LoopSettings(until=Until(50), lost_rounds=LostRounds(then, 4)),
            observers=[seen.append],
        )
    assert "client 2: silent" in str(why.value)
    assert len(transport.sent) == 4
    assert seen[-1].step == (4 if then == "skip" else 0), "the last one is on record too"
    assert all("round lost" in (p.state.verdicts[0].reason if p.updates else p.lost[0]) for p in seen[1:])


def test_losses_are_counted_in_a_row():
    """Nine of ten rounds are lost, twice: the round between them starts the count again."""
    silent = [turn for turn in range(20) if turn not in (9, 19)]
    transport = Scripted({0: [1.0], 1: [1.0], 2: [1.0]}, lost={2: silent})
    state, _ = seen_in(FedAvg(AtLeast()), transport, until=20)
    assert state.version == 2
    with pytest.raises(StalledError, match="10 rounds in a row"):
        seen_in(FedAvg(AtLeast()), Scripted({0: [1.0], 1: [1.0], 2: [1.0]}, lost={2: range(1, 99)}), until=99)


def test_a_run_that_ends_without_one_round_that_was_not_lost_has_failed():
    transport = Scripted({0: [1.0], 1: [1.0], 2: [1.0]}, lost={2: range(9)})
    with pytest.raises(StalledError, match="All 3 rounds were lost, the last one because needs at least 3 updates"):
        seen_in(FedAvg(AtLeast()), transport, until=3)


def test_a_rule_without_a_result_loses_the_round_and_not_the_run():
    transport = Scripted({0: [1.0], 1: [1.0, 99.0, 1.0], 2: [1.0]})
    state, seen = seen_in(FedAvg(Refuses()), transport, until=3)
    assert [p.state.version for p in seen] == [0, 1, 1, 2]
    assert "round lost: no result" in seen[2].state.verdicts[0].reason
    assert close(state.model, [2.0, 2.0])


def test_other_errors_end_the_run():
    class Broken(Mean):
        def choose(self, points):
            if float(points.matrix[0, 0]) == 2.0:
                raise ValueError("a mistake")
            return super().choose(points)

    with pytest.raises(ValueError, match="a mistake"):
        phalanx.run(FedAvg(Broken()), Scripted({0: [1.0, 2.0]}), START, LoopSettings(until=Until(3)))


def test_too_few_clients_for_any_round_are_refused_before_the_run_begins():
    transport = Scripted({i: [1.0] for i in range(10)})
    with pytest.raises(InfeasibleError, match=r"2f \+ 3 = 15 rows, got 10\. Lower f, or have more clients"):
        phalanx.run(FedAvg(Krum(f=6)), transport, START, LoopSettings(until=Until(3)))
    assert not transport.sent


def test_a_state_that_cannot_hold_verdicts_says_what_to_do():
    class Odd:
        version, model, verdicts = 0, START, {}

    class Bare(Algorithm):
        def init(self, model, sizes):
            return Odd(), sizes.keys()

        def step(self, state, updates):
            raise InfeasibleError("never")

    with pytest.raises(TypeError, match=r"A Odd cannot be given verdicts .* Make it a NamedTuple or a dataclass"):
        phalanx.run(Bare(), Scripted({0: [1.0]}), START, LoopSettings(until=Until(1)))


def test_a_dataclass_is_given_verdicts():
    @dataclass(frozen=True)
    class Kept:
        version: int
        model: torch.Tensor
        verdicts: dict

    class Never(Algorithm):
        def init(self, model, sizes):
            return Kept(0, model, {}), sizes.keys()

        def step(self, state, updates):
            raise InfeasibleError("never")

    state, ready = Never().lose_round(Kept(3, START, {}), updates([[1.0, 1.0]], clients=[7]), "never")
    assert (state.version, ready, state.verdicts[7].reason) == (3, {7}, "round lost: never")


def test_options_out_of_range():
    with pytest.raises(ValueError, match="most must be at least 1, got 0"):
        LostRounds(most=0)
    bad = LostRounds()
    object.__setattr__(bad, "then", "stop")
    with pytest.raises(ValueError, match="then must be one of 'skip', 'wait', got 'stop'"):
        bad.__post_init__()


def test_clients_that_cannot_be_reached_stay_away_over_a_lost_round():
    """A client that could not be asked in a lost round is asked in the next one."""

    class Hiding(Scripted):
        hidden = frozenset({3})

        def here(self, clients):
            return set(clients) - self.hidden

        def receive(self, *, every):
            arrivals = super().receive(every=every)
            back, self.hidden = self.hidden, frozenset()
            return arrivals._replace(back=back)

    transport = Hiding({i: [1.0] for i in range(4)})
    state, _ = seen_in(FedAvg(AtLeast(least=4)), transport, until=3)
    assert [sorted(sent) for sent in transport.sent] == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert state.version == 2


# Asynchronous algorithms


def test_a_quorum_that_is_too_small_is_held_back_until_it_is_not():
    algorithm = Quorum(FedAvg(AtLeast(least=4)), k=2)
    state, _ = algorithm.init(START, dict.fromkeys(range(5), 10))
    told = []
    for client in (0, 1, 2):
        state, ready = algorithm.step(state, updates([[1.0, 1.0]], clients=[client]))
        assert not ready
        told.append(state.verdicts[client])
    assert [v.reason.split(",")[0] for v in told] == ["waits for a quorum", "held back with 2", "held back with 3"]
    assert all(v.waits and v.accepted for v in told)
    assert waiting(algorithm, state)[0] == 4
    state, ready = algorithm.step(state, updates([[1.0, 1.0]], clients=[3]))
    assert state.version == 1
    assert ready == {0, 1, 2, 3, 4}
    assert state.collected == 0


def test_a_quorum_of_all_that_is_too_small_is_lost_and_all_are_asked_again():
    algorithm = Quorum(FedAvg(AtLeast(least=4)), k=2)
    transport = Scripted({0: [1.0], 1: [1.0], 2: [1.0]})
    seen = []
    with pytest.raises(StalledError, match="3 rounds in a row were lost"):
        phalanx.run(
            algorithm,
            transport,
            START,
            LoopSettings(until=Until(99), lost_rounds=LostRounds(most=3)),
            observers=[seen.append],
        )
    lost = [p for p in seen if any("round lost" in v.reason for v in p.state.verdicts.values())]
    assert [sorted(p.state.verdicts) for p in lost] == [[0, 1, 2]] * 3
    assert lost[0].state.collected == 0
    assert len([sent for sent in transport.sent if len(sent) == 3]) == 3


def test_a_quorum_without_a_result_is_lost_at_once():
    transport = Scripted({0: [99.0, 1.0], 1: [1.0], 2: [1.0]})
    state, seen = seen_in(Quorum(FedAvg(Refuses()), k=2), transport, until=6)
    first = seen[2].state.verdicts
    assert {i: v.reason for i, v in first.items()} == dict.fromkeys((0, 1), "round lost: no result for these rows.")
    assert state.version >= 1


def test_a_buffer_is_held_back_and_then_lost_with_all_that_is_in_it():
    algorithm = FedBuff(2, aggregate=AtLeast(least=5))
    state, _ = algorithm.init(START, dict.fromkeys(range(3), 10))
    reasons = []
    for client in (0, 1, 2):
        state, ready = algorithm.step(state, updates([[1.0, 1.0]], clients=[client]))
        reasons.append(state.verdicts[client].reason.split(",")[0])
        assert ready == {client}
    assert reasons == ["waits in the buffer", "held back in the buffer with 2", "held back in the buffer with 3"]
    with pytest.raises(TooFewError):
        algorithm.step(state, updates([[1.0, 1.0]], clients=[0]))
    lost, ready = algorithm.lose_round(state, updates([[1.0, 1.0]], clients=[0]), "too few.")
    assert (lost.buffer, lost.filled, ready, lost.verdicts.keys()) == ((), 0, {0}, {0, 1, 2})
    assert torch.equal(lost.model, state.model)


def test_a_distinct_buffer_holds_each_client_once():
    """Two fast clients send three updates each; the buffer of three waits for the third client."""
    algorithm = FedBuff(3, distinct=True)
    state, _ = algorithm.init(START, dict.fromkeys(range(4), 10))
    for row, client in ((5.0, 0), (5.0, 1), (7.0, 0), (9.0, 1), (3.0, 0), (1.0, 1)):
        state, _ = algorithm.step(state, updates([[row, row]], clients=[client]))
    assert (state.version, state.filled) == (0, 2)
    state, _ = algorithm.step(state, updates([[2.0, 2.0]], clients=[3]))
    assert close(state.model, [2.0, 2.0]), "the newest of each: 3, 1 and 2"
    with pytest.raises(InfeasibleError, match="A buffer of 5 clients needs as many, got 4"):
        FedBuff(5, distinct=True).init(START, dict.fromkeys(range(4), 10))


def test_buffers_of_basgd_are_emptied():
    algorithm = BASGD(2, aggregate=Refuses())
    transport = Scripted({0: [99.0, 1.0], 1: [1.0]})
    state, seen = seen_in(algorithm, transport, until=4)
    assert {v.reason for v in seen[2].state.verdicts.values()} == {"round lost: no result for these rows."}
    assert seen[2].state.filled == 0
    assert state.version == 1
    assert close(state.model, [1.0, 1.0])


def test_catalyst_holds_a_step_back_and_goes_on_after_a_loss():
    """Of 3 and of 4 clients one holds more than alpha* = .24; all five are enough."""
    preprocess = Truncate(0.2, 0.24, "cohort")
    algorithm = Catalyst(f=1, preprocess=preprocess)
    state, _ = algorithm.init(START, dict.fromkeys(range(5), 10))
    for client in range(4):
        state, ready = algorithm.step(state, updates([[1.0, 1.0]], clients=[client]))
        assert not ready
    assert state.version == 0
    assert state.verdicts[3].reason.startswith("held back with 4, waits for more: alpha = 0.2 of 4 clients")
    assert waiting(algorithm, state)[0] == 5
    state, ready = algorithm.step(state, updates([[1.0, 1.0]], clients=[4]))
    assert (state.version, ready) == (1, set(range(5)))

    state, _ = algorithm.init(START, dict.fromkeys(range(4), 10))
    for client in range(3):
        state, _ = algorithm.step(state, updates([[1.0, 1.0]], clients=[client]))
    last = updates([[1.0, 1.0]], clients=[3])
    with pytest.raises(TooFewError):
        algorithm.step(state, last)
    lost, ready = algorithm.lose_round(state, last, "too few.")
    assert (lost.waiting, ready, sorted(lost.verdicts)) == (0, {0, 1, 2, 3}, [0, 1, 2, 3])
    again, _ = algorithm.step(lost, updates([[1.0, 1.0]], clients=[3]))
    assert again.verdicts[3].waits, "who is asked again has not answered this version already"


def test_an_arrival_that_is_lost_is_asked_again():
    class Picky(FedAsync):
        def step(self, state, updates):
            if float(updates.deltas.max()) > 10:
                raise InfeasibleError("too long.")
            return super().step(state, updates)

    state, seen = seen_in(Picky(), Scripted({0: [99.0, 1.0], 1: [1.0]}), until=4)
    assert seen[1].state.verdicts[0].reason == "round lost: too long."
    assert state.version == 3
    with pytest.raises(StalledError, match="3 rounds in a row were lost, the last one because too long"):
        seen_in(Picky(), Scripted({0: [99.0]}), until=40, lost_rounds=LostRounds(most=3))


@pytest.mark.filterwarnings("ignore:Truncate")
def test_an_infeasible_cohort_never_ends_a_run():
    """One of two clients holds half of the weight: such a round is lost, or unweighted with a verdict that says so."""
    script = {"answers": {0: [1.0], 1: [1.0], 2: [4.0]}, "sizes": {0: 10, 1: 10, 2: 30}, "lost": {1: [1]}}
    hold = Truncate(0.1, 0.4, "cohort")
    state, seen = seen_in(FedAvg(preprocess=hold), Scripted(**script), until=3)
    assert state.version == 2
    assert "round lost: alpha = 0.1 of 2 clients" in seen[2].state.verdicts[0].reason
    equal = Truncate(0.1, 0.4, "cohort", "unweighted")
    state, seen = seen_in(FedAvg(preprocess=equal), Scripted(**script), until=3)
    assert state.version == 3
    assert close(seen[2].state.model - seen[1].state.model, [2.5, 2.5])
    assert seen[2].state.verdicts[0].reason.startswith("unweighted: alpha = 0.1 of 2 clients means 1 of them")
    assert seen[1].state.verdicts[0].reason == seen[3].state.verdicts[0].reason == ""


@pytest.mark.filterwarnings("ignore:A cluster")
def test_clusters_count_all_attackers_for_the_scope_subset():
    algorithm = ClusteredFL(preprocess=Truncate(0.25, 0.5, "subset"))
    state, _ = algorithm.init(START, {0: 1, 1: 1, 2: 1, 3: 9})
    state, _ = algorithm.step(state, updates([[1.0, 0.0]] * 2 + [[2.0, 0.0]], clients=[0, 1, 3]))
    assert close(state.model, [(1 + 1 + 2 * 2) / 4, 0]), "1 of 3 clients: U* = 2"


def test_nan_answers_do_not_hide_behind_lost_rounds():
    """Two of three clients are invalid for ever: their reasons are in the message."""
    transport = Scripted({0: [1.0], 1: [math.nan], 2: [math.nan]})
    with pytest.raises(StalledError, match="10 rounds in a row were lost") as failure:
        seen_in(FedAvg(AtLeast()), transport, until=50)
    assert "client 1: update holds 2 NaN" in str(failure.value)
