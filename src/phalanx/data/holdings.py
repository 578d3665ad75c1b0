"""The labels that each client holds: a table of clients by classes, and its picture."""

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from phalanx.data.dataset import labels_in

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

RED, BLUE, GREY = "#c0392b", "#2f6da8", "#e8e8e8"


def holdings(labels: Tensor, parts: Sequence[Tensor], classes: int) -> Tensor:
    """Return the number of labels of each class that each client holds.

    Args:
        labels: (n,), int64 in 0 .. classes - 1; or (n, t), where -100 is no label and is not counted.
        parts: indices of each client into `labels`, from `Partition.split`.
        classes: number of classes; 0 for examples with targets.

    Returns:
        The counts, int64 of shape (clients, classes).

    Raises:
        ValueError: if a label is outside 0 .. classes - 1.
    """
    if not classes:
        return torch.zeros((len(parts), 0), dtype=torch.int64)
    given = labels_in(labels)
    if len(given) and not 0 <= int(given.min()) <= int(given.max()) < classes:
        raise ValueError(f"Labels must be in 0..{classes - 1}, got {int(given.min())}..{int(given.max())}.")
    counts = [torch.bincount(labels_in(labels[part]), minlength=classes) for part in parts]
    return torch.stack(counts) if counts else torch.zeros((0, classes), dtype=torch.int64)


def plot_holdings(
    counts: Tensor, byzantine: Set[int] = frozenset(), sizes: Sequence[int] | None = None
) -> "matplotlib.figure.Figure":
    """Return a picture of the partition: the classes of each client as a heat map, and its size as a bar.

    Args:
        counts: (clients, classes), from `holdings`.
        byzantine: clients to mark in red.
        sizes: number of examples of each client; by default the sum of its counts, which is right if each example
            has one label.

    Raises:
        ValueError: if `counts` is not such a matrix, or the other arguments do not match it.
    """
    from phalanx.notebook import NotebookFigure  # noqa: PLC0415  (slow to import)

    if counts.ndim != 2 or 0 in counts.shape:
        raise ValueError(f"counts must be (clients, classes), at least one of each, got shape {tuple(counts.shape)}.")
    table = counts.cpu().numpy()
    clients, classes = table.shape
    if strangers := sorted(set(byzantine) - set(range(clients))):
        raise ValueError(f"byzantine must name clients in 0..{clients - 1}, got {strangers}.")
    if sizes is not None and len(sizes) != clients:
        raise ValueError(f"sizes must be one for each of {clients} clients, got {len(sizes)}.")
    width, height = min(max(0.42 * classes, 3.2), 7.0), min(max(0.3 * clients, 0.6), 7.5)  # inches, of the heat map
    figure = NotebookFigure(figsize=(width + 3.4, height + 1.4), layout="constrained")
    (scale, corner), (mix, size) = figure.subplots(2, 2, width_ratios=[width, 2.4], height_ratios=[0.12, height])
    size.sharey(mix)
    corner.set_axis_off()
    _draw_mix(mix, scale, table)
    _draw_sizes(size, table.sum(1) if sizes is None else np.array(sizes), byzantine)
    ticks = np.arange(0, clients, _step(clients, 25))
    mix.set_yticks(ticks, [str(t) for t in ticks])
    mix.set_ylabel("client")
    if byzantine:
        marks = {"color": RED, "marker": "<", "linestyle": "", "markersize": 5, "label": "Byzantine"}
        mix.plot(
            [1.012] * len(byzantine), sorted(byzantine), transform=mix.get_yaxis_transform(), clip_on=False, **marks
        )
        corner.legend(handles=mix.lines[-1:], loc="center right", frameon=False, handletextpad=0.1, fontsize="small")
        for label in (label for tick, label in zip(ticks, mix.get_yticklabels(), strict=True) if tick in byzantine):
            label.set(color=RED, fontweight="bold")
    return figure


def _step(n: int, most: int) -> int:
    """Return the smallest round distance between ticks with which n rows have at most `most` ticks."""
    steps: list[int] = [digit * 10**zeros for zeros in range(18) for digit in (1, 2, 5)]
    return next(step for step in steps if n <= most * step)


def _draw_mix(axes: "matplotlib.axes.Axes", scale: "matplotlib.axes.Axes", table: Any) -> None:
    clients, classes = table.shape
    total = table.sum(1, keepdims=True)
    share = np.ma.masked_array(100 * table / np.maximum(total, 1), np.broadcast_to(total == 0, table.shape))
    top = next(t for t in (5, 10, 20, 50, 100) if t >= min(max(share.max(), 300 / classes), 100) or t == 100)
    axes.set_facecolor(GREY)  # clients without examples
    image = axes.imshow(share, cmap="Blues", vmin=0, vmax=top, aspect="auto", interpolation="nearest")
    ticks = np.arange(0, classes, _step(classes, 15))
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.set_xlabel("class")
    axes.tick_params(length=0)
    if clients <= 25 and classes <= 12:
        for (i, c), count in np.ndenumerate(table):
            ink = "white" if share[i, c] > 0.55 * top else "#333333"
            axes.text(c, i, f"{count:,}" if count else "", ha="center", va="center", fontsize=7, color=ink)
        for i in range(1, clients):
            axes.axhline(i - 0.5, color="white", linewidth=1)
    bar = axes.figure.colorbar(image, cax=scale, orientation="horizontal", ticks=np.linspace(0, top, 6))
    bar.set_label("share of the client's labels, %", fontsize="small")
    scale.xaxis.set_label_position("top")
    scale.tick_params(labelsize="small", length=0)
    for spine in (*axes.spines.values(), *scale.spines.values()):
        spine.set_visible(False)


def _draw_sizes(axes: "matplotlib.axes.Axes", sizes: Any, byzantine: Set[int]) -> None:
    colors = [RED if client in byzantine else BLUE for client in range(len(sizes))]
    axes.barh(np.arange(len(sizes)), sizes, height=0.72 if len(sizes) <= 50 else 1.0, color=colors)
    axes.set_xlabel("examples")
    held = sizes[sizes > 0]
    if len(held) and held.max() > 100 * held.min():
        axes.set_xscale("log")
        axes.set_xlim(left=0.6 * held.min())
    else:
        axes.set_xlim(0, 1.05 * max(sizes.max(), 1))
        axes.locator_params(axis="x", nbins=4, integer=True)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(axis="y", length=0, labelleft=False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
