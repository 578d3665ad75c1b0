"""The picture of the trade-off: what is drawn is what `truncation_bound` says, at every alpha."""

import subprocess
import sys

import numpy as np
import pytest

from phalanx.data import DirichletMultinomialSizes
from phalanx.weighting import TradeOff, plot_truncation_curve, truncation_bound, truncation_curve

AUTHORS = dict(enumerate(DirichletMultinomialSizes().sizes(60_000).tolist()))
SMALL = {0: 120, 1: 80, 2: 100, 3: 60, 4: 5000}


def drawn(sizes, alpha_star, chosen=None):
    figure = plot_truncation_curve(truncation_curve(sizes, alpha_star), sizes, chosen)
    return figure.axes[0]


def steps(axes):
    """The drawn bound, as a function of alpha."""
    (stairs,) = [patch for patch in axes.patches if hasattr(patch, "get_data")]
    values, edges, _ = stairs.get_data()
    return lambda alpha: values[np.searchsorted(edges, alpha, side="left") - 1]


def spans(axes):
    """The shaded ranges of alpha, from left to right; True where they are hatched."""
    shaded = [patch for patch in axes.patches if not hasattr(patch, "get_data")]
    boxes = [(patch.get_extents().transformed(axes.transData.inverted()), bool(patch.get_hatch())) for patch in shaded]
    return sorted((box.x0, box.x1, hatched) for box, hatched in boxes)


@pytest.mark.parametrize("sizes", [AUTHORS, SMALL, {0: 7}, {0: 3, 1: 3}], ids=["authors", "small", "one", "two alike"])
@pytest.mark.parametrize("alpha_star", [0.3, 0.5, 0.9])
def test_the_drawn_bound_is_the_bound_between_the_steps_too(sizes, alpha_star):
    curve = truncation_curve(sizes, alpha_star)
    if not curve:
        with pytest.raises(ValueError, match="no alpha is feasible"):
            plot_truncation_curve(curve, sizes)
        return
    bound = steps(drawn(sizes, alpha_star))
    for alpha in np.random.default_rng(0).uniform(1e-6, curve[-1].alpha, 50):
        assert bound(alpha) == truncation_bound(sizes, float(alpha), alpha_star)
    for point in curve:
        assert bound(point.alpha - 1e-7) == point.bound


def test_the_partition_of_the_paper():
    chosen = TradeOff(0.1, 875)
    axes = drawn(AUTHORS, 0.5, chosen)
    assert steps(axes)(0.1) == 875
    (mark,) = [line for line in axes.lines if line.get_marker() == "o"]
    assert (mark.get_xdata()[0], mark.get_ydata()[0]) == chosen
    assert axes.get_legend().get_texts()[0].get_text() == "alpha = 0.1 (8 of 75): U* = 875"
    words = [text.get_text().strip() for text in axes.texts]
    assert words == ["nothing is truncated", "largest feasible alpha: 37 of 75 clients"]
    assert axes.get_yscale() == "log"
    (top,) = axes.child_axes
    axes.figure.draw_without_rendering()
    end = axes.get_legend().get_window_extent().transformed(axes.transData.inverted()).x1
    assert end == pytest.approx(37 / 75), "the legend ends where the feasible alphas end"
    assert top.get_xlim()[1] == pytest.approx(75 * axes.get_xlim()[1])


def test_shades_where_nothing_is_truncated_and_where_nothing_will_do():
    """0.28 of the weight are the 20 largest: with up to 20 of 100 attackers nothing is truncated at alpha* = 0.28."""
    sizes = dict(enumerate([10] * 80 + [15] * 20))
    axes = drawn(sizes, 0.28)
    (left, right, hatched), (left2, _, hatched2) = spans(axes)
    assert (left, right, hatched) == (0, pytest.approx(0.20), True)
    assert (left2, hatched2) == (pytest.approx(0.28), False)
    (line,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert line.get_xdata()[0] == pytest.approx(0.28)
    assert axes.get_xlim() == (0, pytest.approx(1.04 * 0.28)), "a little beyond the largest feasible alpha"
    words = {text.get_text().strip(): text.get_position() for text in axes.texts}
    assert words["nothing is truncated"][0] == pytest.approx(0.10), "in the middle of its range"
    axes = drawn(SMALL, 0.45)  # the largest is truncated at any alpha
    assert [hatched for _, _, hatched in spans(axes)] == [False]
    assert "nothing is truncated" not in [text.get_text() for text in axes.texts]


@pytest.mark.parametrize(("largest", "scale"), [(500, "linear"), (501, "log")])
def test_the_axis_is_logarithmic_where_sizes_are_more_than_a_hundredfold_apart(largest, scale):
    sizes = {0: 5, 1: 5, 2: 5, 3: 5, 4: largest}
    axes, curve = drawn(sizes, 0.5), [point.bound for point in truncation_curve(sizes, 0.5)]
    assert axes.get_yscale() == scale
    low, high = axes.get_ylim()
    assert low < min(curve) <= max(curve) < high
    assert scale == "log" or low == 0
    if scale == "log":
        assert high > 2 * max(curve), "there is room for the legend above the curve"


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_can_be_saved(suffix, tmp_path):
    path = tmp_path / f"curve.{suffix}"
    plot_truncation_curve(truncation_curve(SMALL, 0.45), SMALL, TradeOff(0.3, 96)).savefig(path)
    start = path.read_bytes()[:300]
    assert {"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF"}[suffix] in start or b"<?xml" in start


@pytest.mark.parametrize(
    ("curve", "chosen", "message"),
    [
        ([], None, "at least one point: with so few clients"),
        ([TradeOff(0.5, 3)], None, "a point for each of 1, 2, ... of 5 clients"),
        (truncation_curve(SMALL, 0.45), TradeOff(0.2, 293), r"got \(0.2, 293\): there the bound is 294"),
        (truncation_curve(SMALL, 0.45), TradeOff(0.5, 96), "the curve has no such alpha"),
        (truncation_curve(SMALL, 0.45), TradeOff(0.0, 5000), "the curve has no such alpha"),
        (truncation_curve(SMALL, 0.45), TradeOff(-0.2, 294), "the curve has no such alpha"),
    ],
)
def test_what_does_not_belong_together(curve, chosen, message):
    with pytest.raises(ValueError, match=message):
        plot_truncation_curve(curve, SMALL, chosen)


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="integers of at least 1"):
        plot_truncation_curve([TradeOff(1.0, 3)], {0: 0})


@pytest.mark.slow
def test_matplotlib_is_loaded_when_something_is_drawn():
    code = "import sys, phalanx.weighting; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
