"""Odd groups, by hand and by brute force; profiles, by their definition; memory, by hand."""

import math

import pytest
import torch

from phalanx.clustering import Memory, Peel, odd_groups, profile_similarity
from phalanx.clustering.memory import Remembered, recalled
from phalanx.numerics.linalg import cosine_similarity
from toys import close, updates


def random_similarity(m, seed, d=4):
    return cosine_similarity(torch.randn(m, d, generator=torch.Generator().manual_seed(seed)))


def test_a_client_that_is_like_nobody_else_by_hand():
    """Nearest are .9, .9, .8, .2: their lower median is .8, so the level is .3, and item 3 is below it to all."""
    alpha = torch.tensor([[1.0, 0.9, 0.8, 0.1], [0.9, 1.0, 0.7, 0.2], [0.8, 0.7, 1.0, 0.0], [0.1, 0.2, 0.0, 1.0]])
    found = odd_groups(alpha, at_most=1, gap=0.5)
    assert found.groups == ((3,),)
    assert found.level == pytest.approx(0.3)
    assert found.nearest[3] == pytest.approx(0.2)


def test_groups_that_are_larger_are_not_odd():
    """Two groups that contradict each other, four and three, and one client at right angles to all."""
    rows = torch.tensor([[1.0, 0, 0]] * 4 + [[-1.0, 0, 0]] * 3 + [[0, 0, 1.0]])
    alpha = cosine_similarity(rows)
    assert odd_groups(alpha, 2, 0.5).groups == ((7,),)
    assert odd_groups(alpha, 3, 0.5).groups == (), "four of eight would be odd, and that is half"
    assert odd_groups(alpha[:7, :7], 3, 0.5).groups == ((4, 5, 6),)


@pytest.mark.parametrize("seed", range(20))
def test_odd_groups_are_the_small_components_by_brute_force(seed):
    m = 3 + seed
    alpha = random_similarity(m, seed)
    found = odd_groups(alpha, 2, 0.4)
    others = alpha.clone().fill_diagonal_(-9.0)
    level = float(others.max(1).values.sort().values[(m - 1) // 2]) - 0.4
    reach = (alpha >= level) | torch.eye(m, dtype=torch.bool)
    for _ in range(m):
        reach = (reach.double() @ reach.double()) > 0
    components = {tuple(torch.nonzero(row).flatten().tolist()) for row in reach}
    small = sorted(c for c in components if len(c) <= 2)
    assert found.groups == (tuple(small) if 2 * sum(map(len, small)) < m else ())


@pytest.mark.parametrize("seed", range(5))
def test_odd_groups_follow_their_clients(seed):
    alpha = random_similarity(15, seed)
    order = torch.randperm(15, generator=torch.Generator().manual_seed(seed))
    found = {frozenset(group) for group in odd_groups(alpha, 2, 0.2).groups}
    again = {frozenset(int(order[k]) for k in group) for group in odd_groups(alpha[order][:, order], 2, 0.2).groups}
    assert found == again


def test_attackers_that_agree_move_the_level_no_further_than_the_others_reach():
    """Twenty clients with cosines from .5 to .9 to their nearest peer, and six copies of one attacker at cosine 1."""
    honest = torch.full((20, 20), 0.4, dtype=torch.float64)
    near = torch.linspace(0.5, 0.9, 10, dtype=torch.float64)
    for k in range(10):
        honest[2 * k, 2 * k + 1] = honest[2 * k + 1, 2 * k] = near[k]
    alpha = torch.full((26, 26), 0.1, dtype=torch.float64)
    alpha[:20, :20], alpha[20:, 20:] = honest, 1.0
    level = odd_groups(alpha, 6, 0.5).level
    assert 0.5 - 0.5 <= level <= 0.9 - 0.5
    assert odd_groups(alpha, 6, 0.5).groups == (tuple(range(20, 26)),)


@pytest.mark.parametrize("m", [0, 1])
def test_nobody_is_odd_alone(m):
    assert odd_groups(torch.eye(m), 1, 0.5).groups == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"at_most": 0}, "at_most must be at least 1"),
        ({"at_most": 1, "gap": 0.0}, "gap must lie in"),
        ({"at_most": 1, "rounds": 0}, "rounds must be at least 1"),
    ],
)
def test_options_of_peel_out_of_range(options, words):
    with pytest.raises(ValueError, match=words):
        Peel(**options)


# Profiles


@pytest.mark.parametrize("m", [10, 13])
def test_profiles_are_correlations_over_third_clients(m):
    alpha = random_similarity(m, m)
    got = profile_similarity(alpha)
    for i in range(m):
        for j in range(m):
            third = [k for k in range(m) if k not in (i, j)]
            expected = torch.corrcoef(torch.stack([alpha[i, third], alpha[j, third]]))[0, 1] if i != j else 1.0
            assert float(got[i, j]) == pytest.approx(float(expected), abs=1e-9)


def test_few_clients_have_no_profiles():
    alpha = random_similarity(9, 1)
    assert torch.equal(profile_similarity(alpha), alpha)


def test_rows_without_variance_are_uncorrelated():
    assert torch.equal(profile_similarity(torch.full((12, 12), 0.3)), torch.eye(12, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(5))
def test_profiles_tell_groups_apart_where_cosines_do_not(seed):
    """Thirty clients of two groups whose own noise is twice as long as what the group has in common."""
    rng = torch.Generator().manual_seed(seed)
    common = torch.nn.functional.normalize(torch.randn(2, 200, generator=rng), dim=1).repeat_interleave(15, 0)
    alpha = cosine_similarity(common + 2.0 * torch.randn(30, 200, generator=rng) / math.sqrt(200))
    same = (torch.arange(30)[:, None] < 15) == (torch.arange(30)[None] < 15)
    same.fill_diagonal_(False)
    apart = ((torch.arange(30)[:, None] < 15) != (torch.arange(30)[None] < 15)).bool()

    def separation(similarity):
        within, across = similarity[same], similarity[apart]
        return float((within.mean() - across.mean()) / (within.std() + across.std()))

    assert separation(profile_similarity(alpha)) > 1.3 * separation(alpha)


# Memory


def test_memory_by_hand():
    """A client sends 4, then 8; half of the old one is replaced, so 6 is remembered; another cluster begins again."""
    memory = Memory(rounds=3, rate=0.5)
    held = recalled(memory, {}, 0, updates([[4.0], [1.0]]), 1)
    assert {i: float(e.update) for i, e in held.items()} == {0: 4.0, 1: 1.0}
    held = recalled(memory, held, 0, updates([[8.0]]), 2)
    assert {i: (float(e.update), e.round) for i, e in held.items()} == {0: (6.0, 2), 1: (1.0, 1)}
    held = recalled(memory, held, 5, updates([[8.0]]), 4)
    assert held.keys() == {0}, "client 1 has been silent for three rounds"
    assert (float(held[0].update), held[0].cluster) == (8.0, 5)


def test_a_rate_of_one_remembers_the_last_update_to_the_bit():
    held = recalled(Memory(rate=1.0), {}, 0, updates([[1e8]]), 1)
    assert float(recalled(Memory(rate=1.0), held, 0, updates([[0.5]]), 2)[0].update) == 0.5


def test_memory_is_its_own():
    batch = updates([[1.0, 2.0], [3.0, 4.0]])
    held = recalled(Memory(), {}, 0, batch, 1)
    assert close(held[1].update, [3.0, 4.0])
    assert held[1].update.untyped_storage().nbytes() == 2 * held[1].update.element_size()
    assert isinstance(held[1], Remembered)


@pytest.mark.parametrize(("options", "words"), [({"rounds": 0}, "rounds must be"), ({"rate": 0.0}, "rate must lie")])
def test_options_of_memory_out_of_range(options, words):
    with pytest.raises(ValueError, match=words):
        Memory(**options)
