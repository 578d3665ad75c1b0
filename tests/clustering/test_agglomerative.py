import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist, squareform

from phalanx.clustering import agglomerate
from phalanx.clustering.linkage_kernels import spanning_tree

LINKAGES = ("single", "complete", "average", "ward")


def by_scipy(rows, how, **stop):
    """The clusters that SciPy finds, in the form of ours."""
    tree = linkage(pdist(rows), how)
    t, criterion = (stop["clusters"], "maxclust") if "clusters" in stop else (stop["max_distance"], "distance")
    labels = fcluster(tree, t, criterion)
    return tuple(sorted(tuple(np.flatnonzero(labels == label).tolist()) for label in set(labels)))


def distances(rows):
    return torch.from_numpy(squareform(pdist(rows)))


@pytest.mark.parametrize("how", LINKAGES)
@settings(max_examples=25, deadline=None)
@given(m=st.integers(2, 14), seed=st.integers(0, 10**6), stop=st.integers(1, 14), share=st.floats(0.05, 0.95))
def test_as_scipy(how, m, seed, stop, share):
    rows = np.random.default_rng(seed).normal(size=(m, 3))
    far = distances(rows)
    k = min(stop, m)
    assert agglomerate(far, how, clusters=k) == by_scipy(rows, how, clusters=k)
    threshold = share * float(far.max())
    assert agglomerate(far, how, max_distance=threshold) == by_scipy(rows, how, max_distance=threshold)


def test_by_hand():
    """Points 0, 1, 3, 7 on a line: 0 and 1 merge at 1; then 3 is 2, 3 or 2.5 from them."""
    far = distances(np.array([[0.0], [1.0], [3.0], [7.0]]))
    assert agglomerate(far, "single", max_distance=2.0) == ((0, 1, 2), (3,))
    assert agglomerate(far, "average", max_distance=2.4) == ((0, 1), (2,), (3,))
    assert agglomerate(far, "average", max_distance=2.5) == ((0, 1, 2), (3,))
    assert agglomerate(far, "complete", max_distance=2.5) == ((0, 1), (2,), (3,))
    assert agglomerate(far, "complete", clusters=2) == ((0, 1, 2), (3,))


def test_ends():
    far = distances(np.array([[0.0], [1.0], [3.0]]))
    assert agglomerate(far, clusters=1) == ((0, 1, 2),)
    assert agglomerate(far, clusters=9) == ((0,), (1,), (2,))
    assert agglomerate(far, max_distance=0.0) == ((0,), (1,), (2,))
    assert agglomerate(torch.zeros(1, 1), clusters=1) == ((0,),)


def test_ties_are_merged_by_the_lowest_items_and_the_argument_stays():
    far = torch.ones(4, 4) - torch.eye(4)
    before = far.clone()
    assert agglomerate(far, "complete", clusters=3) == ((0, 1), (2,), (3,))
    assert torch.equal(far, before)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "either clusters or max_distance"),
        ({"clusters": 2, "max_distance": 1.0}, "either clusters or max_distance"),
        ({"clusters": 0}, "clusters must be at least 1"),
        ({"max_distance": -1.0}, "max_distance must be"),
        ({"clusters": 2, "linkage": "median"}, "linkage must be one of"),
    ],
)
def test_out_of_range(arguments, why, monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    with pytest.raises(ValueError, match=why):
        agglomerate(torch.zeros(3, 3), **arguments)


@pytest.mark.parametrize("far", [torch.zeros(2, 3), torch.full((2, 2), float("nan")), torch.zeros(0, 0)])
def test_no_distances(far, monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    with pytest.raises(ValueError, match="square matrix of finite distances"):
        agglomerate(far, clusters=1)


@pytest.mark.parametrize("m", [2, 3, 65])
def test_the_compiled_spanning_tree_writes_an_edge_less_than_there_are_items_and_nothing_beyond(m):
    """Compiled code checks no bounds."""
    points = np.arange(m, dtype=float) ** 2
    order, parent, strength = np.full(m + 1, -7), np.full(m + 1, -7), np.full(m + 1, 7.0)
    assert spanning_tree(-abs(points[:, None] - points), order[: m - 1], parent[: m - 1], strength[: m - 1])
    assert order.tolist() == [*range(1, m), -7, -7]
    assert parent.tolist() == [*range(m - 1), -7, -7]
    assert strength.tolist() == [*(float(1 - 2 * i) for i in range(1, m)), 7.0, 7.0]
