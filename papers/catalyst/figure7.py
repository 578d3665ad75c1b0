"""Figure 7: MNIST under gradient inversion, over the number of clients."""

from collections.abc import Mapping, Sequence

from papers.catalyst import shares
from phalanx.reproduce.experiment import Context, Scale
from phalanx.reproduce.results import Rendering
from phalanx.reproduce.trace import Trace
from phalanx.runs.plan import Run

TITLE = "MNIST under gradient inversion by 30 % of 10 to 100 clients"
CLAIM = "BASGD is above 85 %, Catalyst some points above it, most with 10 and 100 clients; Kardam is poor and varies."
MINUTES = {"quick": 3.0, "paper": 300.0}
CLIENTS: Mapping[Scale, Sequence[int]] = {"quick": (10, 40, 100), "paper": tuple(range(10, 101, 10))}


def populations(scale: Scale) -> list[tuple[int, int]]:
    """Clients, and the Byzantine ones among them."""
    return [(n, round(0.3 * n)) for n in CLIENTS[scale]]


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Three methods in two forms for each number of clients."""
    return shares.cells(scale, seed, populations(scale))


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Largest and last accuracies."""
    of = populations(context.scale)
    return shares.rendered(records, context, of, ("clients, 30 % of them Byzantine", [n for n, _ in of]))
