"""Divisions that a minority cannot prevent, move or forge."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.clustering import bipartition, cross_similarity
from phalanx.clustering.division import divide


def blocks(sizes, within=0.8, across=0.1):
    """Similarities of groups of these sizes."""
    group = torch.tensor([g for g, size in enumerate(sizes) for _ in range(size)])
    alpha = torch.where(group[:, None] == group, within, across).double()
    return alpha.fill_diagonal_(1.0)


def with_row(alpha, row):
    """The similarities with one item more."""
    m = len(alpha)
    out = torch.ones(m + 1, m + 1, dtype=torch.float64)
    out[:m, :m] = alpha
    out[m, :m] = out[:m, m] = torch.as_tensor(row, dtype=torch.float64)
    return out


def test_two_groups_their_distance_and_gap_by_hand():
    division = divide(blocks([3, 4]))
    assert division.groups == ((0, 1, 2), (3, 4, 5, 6))
    assert division.aside == ()
    assert division.across == pytest.approx(0.1)
    assert division.gap == pytest.approx(0.7)


def test_one_item_between_the_groups_hides_them_from_the_largest_similarity_only():
    alpha = with_row(blocks([5, 5]), [0.75] * 10)
    parts = bipartition(alpha)
    assert cross_similarity(alpha, parts) == pytest.approx(0.75), "the paper's partition sees no two groups"
    division = divide(alpha, least=3)
    assert [set(group) - {10} for group in division.groups] == [set(range(5)), set(range(5, 10))]
    assert division.gap == pytest.approx(0.7)


def test_items_that_point_away_hide_nothing_and_are_set_aside():
    alpha = blocks([6, 6])
    for count in range(3):
        alpha = with_row(alpha, [-0.8] * 12 + [0.99] * count)
    assert set(bipartition(alpha)[1]) == {12, 13, 14}, "the paper's partition separates those"
    division = divide(alpha, least=4)
    assert division.aside == (12, 13, 14)
    assert [set(group) - {12, 13, 14} for group in division.groups] == [set(range(6)), set(range(6, 12))]
    assert division.gap == pytest.approx(0.7)


LIES = {
    "between the groups": [1.0, 1.0, 0.0],
    "against both": [-1.0, -1.0, 0.0],
    "as one group": [1.0, 0.0, 0.0],
    "against one group": [-1.0, 0.0, 0.0],
    "elsewhere": [0.0, 0.0, 1.0],
}


@pytest.mark.parametrize("direction", LIES.values(), ids=LIES)
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_four_liars_of_twenty_neither_hide_two_groups_nor_tear_one(direction, noise):
    rng = torch.Generator().manual_seed(3)
    rows = torch.cat([torch.eye(3)[:1].expand(8, 3), torch.eye(3)[1:2].expand(8, 3), torch.tensor([direction] * 4)])
    rows = rows + noise * torch.randn(20, 3, generator=rng) * torch.tensor([1.0, 1.0, 1.0])
    unit = rows / rows.norm(dim=1, keepdim=True)
    division = divide(unit @ unit.T, least=5)
    honest = [set(group) - set(range(16, 20)) for group in division.groups]
    assert honest == [set(range(8)), set(range(8, 16))]
    assert division.gap > 0.3


@pytest.mark.parametrize("sizes", [[4, 4, 4], [4] * 6, [3, 9, 5, 7]])
def test_several_groups_have_the_gap_of_groups_and_no_part_tears_one(sizes):
    """Half of the items of two equal groups are as unlike each other as those of other parts."""
    alpha = blocks(sizes, within=0.7, across=0.1)
    ends = list(itertools.accumulate(sizes, initial=0))
    division = divide(alpha, least=3)
    assert division.gap == pytest.approx(0.6)
    assert division.aside == ()
    for group in map(set, map(range, ends[:-1], ends[1:])):
        assert group <= set(division.groups[0]) or group <= set(division.groups[1])


def test_groups_that_are_near_each_other_stay_in_one_part():
    alpha = blocks([4, 4, 4], within=0.7, across=-0.2)
    alpha[:4, 4:8] = alpha[4:8, :4] = 0.5
    division = divide(alpha, least=3)
    assert division.groups == ((*range(8),), (*range(8, 12),))
    assert division.gap == pytest.approx(0.7), "two parts are clearer than three groups"


@pytest.mark.parametrize("direction", LIES.values(), ids=LIES)
def test_two_liars_of_fourteen_tear_none_of_three_groups(direction):
    rng = torch.Generator().manual_seed(4)
    axes = torch.eye(5)
    rows = [*axes[:1].expand(4, 5), *axes[1:2].expand(4, 5), *axes[3:4].expand(4, 5)]
    rows = torch.stack([*rows, *[torch.tensor([*direction, 0.0, 0.0])] * 2])
    rows += 0.2 * torch.randn(14, 5, generator=rng)
    unit = rows / rows.norm(dim=1, keepdim=True)
    division = divide(unit @ unit.T, least=3)
    parts = [set(group) - {12, 13} for group in division.groups]
    assert sorted(map(len, parts)) == [4, 8]
    assert division.gap > 0.3
    assert any({*range(k, k + 4)} in parts for k in (0, 4, 8))


def test_liars_near_one_item_do_not_hide_two_groups():
    """Four liars and item 0 would be the clearest group of three, and leave the seven others of its group no gap."""
    rows = torch.cat([torch.eye(16), torch.eye(16)[:1].expand(4, 16)]).double()
    rows[16:, 1:8] = -0.4 / 7
    products = rows @ blocks([8, 8], 0.5, 0.1) @ rows.T
    lengths = products.diagonal().sqrt()
    division = divide(products / lengths / lengths[:, None], least=5)
    assert [set(group) - set(range(16, 20)) for group in division.groups] == [set(range(8)), set(range(8, 16))]
    assert division.gap == pytest.approx(0.4)


@pytest.mark.parametrize(("size", "liars", "gap"), [(3, 1, 0.2), (4, 1, 0.6), (5, 2, 0.2), (6, 2, 0.6), (7, 3, 0.2)])
def test_the_gap_stays_where_fewer_than_half_of_the_others_lie(size, liars, gap):
    alpha = blocks([size, size], within=0.6, across=0.0)
    alpha[size - liars : size, :size] = alpha[:size, size - liars : size] = 0.2
    alpha.fill_diagonal_(1.0)
    division = divide(alpha, least=3)
    assert division.groups == ((*range(size),), (*range(size, 2 * size),))
    assert division.gap == pytest.approx(gap)


def test_an_item_goes_back_to_its_group_after_linkage_went_wrong():
    """Item 4 is joined to item 5 first, which belongs to the others, and would go with it."""
    alpha = blocks([5, 5], within=0.5, across=0.0)
    alpha[4, :4] = alpha[:4, 4] = 0.3
    alpha[4, 5] = alpha[5, 4] = 0.7
    one, other = bipartition(alpha, "average")
    assert {4, 5} <= set(one) or {4, 5} <= set(other)
    assert divide(alpha, least=3).groups == ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9))


@pytest.mark.parametrize(("m", "least"), [(1, 2), (3, 2), (7, 4)])
def test_too_few_items_have_no_division(m, least):
    assert divide(torch.eye(m), least) is None


def test_a_group_smaller_than_the_least_is_none():
    assert divide(blocks([8, 3]), least=4) is None or divide(blocks([8, 3]), least=4).gap < 1e-9


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_the_order_of_items_does_not_matter(seed):
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(14, 40, generator=rng) * 0.35
    rows[:7, 0] += 4.0
    rows[7:, 1] += 4.0
    unit = rows / rows.norm(dim=1, keepdim=True)
    order = torch.randperm(14, generator=rng)
    found = {frozenset(group) for group in divide(unit @ unit.T, 3).groups}
    moved = {frozenset(order[list(group)].tolist()) for group in divide(unit[order] @ unit[order].T, 3).groups}
    assert found == moved == {frozenset(range(7)), frozenset(range(7, 14))}


def test_items_without_groups_have_next_to_no_gap():
    rows = torch.randn(30, 5_000, generator=torch.Generator().manual_seed(1))
    unit = rows / rows.norm(dim=1, keepdim=True)
    division = divide(unit @ unit.T, 3)
    assert division is None or division.gap < 0.05


def test_no_other_division_of_a_few_items_has_a_larger_gap():
    """Of all partitions of eight items in two of at least three, for planted groups with noise."""
    rng = torch.Generator().manual_seed(5)
    noise = torch.randn(8, 8, generator=rng).double() * 0.05
    alpha = (blocks([4, 4], 0.6, 0.1) + (noise + noise.T) / 2).fill_diagonal_(1.0)

    def gap(one):
        other = [i for i in range(8) if i not in one]
        parts = [list(one), other]
        own = [torch.tensor([alpha[i, [j for j in p if j != i]].median() for i in p]) for p in parts]
        far = [torch.tensor([alpha[i, q].median() for i in p]) for p, q in (parts, parts[::-1])]
        return min(float((a - b).median()) for a, b in zip(own, far, strict=True))

    best = max(gap(one) for n in (3, 4, 5) for one in itertools.combinations(range(8), n))
    assert divide(alpha, 3).gap == pytest.approx(best)
