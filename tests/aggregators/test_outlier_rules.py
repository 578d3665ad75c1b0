"""MDA, SMEA, CAF, MoNNA, DnC, FoolsGold, FLAME and the majority of signs through the same properties."""

import jaxtyping
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.aggregators.caf import CAF
from phalanx.aggregators.dnc import DnC
from phalanx.aggregators.flame import FLAMEFilter
from phalanx.aggregators.foolsgold import FoolsGoldWeights
from phalanx.aggregators.mda import MDA
from phalanx.aggregators.monna import MoNNA
from phalanx.aggregators.sign_majority import SignMajority
from phalanx.aggregators.smea import SMEA
from phalanx.core import InfeasibleError

WITH_F = {
    "MDA": MDA,
    "SMEA": SMEA,
    "CAF": CAF,
    "MoNNA": MoNNA,
    "DnC": DnC,
    "DnC, several draws": lambda f: DnC(f, iterations=3, coordinates=2),
}
WITHOUT_F = {"FLAMEFilter": FLAMEFilter, "FoolsGoldWeights": FoolsGoldWeights, "SignMajority": SignMajority}
EVERY = {**WITH_F, **{name: lambda f, kind=kind: kind() for name, kind in WITHOUT_F.items()}}

every_rule = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
with_f = pytest.mark.parametrize("make", WITH_F.values(), ids=WITH_F)
few = settings(max_examples=20, deadline=None)

entries = st.integers(-24, 24).map(lambda k: k / 8)  # products are exact, and ties are frequent


@st.composite
def calls(draw, least=3, most=7, heaviest=4):
    """A small matrix in float64, weights that are counts, and a tolerable f."""
    m, d = draw(st.integers(least, most)), draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(entries, min_size=d, max_size=d), min_size=m, max_size=m))
    weights = draw(st.lists(st.integers(1, heaviest), min_size=m, max_size=m))
    f = draw(st.integers(0, (m - 1) // 2))
    return torch.tensor(rows, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64), f


def close(got, expected, tolerance=1e-8):
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def result(rule, *arguments):
    """The rule's vector, or an empty one where it refuses."""
    try:
        return rule(*arguments)
    except InfeasibleError:
        return torch.empty(0, dtype=torch.float64)


@every_rule
@few
@given(call=calls(), data=st.data())
def test_the_order_of_clients_does_not_matter(make, call, data):
    rows, weights, f = call
    order = data.draw(st.permutations(range(len(rows))))
    rule = moved = make(f)
    if isinstance(rule, MoNNA):
        moved = MoNNA(f, reference=order.index(0))  # the trusted row, where it is now
    close(result(moved, rows[order], weights[order]), result(rule, rows, weights))


@with_f
@few
@given(call=calls(), shift=st.integers(-16, 16), power=st.integers(-4, 4))
def test_translation_and_positive_scaling(make, call, shift, power):
    rows, weights, f = call
    close(make(f)(2.0**power * rows + shift, weights), 2.0**power * make(f)(rows, weights) + shift)


@pytest.mark.parametrize("rule", [FLAMEFilter(), FLAMEFilter(noise=0.1), FoolsGoldWeights()], ids=str)
@few
@given(call=calls(), power=st.integers(-4, 4))
def test_positive_scaling(rule, call, power):
    rows, weights, _ = call
    close(result(rule, 2.0**power * rows, weights), 2.0**power * result(rule, rows, weights))


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("SMEA", "FoolsGoldWeights")])
@few
@given(call=calls(most=6), data=st.data())
def test_a_weight_is_a_number_of_copies(name, call, data):
    """f is scaled with the number of rows, so that the attackers' share stays the same."""
    rows, weights, f = call
    m = len(rows)
    weights[-1] += -int(weights.sum()) % m
    copies = rows.repeat_interleave(weights.long(), dim=0)
    close(EVERY[name](f)(rows, weights), EVERY[name](f * len(copies) // m)(copies))


@every_rule
@few
@given(call=calls(), scale=st.sampled_from([0.1, 1 / 3, 1e-9, 1e12]))
def test_only_ratios_of_weights_matter(make, call, scale):
    rows, weights, f = call
    close(result(make(f), rows, scale * weights), result(make(f), rows, weights))


@every_rule
@few
@given(call=calls(), at=st.integers(0, 7))
def test_a_row_without_weight_is_not_there(make, call, at):
    rows, weights, f = call
    rule, m = make(f), len(rows)
    at = max(1, min(at, m))  # not before the row that MoNNA trusts
    more = torch.cat([rows[:at], torch.full_like(rows[:1], 1e30), rows[at:]])
    with_zero = torch.cat([weights[:at], torch.zeros(1, dtype=torch.float64), weights[at:]])
    assert torch.equal(result(rule, more, with_zero), result(rule, rows, weights))


@every_rule
@few
@given(call=calls())
def test_the_explanation_covers_every_row_and_makes_the_result(make, call):
    rows, weights, f = call
    rule = make(f)
    try:
        vector, choice = rule.explained(rows, weights)
    except InfeasibleError:
        return
    assert torch.equal(vector, rule(rows, weights))
    if choice is None:
        assert isinstance(rule, SignMajority)
        return
    close(choice.shares @ rows, vector)
    assert bool((choice.shares >= 0).all())
    assert len(choice.reasons) == len(rows)
    assert choice.scores is None or len(choice.scores) == len(rows)
    if not (isinstance(rule, FLAMEFilter) and vector.norm() == 0):  # all clipped to nothing
        assert all(reason for reason, share in zip(choice.reasons, choice.shares, strict=True) if share == 0)
    if not isinstance(rule, FLAMEFilter):
        assert float(choice.shares.sum()) == pytest.approx(1)


@every_rule
def test_equal_weights_are_no_weights(make):
    rows = torch.randn(7, 9, generator=torch.Generator().manual_seed(0))
    assert torch.equal(make(2)(rows), make(2)(rows, torch.ones(7)))
    close(make(2)(rows), make(2)(rows, torch.full((7,), 1 / 7)), 1e-5)


@every_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_keeps_dtype_and_arguments(make, dtype, weighted):
    rows = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=dtype)
    weights = torch.tensor([1.0, 2.0, 0.0, 4.0, 1.0, 1.0]) if weighted else None
    before = rows.clone(), None if weights is None else weights.clone()
    vector = make(1)(rows, weights)
    assert (vector.dtype, vector.shape) == (dtype, (3,))
    assert torch.equal(rows, before[0])
    assert weights is None or torch.equal(weights, before[1])


@with_f
@pytest.mark.parametrize("m", [1, 2, 3, 5, 10])
def test_equal_rows_are_the_result(make, m):
    row = torch.randn(20, generator=torch.Generator().manual_seed(m))
    close(make((m - 1) // 2)(row.expand(m, 20)), row, 1e-6)
    close(make((m - 1) // 2)(row.expand(m, 20), torch.arange(1.0, m + 1)), row, 1e-6)


@with_f
def test_without_attackers_it_is_the_mean(make):
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    weights = torch.tensor([1.0, 2.0, 3.0, 1.0, 1.0, 5.0], dtype=torch.float64)
    close(make(0)(rows, weights), weights @ rows / weights.sum())


# --- breakdown


@pytest.mark.parametrize("make", [MDA, SMEA, CAF, MoNNA, DnC], ids=lambda make: make.__name__)
@pytest.mark.parametrize(("m", "f"), [(3, 1), (5, 2), (8, 3), (11, 5)])
@pytest.mark.parametrize("far", [1e3, 1e12, -1e12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attackers_in_one_place_do_not_move_it_out_of_the_honest(make, m, f, far, dtype):
    rows = torch.randn(m, 6, generator=torch.Generator().manual_seed(m), dtype=dtype)
    rows[m - f :] = far
    honest = rows[: m - f]
    diameter = float(torch.cdist(honest, honest).max())
    assert float((make(f)(rows) - honest.mean(0)).norm()) <= diameter


@pytest.mark.parametrize("make", [MDA, SMEA, CAF, MoNNA], ids=lambda make: make.__name__)
@pytest.mark.parametrize(("m", "f"), [(5, 2), (8, 3), (11, 5)])
@pytest.mark.parametrize("weighted", [False, True])
def test_attackers_in_many_places_do_not_either(make, m, f, weighted):
    rng = torch.Generator().manual_seed(m)
    rows = torch.randn(m, 6, generator=rng, dtype=torch.float64)
    rows[m - f :] *= 10.0 ** torch.arange(3, 3 + 3 * f, 3)[:, None]
    honest = rows[: m - f]
    weights = torch.rand(m, generator=rng, dtype=torch.float64) + 0.5
    weights[m - f :] *= weights[: m - f].sum() / weights[m - f :].sum() * f / (m - f)  # the share f / m of the weight
    diameter = float(torch.cdist(honest, honest).max())
    vector = make(f)(rows, weights if weighted else None)
    assert float((vector - honest.mean(0)).norm()) <= 2 * diameter


def test_attackers_in_two_directions_hide_from_one_singular_vector():
    """The limit that DnC's docstring states."""
    rows = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows[0, 0], rows[1, 1] = 1e12, 1e6
    rows[2:, 0] += 1e4 * torch.arange(7)  # what the honest differ by in the first direction
    assert float(DnC(f=2)(rows)[1]) > 1e4


@pytest.mark.parametrize("rule", [FLAMEFilter(), SignMajority()], ids=str)
@pytest.mark.parametrize("far", [1e12, -1e12])
def test_a_minority_makes_nothing_longer_than_the_honest_do(rule, far):
    for m in (3, 4, 9, 12):
        rows = torch.randn(m, 5, generator=torch.Generator().manual_seed(m), dtype=torch.float64)
        honest = rows[(m - 1) // 2 :].clone()
        rows[: (m - 1) // 2] = far
        longest = 5**0.5 if isinstance(rule, SignMajority) else float(honest.norm(dim=1).max())
        assert float(rule(rows).norm()) <= longest


# --- bad arguments


@with_f
@pytest.mark.parametrize("f", [1, 2, 4])
def test_says_how_many_rows_it_needs(make, f):
    rows = torch.randn(2 * f, 3, generator=torch.Generator().manual_seed(f))
    with pytest.raises(InfeasibleError, match=rf"needs at least 2f \+ 1 = {2 * f + 1} rows, got {2 * f}\. Lower f"):
        make(f)(rows)
    make(f)(torch.cat([rows, rows[:1]]))


@with_f
def test_refuses_a_negative_f(make):
    with pytest.raises(ValueError, match="f must be at least 0, got -1"):
        make(-1)


@pytest.fixture
def unchecked():
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.mark.usefixtures("unchecked")
@every_rule
def test_refuses_what_are_no_rows_and_no_weights(make):
    with pytest.raises(ValueError, match=r"Rows \[1\] hold NaN or infinite"):
        make(1)(torch.tensor([[1.0], [torch.nan], [2.0]]))
    with pytest.raises(ValueError, match="row per client"):
        make(1)(torch.ones(3))
    with pytest.raises(ValueError, match="Weights must be 3 finite non-negative numbers"):
        make(1)(torch.ones(3, 2), torch.ones(4))
