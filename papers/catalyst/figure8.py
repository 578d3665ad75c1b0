"""Figure 8: MNIST under gradient inversion, over the share of Byzantine clients."""

from collections.abc import Mapping, Sequence

from papers.catalyst import shares
from phalanx.reproduce.experiment import Context, Scale
from phalanx.reproduce.results import Rendering
from phalanx.reproduce.trace import Trace
from phalanx.runs.plan import Run

TITLE = "MNIST under gradient inversion by 0 to 45 % of 60 clients"
CLAIM = "Catalyst stays level; Kardam soon degrades and varies; BASGD is behind without an attack and towards 45 %."
MINUTES = {"quick": 4.0, "paper": 350.0}
CLIENTS = 60
BYZANTINE: Mapping[Scale, Sequence[int]] = {"quick": (0, 6, 18, 27), "paper": tuple(range(0, 28, 3))}


def populations(scale: Scale) -> list[tuple[int, int]]:
    """Clients, and the Byzantine ones among them."""
    return [(CLIENTS, f) for f in BYZANTINE[scale]]


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Three methods in two forms for each number of Byzantine clients."""
    return shares.cells(scale, seed, populations(scale))


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Largest and last accuracies."""
    of = populations(context.scale)
    label = f"Byzantine clients of {CLIENTS}, %"
    return shares.rendered(records, context, of, (label, [100 * f / CLIENTS for _, f in of]))
