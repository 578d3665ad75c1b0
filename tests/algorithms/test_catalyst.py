"""Catalyst's pseudo-code line by line, its memory, its liveness, and what it stands."""

import dataclasses

import pytest
import torch
from incongruent import Divided

import phalanx
from phalanx.aggregators import DensestMajority, FLAMEFilter, GeometricMedian, Krum, Mean, Median
from phalanx.algorithms import FLAME, Catalyst, FedAsync
from phalanx.algorithms.catalyst import Inverse
from phalanx.algorithms.staleness import Hinge
from phalanx.attacks import Rescale
from phalanx.core import InfeasibleError, StalledError, Until, Verdict
from phalanx.engine import LoopSettings
from phalanx.runs.packing import pack
from phalanx.simulation import Lognormal
from phalanx.weighting import AsReported, Truncate
from toys import Scripted, close, remarks, updates

pytestmark = pytest.mark.filterwarnings("ignore:If .* stay silent")
THREE = [[4.0, 0.0], [2.0, 0.0], [0.0, 9.0]]  # S = 4, and the first two are admitted: (3, 0)
ALIKE = [[1.0, 0.0]] * 3


def start(algorithm, n=4, d=2, sizes=None):
    return algorithm.init(torch.zeros(d), sizes or dict.fromkeys(range(n), 10))[0]


def arrive(algorithm, state, rows, version, clients=(0, 1, 2), base=None):
    """The state after these updates, one after the other, and who is ready in the end."""
    for row, client in zip(rows, clients, strict=True):
        base = torch.zeros(len(row)) if base is None else base
        state, ready = algorithm.step(state, updates([row], clients=[client], versions=(version,), bases=(base,)))
    return state, set(ready)


def late(row, tau=1, algorithm=None, client=3, n=4):
    """The state when an update of version 0 was late by tau, and the step after it was taken; the rest moves along x.

    Without any late update the model is (3 + tau, 0).
    """
    algorithm = algorithm or Catalyst(f=1)
    state, _ = arrive(algorithm, start(algorithm, n), THREE, 0)
    for version in range(1, tau):
        state, _ = arrive(algorithm, state, ALIKE, version)
    state, ready = arrive(algorithm, state, [row], 0, clients=[client])
    assert ready == {client}, "a late client is served at once, line 42"
    return arrive(algorithm, state, ALIKE, tau)[0]


# Lines of Algorithm 3


def test_a_quorum_waits_and_is_served_together():
    """Lines 12 to 14, 19 to 20, 22 and 26 to 35."""
    algorithm = Catalyst(f=1)
    state, ready = algorithm.init(torch.zeros(2), dict.fromkeys(range(4), 10))
    assert ready == {0, 1, 2, 3}
    for k, row in enumerate(THREE[:2]):
        state, ready = algorithm.step(state, updates([row], clients=[k]))
        assert (state.version, state.waiting, set(ready)) == (0, k + 1, set())
        assert state.verdicts == {k: Verdict(True, 0.0, None, f"waits for a quorum, {k + 1} of 3", waits=True)}
        assert state.model.tolist() == [0.0, 0.0]
    state, ready = algorithm.step(state, updates(THREE[2:], clients=[2]))
    assert (state.version, state.waiting, set(ready)) == (1, 0, {0, 1, 2}), "the last one too"
    assert state.model.tolist() == [3.0, 0.0]
    assert state.bounds == {0: 4.0}
    assert state.processed[0].clients == (0, 1, 2)
    assert [v.weight for v in state.verdicts.values()] == [0.5, 0.5, 0.0]
    assert state.verdicts[2].reason == "outside the cosine cluster of 2"
    assert state.decided.keys() == {0, 1, 2}


def test_a_late_update_is_added_with_the_bound_of_its_version():
    """Lines 16 to 18, 21 and 39: S[0] = 4 of (8, 0), one of four clients."""
    state = late([8.0, 0.0])
    assert close(state.model, [3 + 1 + 4 / 4, 0.0]), "the median of all four lengths would be 6"
    verdict = state.verdicts[3]
    assert (verdict.accepted, verdict.weight) == (True, 0.25)
    assert verdict.reason == "1 version late, with 3 others; norm 8 clipped to 4"


@pytest.mark.parametrize("tau", [2, 3, 4])
def test_staleness_divides_by_the_age(tau):
    assert close(late([8.0, 0.0], tau).model, [3 + tau + 1 / tau, 0.0])


def test_staleness_and_late_lr_are_factors():
    algorithm = Catalyst(f=1, late_lr=0.5, staleness=Hinge(a=4.0, b=0))  # 1 / (4 tau + 1)
    assert close(late([8.0, 0.0], 2, algorithm).model, [3 + 2 + 0.5 / 9, 0.0])
    assert [Inverse()(tau) for tau in (0, 1, 2, 4)] == [1, 1, 0.5, 0.25]


def test_a_late_update_moves_the_model_towards_its_sender():
    """The printed minus would move it away."""
    there = torch.tensor([3.0, 1.0])  # where the late client's own training ended
    with_it, without = late([3.0, 1.0]), late([3.0, 1.0], algorithm=Catalyst(f=1, window=1))
    direction = there / there.norm()
    assert float((with_it.model - without.model) @ direction) == pytest.approx(float(there.norm()) / 4)


def test_a_late_update_that_looks_like_nobody_is_rejected():
    state = late([-8.0, -1.0])
    assert close(state.model, [4.0, 0.0])
    assert state.verdicts[3].reason == "1 version late, with 3 others; outside the cosine cluster of 3"
    assert (state.verdicts[3].accepted, state.verdicts[3].weight) == (False, 0.0)
    assert state.decided[3]["accepted"] is False


def test_rejected_ones_give_no_weight_to_others():
    """Line 21: |pending[i]| are those that passed."""
    algorithm = Catalyst(f=1)
    state, _ = arrive(algorithm, start(algorithm, 5), THREE, 0)
    state, _ = arrive(algorithm, state, [[8.0, 0.0], [-8.0, -1.0]], 0, clients=[3, 4])
    assert state.late == 2
    state, _ = arrive(algorithm, state, ALIKE, 1)
    assert close(state.model, [4 + 4 / 5, 0.0])
    assert [state.verdicts[i].accepted for i in (3, 4)] == [True, False]


def test_processed_is_a_union():
    """Line 24: who answered in time stays, and who was late joins them, admitted or not."""
    algorithm = Catalyst(f=1)
    state, _ = arrive(algorithm, start(algorithm, 5), THREE, 0)
    for version, client in ((1, 3), (2, 4)):
        state, _ = arrive(algorithm, state, [[8.0, 0.0]], 0, clients=[client])
        state, _ = arrive(algorithm, state, ALIKE, version)
    assert state.processed[0].clients == (0, 1, 2, 3, 4)
    assert state.verdicts[4].reason == "2 versions late, with 4 others; norm 8 clipped to 4"
    assert close(state.model, [3 + 1 + 4 / 5 + 1 + 4 / 5 / 2, 0.0])


def second_look(rows, **options):
    """The state after late answers (rows) of clients 3, 4, ... to version 0, where (0, 9) of client 2 was filtered."""
    algorithm = Catalyst(f=1, **options)
    state, _ = arrive(algorithm, start(algorithm, n=5), THREE, 0)
    for client, row in enumerate(rows, 3):
        state, _ = arrive(algorithm, state, [row], 0, clients=[client])
    return arrive(algorithm, state, ALIKE, 1)[0]


def test_a_filtered_update_gets_a_second_look_when_late_ones_are_like_it():
    """Of five answers three go up: the third of the quorum, cut from 9 to 4, is used with them, one fifth each."""
    rows = [[0.0, 2.0], [0.0, 3.0]]
    assert close(second_look(rows).model, [4.0, (2 + 3) / 5])
    state = second_look(rows, second_look=True)
    assert close(state.model, [4.0, (2 + 3 + 4) / 5])
    verdict = state.verdicts[2]
    assert (verdict.accepted, verdict.weight) == (True, pytest.approx(1 / 3 + 1 / 5)), "in the quorum of this step too"
    assert verdict.reason == "second look, 1 version late, with 3 others; norm 9 clipped to 4"
    assert state.filtered == {0: frozenset(), 1: frozenset()}, "and no third one"


def test_the_second_look_admits_nobody_who_still_looks_like_nobody():
    state, without = second_look([[4.0, 0.0]], second_look=True), second_look([[4.0, 0.0]])
    assert torch.equal(state.model, without.model)
    assert state.verdicts == without.verdicts
    assert state.filtered == {0: frozenset({2}), 1: frozenset()}
    assert without.filtered == {}


def test_a_late_update_that_was_filtered_gets_a_second_look_too():
    """(0, 2) comes alone first, and is filtered; one version later four more go up, and it counts half by then."""
    algorithm = Catalyst(f=1, second_look=True)
    state, _ = arrive(algorithm, start(algorithm, n=8), ALIKE, 0)
    state, _ = arrive(algorithm, state, [[0.0, 2.0]], 0, clients=[3])
    state, _ = arrive(algorithm, state, ALIKE, 1)
    assert (state.model.tolist(), state.filtered[0]) == ([2.0, 0.0], {3})
    state, _ = arrive(algorithm, state, [[0.0, 3.0]] * 4, 0, clients=[4, 5, 6, 7])
    state, _ = arrive(algorithm, state, ALIKE, 2)
    assert close(state.model, [3.0, 5 / 8 / 2])
    assert state.filtered[0] == set(), "those of the quorum were used before"


def test_late_attackers_alone_do_not_judge_each_other():
    """f = 2 late attackers of one mind, against five who were in time."""
    algorithm = Catalyst(f=2)
    state, _ = arrive(algorithm, start(algorithm, 7), [[1.0, 0.0]] * 5, 0, clients=range(5))
    state, _ = arrive(algorithm, state, [[-9.0, 0.0]] * 2, 0, clients=[5, 6])
    state, _ = arrive(algorithm, state, [[1.0, 0.0]] * 5, 1, clients=range(5))
    assert close(state.model, [2.0, 0.0])
    assert [state.verdicts[i].accepted for i in (5, 6)] == [False, False]


def test_late_updates_of_several_versions_add_up():
    algorithm = Catalyst(f=1)
    state, _ = arrive(algorithm, start(algorithm, 5), ALIKE, 0)
    state, _ = arrive(algorithm, state, ALIKE, 1)
    state, _ = arrive(algorithm, state, [[1.0, 0.0]], 0, clients=[3])
    state, _ = arrive(algorithm, state, [[1.0, 0.0], [1.0, 0.0]], 1, clients=[3, 4])
    state, _ = arrive(algorithm, state, ALIKE, 2)
    assert close(state.model, [3 + 1 / 5 / 2 + 2 / 5, 0.0])
    assert state.verdicts[3].weight == pytest.approx(0.1 + 0.2)
    assert state.verdicts[3].reason == "2 versions late, with 3 others and 1 version late, with 3 others"


def test_a_client_can_be_late_and_in_the_quorum_of_one_step():
    algorithm = Catalyst(f=1)
    state, _ = arrive(algorithm, start(algorithm), ALIKE, 0)
    state, ready = arrive(algorithm, state, [[1.0, 0.0]], 0, clients=[3])
    assert ready == {3}
    state, ready = arrive(algorithm, state, ALIKE, 1, clients=[3, 0, 1])
    assert ready == {0, 1, 3}
    assert state.verdicts[3].weight == pytest.approx(1 / 3 + 1 / 4)
    assert close(state.model, [2 + 1 / 4, 0.0])


@pytest.mark.parametrize("window", [1, 2, 3, 5])
def test_the_window_is_kept_and_no_more(window):
    """Lines 30 to 32 and 38: ages 1 to K - 1."""
    algorithm = Catalyst(f=1, window=window)
    state = start(algorithm)
    for version in range(7):
        assert state.processed.keys() == state.bounds.keys() == set(range(max(0, version - window + 1), version))
        state, _ = arrive(algorithm, state, ALIKE, version)
    for tau in range(1, 8):
        after, ready = arrive(algorithm, state, [[1.0, 0.0]], 7 - tau, clients=[3])
        assert ready == {3}
        assert after.verdicts[3].accepted == (tau < window)
        assert after.late == int(tau < window)
    used = "none" if window == 1 else f"1 to {window - 1}"
    assert after.verdicts[3].reason == f"7 versions late, late updates are used at ages {used}"
    assert after.decided.keys() == {3}


def test_one_update_of_a_client_for_each_version():
    """Lines 8 to 11: fresh, late and waiting, late and used."""
    algorithm = Catalyst(f=1)
    state, _ = arrive(algorithm, start(algorithm), THREE[:1], 0, clients=[0])
    again, ready = arrive(algorithm, state, THREE[:1], 0, clients=[0])
    assert (again.waiting, ready) == (1, set()), "it waits already"
    assert again.verdicts[0] == Verdict(False, 0.0, None, "has answered version 0 already")
    state, _ = arrive(algorithm, state, THREE[1:], 0, clients=[1, 2])
    again, ready = arrive(algorithm, state, THREE[:1], 0, clients=[0])
    assert (again.late, ready) == (0, {0})
    state, _ = arrive(algorithm, state, [[8.0, 0.0]], 0, clients=[3])
    assert arrive(algorithm, state, [[8.0, 0.0]], 0, clients=[3])[0].late == 1
    state, _ = arrive(algorithm, state, ALIKE, 1)
    assert not arrive(algorithm, state, [[8.0, 0.0]], 0, clients=[3])[0].verdicts[3].accepted


def test_without_attackers_two_are_a_quorum_and_nobody_is_filtered():
    algorithm = Catalyst(f=0)
    state, _ = arrive(algorithm, start(algorithm), [[2.0, 0.0], [0.0, 4.0]], 0, clients=[0, 1])
    assert state.bounds == {0: 3.0}
    assert close(state.model, [1.0, 1.5])
    state, _ = arrive(algorithm, state, [[-3.0, 0.0], [0.0, -6.0]], 0, clients=[2, 3])
    state, _ = arrive(algorithm, state, [[1.0, 0.0]] * 2, 1, clients=[0, 1])
    assert close(state.model, [1 + 1 - 3 / 4, 1.5 - 3 / 4])
    assert state.verdicts[3].reason == "1 version late, with 2 others; norm 6 clipped to 3"
    robust = Catalyst(f=0, aggregate=Median())
    assert (robust.rule, algorithm.rule, Catalyst(f=1).rule) == (Median(), Mean(), DensestMajority(clipped=True))


# What the authors' program does


def test_the_published_program_in_its_four_differences():
    ours, theirs = Catalyst(f=1), Catalyst.as_published(1)
    changed = {f.name for f in dataclasses.fields(ours) if getattr(ours, f.name) != getattr(theirs, f.name)}
    assert changed == {"staleness", "compare", "judge_late", "least_age"}


def test_what_is_one_version_late_is_thrown_away_on_request():
    state, _ = arrive(algorithm := Catalyst(f=1, least_age=2), start(Catalyst(f=1)), THREE, 0)
    state, ready = arrive(algorithm, state, [[8.0, 0.0]], 0, clients=[3])
    assert ready == {3}
    assert state.verdicts[3].reason == "1 version late, late updates are used at ages 2 to 4"
    assert close(late([8.0, 0.0], 2, algorithm).model, [3 + 2 + 1 / 2, 0.0])


def test_late_updates_pass_unjudged_on_request():
    state = late([-8.0, 0.0], algorithm=Catalyst(f=1, judge_late=False))
    assert close(state.model, [4 - 4 / 4, 0.0])
    assert state.verdicts[3].reason == "1 version late, not judged; norm 8 clipped to 4"


def test_models_are_compared_on_request():
    """From (10, 0): models of 0 and 1 have one direction, and the updates of 0 and 2 nearly have."""
    rows, base = [[0.0, 1.0], [10.0, 2.0], [0.1, 1.5]], torch.tensor([10.0, 0.0])
    for compare, admitted in (("updates", {0, 2}), ("models", {0, 1})):
        algorithm = Catalyst(f=1, compare=compare)
        state, _ = arrive(algorithm, start(algorithm)._replace(model=base), rows, 0, base=base)
        assert {i for i, v in state.verdicts.items() if v.accepted} == admitted
    state, _ = arrive(algorithm, state, [[20.0, 4.1]], 0, clients=[3], base=base)  # a model in that direction
    state, _ = arrive(algorithm, state, ALIKE, 1, base=state.model)
    assert state.verdicts[3].accepted
    algorithm = Catalyst(f=1, compare="models", aggregate=Median())
    with pytest.raises(InfeasibleError, match=r"Median.* does not weigh whole updates"):
        arrive(algorithm, start(algorithm), THREE, 0)


# Other rules and weights


def test_a_median_adds_by_how_much_late_updates_move_it():
    algorithm = Catalyst(f=1, aggregate=Median())
    state, _ = arrive(algorithm, start(algorithm), [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], 0)  # clipped to |(2, 2)|
    assert close(state.model, [2.0, 2.0])
    state, _ = arrive(algorithm, state, [[9.0, 9.0]], 0, clients=[3])
    state, _ = arrive(algorithm, state, [[0.0, 0.0]] * 3, 1)
    assert close(state.model, [2.0, 2.0]), "of 1, 2, 2 and 2 the median is 2"
    state = arrive(algorithm, start(algorithm), [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], 0)[0]
    state, _ = arrive(algorithm, state, [[0.5, 0.5]], 0, clients=[3])
    state, _ = arrive(algorithm, state, [[0.0, 0.0]] * 3, 1)
    assert close(state.model, [2 - 0.5, 2 - 0.5]), "of 0.5, 1, 2 and 2 it is 1.5"
    assert state.verdicts[3].accepted


def test_a_rule_that_weighs_updates_gives_the_late_their_share():
    algorithm = Catalyst(f=1, quorum=5, aggregate=Krum(f=1))
    rows = [[1.0, 0.0], [1.0, 0.2], [1.0, -0.2], [1.2, 0.0], [0.8, 0.0]]
    state, _ = arrive(algorithm, start(algorithm, 6), rows, 0, clients=range(5))
    assert {i for i, v in state.verdicts.items() if v.accepted} == {0}
    state, _ = arrive(algorithm, state, [[-5.0, 0.0]], 0, clients=[5])
    state, _ = arrive(algorithm, state, rows, 1, clients=range(5))
    assert close(state.model, [2.0, 0.0]), "Krum does not choose it"
    mean = late([8.0, 0.0], algorithm=Catalyst(f=1, aggregate=Mean()))
    clipped = (4 + 2 + 0) / 3, 4 / 3
    assert close(mean.model, [clipped[0] + 1 + 1, clipped[1]])


@pytest.mark.parametrize("rule", [FLAMEFilter(), GeometricMedian(), Krum(f=1), Median()], ids=str)
def test_other_rules_run(rule):
    algorithm = Catalyst(f=1, aggregate=rule, quorum=5)
    answers = {i: [1.0 + 0.01 * i] for i in range(9)}
    state = phalanx.run(algorithm, Scripted(answers), torch.zeros(2), LoopSettings(until=Until(60)))
    assert state.version > 4
    assert bool((state.model > 3).all())


def test_declared_sizes_count_if_one_wants_them_to():
    sizes = {0: 10, 1: 30, 2: 10, 3: 50}
    algorithm = Catalyst(f=1, preprocess=AsReported())
    state, _ = arrive(algorithm, start(algorithm, sizes=sizes), [[1.0, 0.0], [0.6, 0.8], [0.6, 0.8]], 0)
    assert close(state.model, [0.6, 0.8])
    state, _ = arrive(algorithm, state, [[0.6, 0.8]], 0, clients=[3])
    state, _ = arrive(algorithm, state, [[0.0, 0.0]] * 3, 1)
    assert close(state.model, [0.6 * 1.5, 0.8 * 1.5])


def test_who_joins_counts_among_all():
    algorithm = Catalyst(f=1)
    state = algorithm.join(start(algorithm, 3), 3, 10)
    state, _ = arrive(algorithm, state, THREE, 0)
    state, _ = arrive(algorithm, state, [[8.0, 0.0]], 0, clients=[3])
    assert close(arrive(algorithm, state, ALIKE, 1)[0].model, [5.0, 0.0])


# Arrivals, memory, liveness


def test_one_step_on_many_arrivals_is_many_steps_on_one():
    rng = torch.Generator().manual_seed(0)
    algorithm = Catalyst(f=1)
    together = apart = start(algorithm, 7, 5)
    seen = 0
    for _ in range(30):
        m = int(torch.randint(1, 8, (1,), generator=rng))
        clients = sorted(torch.randperm(7, generator=rng)[:m].tolist())
        rows = (1 + torch.randn(m, 5, generator=rng)).tolist()
        versions = [max(0, together.version - int(torch.randint(0, 3, (1,), generator=rng))) for _ in clients]
        bases = (torch.zeros(5),) * m
        together, ready = algorithm.step(
            together, updates(rows, clients=clients, versions=tuple(versions), bases=bases)
        )
        one_by_one, told = set(), {}
        for row, client, version in zip(rows, clients, versions, strict=True):
            one = updates([row], clients=[client], versions=(version,), bases=bases[:1])
            apart, now = algorithm.step(apart, one)
            one_by_one |= now
            told |= apart.verdicts
            seen += apart.late > 0
        assert torch.equal(together.model, apart.model)
        assert together.version == apart.version
        assert together.verdicts == told
        assert set(ready) == one_by_one
        assert together.kept == apart.kept
    assert together.version > 3
    assert seen


def test_with_no_more_clients_than_a_quorum_it_is_flame():
    """N = 2f + 1 clients that take equally long."""
    federation = Divided(5)
    rounds = federation.run(FLAME(f=2), 4)
    arrivals = federation.run(Catalyst(f=2), 4 * 5)
    assert (rounds.version, arrivals.version) == (4, 4)
    assert torch.equal(rounds.model, arrivals.model)
    assert rounds.verdicts == arrivals.verdicts


def storage(state):
    """Bytes of the memory that a state keeps from being freed, models aside."""
    held = [part.deltas for part in state.processed.values()]
    held += [one.deltas for waiting in state.pending.values() for one in waiting.values()]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}.values())


def test_memory_is_bounded_whatever_the_clients_do():
    federation, sizes, models = Divided(12), [], []

    def look(progress):
        sizes.append((storage(progress.state), progress.state.kept))
        models.append(len({t.data_ptr() for part in progress.state.processed.values() for t in part.bases}))

    algorithm = Catalyst(f=2, window=4)
    state = federation.run(algorithm, 200, observers=[look], latency=Lognormal(sigma=1.0, each_turn=True))
    d = len(state.model)
    assert state.version > 10
    assert max(kept for _, kept in sizes) <= 4 * 12
    assert all(size == kept * d * 4 for size, kept in sizes), "nothing else is kept alive by what is kept"
    assert max(models) <= 3
    assert pack(state).size < (4 * 12 + 4 + 2) * (d * 4 + 64)
    assert {len(part) for part in state.processed.values()} <= set(range(5, 13))


def test_f_silent_clients_of_fewer_than_3f_1_stop_it_and_the_run_says_who():
    silent = {2: range(1000)}
    answers = {i: [1.0] for i in range(3)}
    with (
        pytest.warns(UserWarning, match="If 1 of 3 clients stay silent, 2 are left, and a quorum of 3 never comes"),
        pytest.raises(StalledError, match=r"client 2: silent"),
    ):
        phalanx.run(Catalyst(f=1), Scripted(answers, lost=silent), torch.zeros(2), LoopSettings(until=Until(50)))
    answers[3] = [1.0]
    state = phalanx.run(Catalyst(f=1), Scripted(answers, lost=silent), torch.zeros(2), LoopSettings(until=Until(50)))
    assert state.version > 10


@pytest.mark.filterwarnings("error")
def test_enough_clients_give_no_warning():
    assert remarks(Catalyst(f=1), dict.fromkeys(range(4), 1)) == ()
    (remark,) = remarks(Catalyst(f=1, quorum=6), dict.fromkeys(range(6), 1))
    assert remark.endswith("Have 7 clients or more.")


def test_everybody_is_served_whenever_it_answers():
    federation, asked = Divided(8), []
    algorithm = Catalyst(f=1, window=3)

    def look(progress):
        asked.extend(progress.updates.clients if progress.updates else ())

    federation.run(algorithm, 150, observers=[look], latency=Lognormal(sigma=1.0))
    assert set(asked) == set(range(8))
    assert min(asked.count(i) for i in range(8)) > 1


# What it stands


def test_gradient_inversion_breaks_mixing_and_not_catalyst():
    federation = Divided(10)
    options = {"attack": Rescale(-10.0), "byzantine": {0, 3, 6}, "latency": Lognormal(sigma=0.4)}
    accuracy = {}
    for algorithm in (FedAsync(), Catalyst(f=3)):
        state = federation.run(algorithm, 150, **options)
        accuracy[type(algorithm)] = federation.accuracy(1, state.model)
    assert not accuracy[FedAsync] > 0.3
    assert accuracy[Catalyst] > 0.8


# Parameters


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"f": -1}, "f must be at least 0, got -1"),
        ({"f": 1, "window": 0}, "window must be at least 1"),
        ({"f": 2, "quorum": 4}, r"quorum must be at least max\(2, 2f \+ 1\) = 5, got 4"),
        ({"f": 0, "quorum": 1}, r"quorum must be at least max\(2, 2f \+ 1\) = 2, got 1"),
        ({"f": 1, "late_lr": 0.0}, "late_lr must be positive and finite, got 0.0: window = 1 uses no late updates"),
        ({"f": 1, "least_age": 0}, "least_age must be at least 1, got 0"),
        ({"f": 1, "second_look": True, "judge_late": False}, "second_look needs judge_late"),
    ],
)
def test_what_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        Catalyst(**options)


def test_too_few_clients():
    with pytest.raises(
        InfeasibleError, match=r"Catalyst needs at least 2f \+ 1 = 21 clients, got 20\. Lower f, or have more"
    ):
        Catalyst(f=10).init(torch.zeros(2), dict.fromkeys(range(20), 1))
    with pytest.raises(InfeasibleError, match=r"at least max\(2, 2f \+ 1\) = 2 clients, got 1"):
        Catalyst(f=0).init(torch.zeros(2), {0: 1})
    with pytest.raises(InfeasibleError, match=r"at least 5 clients, got 4"):
        Catalyst(f=1, quorum=5).init(torch.zeros(2), dict.fromkeys(range(4), 1))


def test_a_quorum_that_is_too_small_for_its_rule_fails_at_once():
    sizes = dict.fromkeys(range(9), 1)
    with pytest.raises(
        InfeasibleError, match=r"^quorum = 3 is too small: Krum\(f=1.*\) needs .* got 3\. .* Or raise quorum"
    ):
        Catalyst(1, aggregate=Krum(f=1)).init(torch.zeros(2), sizes)
    Catalyst(1, quorum=5, aggregate=Krum(f=1)).init(torch.zeros(2), sizes)


def test_a_rule_that_cannot_choose_by_models_fails_at_once():
    with pytest.raises(
        InfeasibleError, match=r"Median\(\) does not weigh whole updates, so that it cannot choose them by"
    ):
        Catalyst(1, aggregate=Median(), compare="models").init(torch.zeros(2), dict.fromkeys(range(4), 1))


@pytest.mark.parametrize(("algorithm", "remedy"), [(Catalyst(1), "Lower f"), (Catalyst(1, quorum=4), "Lower quorum")])
def test_who_stays_silent_is_counted_when_a_quorum_does_not_come_together(algorithm, remedy):
    n = algorithm.needed
    transport = Scripted({i: [1.0] for i in range(n)}, lost={n - 1: range(99)})
    with pytest.raises(StalledError) as failure:
        phalanx.run(algorithm, transport, torch.zeros(2), LoopSettings(until=Until(50)))
    told = (
        f"Catalyst waits for a quorum of {n} clients: {n - 1} of them have answered, and no other can answer any more."
    )
    assert f"the answers of the only client left were invalid or lost. {told} {remedy}, or have more clients." in str(
        failure.value
    )


def test_truncated_sizes_count():
    """The last client reports a thousand examples; truncated, no one of four holds more than 40 %."""
    sizes = {0: 10, 1: 10, 2: 10, 3: 1000}
    algorithm = Catalyst(f=1, quorum=4, preprocess=Truncate(0.25, 0.4))
    state, _ = arrive(algorithm, start(algorithm, sizes=sizes), [[1.0, 0.0]] * 3 + [[0.0, 1.0]], 0, clients=range(4))
    assert {i for i, v in state.verdicts.items() if v.accepted} == {0, 1, 2}
    alone = Catalyst(f=1, quorum=4, preprocess=AsReported())
    state, _ = arrive(alone, start(alone, sizes=sizes), [[1.0, 0.0]] * 3 + [[0.0, 1.0]], 0, clients=range(4))
    assert {i for i, v in state.verdicts.items() if v.accepted} == {3}


def test_f_alike_are_all_but_one_of_those_that_a_filter_admits_and_a_median_stands_them():
    """Four of nine send the same, the others have directions of their own: Table 2 in small."""
    honest = 1 + torch.eye(5, 6) * torch.tensor([1.0, 1.1, 1.2, 1.3, 1.4])[:, None]
    alike = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 2.0]).expand(4, 6)
    rows, moved = torch.cat([honest, alike]).tolist(), {}
    for rule in (Catalyst(4).aggregate, Median()):
        algorithm = Catalyst(4, aggregate=rule)
        state, _ = arrive(algorithm, start(algorithm, 9, d=6), rows, 0, clients=range(9))
        moved[type(rule).__name__] = state.model[-1].item()
    assert moved["DensestMajority"] > 1.7
    assert moved["Median"] < 1.01
