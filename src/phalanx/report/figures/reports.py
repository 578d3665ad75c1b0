"""The reports of clients on the models that they were sent, over the steps of a run."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from phalanx.report.client_ledger import BYZANTINE, ClientLedger
from phalanx.report.figures.drawing import COLOUR, FULL, Picture, canvas, end_label, percents, spread, styled, svg
from phalanx.report.words import percent
from phalanx.runs.reports import Metric, metric_of

RIGHT = 128  # pixels for names
DRAWN = 1e30  # largest value that is drawn: an attacker can report any loss, and axes overflow


class Band(NamedTuple):
    """The last reports of a group of clients at each step.

    Args:
        x: steps.
        lower: quartile of the clients that have reported by then.
        median: of them.
        upper: quartile of them.
    """

    x: list[float]
    lower: list[float]
    median: list[float]
    upper: list[float]


def picture(ledger: ClientLedger, key: str) -> Picture | None:
    """Return the picture; None if clients reported nothing."""
    metric = metric_of(each.last for each in ledger.reported.values())
    bands = {group.name: band for group in ledger.groups if (band := _band(ledger, group.clients, metric)) is not None}
    if not bands:
        return None
    ends = "; ".join(
        f"{name}: median {_text(b.median[-1], metric)}, middle half {_text(b.lower[-1], metric)} to "
        f"{_text(b.upper[-1], metric)}"
        for name, b in bands.items()
    )
    return Picture(
        _draw(bands, metric, key, f"Reported {metric} over steps. At the end, {ends}."),
        f"Reported {metric}",
        "Each client measures the model that it uses at a download, before it trains, on examples that it does not "
        "train on. Line: median over the last reports of the clients; band: the middle half of them. At the end, "
        f"{ends}.",
        full=True,
    )


def _band(ledger: ClientLedger, clients: tuple[int, ...], metric: Metric) -> Band | None:
    at = dict[int, dict[int, float]]()  # by step and client
    for client in clients:
        if client in ledger.reported:
            for step, report in ledger.reported[client].reports.items():
                if (value := getattr(report, metric)) is not None:
                    at.setdefault(step, {})[client] = min(max(value, -DRAWN), DRAWN)
    last, rows = dict[int, float](), list[tuple[float, float, float, float]]()
    for step in sorted(at):
        last |= at[step]
        lower, median, upper = np.quantile(list(last.values()), (0.25, 0.5, 0.75)).tolist()
        rows.append((float(step), lower, median, upper))
    return Band(*map(list, zip(*rows, strict=True))) if rows else None


def _text(value: float, metric: Metric) -> str:
    return percent(value) if metric == "accuracy" else f"{value:.3g}"


def _draw(bands: Mapping[str, Band], metric: Metric, key: str, label: str) -> str:
    with styled(key):
        figure, axes = canvas(FULL, 280, right=RIGHT)
        for name, band in bands.items():
            colour = COLOUR["byzantine" if name == BYZANTINE else "honest"]
            axes.fill_between(band.x, band.lower, band.upper, color=colour, alpha=0.16, linewidth=0, zorder=2)
            axes.plot(band.x, band.median, color=colour, marker="." if len(band.x) == 1 else None, zorder=3)
        if metric == "accuracy":
            percents(axes, 0.0)
        else:
            axes.set_ylim(bottom=min(0.0, *(min(band.lower) for band in bands.values())))
        axes.set_xlim(min(band.x[0] for band in bands.values()) - 0.5, max(band.x[-1] for band in bands.values()))
        low, high = axes.get_ylim()
        ends = sorted(((band.median[-1] - low) / (high - low), name) for name, band in bands.items())
        for y, (_, name) in zip(spread([end for end, _ in ends], 0.08), ends, strict=True):
            colour = "byzantine" if name == BYZANTINE else "honest"
            end_label(axes, low + y * (high - low), name, colour, weight="bold")
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel("step")
        axes.set_ylabel(f"reported {metric}")
        return svg(figure, key, label)
