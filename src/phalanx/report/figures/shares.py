"""Each client's share of all updates that arrived, and its accepted part."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from phalanx.report.client_ledger import ClientLedger
from phalanx.report.figures.drawing import COLOUR, HALF, Picture, canvas, styled, svg
from phalanx.report.figures.heatmap import places, stride, tone
from phalanx.report.flights import ACCEPTED, Flight
from phalanx.report.words import percent

LEFT, RIGHT, BOTTOM = 58, 16, 66  # pixels


class SharesData(NamedTuple):
    """The picture's data, by client.

    Args:
        came: share of all updates that arrived.
        accepted: share of all updates that arrived, accepted ones only.
    """

    came: Mapping[int, float]
    accepted: Mapping[int, float]


def picture(ledger: ClientLedger, flights: Sequence[Flight], key: str) -> Picture | None:
    """Return the picture; None if no arrival is known."""
    data = shares(ledger, flights)
    if not data.came:
        return None
    groups = ", ".join(f"{group.name} {percent(sum(data.came[c] for c in group.clients))}" for group in ledger.groups)
    return Picture(
        _draw(ledger, data, key=key, label=f"Share of all updates that came, by client. Together: {groups}."),
        "Shares of the updates",
        "Each client's share of all updates that came: fast clients come often. Full colour: accepted; pale: filtered"
        f" or still undecided. Dashed: equal shares. Together: {groups}.",
    )


def shares(ledger: ClientLedger, flights: Sequence[Flight]) -> SharesData:
    """Return the shares of every client; empty if nothing arrived."""
    come = [flight for flight in flights if flight.age is not None]
    came, used = Counter(f.client for f in come), Counter(f.client for f in come if f.fate == ACCEPTED)
    if not come:
        return SharesData({}, {})
    return SharesData(
        {c: came[c] / len(come) for c in ledger.clients}, {c: used[c] / len(come) for c in ledger.clients}
    )


def _draw(ledger: ClientLedger, data: SharesData, *, key: str, label: str) -> str:
    at = places(ledger.groups)
    columns = len(at) + len(ledger.groups) - 1
    width = (HALF - LEFT - RIGHT) / columns
    with styled(key):
        figure, axes = canvas(HALF, 280, left=LEFT, right=RIGHT, bottom=BOTTOM)
        for group in ledger.groups:
            x = [at[c][1] + 0.5 for c in group.clients]
            colour = COLOUR[tone(group)]
            axes.bar(x, [data.came[c] for c in group.clients], width=0.76, color=colour, alpha=0.35, linewidth=0)
            axes.bar(x, [data.accepted[c] for c in group.clients], width=0.76, color=colour, linewidth=0)
            room = len(x) * width > 8 * len(group.name)
            middle = sum(x) / len(x) if room else x[-1] + 0.5
            axes.text(middle, -46 / (280 - BOTTOM - 12), group.name, transform=axes.get_xaxis_transform(),
                      ha="center" if room else "right", va="center", color=colour, fontweight="bold")  # fmt: skip
        axes.axhline(1 / len(at), color=COLOUR["muted"], linewidth=1.2, linestyle=(0, (4.5, 2.2)))
        axes.set_xlim(0, columns)
        every = stride((7 * len(str(max(at))) + 8) / width)
        named = [client for group in ledger.groups for client in group.clients[::every]]
        axes.set_xticks([at[client][1] + 0.5 for client in named], [str(client) for client in named])
        axes.tick_params(axis="x", length=0)
        axes.locator_params(axis="y", nbins=5)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
        return svg(figure, key, label)
