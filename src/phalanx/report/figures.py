"""The report's pictures: numbers in, inline SVG out.

Figures are drawn with matplotlib's object API in colours that are only names: each is replaced by a CSS variable of the
page, so that one SVG serves light, dark and print.  Text stays text, in the page's font.  All lengths are CSS pixels.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HALF, FULL = 480, 1060  # widths of figures that share a row with another, or have it to themselves
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASH = (0, (4.5, 2.2))

# Colours by the name of their CSS variable.  The hex codes are placeholders that occur in no output.
NAMES = ("ink", "muted", "line", "page", "honest", "byzantine", "good", "bad", *(f"s{i}" for i in range(len(MARKERS))))
COLOUR = {name: f"#fe01{index:02x}" for index, name in enumerate(NAMES)}

# Pixels cannot follow the page's theme.  These stand out from white and from near-black; Okabe and Ito (2008).
BLUE, VERMILLION, PURPLE, ORANGE, GREY = (0, 114, 178), (213, 94, 0), (204, 121, 167), (230, 159, 0), (128, 128, 128)
SHADES = 12  # distinguishable weights in a heat map
NOTHING, LOST, REFUSED, REJECTED, GONE = range(5)  # the worst that befell a cell, and "removed since"
_SIGN = {LOST: ORANGE, REFUSED: PURPLE, REJECTED: VERMILLION}


@dataclass(frozen=True)
class Style:
    """How a run is drawn, everywhere in the report.

    Args:
        colour: index of the CSS variable `--s0` ... and of the marker.
        dashed: under attack.
    """

    colour: int
    dashed: bool


@dataclass(frozen=True)
class Series:
    """One run's line: x in steps or seconds, y a share in 0 .. 1, NaN where there is no finite number."""

    style: Style
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Removals:
    """Clients removed in one step.

    Args:
        step: when.
        byzantine: how many of them are Byzantine.
        others: how many are honest, or not known to be anything else.
    """

    step: int
    byzantine: int
    others: int


@dataclass(frozen=True)
class Group:
    """Rows of a heat map that belong together.

    Args:
        name: what they have in common: "honest".
        clients: ids, in the order of drawing.
    """

    name: str
    clients: tuple[int, ...]


@dataclass(frozen=True)
class Mosaic:
    """Who contributed when.

    Args:
        edges: the first step of each bin, and the last step plus one.
        weight: (clients, bins), mean weight per step, NaN where no update was accepted.
        event: (clients, bins), NOTHING ... GONE.
        share: (clients), share of all weight of the run, 0 .. 1.
        groups: the clients, by rows; `weight`, `event` and `share` follow this order.
    """

    edges: Sequence[int]
    weight: NDArray[np.float64]
    event: NDArray[np.int8]
    share: NDArray[np.float64]
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Holdings:
    """Who holds what.

    Args:
        counts: (clients, classes), the number of examples.
        size: for each client, its true number of examples; None if not known.
        declared: for each client, the number it declares; None if not known.
        groups: the clients, by columns; `counts` follows this order.
    """

    counts: NDArray[np.int64]
    size: Mapping[int, float | None]
    declared: Mapping[int, float | None]
    groups: tuple[Group, ...]


def accuracy(
    series: Sequence[Series], xlabel: str, *, key: str, label: str, unit: float = 1.0, logarithmic: bool = False
) -> str:
    """Accuracy of several runs over steps, or over time.

    Args:
        series: one for each run.
        xlabel: the words below the axis.
        key: unique in the page, prefixes every id.
        label: what a screen reader says in place of the picture.
        unit: seconds of one unit of the axis.
        logarithmic: above 1.

    Returns:
        An `<svg>` element.
    """
    with _style(key):
        figure, axes = _canvas(HALF, 300)
        lowest = min((y for s in series for y in s.y if np.isfinite(y)), default=0.0)
        if logarithmic:
            axes.set_xscale("symlog", linthresh=1, linscale=0.4)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        for s in series:
            x = [x / unit for x in s.x]
            _line(axes, x, s.y, f"s{s.style.colour}", MARKERS[s.style.colour], dashed=s.style.dashed)
        _percent(axes, 0.5 if lowest > 0.55 else 0.0)
        axes.set_xlabel(xlabel)
        return _svg(figure, key, label)


def progress(lines: Mapping[str, Series], removals: Sequence[Removals], *, key: str, label: str, width: int) -> str:
    """One run's accuracy, worst client and attack success over steps, with a line where clients were removed.

    Args:
        lines: by name, at most three; each is labelled at its end.
        removals: in the order of steps.
        key: unique in the page.
        label: the picture in words.
        width: in pixels.
    """
    looks = (("s0", "o", False), ("s4", "^", True), ("s1", "s", True))
    with _style(key):
        figure, axes = _canvas(width, 280, right=118)
        for removal in removals:
            axes.axvline(removal.step, color=COLOUR["muted"], linewidth=1, linestyle=(0, (1, 2)), zorder=1)
        ends: list[tuple[float, str, str]] = []
        for (name, s), (colour, marker, dashed) in zip(lines.items(), looks, strict=False):
            _line(axes, s.x, s.y, colour, marker, dashed=dashed)
            finite = [y for y in s.y if np.isfinite(y)]
            if finite:
                ends.append((finite[-1], name, colour))
        _percent(axes, 0.0)
        axes.set_xlabel("step")
        for y, (_, name, colour) in zip(_spread([end[0] for end in sorted(ends)], 0.075), sorted(ends), strict=True):
            axes.text(
                1.02,
                y,
                name,
                color=COLOUR[colour],
                transform=axes.get_yaxis_transform(),
                va="center",
                fontweight="bold",
                parse_math=False,
            )
        return _svg(figure, key, label)


def alpha_cross(
    steps: Sequence[int],
    alpha: Sequence[float],
    threshold: Sequence[float],
    removals: Sequence[Removals],
    *,
    key: str,
    label: str,
    width: int = HALF,
) -> str:
    """The cross-cluster similarity over steps, its threshold, and whom it cost: Figure 2 of Sattler et al. (2020).

    Args:
        steps: one for each value.
        alpha: largest cosine similarity across the two clusters, -1 .. 1, NaN where there is none.
        threshold: below it the smaller cluster is removed; NaN where there is none.
        removals: in the order of steps.
        key: unique in the page.
        label: the picture in words.
        width: in pixels.
    """
    with _style(key):
        figure, axes = _canvas(width, 280, right=118 if np.isfinite(threshold).any() else 16)
        _line(axes, steps, alpha, "s0", "", dashed=False)
        _line(axes, steps, threshold, "muted", "", dashed=True)
        known = [t for t in threshold if np.isfinite(t)]
        if known:
            axes.text(
                1.02,
                known[-1],
                f"threshold {known[-1]:.3g}",
                color=COLOUR["muted"],
                transform=axes.get_yaxis_transform(),
                va="center",
            )
        at = {step: a if np.isfinite(a) else t for step, a, t in zip(steps, alpha, threshold, strict=True)}
        finite = [v for v in (*alpha, *threshold) if np.isfinite(v)] or [0.0]
        previous, stack = -np.inf, 0
        for removal in removals:
            y = at.get(removal.step, np.nan)
            y = y if np.isfinite(y) else min(finite)
            badges = [
                (n, name, shape)
                for n, name, shape in ((removal.byzantine, "good", "o"), (removal.others, "bad", "s"))
                if n
            ]
            pixel = removal.step * (width - 76) / max(steps[-1], 1)
            stack = stack + 1 if pixel - previous < 19 else 0
            previous = pixel
            for place, (count, name, shape) in enumerate(badges):
                stack += place
                offset = 18 * stack
                box = {
                    "boxstyle": "circle,pad=0.28" if shape == "o" else "square,pad=0.36",
                    "facecolor": COLOUR[name],
                    "edgecolor": COLOUR["page"],
                }
                axes.annotate(
                    f"{count}", (removal.step, y), (0, offset), textcoords="offset points", ha="center", va="center",
                    color=COLOUR["page"], fontsize=10, fontweight="bold", bbox=box, annotation_clip=False,
                )  # fmt: skip
        span = max(max(finite) - min(finite), 0.05)
        axes.set_ylim(min(finite) - 0.14 * span, max(finite) + 0.14 * span)
        axes.set_xlabel("step")
        return _svg(figure, key, label)


def contributions(mosaic: Mosaic, *, key: str, label: str) -> str:
    """Who contributed when: clients by steps, and each client's share of all weight beside it."""
    rows, gap, left, right = _rows(mosaic.groups), 1.0, 92, 140
    columns = mosaic.weight.shape[1]
    count = sum(len(g.clients) for g in mosaic.groups) + gap * (len(mosaic.groups) - 1)
    height = float(np.clip(600 / count, 3, 16))
    width = min((FULL - left - right - 50) / columns, 30.0)
    with _style(key):
        figure, axes = _canvas(FULL, round(count * height) + 62, left=left, bottom=40, top=22, grid=False)
        bars = figure.add_axes(axes.get_position().bounds, sharey=axes)
        _place(axes, left, columns * width)
        _place(bars, left + columns * width + 36, right)
        tops = []
        image = _heat(
            mosaic, 32 if columns * count < 1200 else 16 if columns * count < 4000 else 8, gaps=min(width, height) > 5
        )
        size = image.shape[0] // len(mosaic.weight)
        for group in mosaic.groups:
            first, top = rows[group.clients[0]]
            part = image[first * size : (first + len(group.clients)) * size]
            axes.imshow(
                part, extent=(0, columns, top + len(group.clients), top), aspect="auto", interpolation="none", zorder=2
            )
            tops.append((top, group))
        axes.set_xlim(0, columns)
        axes.set_ylim(count, 0)
        centres = {c: rows[c][1] + 0.5 for g in mosaic.groups for c in g.clients[:: _stride(11 / height)]}
        axes.set_yticks(list(centres.values()), [str(client) for client in centres])
        for top, group in tops:
            axes.text(-44 / (columns * width), top + len(group.clients) / 2, group.name,
                      transform=axes.get_yaxis_transform(), rotation=90, ha="center",
                      va="center", color=COLOUR[_tone(group)], fontweight="bold")  # fmt: skip
        _step_ticks(axes, mosaic.edges, columns * width)
        axes.set_xlabel("step")
        order = np.array([rows[client][1] + 0.5 for g in mosaic.groups for client in g.clients])
        colours = [COLOUR[_tone(g)] for g in mosaic.groups for _ in g.clients]
        bars.barh(order, mosaic.share, height=0.72, color=colours, linewidth=0)
        bars.set_xlim(0, max(float(mosaic.share.max(initial=0.0)), 1e-9) * 1.05)
        bars.tick_params(axis="y", labelleft=False)
        bars.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
        bars.locator_params(axis="x", nbins=3)
        bars.set_xlabel("share of all weight")
        for spine in (*axes.spines.values(), *bars.spines.values()):
            spine.set_visible(False)
        bars.spines["left"].set_visible(True)
        return _svg(figure, key, label)


def holdings(table: Holdings, *, key: str, label: str) -> str:
    """Who holds what: each client's examples as a bar, what it declares if that differs, and its classes below."""
    places, left, clients = _rows(table.groups), 92, len(table.counts)
    columns, classes = clients + len(table.groups) - 1, table.counts.shape[1]
    width = min((FULL - left - 16) / columns, 48.0)
    height = float(np.clip(260 / classes, 3, 15))
    below = round(height * classes)
    with _style(key):
        figure, bars = _canvas(FULL, 96 + below + 74, left=left, bottom=below + 66, top=12)
        total = figure.get_size_inches()[1] * 72
        cells = figure.add_axes((0, 58 / total, 1, below / total), sharex=bars)
        _place(bars, left, columns * width)
        _place(cells, left, columns * width)
        top = 1.3 * max((size for size in table.size.values() if size), default=1.0)
        level = _levels(table.counts.astype(float))
        for group in table.groups:
            first, start = places[group.clients[0]]
            n, tone = len(group.clients), _tone(group)
            x = [start + i + 0.5 for i in range(n)]
            bars.bar(x, [table.size[c] or 0.0 for c in group.clients], width=0.72, color=COLOUR[tone], linewidth=0)
            _declared(bars, table, group, x, top)
            colour = VERMILLION if tone == "byzantine" else BLUE
            size = 32 if clients * classes < 1500 else 8
            tiles = np.stack(
                [_tile(shade, NOTHING, size, min(width, height) > 5, colour) for shade in range(SHADES + 1)]
            )
            image = _assemble(tiles[level[first : first + n].T])
            cells.imshow(image, extent=(start, start + n, classes, 0), aspect="auto", interpolation="none", zorder=2)
            cells.text(start + n / 2, -46 / below, group.name, transform=cells.get_xaxis_transform(), ha="center",
                       va="center", color=COLOUR[tone], fontweight="bold")  # fmt: skip
        bars.set_xlim(0, columns)
        bars.set_ylim(0, top)
        bars.tick_params(axis="x", labelbottom=False, length=0)
        bars.set_ylabel("examples")
        bars.locator_params(axis="y", nbins=3)
        cells.set_ylim(classes, 0)
        labels = range(0, classes, _stride(11 / height))
        cells.set_yticks([label + 0.5 for label in labels], [str(label) for label in labels])
        cells.set_ylabel("class")
        every = _stride((7 * len(str(max(places))) + 8) / width)
        ids = {c: places[c][1] + 0.5 for g in table.groups for c in g.clients[::every]}
        cells.set_xticks(list(ids.values()), [str(client) for client in ids])
        for spine in cells.spines.values():
            spine.set_visible(False)
        return _svg(figure, key, label)


def _declared(axes: "Axes", table: Holdings, group: Group, x: Sequence[float], top: float) -> None:
    """Marks declared sizes that differ from the true ones: a tick in place, or an arrow and the factor on top."""
    for at, client in zip(x, group.clients, strict=True):
        declared, size = table.declared[client], table.size[client]
        if declared is None or declared == size:
            continue
        if declared <= top:
            axes.plot([at - 0.45, at + 0.45], [declared, declared], color=COLOUR["ink"], linewidth=2.2)
            continue
        wide = len(table.counts) <= 45
        axes.plot(at, 0.9 * top, "^", color=COLOUR["ink"], markersize=7 if wide else 3, markeredgewidth=0)
        if size and wide:
            axes.annotate(
                f"×{declared / size:.3g}", (at, 0.9 * top), (0, 5), textcoords="offset points", ha="center", fontsize=10
            )


def _style(key: str) -> AbstractContextManager[None]:
    """Matplotlib's settings for the figure `key`, for as long as it is drawn and saved."""
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


def _canvas(
    width: int, height: int, *, left: int = 58, right: int = 16, bottom: int = 44, top: int = 12, grid: bool = True
) -> tuple["Figure", "Axes"]:
    """A figure of width by height pixels, and axes with the given margins in pixels."""
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


def _place(axes: "Axes", left: float, width: float) -> None:
    """Moves axes to `left`, `width` pixels wide; their vertical place stays."""
    total = axes.get_figure(root=True).get_size_inches()[0] * 72  # type: ignore[union-attr]
    bounds = axes.get_position().bounds
    axes.set_position((left / total, bounds[1], width / total, bounds[3]))
    axes.patch.set_visible(False)


def _line(axes: "Axes", x: Sequence[float], y: Sequence[float], colour: str, marker: str, *, dashed: bool) -> None:
    axes.plot(
        x, y, color=COLOUR[colour], linestyle=DASH if dashed else "-", marker=marker or None,
        markevery=max(1, len(x) // 12), markerfacecolor=COLOUR["page"] if dashed else COLOUR[colour],
        markeredgewidth=1.5, clip_on=False, solid_capstyle="round", zorder=3,
    )  # fmt: skip


def _percent(axes: "Axes", low: float) -> None:
    axes.set_ylim(low, 1.0)
    axes.set_yticks(np.linspace(low, 1.0, 6))
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")


def _spread(values: Sequence[float], least: float) -> list[float]:
    """The increasing `values`, moved apart to differ by `least` or more, and as a whole kept below 1."""
    out: list[float] = []
    for value in values:
        out.append(max(value, out[-1] + least) if out else value)
    limit = 1.0
    for index in reversed(range(len(out))):
        out[index] = min(out[index], limit)
        limit = out[index] - least
    return out


def _tone(group: Group) -> str:
    return "byzantine" if group.name == "Byzantine" else "honest"


def _rows(groups: Sequence[Group]) -> dict[int, tuple[int, float]]:
    """For each client its row in the data, and its place in the drawing with one empty row between groups."""
    out: dict[int, tuple[int, float]] = {}
    for number, group in enumerate(groups):
        for client in group.clients:
            out[client] = (len(out), float(len(out) + number))
    return out


def _step_ticks(axes: "Axes", edges: Sequence[int], pixels: float) -> None:
    """Steps, not bins, below a heat map: round numbers where the bins that hold them begin."""
    first, last = edges[0], edges[-1] - 1
    wanted = max(2, int(pixels / 80))
    stride = _stride((last - first) / wanted)
    steps = sorted({first, *range(-(-first // stride) * stride, last + 1, stride)})
    steps = [s for s in steps if s == first or s - first >= stride / 2]
    places = [float(np.interp(s, edges, range(len(edges)))) for s in steps]
    half = 0.5 if edges[-1] - edges[0] == len(edges) - 1 else 0.0
    axes.set_xticks([p + half for p in places], [str(s) for s in steps])


def _tile(shade: int, event: int, size: int, gaps: bool, colour: tuple[int, int, int] = BLUE) -> NDArray[np.uint8]:
    """One cell of a heat map, (size, size, 4): shaded by weight; what went wrong has a colour and a sign of its own."""
    tile = np.zeros((size, size, 4), np.uint8)
    v, u = np.mgrid[:size, :size] / (size - 1) - 0.5
    if shade:
        tile[:] = (*colour, round(255 * (0.10 + 0.90 * shade / SHADES)))
    elif event == GONE:
        tile[:] = (*GREY, 40)
    if event in _SIGN:
        tile[v > (0 if shade else -1)] = (*_SIGN[event], 255)
    if event in _SIGN and not shade:
        cross = (np.abs(np.abs(u) - np.abs(v)) < 0.09) & (np.abs(u) < 0.3)
        ring = np.abs(np.hypot(u, v) - 0.22) < 0.07
        bar = (np.abs(v) < 0.07) & (np.abs(u) < 0.3)
        tile[{REJECTED: cross, REFUSED: ring, LOST: bar}[event]] = (255, 255, 255, 255)
    if gaps:
        tile[-max(1, size // 12) :] = 0
        tile[:, -max(1, size // 12) :] = 0
    return tile


def _heat(mosaic: Mosaic, size: int, *, gaps: bool) -> NDArray[np.uint8]:
    """The pixels of a heat map, `size` by `size` for each cell."""
    level = np.maximum(_levels(mosaic.weight), np.isfinite(mosaic.weight))  # accepted with weight 0 can still be seen
    tiles = np.stack([_tile(shade, event, size, gaps) for event in range(GONE + 1) for shade in range(SHADES + 1)])
    return _assemble(tiles[mosaic.event.astype(np.int64) * (SHADES + 1) + level])


def _stride(least: float) -> int:
    """The smallest of 1, 2, 5, 10, ... that is not below `least`."""
    return next(
        n * ten for ten in (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000) for n in (1, 2, 5) if n * ten >= least
    )


def _levels(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Each value as one of SHADES steps up to the largest but outliers, 0 only for what is 0, or NaN."""
    positive = values[np.nan_to_num(values) > 0]
    full = float(np.percentile(positive, 99)) if positive.size else 1.0
    steps = np.clip(np.rint(SHADES * np.nan_to_num(values) / full), 1, SHADES)
    return np.where(np.nan_to_num(values) > 0, steps, 0).astype(np.int64)


def _assemble(tiles: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(rows, columns, size, size, 4) to (rows * size, columns * size, 4)."""
    rows, columns, size = tiles.shape[:3]
    return tiles.transpose(0, 2, 1, 3, 4).reshape(rows * size, columns * size, 4)


_PLACEHOLDER = re.compile(r"\b(fill|stroke): #fe01([0-9a-f]{2})\b")


def _svg(figure: "Figure", key: str, label: str) -> str:
    """The figure as an element for an HTML page: ids under `key`, colours as CSS variables, no metadata, no <style>."""
    out = StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.S)
    text = re.sub(r"<style.*?</style>\s*", "", text, count=1, flags=re.S)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf"\g<1>{key}-", text)
    text = _PLACEHOLDER.sub(lambda m: f"{m[1]}: var(--{NAMES[int(m[2], 16)]})", text)
    text = re.sub(r"font-family: [^;\"]*", "font-family: var(--sans)", text)
    text = re.sub(
        r"font: (?:(bold|\d+) )?([\d.]+px) [^;\"]*", lambda m: f"font: {m[1] or 'normal'} {m[2]} var(--sans)", text
    )
    text = re.sub(r' style="image-rendering:[^"]*"', "", text)
    text = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", text)
    text = re.sub(r"<defs>\s*</defs>\s*", "", text)
    text = re.sub(r"\n\s*", "\n", text)
    width, height = (round(72 * inches) for inches in figure.get_size_inches())
    head = f'<svg class="w{width}" role="img" aria-label="{escape(label)}" viewBox="0 0 {width} {height}" xmlns:xlink="http://www.w3.org/1999/xlink">'
    return head + text[text.index(">") + 1 :].rstrip()
