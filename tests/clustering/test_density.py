"""The densest majority against HDBSCAN, and against the definition."""

import itertools
import time

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import HDBSCAN

from phalanx.clustering import densest_majority


def hdbscan(distances):
    """FLAME's settings.  scikit-learn counts an item among its own neighbours: 1 is no density at all."""
    model = HDBSCAN(
        min_cluster_size=len(distances) // 2 + 1,
        min_samples=1,
        allow_single_cluster=True,
        metric="precomputed",
        copy=True,
    )
    labels = model.fit(distances.numpy()).labels_
    assert set(labels) <= {0, -1}
    return tuple(np.flatnonzero(labels == 0).tolist())


def symmetric(entries):
    upper = torch.triu(entries.double(), 1)
    return upper + upper.T


def cosine_distances(vectors):
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    return symmetric((1 - unit @ unit.T).clamp_min(0))


def random(m, rng):
    return symmetric(torch.rand(m, m, generator=rng))


def tied(m, rng):
    return symmetric(torch.randint(0, 4, (m, m), generator=rng))


def duplicated(m, rng):
    few = torch.randn(max(2, m // 3), 4, generator=rng, dtype=torch.float64)
    return cosine_distances(few[torch.randint(len(few), (m,), generator=rng)]).round(decimals=12)


def attacked(m, rng):
    """Copies of one update far from all others, and others around a direction."""
    vectors = torch.randn(m, 20, generator=rng, dtype=torch.float64) + 1
    vectors[: (m - 1) // 2] = -vectors[-1]
    return cosine_distances(vectors)[rows := torch.randperm(m, generator=rng)][:, rows]


def clustered(m, rng):
    centres = 3 * torch.randn(3, 8, generator=rng, dtype=torch.float64)
    members = torch.randint(3, (m,), generator=rng)
    return cosine_distances(centres[members] + torch.randn(m, 8, generator=rng, dtype=torch.float64))


def lattice(m, rng):
    points = torch.randint(0, 5, (m, 2), generator=rng).double()
    return symmetric(torch.cdist(points, points))


@pytest.mark.parametrize("make", [random, tied, duplicated, attacked, clustered, lattice])
def test_equals_hdbscan(make):
    for case in range(500):  # 3,000 in all
        distances = make(3 + case % 38, torch.Generator().manual_seed(case))
        assert densest_majority(distances) == hdbscan(distances), case
        assert 2 * len(densest_majority(distances)) > len(distances), "there is no case in which all are noise"


def test_more_samples_are_the_same_up_to_two():
    """Other packages do not count an item among its own neighbours; their 1 is 2 here, and changes nothing."""
    for case in range(50):
        distances = clustered(5 + case % 30, torch.Generator().manual_seed(case))
        model = HDBSCAN(
            min_cluster_size=len(distances) // 2 + 1,
            min_samples=2,
            allow_single_cluster=True,
            metric="precomputed",
            copy=True,
        )
        assert densest_majority(distances) == tuple(np.flatnonzero(model.fit(distances.numpy()).labels_ == 0).tolist())


def by_definition(distances, weights):
    """At each distance in turn, the connected components of all pairs that are not farther apart."""
    m = len(distances)
    for level in sorted({0.0, *distances.flatten().tolist()}):
        reached = (distances <= level) | torch.eye(m, dtype=torch.bool)
        for _ in range(m):
            reached = (reached.double() @ reached.double()) > 0
        for row in reached:
            if 2 * weights[row].sum() > weights.sum():
                return tuple(torch.nonzero(row).flatten().tolist())
    raise AssertionError("unreachable: at the largest distance everything is connected")


@settings(max_examples=150, deadline=None)
@given(data=st.data(), m=st.integers(1, 8))
def test_equals_its_definition_with_weights(data, m):
    values = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0])
    distances = torch.zeros(m, m, dtype=torch.float64)
    for i, j in itertools.combinations(range(m), 2):
        distances[i, j] = distances[j, i] = data.draw(values)
    weights = torch.tensor(data.draw(st.lists(st.integers(1, 6), min_size=m, max_size=m)), dtype=torch.float64)
    assert densest_majority(distances, weights) == by_definition(distances, weights)
    assert densest_majority(distances) == by_definition(distances, torch.ones(m, dtype=torch.float64))
    assert densest_majority(distances, weights / weights.sum()) == densest_majority(distances, weights)
    copies = torch.arange(m).repeat_interleave(weights.long())
    members = {int(copies[k]) for k in densest_majority(distances[copies][:, copies])}
    assert members == set(densest_majority(distances, weights))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), m=st.integers(1, 12))
def test_the_order_does_not_matter(data, m):
    distances = tied(m, torch.Generator().manual_seed(data.draw(st.integers(0, 1000))))
    order = data.draw(st.permutations(range(m)))
    members = densest_majority(distances[order][:, order])
    assert sorted(order[k] for k in members) == list(densest_majority(distances))


def test_by_hand():
    gaps = torch.tensor([0.0, 1.0, 3.0, 3.5, 9.0])
    distances = (gaps[:, None] - gaps).abs()
    assert densest_majority(distances) == (0, 1, 2, 3)  # two pairs, which join at a distance of 2
    assert densest_majority(distances, torch.tensor([1.0, 1.0, 2.0, 2.0, 1.0])) == (2, 3)
    assert densest_majority(distances, torch.tensor([1.0, 1.0, 1.0, 1.0, 5.0])) == (4,)
    assert densest_majority(distances, torch.tensor([1.0, 1.0, 1.0, 1.0, 4.0])) == (0, 1, 2, 3, 4)  # half is not more
    assert densest_majority(torch.zeros(1, 1)) == (0,)
    assert densest_majority(torch.tensor([[0.0, 2.0], [2.0, 0.0]])) == (0, 1)


def test_all_equal_is_one_cluster():
    for distance in (0.0, 0.7):
        assert densest_majority(torch.full((9, 9), distance)) == tuple(range(9))


def test_fast():
    distances = random(1000, torch.Generator().manual_seed(0))
    begun = time.perf_counter()
    assert len(densest_majority(distances)) > 500
    assert time.perf_counter() - begun < 1


@pytest.fixture
def unchecked():
    """No checker of shapes, as in a user's program."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(0, 0), (2, 3), (4,)])
def test_refuses_what_is_no_square(shape):
    with pytest.raises(ValueError, match="square matrix of distances of one item or more, got shape"):
        densest_majority(torch.ones(shape))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -1e-3])
def test_refuses_what_are_no_distances(value):
    distances = torch.ones(3, 3)
    distances[0, 1] = distances[1, 0] = value
    with pytest.raises(ValueError, match="Distances must be finite and not negative"):
        densest_majority(distances)
