"""Curves over seeds: what is drawn, and that it is drawn the same again."""

import numpy as np
import pytest
from made import trace

from phalanx.experiments.shown.plotting import Axis, curves, save, spread, styled, together


@pytest.fixture(autouse=True)
def _in_style():
    with styled():
        yield


def texts(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_measurements_at_other_steps_meet_on_one_grid():
    places, values = together(
        [trace([0.0, 1.0], step=[0, 4]), trace([0.0, 0.5, 0.6], 1, step=[0, 2, 3])], "accuracy", "step"
    )
    assert places.tolist() == [0, 2, 3, 4]
    np.testing.assert_allclose(values, [[0, 0.5, 0.75, 1], [0, 0.5, 0.6, np.nan]])
    places, values = together([trace([0.0, None])], "accuracy", "seconds")
    np.testing.assert_allclose([places, values[0]], [[0, 10], [0, np.nan]])
    assert together([], "accuracy", "step")[1].shape == (0, 0)


def test_the_band_by_hand():
    values = np.array([[0.1, 0.5], [0.3, 0.5], [0.8, 0.5]])
    middle, low, high = spread(values, "range")
    np.testing.assert_allclose([middle, low, high], [[0.4, 0.5], [0.1, 0.5], [0.8, 0.5]])
    middle, low, high = spread(values, "deviation")
    deviation = np.sqrt((0.09 + 0.01 + 0.16) / 2)
    np.testing.assert_allclose([low, high], [[0.4 - deviation, 0.5], [0.4 + deviation, 0.5]])
    np.testing.assert_allclose(spread(values[:1], "deviation")[1], values[0])


def test_a_curve_is_the_mean_and_a_failed_run_is_drawn_alone():
    runs = [trace([0.2, 0.4]), trace([0.4, 0.6], 1), trace([0.9, 0.1], 2, failed=True)]
    figure = curves({("", ""): {"mean": runs}})
    (axes,) = figure.axes
    middle, failed, cross = axes.get_lines()
    np.testing.assert_allclose(middle.get_ydata(), [0.3, 0.5])
    np.testing.assert_allclose(failed.get_ydata(), [0.9, 0.1])
    assert (cross.get_marker(), list(cross.get_xdata()), list(cross.get_ydata())) == ("x", [1.0], [0.1])
    assert texts(figure) == ["mean", "lowest to highest of 2 seeds", "a run failed here"]


def test_the_legend_says_what_the_band_is():
    two, three = [trace([0.1], s) for s in range(2)], [trace([0.1], s) for s in range(3)]
    panels = {("", "a"): {"x": two}, ("", "b"): {"x": three}}
    assert texts(curves(panels)) == ["x", "lowest to highest of 2 to 3 seeds"]
    assert texts(curves(panels, band="deviation"))[1] == "± 1 standard deviation of 2 to 3 seeds"
    assert texts(curves({("", ""): {"x": two[:1], "none": []}})) == ["x", "none"]


def test_panels_stand_in_their_rows_and_columns():
    panels = {
        (row, column): {"x": [trace([0.5, 0.6])]} for row in ("shift", "negation") for column in ("mean", "median")
    }
    del panels["negation", "mean"]
    figure = curves(panels, y=Axis("accuracy"))
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title("left") for axes in shown] == ["mean", "median", ""]
    assert shown[0].get_ylabel() == "shift\naccuracy"
    assert [axes.get_xlabel() for axes in shown] == ["", "", "round"]


def test_no_two_curves_differ_in_colour_alone():
    figure = curves({("", ""): {str(k): [trace([0.1, 0.2])] for k in range(7)}})
    looks = {(str(line.get_linestyle()), line._dash_pattern[1] and tuple(line._dash_pattern[1]), line.get_marker())
             for line in figure.axes[0].get_lines()}  # fmt: skip
    assert len(looks) == 7
    with pytest.raises(ValueError, match="tells 7 curves apart, got 8"):
        curves({("", ""): {str(k): [] for k in range(8)}})


def test_the_same_records_give_the_same_bytes(tmp_path):
    def drawn(name, last):
        panels = {("", "a"): {"x": [trace([0.1, last]), trace([0.2, 0.4], 1)], "y": [trace([0.3, 0.1])]}}
        return [path.read_bytes() for path in save(curves(panels), tmp_path / name)]

    first, again, other = drawn("one", 0.5), drawn("two", 0.5), drawn("three", 0.6)
    assert first == again
    assert first[0] != other[0]
    assert first[1] != other[1]
    assert b"<dc:date>" not in first[0]
    assert first[1].startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} >= {"one.svg", "one.png"}


def test_shares_are_shown_in_percent_and_rounds_as_whole_numbers():
    figure = curves({("", ""): {"x": [trace([0.1, 0.2, 0.3])]}})
    figure.canvas.draw()
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()][:2] == ["0 %", "20 %"]
    assert all(float(tick).is_integer() for tick in axes.get_xticks())
    (axes,) = curves({("", ""): {"x": [trace([0.1, 0.2])]}}, over="seconds").axes
    assert (axes.get_xlabel(), list(axes.get_lines()[0].get_xdata())) == ("virtual seconds", [0.0, 10.0])
