"""The notice before Numba compiles."""

from numba import njit

from phalanx.numerics.compilation import compilation


def test_it_comes_once_and_only_where_something_is_compiled():
    one, other = njit(lambda x: x + 1), njit(lambda x: x + 2)
    seen = list[str]()
    with compilation(lambda: seen.append("first")):
        assert not seen
        one(1)
        other(1)
    with compilation(lambda: seen.append("second")):
        one(2)
    other(1.5)
    assert seen == ["first"]
