"""Figure 2: the distribution of clients' numbers of examples."""

from collections.abc import Mapping, Sequence

import numpy as np

from papers.client_weighting import shakespeare
from papers.client_weighting.populations import described_sizes, program_sizes
from phalanx.experiments.papers.comparison import Table
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.trace import Trace
from phalanx.rng import numpy_generator
from phalanx.runs.plan import Run
from phalanx.weighting import concentration

TITLE = "Histograms of the sizes of the clients of MNIST and Shakespeare"
CLAIM = "Both populations are very uneven."
MINUTES = {"quick": 0.0, "paper": 0.0}


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return no runs: nothing is trained."""
    return {}


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return a histogram of each population, and a table of their concentration."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (slow to import)

    populations = {
        "MNIST, the program's": program_sizes(),
        "MNIST, as described": described_sizes(context.seeds[0]),
        "Shakespeare, 715 roles": _roles(context),
    }
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    body = []
    for axes, (name, sizes) in zip(figure.subplots(1, len(populations)), populations.items(), strict=True):
        values = np.array(list(sizes.values()))
        axes.hist(values, bins=np.geomspace(1, max(values.max(), 2), 25), color="#0072B2")
        axes.set_xscale("log")
        axes.set_title(name)
        axes.set_xlabel("examples of a client")
        found = concentration(sizes)
        body.append([
            name, str(len(values)), f"{values.sum():,}", f"{values.max():,}", f"{np.median(values):g}",
            f"{100 * found.top_tenth:.1f} %", f"{found.effective:.1f}",
        ])  # fmt: skip
        if axes.get_subplotspec().is_first_col():
            axes.set_ylabel("clients")
    columns = [
        "population",
        "clients",
        "examples",
        "largest",
        "median",
        "held by the largest 10 %",
        "effective clients",
    ]
    caption = "Numbers of clients by their numbers of examples, on a logarithmic axis."
    notes = ("An example of Shakespeare is a piece of 80 characters; the program weighs by characters.",)
    return Rendering((Table("Sizes of clients", columns, body, notes),), (Plot(figure, caption=caption),))


def _roles(context: Context) -> dict[int, int]:
    base = shakespeare.BASES["paper"]
    train, _ = base.data.load(context.data_dir)
    rng = numpy_generator(context.seeds[0], "partition")
    parts = base.partition.split(train.y, base.clients, rng, train.owners)
    return {client: len(part) for client, part in enumerate(parts)}
