"""Contribution measures against their definitions and axioms."""

import math
from itertools import permutations

import pytest
import torch

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.aggregators import Median
from phalanx.attacks import SignFlip
from phalanx.core import InfeasibleError
from phalanx.fairness import (
    Contributions,
    CosineGame,
    RoundGame,
    cosines_to_aggregate,
    leave_one_out,
    monte_carlo_shapley,
    shapley,
)
from phalanx.models import MLP
from phalanx.rng import generator
from phalanx.runs.federation import Federation
from phalanx.training.evaluation import evaluate
from toys import close, updates


def by_definition(game, players):
    """The mean over all orders of what each client adds."""
    values, orders = dict.fromkeys(players, 0.0), list(permutations(players))
    for order in orders:
        coalition = frozenset()
        for i in order:
            values[i] += (game(coalition | {i}) - game(coalition)) / len(orders)
            coalition |= {i}
    return values


def random_game(seed, players):
    rng, known = generator(seed, "game"), {}

    def game(coalition):
        if coalition not in known:
            known[coalition] = float(torch.rand((), generator=rng))
        return known[coalition]

    for code in range(2 ** len(players)):  # in one order, so that the game is the same however it is asked
        game(frozenset(i for k, i in enumerate(players) if code >> k & 1))
    return game


@pytest.mark.parametrize("m", [1, 2, 3, 5, 6])
def test_exact_shapley_is_the_definition(m):
    players = [3 * i + 1 for i in range(m)]
    for seed in range(5):
        game = random_game(seed, players)
        assert shapley(game, players) == pytest.approx(by_definition(game, players))


def test_efficiency_symmetry_null_player_and_additivity():
    players = range(6)
    one, two = random_game(1, players), random_game(2, players)
    values = shapley(one, players)
    assert sum(values.values()) == pytest.approx(one(frozenset(players)) - one(frozenset()))
    both = shapley(lambda c: one(c) + two(c), players)
    assert both == pytest.approx({i: values[i] + shapley(two, players)[i] for i in players})

    def of_gloves(c):  # 0 and 1 have left gloves, 2 a right one, 3 has nothing
        return float(min(len(c & {0, 1}), len(c & {2})))

    gloves = shapley(of_gloves, range(4))
    assert gloves == pytest.approx({0: 1 / 6, 1: 1 / 6, 2: 2 / 3, 3: 0.0})


def test_more_than_ten_are_refused():
    with pytest.raises(
        InfeasibleError, match=r"which is 2,048 for 11 clients\. Use at most 10 clients, or monte_carlo_shapley"
    ):
        shapley(lambda c: 0.0, range(11))


def test_leave_one_out_by_hand():
    assert leave_one_out(lambda c: float(sum(c)) ** 2, [1, 2, 3]) == {1: 11.0, 2: 20.0, 3: 27.0}
    assert leave_one_out(lambda c: float(bool(c)), [1, 2]) == {1: 0.0, 2: 0.0}, "who can be replaced counts nothing"


def test_monte_carlo_agrees_with_the_exact_value_within_its_errors():
    players = range(7)
    game = random_game(3, players)
    exact = shapley(game, players)
    found = monte_carlo_shapley(game, players, permutations=2000, seed=1)
    assert sum(f.value for f in found.values()) == pytest.approx(game(frozenset(players)) - game(frozenset()))
    for i in players:
        assert abs(found[i].value - exact[i]) < 4 * found[i].error
        assert 0 < found[i].error < 0.02
    assert found == monte_carlo_shapley(game, players, permutations=2000, seed=1)
    assert found != monte_carlo_shapley(game, players, permutations=2000, seed=2)


def test_the_standard_error_is_the_spread_of_repetitions():
    players = range(5)
    game = random_game(4, players)
    runs = [monte_carlo_shapley(game, players, permutations=50, seed=seed)[0] for seed in range(300)]
    values = torch.tensor([run.value for run in runs])
    errors = torch.tensor([run.error for run in runs])
    assert float(values.std()) == pytest.approx(float(errors.mean()), rel=0.15)


def test_truncation_saves_evaluations_and_leaves_out_little():
    asked = []

    def saturating(c):
        asked.append(c)
        return 1 - 0.5 ** len(c)

    plain = monte_carlo_shapley(saturating, range(10), permutations=50)
    count = len(asked)
    asked.clear()
    cut = monte_carlo_shapley(saturating, range(10), permutations=50, tolerance=0.05)
    assert len(asked) < 0.6 * count
    for i in range(10):
        assert cut[i].value == pytest.approx(plain[i].value, abs=0.05)


def test_a_plateau_is_not_taken_for_the_end_without_a_tolerance():
    def game(c):  # all of it is there at once, goes, and comes back
        return {0: 0.0, 1: 1.0, 2: 0.0, 3: 1.0}[len(c)]

    found = monte_carlo_shapley(game, range(3), permutations=600, seed=0)
    assert [found[i].value for i in range(3)] == pytest.approx([1 / 3] * 3, abs=0.12)
    assert found[0].error > 0.02


@pytest.mark.parametrize("arguments", [{"permutations": 1}, {"tolerance": -1.0}, {"tolerance": math.nan}])
def test_samples_out_of_range(arguments):
    with pytest.raises(ValueError, match="permutations must be at least 2 and tolerance at least 0"):
        monte_carlo_shapley(lambda c: 0.0, range(3), **arguments)


# --- games of a round


def test_a_coalition_is_worth_the_model_that_it_makes():
    batch = updates([[2.0, 0.0], [0.0, 4.0], [0.0, 0.0]], clients=[1, 4, 7])
    game = RoundGame(torch.tensor([1.0, 1.0]), batch, lambda w: float(w.sum()), weights={1: 1.0, 4: 3.0, 7: 0.0})
    assert game(frozenset()) == 2.0
    assert game(frozenset({1})) == 4.0
    assert game(frozenset({1, 4})) == pytest.approx(2 + (2 + 12) / 4)
    assert game(frozenset({7})) == 2.0, "no weight, no change"
    assert game(frozenset({1, 7})) == 4.0
    assert game.evaluations == 3
    median = RoundGame(torch.zeros(2), batch, lambda w: float(w.sum()), aggregate=Median())
    assert median(frozenset({1, 4, 7})) == 0.0


def test_who_works_against_the_others_has_a_negative_value():
    target = torch.tensor([1.0, 1.0])
    batch = updates([[1.0, 1.0], [0.9, 1.1], [1.1, 0.9], [-1.0, -1.0]])
    game = RoundGame(torch.zeros(2), batch, lambda w: -float((w - target).norm()))
    values = shapley(game, game.players)
    assert values[3] < 0 < min(values[i] for i in range(3))
    assert sum(values.values()) == pytest.approx(game(frozenset(range(4))) - game(frozenset()))
    assert leave_one_out(game, game.players)[3] < 0


def test_the_cosine_game_by_hand():
    game = CosineGame(updates([[5.0, 0.0], [0.0, 0.1], [0.0, 0.0]]))
    assert game(frozenset()) == 0.0
    assert game(frozenset({0})) == pytest.approx(math.sqrt(0.5)), "lengths do not count"
    assert game(frozenset({0, 1})) == pytest.approx(1.0)
    assert game(frozenset({2})) == 0.0
    weighted = CosineGame(updates([[1.0, 0.0], [0.0, 1.0]]), {0: 3.0, 1: 4.0})
    assert weighted(frozenset({0})) == pytest.approx(0.6)


def test_cosines_to_the_aggregate_by_hand():
    found = cosines_to_aggregate(updates([[5.0, 0.0], [0.0, 0.1], [0.0, 0.0]], clients=[2, 3, 9]))
    assert found == pytest.approx({2: math.sqrt(0.5), 3: math.sqrt(0.5), 9: 0.0})
    assert cosines_to_aggregate(updates([[1.0, 0.0], [0.0, 1.0]]), {0: 3.0, 1: 4.0}) == pytest.approx({0: 0.6, 1: 0.8})
    assert cosines_to_aggregate(updates([[1.0, 0.0], [-2.0, 0.0]])) == {0: 0.0, 1: 0.0}


def test_directions_that_cancel_out_but_for_rounding_have_no_aggregate():
    """Three at 120 degrees: their float32 directions add up to 1e-8, which points anywhere."""
    half = 3**0.5 / 2
    batch = updates([[1.0, 0.0], [-1.0, 2 * half], [-1.5, -3 * half]])
    assert cosines_to_aggregate(batch) == {0: 0.0, 1: 0.0, 2: 0.0}
    game = CosineGame(batch)
    assert [game(frozenset(c)) for c in ((0,), (0, 1), (0, 1, 2))] == [0.0] * 3
    beside = CosineGame(updates([[1.0, 0.0], [-1.0, 2 * half], [-1.5, -3 * half], [0.0, 2.0]]))
    assert beside(frozenset({0, 1, 2})) == 0.0
    assert beside(frozenset({0, 1, 2, 3})) == pytest.approx(1.0)


@pytest.mark.parametrize("measure", [CosineGame, cosines_to_aggregate])
@pytest.mark.parametrize("weights", [{0: 1.0}, {0: 1.0, 1: -1.0}, {0: 1.0, 1: math.nan}, {}])
def test_weights_that_are_none(measure, weights):
    batch = updates([[1.0, 0.0], [0.0, 1.0]])
    with pytest.raises(ValueError, match="weights must be at least 0 and finite for each client of the round"):
        measure(batch, weights)
    with pytest.raises(ValueError, match="weights must be at least 0 and finite"):
        RoundGame(torch.zeros(2), batch, lambda w: 0.0, weights=weights)


@pytest.mark.parametrize("seed", range(3))
def test_the_cosine_ranks_clients_as_the_exact_value_of_its_game(seed):
    """What the paper's approximation is for, in O(m d): honest before noise before reversed."""
    rng = generator(seed, "round")
    direction = torch.ones(200)
    rows = [direction + s * torch.randn(200, generator=rng) for s in (0.3, 0.6, 1.0, 1.5, 2.0)]
    rows += [torch.randn(200, generator=rng), -direction]
    batch = updates(torch.stack(rows).tolist())
    exact, cosines = shapley(CosineGame(batch), range(7)), cosines_to_aggregate(batch)
    assert sorted(exact, key=exact.get) == sorted(cosines, key=cosines.get)
    assert sorted(exact, key=exact.get)[:2] == [6, 5]
    assert torch.corrcoef(torch.tensor([list(exact.values()), list(cosines.values())]))[0, 1] > 0.999


# --- over a run


def test_contributions_of_a_run():
    plan = Run(
        clients=4,
        model=MLP((8,)),
        training=LocalSGD(batch_size=16),
        attack=SignFlip(),
        additional_byzantine=1,
        until=Until(4),
    )
    federation = Federation(plan)

    def worth(vector):
        return evaluate(federation.model, vector, federation.test).accuracy

    observer = Contributions(lambda model, batch: leave_one_out(RoundGame(model, batch, worth), batch.clients), every=2)
    record = simulate(plan, observers=[observer])
    assert set(observer.steps) == {2, 4}
    assert observer.total.keys() == set(range(5))
    assert min(observer.total, key=observer.total.get) == 4
    assert observer.total[4] == pytest.approx(observer.steps[2][4] + observer.steps[4][4])
    assert record.summary.status == "finished"
    with pytest.raises(ValueError, match="every must be at least 1"):
        Contributions(observer.measure, every=0)


def test_the_model_is_the_one_before_the_step():
    seen = []
    plan = Run(clients=3, model=MLP((4,)), until=Until(2))

    def measure(model, batch):
        seen.append((model.clone(), batch.bases[0].clone()))
        return {}

    simulate(plan, observers=[Contributions(measure)])
    assert len(seen) == 2
    for model, base in seen:
        assert close(model, base.tolist())
