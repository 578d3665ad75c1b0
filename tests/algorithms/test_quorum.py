"""Rounds of those who have arrived: by hand, around every kind of algorithm, and where it strains."""

import dataclasses

import pytest
import torch
from incongruent import Divided

import phalanx
from phalanx.aggregators import Bucketing, Krum, MeaMed, Median
from phalanx.algorithms import FLAME, ByzantineCFL, ClusteredFL, FedAsync, FedAvg, Permuted, Quorum
from phalanx.attacks import Gaussian, Rescale
from phalanx.core import InfeasibleError, Setting, StalledError, Until, Verdict
from phalanx.data import PermutedLabels
from phalanx.engine import LoopSettings
from phalanx.runs.packing import pack
from phalanx.simulation import Lognormal
from phalanx.weighting import Ignore
from toys import Scripted, close, updates, waiting

MEAN = FedAvg(preprocess=Ignore())
SLOW = {"latency": Lognormal(sigma=1.0)}


class Carries(FedAvg):
    """Its clients train from where they were, and send momentum."""

    def integrate(self, local, download):
        return download if local is None else (local.params + local.delta + download) / 2

    def upload(self, delta, memory):
        memory = delta if memory is None else 0.9 * memory + delta
        return memory, memory


def start(algorithm, n=4):
    return algorithm.init(torch.zeros(2), dict.fromkeys(range(n), 10))[0]


def arrival(row, client, version=0):
    return updates([row], clients=[client], versions=(version,))


# By hand


def test_a_quorum_by_hand():
    algorithm = Quorum(MEAN, k=2)
    state, ready = algorithm.init(torch.zeros(2), dict.fromkeys(range(3), 10))
    assert ready == {0, 1, 2}
    state, ready = algorithm.step(state, arrival([2.0, 0.0], 2))
    assert (state.version, state.collected, set(ready)) == (0, 1, set())
    assert state.verdicts == {2: Verdict(True, 0.0, None, "waits for a quorum, 1 of 2", waits=True)}
    state, ready = algorithm.step(state, arrival([0.0, 4.0], 0))
    assert (state.version, state.collected, set(ready)) == (1, 0, {0, 1, 2}), "1 is not disturbed: it trains still"
    assert state.model.tolist() == [1.0, 2.0]
    assert {i: v.weight for i, v in state.verdicts.items()} == {0: 0.5, 2: 0.5}
    state, _ = algorithm.step(state, arrival([4.0, 0.0], 0, version=1))
    state, _ = algorithm.step(state, arrival([0.0, 4.0], 1, version=0))
    assert state.model.tolist() == [3.0, 4.0]
    assert (state.verdicts[0].reason, state.verdicts[1].reason) == ("", "1 update old")


def test_what_a_client_sends_while_it_waits_takes_the_place_of_what_it_sent():
    algorithm = Quorum(MEAN, k=2)
    state, _ = algorithm.step(start(algorithm), arrival([100.0, 0.0], 0))
    state, ready = algorithm.step(state, arrival([2.0, 0.0], 0))
    assert (state.collected, set(ready)) == (1, set()), "one client is no quorum of two"
    state, _ = algorithm.step(state, arrival([4.0, 0.0], 1))
    assert state.model.tolist() == [3.0, 0.0]


def test_one_step_on_many_arrivals_is_many_steps_on_one():
    algorithm = Quorum(FedAvg(aggregate=Median(), preprocess=Ignore()), k=3)
    rows = torch.randn(5, 2, generator=torch.Generator().manual_seed(0)).tolist()
    together, ready = algorithm.step(start(algorithm, 6), updates(rows, clients=[0, 1, 2, 4, 5]))
    apart, told = start(algorithm, 6), {}
    for row, client in zip(rows, [0, 1, 2, 4, 5], strict=True):
        apart, _ = algorithm.step(apart, arrival(row, client))
        told |= apart.verdicts
    assert torch.equal(together.model, apart.model)
    assert (together.version, together.collected) == (apart.version, apart.collected) == (1, 2)
    assert together.verdicts == told
    assert set(ready) == {0, 1, 2, 3}, "4 and 5 wait"


def test_a_waiting_arrival_holds_its_own_memory_only():
    algorithm = Quorum(MEAN, k=3)
    whole = torch.arange(200.0).view(100, 2)
    one = dataclasses.replace(arrival([0.0, 0.0], 0), deltas=whole[7:8])
    state, _ = algorithm.step(start(algorithm), one)
    assert state.waiting[0].deltas.untyped_storage().nbytes() == 2 * 4
    assert pack(state).size <= 5 * 64


# What is asked of it is asked of the algorithm


def test_the_algorithm_shows_through():
    inner = ClusteredFL(aggregate=Median())
    algorithm = Quorum(inner, k=4)
    assert algorithm.traits.observed == (*inner.traits.observed, "collected")
    assert (algorithm.traits.synchronous, algorithm.rule, algorithm.traits.can_join) == (False, Median(), True)
    assert (algorithm.traits.remembers, Quorum(Carries(), 2).traits.remembers) == (False, True)
    state = start(algorithm)
    assert state.clusters == {0: (0, 1, 2, 3)}
    assert all(hasattr(state, name) for name in algorithm.traits.observed)
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = state.nothing_of_that_name
    with pytest.raises(AttributeError):
        _ = state._private


def test_each_client_gets_the_model_of_its_cluster():
    algorithm = Quorum(ClusteredFL(eps1=0.5, eps2=1.0, min_round=0), k=4)
    rows = [[2.0, 0.3], [2.0, 0.3], [-2.0, 0.3], [-2.0, 0.3]]
    state, _ = algorithm.step(start(algorithm), updates(rows))
    assert state.clusters == {1: (0, 1), 2: (2, 3)}
    state, _ = algorithm.step(state, updates(rows, versions=(1,) * 4))
    assert close(algorithm.download(state, 0), [2.0, 0.6])
    assert close(algorithm.download(state, 3), [-2.0, 0.6])


def test_who_joins_takes_part():
    algorithm = Quorum(MEAN, k=2)
    state = algorithm.join(start(algorithm, 2), 5, 10)
    state, _ = algorithm.step(state, arrival([2.0, 0.0], 5))
    state, ready = algorithm.step(state, arrival([4.0, 0.0], 0))
    assert state.model.tolist() == [3.0, 0.0]
    assert set(ready) == {0, 1, 5}


def test_clients_with_memory_keep_it():
    federation = Divided(6)
    arrivals, rounds = federation.run(Quorum(Carries(), 6), 6 * 3), federation.run(Carries(), 3)
    assert torch.equal(arrivals.model, rounds.model)
    assert not torch.equal(arrivals.model, federation.run(FedAvg(), 3).model)


@pytest.mark.parametrize(
    "inner", [MEAN, FedAvg(aggregate=Median()), ByzantineCFL(), ClusteredFL(), FLAME(f=1)], ids=str
)
@pytest.mark.filterwarnings("ignore:threshold", "ignore:If 1 of 5 clients stay silent")
def test_a_quorum_of_all_is_the_round(inner):
    federation = Divided(5)
    rounds, arrivals = federation.run(inner, 3), federation.run(Quorum(inner, 5), 15)
    assert torch.equal(rounds.model, arrivals.model)
    assert rounds.verdicts == arrivals.verdicts


def test_it_composes_with_what_hides_models():
    federation, models = Divided(6), []
    for algorithm in (Quorum(MEAN, 3), Quorum(Permuted(MEAN, 5), 3), Permuted(Quorum(MEAN, 3), 5)):
        state = federation.run(algorithm, 40, **SLOW)
        models.append(algorithm.integrate(None, algorithm.download(state, 0)))
        assert state.version == 13
    assert torch.equal(models[0], models[1])
    assert torch.equal(models[0], models[2])


# Compositions


def test_everybody_is_heard_and_the_fast_more_often():
    federation, heard = Divided(8), []
    federation.run(
        Quorum(MEAN, 3), 100, observers=[lambda p: heard.extend(p.updates.clients if p.updates else ())], **SLOW
    )
    counts = sorted(heard.count(i) for i in range(8))
    assert counts[0] >= 1
    assert counts[-1] > 5 * counts[0]


@pytest.mark.slow
def test_a_median_of_the_first_k_stands_attackers():
    federation = Divided(10)
    options = {"attack": Rescale(-10.0), "byzantine": {0, 3, 6}, **SLOW}
    accuracy = {}
    for rule in (FedAvg(), FedAvg(aggregate=Median())):
        state = federation.run(Quorum(rule, 7), 150, **options)
        accuracy[rule.aggregate] = federation.accuracy(1, state.model)
    assert accuracy[Median()] > 0.8
    assert not accuracy[FedAvg().aggregate] > 0.3


SPLITTING = ClusteredFL(min_round=3, min_gap=0.2)


def test_clusters_split_when_all_of_them_are_in_a_quorum():
    federation = Divided(6, PermutedLabels(2))
    state = federation.run(Quorum(SPLITTING, 6), 6 * 12, **SLOW)
    assert len(state.clusters) > 1
    assert federation.true_groups() & set(map(frozenset, state.clusters.values()))


def test_clusters_larger_than_a_quorum_are_split_by_what_is_remembered_and_never_without():
    federation = Divided(6, PermutedLabels(2))
    state = federation.run(Quorum(SPLITTING, 4), 6 * 12, **SLOW)
    assert federation.true_groups() == set(map(frozenset, state.clusters.values()))
    state = federation.run(Quorum(dataclasses.replace(SPLITTING, memory=None), 4), 6 * 12, **SLOW)
    assert state.version > 12
    assert len(state.clusters) == 1
    (check,) = state.checks.values()
    assert (check.parts, len(check.clients)) == (None, 4)


@pytest.mark.filterwarnings("ignore:threshold")
def test_byzantine_clients_are_removed_and_the_quorum_shrinks_with_those_who_are_left():
    federation = Divided(7)
    algorithm = Quorum(ByzantineCFL(threshold=0.1), 6)
    state = federation.run(algorithm, 120, attack=Gaussian(), byzantine={1, 4}, **SLOW)
    assert state.benign == frozenset({0, 2, 3, 5, 6})
    assert state.served == state.benign
    assert state.version > 15
    assert federation.accuracy(0, state.model) > 0.8


def test_a_quorum_of_half_would_separate_nobody():
    """It strains here: Byzantine CFL needs more than half of all clients in a round."""
    with pytest.raises(InfeasibleError, match=r"k = 3 is too small: ByzantineCFL excludes nobody .* Or raise k\."):
        Divided(7).run(Quorum(ByzantineCFL(threshold=0.0), 3), 60, attack=Gaussian(), byzantine={1}, **SLOW)


def test_a_rule_that_needs_more_than_a_quorum_says_so():
    with pytest.raises(InfeasibleError, match=r"Krum.* needs at least 2f \+ 3 = 5 rows, got 4"):
        phalanx.run(
            Quorum(FedAvg(aggregate=Krum(1)), 4),
            Scripted({i: [1.0] for i in range(6)}),
            torch.zeros(2),
            LoopSettings(until=Until(9)),
        )


# Parameters


def test_what_is_refused():
    with pytest.raises(
        ValueError, match="Quorum makes a synchronous algorithm asynchronous, and FedAsync is so already"
    ):
        Quorum(FedAsync(), 3)
    with pytest.raises(ValueError, match="and Quorum is so already"):
        Quorum(Quorum(FedAvg(), 3), 3)
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        Quorum(FedAvg(), 0)
    with pytest.raises(InfeasibleError, match=r"A quorum of 5 clients needs as many, got 4\. Lower k, or have more"):
        start(Quorum(FedAvg(), 5))


# What cannot come together

FEW = "FLAME needs at least 2f + 1 = 5 clients in a round, got 4. Lower f, or have more clients."


@pytest.mark.parametrize(
    ("algorithm", "told"),
    [
        (FLAME(f=2), FEW),
        (Permuted(FLAME(f=2)), FEW),
        (
            FedAvg(aggregate=Krum(f=1)),
            "Krum(f=1, neighbours='n-f-2') needs at least 2f + 3 = 5 rows, got 4. Lower f, or have more clients.",
        ),
        (
            FedAvg(aggregate=Bucketing(s=2) >> MeaMed(f=1)),
            "MeaMed(f=1) needs at least 2f + 1 = 3 rows, got 2. Lower f, or have more clients.",
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_a_quorum_that_is_too_small_for_its_algorithm_fails_before_the_first_download(algorithm, told):
    with pytest.raises(InfeasibleError) as failure:
        Quorum(algorithm, k=4).init(torch.zeros(2), dict.fromkeys(range(9), 10))
    assert str(failure.value) == f"k = 4 is too small: {told} Or raise k."
    Quorum(algorithm, k=6).init(torch.zeros(2), dict.fromkeys(range(9), 10))


def test_a_quorum_of_which_clients_stay_silent_says_how_many_are_wanted():
    answers, silent = {i: [1.0] for i in range(5)}, {3: range(99), 4: range(99)}
    with pytest.raises(StalledError) as failure:
        phalanx.run(Quorum(MEAN, k=4), Scripted(answers, lost=silent), torch.zeros(2), LoopSettings(until=Until(50)))
    told = (
        "Quorum waits for a quorum of 4 clients: 3 of them have answered, and no other can answer any more. Lower k, "
    )
    assert told + "or have more clients.\n  client 3: silent" in str(failure.value)


def test_too_few_for_the_rule_fail_when_all_who_are_left_have_answered():
    algorithm = Quorum(FedAvg(aggregate=Krum(f=1)), k=5)
    state = dataclasses.replace(start(algorithm, 6), served=frozenset(range(4)))  # two are served no more
    for i in range(3):
        state, _ = algorithm.step(state, arrival([1.0, 0.0], i))
    with pytest.raises(InfeasibleError, match=r"Krum.* needs at least 2f \+ 3 = 5 rows, got 4"):
        algorithm.step(state, arrival([1.0, 0.0], 3))


def test_a_quorum_asks_for_no_more_than_are_left():
    algorithm = Quorum(MEAN, k=3)
    state, _ = algorithm.step(start(algorithm), arrival([1.0, 0.0], 0))
    assert waiting(algorithm, state) == (3, 1, "Lower k")
    assert waiting(algorithm, dataclasses.replace(state, served=frozenset({0, 1})))[0] == 2
    assert waiting(Permuted(algorithm), state) == (3, 1, "Lower k")
    assert all(pool.there is None for pool in MEAN.pools(Setting(5), start(algorithm)))
