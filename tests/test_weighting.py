"""What declared sizes count for."""

import pytest

from phalanx.weighting import AsDeclared, Ignore


@pytest.mark.parametrize(
    ("preprocess", "expected"), [(AsDeclared(), {3: 10.0, 1: 1.0, 7: 5e8}), (Ignore(), {3: 1.0, 1: 1.0, 7: 1.0})]
)
def test_weights_by_client(preprocess, expected):
    sizes = {3: 10, 1: 1, 7: 500_000_000}
    weights = preprocess(sizes)
    assert weights == expected
    assert list(weights) == list(sizes)
    assert all(isinstance(weight, float) for weight in weights.values())
    assert sizes == {3: 10, 1: 1, 7: 500_000_000}


@pytest.mark.parametrize("kind", [AsDeclared, Ignore])
def test_equal_values(kind):
    assert kind() == kind()
    assert hash(kind()) == hash(kind())
    assert AsDeclared() != Ignore()
