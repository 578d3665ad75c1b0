"""The split by a spanning tree against every split there is."""

import itertools
import subprocess
import sys
import time

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from sklearn.cluster import AgglomerativeClustering

from phalanx.clustering import bipartition, cross_similarity
from phalanx.numerics.linalg import cosine_similarity


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


def of_all(alpha):
    """Over all 2^(m-1) - 1 splits: the smallest of the largest similarities across, and the splits that have it."""
    m = len(alpha)
    splits = [
        ((0, *rest), tuple(sorted(set(range(1, m)) - set(rest))))
        for size in range(m - 1)
        for rest in itertools.combinations(range(1, m), size)
    ]
    entries = alpha.tolist()
    values = [max(entries[i][j] for i in c1 for j in c2) for c1, c2 in splits]
    return min(values), [split for split, value in zip(splits, values, strict=True) if value == min(values)]


def by_the_rule_for_ties(alpha):
    """The tree as the module describes it, with a look at all pairs for each edge; and its first weakest edge cut."""
    m, entries = len(alpha), alpha.tolist()
    joined, edges = [0], []
    while len(joined) < m:
        pairs = [(i, j) for i in set(range(m)) - set(joined) for j in joined]
        i, j = min(pairs, key=lambda pair: (-entries[pair[0]][pair[1]], pair[0], joined.index(pair[1])))
        edges.append((i, j))
        joined.append(i)
    cut = min(range(m - 1), key=lambda e: (entries[edges[e][0]][edges[e][1]], e))
    c2 = {edges[cut][0]}
    for i, j in edges[cut + 1 :]:
        c2 |= {i} if j in c2 else set()
    return tuple(sorted(set(range(m)) - c2)), tuple(sorted(c2))


def check(alpha):
    """The split against all others; its value, and how many have it."""
    groups = bipartition(alpha)
    value, optimal = of_all(alpha)
    assert groups in optimal
    assert groups == by_the_rule_for_ties(alpha)
    assert cross_similarity(alpha, groups) == crossing(alpha, *groups) == value
    return value, len(optimal)


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


@pytest.mark.parametrize("m", range(2, 11))
def test_no_split_is_better(m):
    rng = np.random.default_rng(m)
    for _ in range(30 if m < 9 else 6):
        check(symmetric(rng.uniform(-1, 1, m * (m - 1) // 2), m))


@pytest.mark.parametrize("m", range(2, 11))
def test_of_equally_good_splits_it_is_the_one_that_the_rule_says(m):
    rng = np.random.default_rng(m)
    optimal = [
        check(symmetric(rng.choice([-1.0, 0.0, 0.5], m * (m - 1) // 2, p=[0.6, 0.3, 0.1]), m))[1]
        for _ in range(30 if m < 9 else 6)
    ]
    assert m == 2 or max(optimal) > 1


@settings(max_examples=80, deadline=None)
@given(data=st.data(), m=st.integers(2, 8))
def test_no_split_is_better_whatever_the_similarities(data, m):
    pairs = m * (m - 1) // 2
    values = st.one_of(st.floats(-1, 1), st.sampled_from([-1.0, 0.0, 0.5, 1.0]))
    check(symmetric(data.draw(st.lists(values, min_size=pairs, max_size=pairs)), m))


@pytest.mark.parametrize("seed", range(8))
def test_clusters_are_found(seed):
    """Two directions with noise, in random order: the split is the truth, and the best of all."""
    rng = torch.Generator().manual_seed(seed)
    truth = torch.randint(2, (9,), generator=rng)
    truth[:2] = torch.tensor([0, 1])
    directions = torch.tensor([[1.0, 0.2, 0.0], [-0.3, 1.0, 0.5]])
    alpha = similarity(directions[truth] + 0.1 * torch.randn(9, 3, generator=rng))
    assert bipartition(alpha) == tuple(tuple(torch.nonzero(truth == k).flatten().tolist()) for k in (0, 1))
    assert check(alpha)[1] == 1


@pytest.mark.parametrize("m", [2, 5, 8])
def test_where_all_are_equal_item_1_is_split_off(m):
    alpha = torch.full((m, m), 0.25)
    assert check(alpha) == (0.25, 2 ** (m - 1) - 1)
    assert bipartition(alpha) == ((0, *range(2, m)), (1,))


def test_many_ties_go_by_the_rule():
    for case in range(60):
        rng = np.random.default_rng(case)
        m = 11 + case % 20
        alpha = symmetric(rng.integers(4, size=m * (m - 1) // 2) / 4 - (rng.random(m * (m - 1) // 2) < 0.8), m)
        assert bipartition(alpha) == by_the_rule_for_ties(alpha), case


def test_across_many_blocks_of_the_kernel():
    """Chains that lead forth and back through the blocks in which the compiled loop looks for the next item."""
    m, rng = 1500, np.random.default_rng(0)
    for links in (rng.permutation(m), np.arange(m), np.arange(m)[::-1].copy()):
        alpha = torch.full((m, m), -1.0, dtype=torch.float64)
        strength = rng.uniform(0, 1, m - 1)
        alpha[links[:-1], links[1:]] = alpha[links[1:], links[:-1]] = torch.from_numpy(strength)
        cut = int(strength.argmin()) + 1
        parts = sorted((sorted(links[:cut].tolist()), sorted(links[cut:].tolist())))
        assert [list(group) for group in bipartition(alpha)] == parts
        assert cross_similarity(alpha, bipartition(alpha)) == strength.min()


# Updates of length zero


def test_zero_updates_are_split_off_together_where_the_others_agree():
    updates = torch.tensor([[0.0, 0.0], [1.0, 0.1], [1.0, 0.3], [0.0, 0.0]])
    alpha = cosine_similarity(updates)
    assert bipartition(alpha) == ((0, 3), (1, 2))
    assert cross_similarity(alpha, ((0, 3), (1, 2))) == 0


def test_zero_updates_may_go_with_either_of_two_opposed_groups():
    rows = torch.tensor([[1.0, 0.1], [1.0, 0.2], [-1.0, 0.1], [-1.0, 0.2], [0.0, 0.0]])
    alpha = cosine_similarity(rows)
    assert check(alpha) == (0.0, 3)
    assert bipartition(alpha) == ((0, 1), (2, 3, 4))
    order = [4, 0, 1, 2, 3]
    assert bipartition(alpha[order][:, order]) == ((0, 3, 4), (1, 2))


def test_updates_that_are_all_zero_are_all_the_same():
    assert check(cosine_similarity(torch.zeros(4, 3))) == (1.0, 7)


# Forms of the matrix


def test_same_similarities_same_groups_in_every_precision():
    alpha = symmetric([k % 4 / 4 for k in range(190)], 20)  # many ties, exact in float32
    expected = bipartition(alpha)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert bipartition(alpha.to(dtype)) == expected
        assert bipartition(alpha.to(dtype), "complete") == bipartition(alpha, "complete")


@pytest.mark.parametrize("linkage", ["single", "complete"])
def test_rows_may_lie_anywhere_and_are_left_alone(linkage):
    alpha = similarity(torch.randn(40, 5, generator=torch.Generator().manual_seed(1)))
    alpha = (alpha + alpha.T) / 2
    before, expected = alpha.clone(), bipartition(alpha.clone(), linkage)
    wide = torch.randn(40, 90)
    wide[:, 10:50] = alpha
    assert bipartition(wide[:, 10:50], linkage) == expected
    assert bipartition(alpha.t(), linkage) == expected
    assert bipartition(alpha.clone().requires_grad_(), linkage) == expected
    assert bipartition(alpha, linkage) == expected
    assert torch.equal(alpha, before)


# Other implementations


def cut_in_two(alpha, method):
    """SciPy's groups."""
    distance = 1 - alpha.numpy()
    np.fill_diagonal(distance, 0)
    labels = fcluster(linkage(squareform(distance, checks=False), method), 2, "maxclust")
    groups = (np.flatnonzero(labels == labels[0]), np.flatnonzero(labels != labels[0]))
    return tuple(tuple(group.tolist()) for group in groups)


@pytest.mark.parametrize("method", ["single", "complete", "average"])
def test_equal_to_scipy(method):
    for case in range(200):
        m = 2 + case % 60
        rng = np.random.default_rng(case)
        alpha = symmetric(rng.uniform(-1, 1, m * (m - 1) // 2), m)
        if case % 2:
            alpha = cosine_similarity(torch.from_numpy(rng.standard_normal((m, 2 + case % 7))))
        assert bipartition(alpha, method) == cut_in_two(alpha, method), case


@pytest.mark.parametrize("method", ["single", "complete"])
def test_large_and_equal_to_scipy(method):
    alpha = cosine_similarity(torch.randn(2000, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    bipartition(alpha[:5, :5], method)  # compiles
    begun = time.perf_counter()
    groups = bipartition(alpha, method)
    assert time.perf_counter() - begun < 1
    assert groups == cut_in_two(alpha, method)


def test_complete_linkage_is_that_of_the_authors_notebook():
    for case in range(40):
        rng = np.random.default_rng(case)
        vectors = rng.standard_normal((4, 20))[rng.integers(4, size=24)] + rng.standard_normal((24, 20))
        alpha = cosine_similarity(torch.from_numpy(vectors))
        labels = AgglomerativeClustering(metric="precomputed", linkage="complete").fit(-alpha.numpy()).labels_
        groups = (np.flatnonzero(labels == labels[0]), np.flatnonzero(labels != labels[0]))
        assert bipartition(alpha, "complete") == tuple(tuple(group.tolist()) for group in groups), case


def test_complete_linkage_does_not_minimise_what_crosses():
    """0.9 joins 1 and 2; then 0 and 3 are most alike, as their least similar members count: 0.8 crosses, not 0.5."""
    alpha = symmetric([0.8, 0.2, 0.4, 0.9, 0.3, 0.5], 4)
    assert bipartition(alpha) == ((0, 1, 2), (3,))
    assert bipartition(alpha, "complete") == ((0, 3), (1, 2))
    assert check(alpha)[0] == 0.5
    assert cross_similarity(alpha, ((0, 3), (1, 2))) == 0.8


def test_complete_linkage_does_not_minimise_what_is_within_either():
    places = torch.tensor([0.0, 2.1, 4.0, 6.2], dtype=torch.float64)  # the middle ones join first
    alpha = -(places[:, None] - places).abs()
    assert bipartition(alpha, "complete") == ((0, 1, 2), (3,))  # -4.0 within; ((0, 1), (2, 3)) has -2.2


def test_single_linkage_splits_off_one_random_attacker_complete_linkage_several():
    rng = torch.Generator().manual_seed(0)
    honest = torch.randn(1000, generator=rng) + 0.5 * torch.randn(20, 1000, generator=rng)
    alpha = cosine_similarity(torch.cat([honest, torch.randn(8, 1000, generator=rng)]))
    assert len(bipartition(alpha)[1]) == 1
    assert set(bipartition(alpha, "complete")[1]) <= set(range(20, 28))
    assert len(bipartition(alpha, "complete")[1]) > 1


@pytest.mark.parametrize("method", ["single", "complete"])
def test_ties_are_broken_the_same_way_every_time(method):
    rng = np.random.default_rng(0)
    for m in (2, 3, 7, 40):
        alpha = symmetric(rng.integers(3, size=m * (m - 1) // 2) / 4, m)
        first = bipartition(alpha, method)
        assert sorted(first[0] + first[1]) == list(range(m))
        assert first[0][0] == 0
        assert all(bipartition(alpha.clone(), method) == first for _ in range(3))


# Cost

MEASURE = """
import resource, time, torch
from phalanx.clustering import bipartition, cross_similarity
alpha = torch.rand({m}, {m})
cross_similarity(alpha[:9, :9].contiguous(), bipartition(alpha[:9, :9].contiguous()))
before, times = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
for _ in range(5):
    begun = time.perf_counter()
    groups = bipartition(alpha)
    times.append(time.perf_counter() - begun)
cross_similarity(alpha, groups)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, min(times))
"""


def measured(m):
    """Kibibytes on top of the matrix, and seconds, best of five."""
    run = subprocess.run([sys.executable, "-c", MEASURE.format(m=m)], capture_output=True, text=True, check=True)
    kibibytes, seconds = run.stdout.split()
    return int(kibibytes), float(seconds)


@pytest.mark.slow
def test_no_second_matrix():
    """A matrix of booleans for 3,000 items would be 9 MB, one of similarities 36 MB."""
    pytest.importorskip("resource")
    assert measured(3000)[0] < 7_000


@pytest.mark.slow
def test_ten_thousand_items():
    """Some 0.1 s on an idle core; the limit is for busy ones."""
    pytest.importorskip("resource")
    kibibytes, seconds = measured(10_000)
    assert kibibytes < 80_000  # of 400,000; blocks of 4 million similarities, of which the largest is looked for
    assert seconds < 0.9


@pytest.mark.parametrize("linkage", ["complete", "average"])
@pytest.mark.parametrize("m", [3, 4, 23, 60])
def test_what_is_below_the_diagonal_does_not_count(m, linkage):
    """In a matrix that is not symmetric, nearest neighbours may form a circle, and a chain of them would not end."""
    for seed in range(20):
        alpha = torch.rand(m, m, generator=torch.Generator().manual_seed(seed))
        above = alpha.triu(1)
        assert bipartition(alpha, linkage) == bipartition(above + above.T, linkage)
    circle = torch.eye(m).roll(1, 1)  # each item's nearest neighbour is the next one, the last one's the first
    above = circle.triu(1)
    assert bipartition(circle, linkage) == bipartition(above + above.T, linkage)


@pytest.mark.parametrize("linkage", ["complete", "average"])
def test_a_chain_of_neighbours_goes_on_where_the_last_merge_left_it(linkage):
    """With ever smaller gaps the first chain has all items; started again after each merge, they take O(m^3)."""

    def seconds(m):
        points = torch.arange(m, 0, -1, dtype=torch.float64).cumsum(0)
        alpha = -(points[:, None] - points).abs()
        begun = time.process_time()
        bipartition(alpha, linkage)
        return time.process_time() - begun

    seconds(10)  # compiles
    assert seconds(1600) < 0.4  # 0.02 s, or some 2 s


# Refusals


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


@pytest.mark.usefixtures("unchecked")
def test_refuses_other_linkages():
    with pytest.raises(ValueError, match='linkage must be "single", "complete" or "average", got \'ward\''):
        bipartition(torch.eye(3), "ward")


@pytest.mark.parametrize("linkage", ["single", "complete"])
@pytest.mark.parametrize("at", [(0, 1), (3, 3), (4, 2)])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_refuses_similarities_that_are_no_numbers(value, at, linkage):
    alpha = torch.eye(5)
    alpha[at] = alpha[at[::-1]] = value
    with pytest.raises(ValueError, match="Similarities must be finite"):
        bipartition(alpha, linkage)
