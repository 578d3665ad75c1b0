"""The split by a spanning tree against every split there is."""

import itertools
import time

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from phalanx.clustering import bipartition, cross_similarity


def symmetric(upper, m):
    """The symmetric matrix with these entries above the diagonal, and ones on it."""
    alpha = torch.eye(m, dtype=torch.float64)
    rows, columns = torch.triu_indices(m, m, 1)
    alpha[rows, columns] = torch.tensor(upper, dtype=torch.float64)
    alpha[columns, rows] = alpha[rows, columns]
    return alpha


def similarity(vectors):
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    return unit @ unit.T


def crossing(alpha, c1, c2):
    return max(float(alpha[i, j]) for i in c1 for j in c2)


def best_of_all(alpha):
    """The smallest of the largest similarities across a split, over all 2^(m-1) - 1 splits."""
    m = len(alpha)
    splits = (
        ({0, *rest}, set(range(1, m)) - set(rest))
        for size in range(m - 1)
        for rest in itertools.combinations(range(1, m), size)
    )
    return min(crossing(alpha, c1, c2) for c1, c2 in splits)


def check(alpha):
    groups = bipartition(alpha)
    assert sorted(groups[0] + groups[1]) == list(range(len(alpha)))
    assert all(group and list(group) == sorted(group) for group in groups)
    assert groups[0][0] == 0
    value = crossing(alpha, *groups)
    assert cross_similarity(alpha, groups) == value
    return value


def test_by_hand():
    alpha = symmetric([0.1, 0.9, 0.2, 0.3, 0.8, 0.4], 4)  # 0-2 and 1-3 belong together, 0.4 is the most across
    assert bipartition(alpha) == ((0, 2), (1, 3))
    assert cross_similarity(alpha, ((0, 2), (1, 3))) == 0.4


def test_a_chain_is_cut_at_its_weakest_link():
    alpha = torch.full((5, 5), -1.0)
    for i, link in enumerate((0.9, 0.5, 0.7, 0.8)):
        alpha[i, i + 1] = alpha[i + 1, i] = link
    assert bipartition(alpha) == ((0, 1), (2, 3, 4))


def test_two_items():
    assert bipartition(torch.tensor([[1.0, 0.3], [0.3, 1.0]])) == ((0,), (1,))


def test_the_first_item_may_be_the_odd_one_out():
    assert bipartition(symmetric([-0.5, -0.4, 0.9], 3)) == ((0,), (1, 2))


def test_the_diagonal_is_not_looked_at():
    alpha = symmetric([0.1, 0.9, 0.2, 0.3, 0.8, 0.4], 4)
    for value in (0.0, -5.0, 5.0):
        assert bipartition(alpha.clone().fill_diagonal_(value)) == ((0, 2), (1, 3))


@settings(max_examples=80, deadline=None)
@given(data=st.data(), m=st.integers(2, 9))
def test_no_split_is_better(data, m):
    pairs = m * (m - 1) // 2
    alpha = symmetric(data.draw(st.lists(st.floats(-1, 1), min_size=pairs, max_size=pairs)), m)
    assert check(alpha) == best_of_all(alpha)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), m=st.integers(2, 9))
def test_no_split_is_better_among_ties(data, m):
    pairs = m * (m - 1) // 2
    values = st.sampled_from([-1.0, 0.0, 0.5, 1.0])
    alpha = symmetric(data.draw(st.lists(values, min_size=pairs, max_size=pairs)), m)
    assert check(alpha) == best_of_all(alpha)


@pytest.mark.parametrize("seed", range(8))
def test_clusters_are_found(seed):
    """Two directions with noise, in random order: the split is the truth, and the best of all."""
    rng = torch.Generator().manual_seed(seed)
    truth = torch.randint(2, (9,), generator=rng)
    truth[:2] = torch.tensor([0, 1])
    directions = torch.tensor([[1.0, 0.2, 0.0], [-0.3, 1.0, 0.5]])
    alpha = similarity(directions[truth] + 0.1 * torch.randn(9, 3, generator=rng))
    assert bipartition(alpha) == tuple(tuple(torch.nonzero(truth == k).flatten().tolist()) for k in (0, 1))
    assert check(alpha) == best_of_all(alpha)


@pytest.mark.parametrize("m", [2, 5, 30])
def test_all_equal_is_split_all_the_same_and_always_so(m):
    alpha = torch.full((m, m), 0.25)
    assert check(alpha) == 0.25
    assert bipartition(alpha) == bipartition(alpha.clone())


def test_same_similarities_same_groups_in_every_precision():
    alpha = symmetric([k % 4 / 4 for k in range(190)], 20)  # many ties, exact in float32
    assert bipartition(alpha) == bipartition(alpha.clone()) == bipartition(alpha.float())


def test_large_and_equal_to_single_linkage():
    m = 2000
    alpha = similarity(torch.randn(m, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    alpha = (alpha + alpha.T) / 2
    begun = time.perf_counter()
    groups = bipartition(alpha)
    assert time.perf_counter() - begun < 1
    distance = 1 - alpha.numpy()
    np.fill_diagonal(distance, 0)
    labels = torch.from_numpy(fcluster(linkage(squareform(distance), "single"), 2, "maxclust"))
    theirs = tuple(tuple(torch.nonzero(labels == k).flatten().tolist()) for k in (1, 2))
    assert cross_similarity(alpha, groups) == cross_similarity(alpha, theirs)


@pytest.fixture
def unchecked():
    """No checker of shapes, as in a user's program."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(1, 1), (0, 0), (2, 3), (3, 2), (4,)])
def test_refuses_what_is_no_square_of_two_or_more(shape):
    with pytest.raises(ValueError, match="square similarity matrix of two items or more, got shape"):
        bipartition(torch.ones(shape))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_refuses_similarities_that_are_no_numbers(value):
    alpha = torch.eye(3)
    alpha[0, 1] = alpha[1, 0] = value
    with pytest.raises(ValueError, match="Similarities must be finite"):
        bipartition(alpha)
