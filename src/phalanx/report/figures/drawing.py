"""The common parts of all pictures: a canvas in the page's style, and its inline SVG.

Figures are drawn with matplotlib's object API in colours that are only names: each is replaced by a CSS variable of the
page, so that one SVG serves light, dark and print.  Text stays text, in the page's font.  All lengths are CSS pixels.
"""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HALF, FULL = 480, 1060  # widths of figures with half a row or a whole one
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASH = (0, (4.5, 2.2))

# Colours by the name of their CSS variable.  The hex codes are placeholders that occur in no output.
NAMES = ("ink", "muted", "line", "page", "honest", "byzantine", "good", "bad", *(f"s{i}" for i in range(len(MARKERS))))
COLOUR = {name: f"#fe01{index:02x}" for index, name in enumerate(NAMES)}
PLACEHOLDER = re.compile(r"\b(fill|stroke): #fe01([0-9a-f]{2})\b")


@dataclass(frozen=True)
class Style:
    """The style of a run's curves, everywhere in the report.

    Args:
        colour: index of the CSS variable `--s0` ... and of the marker.
        dashed: under attack.
    """

    colour: int
    dashed: bool


@dataclass(frozen=True)
class Picture:
    """A figure of the page.

    Args:
        svg: trusted markup.
        title: in few words.
        caption: explains the picture and its result.
        keys: its legend, "" or the name of one that the template knows.
        full: whether it has a whole row.
    """

    svg: str
    title: str
    caption: str
    keys: str = ""
    full: bool = False


def styled(key: str) -> AbstractContextManager[None]:
    """Set matplotlib's parameters for the figure `key`, while it is drawn and saved."""
    import matplotlib  # noqa: PLC0415

    settings: dict[Any, Any] = {
        "svg.fonttype": "none", "svg.hashsalt": key, "svg.image_inline": True, "path.simplify": True,
        "font.size": 12, "axes.labelsize": 12, "xtick.labelsize": 11.5, "ytick.labelsize": 11.5,
        "font.family": ["DejaVu Sans"], "text.usetex": False,
        "text.color": COLOUR["ink"], "axes.labelcolor": COLOUR["muted"], "axes.edgecolor": COLOUR["muted"],
        "xtick.color": COLOUR["muted"], "ytick.color": COLOUR["muted"], "axes.linewidth": 0.8,
        "xtick.major.width": 0.8, "xtick.major.size": 3.5, "ytick.major.size": 0,
        "axes.grid": False, "grid.color": COLOUR["line"], "grid.linewidth": 0.8, "grid.linestyle": "-",
        "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
        "lines.linewidth": 2.0, "lines.markersize": 4.5, "axes.formatter.use_mathtext": False,
    }  # fmt: skip
    return matplotlib.rc_context(settings)


def canvas(
    width: int, height: int, *, left: int = 58, right: int = 16, bottom: int = 44, top: int = 12, grid: bool = True
) -> tuple["Figure", "Axes"]:
    """Return a figure of width by height pixels, and axes with the given margins in pixels."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    figure.patch.set_visible(False)
    axes = figure.add_axes(
        (left / width, bottom / height, (width - left - right) / width, (height - bottom - top) / height)
    )
    axes.patch.set_visible(False)
    if grid:
        axes.grid(visible=True, axis="y")
        axes.spines["left"].set_visible(False)
    return figure, axes


def place(axes: "Axes", left: float, width: float) -> None:
    """Move axes to `left`, `width` pixels wide; their vertical place does not change."""
    total = axes.get_figure(root=True).get_size_inches()[0] * 72  # type: ignore[union-attr]
    bounds = axes.get_position().bounds
    axes.set_position((left / total, bounds[1], width / total, bounds[3]))
    axes.patch.set_visible(False)


def line(axes: "Axes", x: Sequence[float], y: Sequence[float], colour: str, marker: str, *, dashed: bool) -> None:
    """Draw a curve, with some markers if `marker` is not empty."""
    axes.plot(
        x, y, color=COLOUR[colour], linestyle=DASH if dashed else "-", marker=marker or None,
        markevery=max(1, len(x) // 12), markerfacecolor=COLOUR["page"] if dashed else COLOUR[colour],
        markeredgewidth=1.5, clip_on=False, solid_capstyle="round", zorder=3,
    )  # fmt: skip


def end_label(axes: "Axes", y: float, text: str, colour: str, *, weight: str = "normal") -> None:
    """Write text to the right of the axes, at the height of the value y."""
    axes.text(
        1.02, y, text, color=COLOUR[colour], transform=axes.get_yaxis_transform(), va="center", fontweight=weight,
        parse_math=False,
    )  # fmt: skip


def spread(values: Sequence[float], least: float) -> list[float]:
    """Return the increasing `values`, moved apart to differ by `least` or more, and as a whole kept below 1."""
    out: list[float] = []
    for value in values:
        out.append(max(value, out[-1] + least) if out else value)
    limit = 1.0
    for index in reversed(range(len(out))):
        out[index] = min(out[index], limit)
        limit = out[index] - least
    return out


def percents(axes: "Axes", low: float) -> None:
    """Make the vertical axis one of shares, from `low` to 1."""
    axes.set_ylim(low, 1.0)
    axes.set_yticks(np.linspace(low, 1.0, 6))
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")


def svg(figure: "Figure", key: str, label: str) -> str:
    """Return the figure as an HTML element: ids under `key`, colours as CSS variables, no metadata, no <style>.

    Args:
        figure: drawn, in the style of `key`.
        key: unique in the page.
        label: text for screen readers in place of the picture.
    """
    out = StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.S)
    text = re.sub(r"<style.*?</style>\s*", "", text, count=1, flags=re.S)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf"\g<1>{key}-", text)
    text = PLACEHOLDER.sub(lambda m: f"{m[1]}: var(--{NAMES[int(m[2], 16)]})", text)
    text = re.sub(r"font-family: [^;\"]*", "font-family: var(--sans)", text)
    text = re.sub(
        r"font: (?:(bold|\d+) )?([\d.]+px) [^;\"]*", lambda m: f"font: {m[1] or 'normal'} {m[2]} var(--sans)", text
    )
    text = re.sub(r' style="image-rendering:[^"]*"', "", text)
    text = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", text)
    text = re.sub(r"<defs>\s*</defs>\s*", "", text)
    text = re.sub(r"\n\s*", "\n", text)
    width, height = (round(72 * inches) for inches in figure.get_size_inches())
    head = (
        f'<svg class="w{width}" role="img" aria-label="{escape(label)}" viewBox="0 0 {width} {height}"'
        ' xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return head + text[text.index(">") + 1 :].rstrip()
