"""Rules against their definitions, written out as slowly as they read."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from phalanx.aggregators import (
    AdaptiveClip,
    Bucketing,
    Bulyan,
    CenteredClipping,
    Clip,
    GeometricMedian,
    Krum,
    MeaMed,
    Mean,
    Median,
    MultiKrum,
    NearestNeighborMixing,
    Points,
)
from phalanx.core import InfeasibleError

CASES = [(7, 2), (8, 1), (9, 3), (11, 0), (12, 4)]
cases = pytest.mark.parametrize(("m", "f"), CASES)


def matrix(m, d=4, seed=0):
    return torch.randn(m, d, generator=torch.Generator().manual_seed(seed + m), dtype=torch.float64)


def close(got, expected, tolerance=1e-9):
    torch.testing.assert_close(got, torch.as_tensor(expected), rtol=tolerance, atol=tolerance)


def krum_scores(U, f, fewer=2):
    squares = ((U[:, None] - U[None]) ** 2).sum(-1)
    scores = []
    for i in range(len(U)):
        others = sorted(float(squares[i, j]) for j in range(len(U)) if j != i)
        scores.append(sum(others[: max(len(U) - f - fewer, 0)]))
    return scores


@cases
@pytest.mark.parametrize(("neighbours", "fewer"), [("n-f-2", 2), ("n-f-1", 1)])
def test_krum(m, f, neighbours, fewer):
    U = matrix(m)
    if m < 2 * f + 3:
        with pytest.raises(InfeasibleError, match=rf"needs at least 2f \+ 3 = {2 * f + 3} rows, got {m}"):
            Krum(f)(U)
        return
    scores = krum_scores(U, f, fewer)
    close(Krum(f, neighbours)(U), U[int(np.argmin(scores))])
    for k in (1, 3, m - f):
        best = np.argsort(scores)[:k]
        close(MultiKrum(f, k, neighbours)(U), U[best].mean(0))
    close(MultiKrum(f)(U), MultiKrum(f, m - f)(U))


@pytest.mark.parametrize("k", [2, 3, 5])
def test_krum_with_weights_is_krum_with_copies_for_the_f_that_leaves_the_same_neighbourhood(k):
    """n - f - 1 rows of average weight are a neighbourhood; among k times as many rows that is f' = k (f + 1) - 1."""
    m, f = 9, 2
    U, counts = matrix(m), torch.ones(m, dtype=torch.int64)
    extra = torch.randint(m, (m * (k - 1),), generator=torch.Generator().manual_seed(k))
    counts.index_add_(0, extra, torch.ones_like(extra))
    copies, f_copies = U.repeat_interleave(counts, 0), k * (f + 1) - 1
    close(Krum(f)(U, counts.double()), Krum(f_copies)(copies))
    close(MultiKrum(f, 3)(U, counts.double()), MultiKrum(f_copies, 3 * k)(copies))


@cases
def test_mean_around_median(m, f):
    U = matrix(m)
    expected = []
    for column in U.T.tolist():
        centre = float(np.median(column))
        expected.append(np.mean(sorted(column, key=lambda v, centre=centre: abs(v - centre))[: m - f]))
    close(MeaMed(f)(U), expected)


@pytest.mark.parametrize(("m", "f"), [(7, 1), (11, 2), (12, 2), (9, 0)])
def test_bulyan(m, f):
    U = matrix(m)
    left, chosen = list(range(m)), []
    for _ in range(m - 2 * f):
        part = U[left]
        squares = ((part[:, None] - part[None]) ** 2).sum(-1)
        count = max(len(left) - f - 2, 1)
        scores = [
            (float(squares[i].sort().values[1 : 1 + count].sum()), float(squares[i].sum())) for i in range(len(left))
        ]
        chosen.append(left.pop(scores.index(min(scores))))
    expected = []
    for column in U[chosen].T.tolist():
        centre = float(np.median(column))
        expected.append(np.mean(sorted(column, key=lambda v, centre=centre: abs(v - centre))[: m - 4 * f]))
    close(Bulyan(f)(U), expected)


@pytest.mark.slow
@pytest.mark.parametrize("m", [3, 4, 5, 8, 12])
@pytest.mark.parametrize("weighted", [False, True])
def test_geometric_median_is_the_minimum(m, weighted):
    U = matrix(m, 3)
    w = torch.arange(1.0, m + 1, dtype=torch.float64) if weighted else torch.ones(m, dtype=torch.float64)

    def total(z):
        return float((w * torch.linalg.vector_norm(U - torch.as_tensor(z), dim=1)).sum())

    found = GeometricMedian(1e-10)(U, w)
    best = min(
        minimize(
            total, start.numpy(), method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-14, "maxiter": 10_000}
        ).fun
        for start in (U.mean(0), found, *U)
    )
    assert total(found) <= best * (1 + 1e-9)


def test_geometric_median_where_a_row_is_it():
    U = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 1.0], [1.0, -1.0], [1.0, 0.0]])
    assert GeometricMedian()(U).tolist() == [1.0, 0.0]
    heavy = torch.tensor([1.0, 5.0, 1.0, 1.0, 1.0])
    assert GeometricMedian()(U, heavy).tolist() == [2.0, 0.0], "five of nine hold it against all others"
    assert GeometricMedian()(torch.tensor([[0.0], [4.0]])).tolist() == [2.0]
    assert GeometricMedian()(torch.tensor([[7.0, 1.0]] * 4)).tolist() == [7.0, 1.0]


@pytest.mark.parametrize("previous", [None, torch.tensor([0.3, -0.2, 0.1, 2.0], dtype=torch.float64)])
@pytest.mark.parametrize("iterations", [1, 3, 10])
def test_centered_clipping(previous, iterations):
    U, w = matrix(9), torch.arange(1.0, 10.0, dtype=torch.float64)
    v = torch.zeros(4, dtype=torch.float64) if previous is None else previous
    for _ in range(iterations):
        difference = U - v
        lengths = torch.linalg.vector_norm(difference, dim=1, keepdim=True)
        v = v + ((w / w.sum())[:, None] * difference * (1.2 / lengths).clamp(max=1)).sum(0)
    close(CenteredClipping(1.2, iterations)(U, w, previous=previous), v)


@cases
def test_nearest_neighbour_mixing(m, f):
    U = matrix(m)
    squares = ((U[:, None] - U[None]) ** 2).sum(-1)
    expected = torch.stack([U[squares[i].argsort()[: m - f]].mean(0) for i in range(m)])
    close(NearestNeighborMixing(f).rows(U), expected)


@cases
def test_adaptive_clip(m, f):
    U = matrix(m)
    norms = torch.linalg.vector_norm(U, dim=1)
    k = int(2 * f / m * (m - f))
    limit = norms.sort(descending=True).values[k]
    close(AdaptiveClip(f).rows(U), U * (limit / norms).clamp(max=1)[:, None])


def test_clip():
    U = matrix(6)
    norms = torch.linalg.vector_norm(U, dim=1, keepdim=True)
    close(Clip(1.5).rows(U), U * (1.5 / norms).clamp(max=1))


def test_bucketing_covers_every_row_once_and_draws_anew_each_turn():
    U = torch.eye(7, dtype=torch.float64)
    weights = torch.arange(1.0, 8.0, dtype=torch.float64)
    seen = set()
    for turn in range(5):
        mixed = Bucketing(3, seed=4).mix(Points.of(U, weights, turn))
        assert [int((row > 0).sum()) for row in mixed.matrix] == [3, 3, 1]
        close(mixed.weights @ mixed.matrix, weights)
        seen.add(tuple((mixed.matrix > 0).flatten().tolist()))
    assert len(seen) == 5
    assert torch.equal(Bucketing(3).rows(U, turn=2), Bucketing(3).rows(U, turn=2))
    close((Bucketing(3) >> Mean())(U, weights), weights / weights.sum())


@pytest.mark.parametrize("before", [NearestNeighborMixing(2), Clip(1.0), AdaptiveClip(2), Bucketing(2)], ids=str)
@pytest.mark.parametrize("far", [1.0, 1e12])
def test_the_geometry_of_mixed_rows_is_that_of_the_rows_written_down(before, far):
    U = matrix(11, 30)
    U[[2, 5]] *= far
    mixed = before.mix(Points.of(U))
    written = Points.of(mixed.matrix)
    torch.testing.assert_close(mixed.squared_distances, written.squared_distances, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(mixed.norms, written.norms, rtol=1e-6, atol=0)


@pytest.mark.parametrize("before", [NearestNeighborMixing(2), Clip(1.0), AdaptiveClip(2)], ids=str)
def test_rows_can_be_written_where_they_were(before):
    U = matrix(11, 30)
    expected, before_it = before.rows(U), U.clone()
    into = torch.empty_like(U)
    assert before.rows(U, out=into) is into
    assert torch.equal(into, expected)
    assert torch.equal(U, before_it)
    assert torch.equal(before.rows(U, out=U), expected)
    assert torch.equal(U, expected)
    with pytest.raises(ValueError, match=r"out must have shape \(11, 30\)"):
        before.rows(U, out=torch.empty(3, 30, dtype=torch.float64))


def test_chains_read_from_left_to_right():
    U = matrix(11)
    chain = Clip(1.0) >> NearestNeighborMixing(2) >> Median()
    close(chain(U), Median()(NearestNeighborMixing(2).rows(Clip(1.0).rows(U))))
    assert chain == (Clip(1.0) >> NearestNeighborMixing(2)) >> Median()
    assert chain.title == "Clip >> NearestNeighborMixing >> Median"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Krum(-1), "f must be at least 0"),
        (lambda: MultiKrum(1, 0), "m must be at least 1"),
        (lambda: Bulyan(-1), "f must be at least 0"),
        (lambda: MeaMed(-2), "f must be at least 0"),
        (lambda: GeometricMedian(0.0), "tolerance must lie in"),
        (lambda: GeometricMedian(iterations=0), "iterations must be at least 1"),
        (lambda: CenteredClipping(0.0), "radius must be positive"),
        (lambda: CenteredClipping(1.0, 0), "iterations must be at least 1"),
        (lambda: Clip(-1.0), "radius must be positive"),
        (lambda: AdaptiveClip(-1), "f must be at least 0"),
        (lambda: NearestNeighborMixing(-1), "f must be at least 0"),
        (lambda: Bucketing(0), "s must be at least 1"),
    ],
)
def test_settings_out_of_range(make, why):
    with pytest.raises(ValueError, match=why):
        make()


@pytest.mark.parametrize(
    ("rule", "least"),
    [
        (Krum(2), "2f + 3 = 7"),
        (Krum(3, "n-f-1"), "2f + 1 = 7"),
        (MultiKrum(3, neighbours="n-f-1"), "2f + 1 = 7"),
        (MultiKrum(2), "2f + 3 = 7"),
        (MultiKrum(0, 9), "m = 9"),
        (Bulyan(1), "4f + 3 = 7"),
        (MeaMed(3), "2f + 1 = 7"),
        (NearestNeighborMixing(3) >> Mean(), "2f + 1 = 7"),
        (AdaptiveClip(3) >> Mean(), "2f + 1 = 7"),
    ],
    ids=str,
)
def test_too_few_rows_is_an_error_with_a_remedy(rule, least):
    with pytest.raises(InfeasibleError) as error:
        rule(matrix(6))
    assert f"needs at least {least} rows, got 6" in str(error.value)
    assert "ave more clients" in str(error.value)
