"""The age of updates at arrival: a histogram, with attackers separate."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from phalanx.report.client_ledger import BYZANTINE, ClientLedger
from phalanx.report.figures.drawing import COLOUR, HALF, Picture, canvas, styled, svg
from phalanx.report.figures.heatmap import stride
from phalanx.report.flights import Flight
from phalanx.wording import plural

BINS = 30  # largest number


class Histogram(NamedTuple):
    """The picture's data.

    Args:
        size: ages in one bin.
        shares: for each group by its name, the share of its updates in each bin, from age 0 on.
        spoken: for each group, the number of its updates and their ages in words.
    """

    size: int
    shares: Mapping[str, Sequence[float]]
    spoken: Sequence[str]


def picture(ledger: ClientLedger, flights: Sequence[Flight], key: str) -> Picture | None:
    """Return the picture; None if no ages are known."""
    data = histogram(ledger, flights)
    if not data.shares:
        return None
    spoken = "; ".join(data.spoken)
    binned = f" One bar stands for {data.size} ages." if data.size > 1 else ""
    return Picture(
        _draw(data, key=key, label=f"Histogram of the ages of updates. {spoken}."),
        "Ages of the updates",
        "By how many versions the server had gone on between sending a client its model and the client's answer, as a"
        f" share of the updates of the group. {spoken}.{binned}",
    )


def histogram(ledger: ClientLedger, flights: Sequence[Flight]) -> Histogram:
    """Return the shares by age, for each group with updates."""
    truth = {client: group.name for group in ledger.groups for client in group.clients}
    ages: dict[str, list[int]] = {group.name: [] for group in ledger.groups}
    for flight in flights:
        if flight.age is not None:
            ages[truth[flight.client]].append(flight.age)
    ages = {name: of for name, of in ages.items() if of}
    oldest = max((max(of) for of in ages.values()), default=0)
    size = stride((oldest + 1) / BINS)
    bins = oldest // size + 1
    shares = {name: (np.bincount(np.array(of) // size, minlength=bins) / len(of)).tolist() for name, of in ages.items()}
    spoken = [
        f"{name[0].upper()}{name[1:]}: {plural(len(of), 'update')}, median age {np.median(of):g}, largest {max(of)}"
        for name, of in ages.items()
    ]
    return Histogram(size, shares, spoken)


def _draw(data: Histogram, *, key: str, label: str) -> str:
    with styled(key):
        figure, axes = canvas(HALF, 280, top=34)
        width = 0.84 / len(data.shares)
        for place, (name, shares) in enumerate(data.shares.items()):
            x = (np.arange(len(shares)) + 0.08 + (place + 0.5) * width) * data.size
            colour = COLOUR["byzantine" if name == BYZANTINE else "honest"]
            axes.bar(x, shares, width=width * data.size, color=colour, linewidth=0)
            axes.text(1 - 0.24 * (len(data.shares) - 1 - place), 1.06, name, transform=axes.transAxes, ha="right",
                      color=colour, fontweight="bold")  # fmt: skip
        bins = len(next(iter(data.shares.values())))
        axes.set_xlim(0, bins * data.size)
        every = stride(max(bins / 12, 1)) * data.size
        ticks = range(0, bins * data.size, every)
        middle = 0.5 if data.size == 1 else 0.0  # a bin of several ages begins at its first age
        axes.set_xticks([tick + middle for tick in ticks], [str(tick) for tick in ticks])
        axes.locator_params(axis="y", nbins=5)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
        axes.set_xlabel("age in versions")
        return svg(figure, key, label)
