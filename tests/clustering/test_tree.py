"""The parameter tree and Algorithm 4 of Sattler et al. 2019."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.clustering.tree import Tree, closest, spread
from phalanx.numerics.linalg import cosine_similarity

RIGHT, UP, LEFT = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]), torch.tensor([-1.0, 0.0])


def edge(senders, *rows):
    return tuple(senders), torch.stack(rows)


def grown() -> Tree:
    """Clients 0 (right), 1 (up), 2 (left): 2 leaves first, then 1 leaves 0."""
    tree = Tree.rooted(range(3), torch.zeros(2))
    tree = tree.split(0, ({0, 1}, {2}), torch.ones(2), (edge((0, 1), RIGHT, UP), edge((2,), LEFT)), 10)
    return tree.split(1, ({0}, {1}), torch.full((2,), 5.0), (edge((0,), RIGHT), edge((1,), UP)), 20)


def test_splits_make_nodes_and_edges():
    tree = grown()
    assert {v: set(leaf.clients) for v, leaf in tree.leaves.items()} == {2: {2}, 3: {0}, 4: {1}}
    assert tree.path(4) == (0, 1, 4)
    assert tree.path(0) == (0,)
    assert tree.nodes[1].clients == {0, 1}
    assert tree.nodes[1].model.tolist() == [1.0, 1.0], "a node keeps the model that it had"
    assert tree.nodes[4].model.tolist() == [5.0, 5.0]
    assert [node.born for node in tree.nodes] == [0, 10, 10, 20, 20]
    assert [tree.leaf_of(i) for i in range(3)] == [3, 4, 2]
    with pytest.raises(KeyError, match="Client 7 is in no cluster"):
        tree.leaf_of(7)


def test_trees_are_values():
    tree = grown()
    more = tree.joined(9, 4)
    assert tree.nodes[4].clients == {1}
    assert more.nodes[4].clients == {1, 9}
    assert more.nodes[1].clients == {0, 1}, "what was there when it was split"


@pytest.mark.parametrize(
    ("delta", "leaf"), [((1.0, 0.2), 3), ((0.3, 1.0), 4), ((-1.0, 0.5), 2), ((5e3, 0.0), 3), ((-1e-6, 0.0), 2)]
)
def test_a_new_client_goes_to_the_more_similar_side_by_hand(delta, leaf):
    models = []

    def train(model):
        models.append(model.tolist())
        return torch.tensor(delta)

    assert grown().assign(train) == leaf
    assert models[0] == [0.0, 0.0], "trained from the root's model first"
    assert models[1:] == [[1.0, 1.0]] * (leaf != 2), "then from that of the node where it has come to"


def test_a_tie_goes_to_the_second_child_as_in_the_paper():
    tree = Tree.rooted((0, 1), torch.zeros(2)).split(
        0, ({0}, {1}), torch.zeros(2), (edge((0,), RIGHT), edge((1,), LEFT)), 1
    )
    assert tree.branch(0, UP) == (2, 0.0, 0.0)


def test_a_tree_of_one_node_needs_no_training():
    assert Tree.rooted((0,), torch.zeros(2)).assign(lambda model: pytest.fail("was asked to train")) == 0


def test_leaves_and_the_root_lead_nowhere():
    with pytest.raises(ValueError, match="Cluster 3 is a leaf"):
        grown().branch(3, RIGHT)
    with pytest.raises(ValueError, match="No edge leads to the root"):
        closest(grown().nodes[0].updates, RIGHT)


def test_the_best_model_on_the_way_is_the_most_specific_of_equals():
    tree = grown()
    score = {0.0: 0.9, 1.0: 0.5, 5.0: 0.9}
    assert tree.best(4, lambda model: score[float(model[0])]) == 4
    score[1.0] = 0.95
    assert tree.best(4, lambda model: score[float(model[0])]) == 1
    score[0.0] = 1.0
    assert tree.best(4, lambda model: score[float(model[0])]) == 0


@given(seed=st.integers(0, 10**6), m=st.integers(1, 12), count=st.integers(1, 13))
@settings(max_examples=60, deadline=None)
def test_some_stand_for_all(seed, m, count):
    """As many as asked for, and no item is less covered than twice the best angle: the bound of the greedy choice."""
    alpha = cosine_similarity(torch.randn(m, 3, generator=torch.Generator().manual_seed(seed)))
    chosen = spread(alpha, count)
    assert chosen == tuple(sorted(set(chosen)))
    assert len(chosen) == min(m, count)
    if m > 7 or count > 3:
        return
    angles = alpha.clamp(-1, 1).arccos()
    radius = float(angles[list(chosen)].min(0).values.max())
    best = min(
        float(angles[list(some)].min(0).values.max()) for some in itertools.combinations(range(m), min(m, count))
    )
    assert radius <= 2 * best + 1e-6


def test_each_of_three_bundles_is_stood_for():
    rows = torch.tensor([[1.0, 0.0, 0.0]] * 5 + [[0.0, 1.0, 0.0]] * 3 + [[0.0, 0.0, 1.0]])
    chosen = spread(cosine_similarity(rows + 0.01), 3)
    assert {0 if k < 5 else 1 if k < 8 else 2 for k in chosen} == {0, 1, 2}
