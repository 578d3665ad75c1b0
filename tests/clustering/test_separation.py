"""The separation gap by hand, against its definition, and what it says about the split."""

import importlib
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.clustering import bipartition, correct, cross_similarity, intra_similarity, separation_gap
from phalanx.numerics.linalg import cosine_similarity


def symmetric(upper, m):
    alpha = torch.eye(m, dtype=torch.float64)
    rows, columns = torch.triu_indices(m, m, 1)
    alpha[rows, columns] = alpha[columns, rows] = torch.as_tensor(upper, dtype=torch.float64)
    return alpha


def grouped(labels):
    return [[i for i, label in enumerate(labels) if label == k] for k in sorted(set(labels))]


def by_definition(alpha, groups):
    """Definition 2, over all pairs and all splits."""
    m, entries = len(alpha), alpha.tolist()
    intra = min([1.0, *(entries[i][j] for c in groups for i, j in itertools.combinations(sorted(c), 2))])
    splits = itertools.chain.from_iterable(itertools.combinations(range(m), size) for size in range(1, m))
    return intra - min(max(entries[i][j] for i in c for j in set(range(m)) - set(c)) for c in splits)


def test_by_hand():
    alpha = symmetric([0.1, 0.9, 0.2, 0.3, 0.8, 0.4], 4)  # the best split is 0, 2 and 1, 3, with 0.4 across
    assert intra_similarity(alpha, [[0, 2], [1, 3]]) == 0.8
    assert separation_gap(alpha, [[0, 2], [1, 3]]) == 0.8 - 0.4
    assert separation_gap(alpha, [{3, 1}, {0}, {2}]) == 0.8 - 0.4
    assert separation_gap(alpha, ((0, 1), (2, 3))) == pytest.approx(0.1 - 0.4)  # the best split stays what it is
    assert separation_gap(alpha, [[0], [1], [2], [3]]) == 1 - 0.4
    assert separation_gap(alpha, [range(4)]) == pytest.approx(0.1 - 0.4)


def test_the_diagonal_does_not_count():
    alpha = symmetric([0.1, 0.9, 0.2, 0.3, 0.8, 0.4], 4).fill_diagonal_(-7)
    assert separation_gap(alpha, [[0, 2], [1, 3]]) == 0.8 - 0.4


@settings(max_examples=100, deadline=None)
@given(data=st.data(), m=st.integers(2, 7))
def test_equals_its_definition_and_tells_correct_splits(data, m):
    pairs = m * (m - 1) // 2
    alpha = symmetric(data.draw(st.lists(st.floats(-1, 1), min_size=pairs, max_size=pairs)), m)
    groups = grouped(data.draw(st.lists(st.integers(0, 2), min_size=m, max_size=m)))
    gap = separation_gap(alpha, groups)
    assert gap == by_definition(alpha, groups)
    if gap > 0:
        assert correct(bipartition(alpha), groups)


def test_in_blocks_as_at_once(monkeypatch):
    rng = np.random.default_rng(0)
    alpha = cosine_similarity(torch.from_numpy(rng.standard_normal((60, 4))))
    groups = grouped(rng.integers(3, size=60).tolist())
    whole = separation_gap(alpha, groups), cross_similarity(alpha, bipartition(alpha))
    monkeypatch.setattr(importlib.import_module("phalanx.clustering.bipartition"), "ENTRIES", 100)
    assert (separation_gap(alpha, groups), cross_similarity(alpha, bipartition(alpha))) == whole


def test_a_split_can_be_correct_without_a_gap():
    """Erratum to Remark 2: 0, 1 and 2 are a chain with unlike ends."""
    alpha = symmetric([0.9, 0.1, 0.0, 0.9, 0.0, 0.5], 4)
    groups = [[0, 1, 2], [3]]
    assert bipartition(alpha) == ((0, 1, 2), (3,))
    assert correct(bipartition(alpha), groups)
    assert separation_gap(alpha, groups) == 0.1 - 0.5


def test_correct():
    assert correct([[0, 1], [2, 3]], [[0, 1], [2], [3]])
    assert not correct([[0, 1], [2, 3]], [[0], [1, 2], [3]])
    assert correct([[0], [1], [2]], [[0], [1], [2]])


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[0, 1], [2]], "hold each index from 0 to 3 once. Missing: 3"),
        ([[0, 1], [1, 2, 3]], "Twice: 1"),
        ([[0, 1, 2, 3], [4]], "Unknown: 4"),
        ([[0, 1, 2], [2, 7]], "Twice: 2; unknown: 7; missing: 3"),
        ([[0, 1, 2, 3], []], "Each group must have a member, got an empty one"),
    ],
)
def test_refuses_what_is_no_partition(groups, message):
    with pytest.raises(ValueError, match=message):
        separation_gap(torch.eye(4), groups)
