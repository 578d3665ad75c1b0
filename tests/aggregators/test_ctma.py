from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.aggregators import CTMA, Krum, Mean, Median
from toys import close


def test_by_hand():
    """The median is 2.5: distances 1.5, 0.5, 0.5, 87.5."""
    rows = torch.tensor([[1.0], [2.0], [3.0], [90.0]])
    vector, choice = CTMA(share=0.25).explained(rows)
    assert close(vector, [2.0])
    assert choice.shares.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    assert choice.reasons == ["", "", "", "distance 87.5 from the centre, among the farthest"]
    assert choice.scores == [1.5, 0.5, 0.5, 87.5]


def test_the_last_row_counts_in_part():
    rows = torch.tensor([[0.0], [0.0], [1.0], [9.0]])
    vector, choice = CTMA(share=0.375, rule=Mean()).explained(rows)  # centre 2.5: distances 2.5, 2.5, 1.5, 6.5
    assert choice.shares.tolist() == pytest.approx([0.3, 0.3, 0.4, 0.0])
    assert close(vector, [0.4])
    assert choice.reasons[0] == "distance 2.5 from the centre, in part"


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 4)), min_size=1, max_size=7),
    st.sampled_from([0.0, 0.1, 0.25, 0.4]),
)
def test_weights_are_copies(rows, share):
    values = torch.tensor([[float(x)] for x, _ in rows])
    weights = torch.tensor([float(n) for _, n in rows])
    copies = values.repeat_interleave(weights.long(), dim=0)
    rule = CTMA(share)
    assert torch.allclose(rule(values, weights), rule(copies), atol=1e-5)


@settings(deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=3, max_size=12), st.floats(-1e6, 1e6))
def test_a_quarter_of_attackers_stays_within_reach_of_the_honest(honest, lie):
    """Kept rows are no farther from the median than some honest row."""
    f = len(honest) // 3
    rows = torch.tensor([[x] for x in honest] + [[lie]] * f)
    share = f / len(rows)
    centre = float(Median()(rows))
    reach = max(abs(x - centre) for x in honest)
    assert abs(float(CTMA(share)(rows)) - centre) <= reach + 1e-3


def test_without_a_share_it_is_the_mean():
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(CTMA(share=0.0)(rows), rows.mean(0), atol=1e-6)


def test_what_it_tolerates():
    assert CTMA(share=0.2).tolerates(9).share == Fraction(1, 5)
    assert CTMA(share=0.2, rule=Mean()).tolerates(9).means == "nothing"
    found = CTMA(share=0.2, rule=Krum(f=1)).tolerates(9)
    assert (found.share, found.least, found.means) == (Fraction(1, 9), 5, "distance")


@pytest.mark.parametrize("share", [-0.1, 0.5])
def test_out_of_range(share):
    with pytest.raises(ValueError, match="share must lie in"):
        CTMA(share=share)
