"""The common parts of heat maps: shades and signs of cells, the rows of the clients, round numbers for their axes.

Pixels cannot follow the page's theme.  Their colours stand out from white and from near-black; Okabe and Ito (2008).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from phalanx.report.client_ledger import BYZANTINE, Group

BLUE, VERMILLION, PURPLE, ORANGE, GREY = (0, 114, 178), (213, 94, 0), (204, 121, 167), (230, 159, 0), (128, 128, 128)
SHADES = 12  # distinguishable weights
NOTHING, LOST, INVALID, FILTERED, GONE = range(5)  # the worst event in a cell, and "excluded since"
SIGN = {LOST: ORANGE, INVALID: PURPLE, FILTERED: VERMILLION}


def tile(shade: int, event: int, size: int, gaps: bool, colour: tuple[int, int, int] = BLUE) -> NDArray[np.uint8]:
    """Return one cell of a heat map, (size, size, 4): shaded by weight; failures have their own colour and sign."""
    out = np.zeros((size, size, 4), np.uint8)
    v, u = np.mgrid[:size, :size] / (size - 1) - 0.5
    if shade:
        out[:] = (*colour, round(255 * (0.10 + 0.90 * shade / SHADES)))
    elif event == GONE:
        out[:] = (*GREY, 40)
    if event in SIGN:
        out[v > (0 if shade else -1)] = (*SIGN[event], 255)
    if event in SIGN and not shade:
        cross = (np.abs(np.abs(u) - np.abs(v)) < 0.09) & (np.abs(u) < 0.3)
        ring = np.abs(np.hypot(u, v) - 0.22) < 0.07
        bar = (np.abs(v) < 0.07) & (np.abs(u) < 0.3)
        out[{FILTERED: cross, INVALID: ring, LOST: bar}[event]] = (255, 255, 255, 255)
    if gaps:
        out[-max(1, size // 12) :] = 0
        out[:, -max(1, size // 12) :] = 0
    return out


def levels(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return each value as one of SHADES steps up to the largest except for outliers; 0 only for 0 and NaN."""
    known = np.where(np.isnan(values), 0.0, values)
    positive = known[known > 0]
    full = float(np.percentile(positive, 99)) if positive.size else 1.0
    steps = np.clip(np.rint(SHADES * known / full), 1, SHADES)
    return np.where(known > 0, steps, 0).astype(np.int64)


def assemble(tiles: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return cells (rows, columns, size, size, 4) as one image (rows * size, columns * size, 4)."""
    rows, columns, size = tiles.shape[:3]
    return tiles.transpose(0, 2, 1, 3, 4).reshape(rows * size, columns * size, 4)


def places(groups: Sequence[Group]) -> dict[int, tuple[int, int]]:
    """Return for each client its row in the data, and its place in the drawing with one empty row between groups."""
    out: dict[int, tuple[int, int]] = {}
    for number, group in enumerate(groups):
        for client in group.clients:
            out[client] = (len(out), len(out) + number)
    return out


def tone(group: Group) -> str:
    """Return the name of the group's colour."""
    return "byzantine" if group.name == BYZANTINE else "honest"


def stride(least: float) -> int:
    """Return the smallest of 1, 2, 5, 10, ... that is not below `least`."""
    return next(
        n * ten for ten in (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000) for n in (1, 2, 5) if n * ten >= least
    )
