"""Figure 1: the largest truncation bound for each share of attackers, for the MNIST partition."""

from collections.abc import Mapping, Sequence

from papers.client_weighting.populations import described_sizes, program_sizes
from phalanx.experiments.papers.comparison import Table
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run
from phalanx.weighting import TradeOff, concentration, plot_truncation_curve, truncation_bound, truncation_curve

TITLE = "The truncation bound U* over alpha, for the MNIST partition and alpha* = 50 %"
CLAIM = "Alpha and U* are a trade-off: to tolerate more attackers, truncate more."
MINUTES = {"quick": 0.0, "paper": 0.0}
ALPHAS = (0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.45)


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return no runs: nothing is trained."""
    return {}


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return the curve of the program's partition with the experiments' alpha, and a table for both partitions."""
    program, described = program_sizes(), described_sizes(context.seeds[0])
    body = []
    for alpha in ALPHAS:
        row = [f"{100 * alpha:g} %"]
        for sizes in (program, described):
            U = truncation_bound(sizes, alpha, 0.5)
            kept = {client: min(size, U) for client, size in sizes.items()}
            count = sum(size > U for size in sizes.values())
            row += [f"{U:,}", f"{count} of {len(sizes)}", f"{concentration(kept).effective:.1f}"]
        body.append(row)
    shown = ("U*", "truncated", "effective clients")
    columns = ["alpha", *(f"{which}: {what}" for which in ("program", "described") for what in shown)]
    table = Table("U* at alpha* = 50 %", columns, body)
    chosen = TradeOff(0.1, truncation_bound(program, 0.1, 0.5))
    figure = plot_truncation_curve(truncation_curve(program, 0.5), program, chosen)
    return Rendering((table,), (Plot(figure, caption="U* over alpha, for the partition of the paper's program."),))
