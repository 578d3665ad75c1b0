"""Tables and figures of papers, computed again: one folder for each paper.

    phalanx reproduce                                   # lists the experiments and their costs
    phalanx reproduce client-weighting figure5          # trains what is missing, then draws and compares

`phalanx.experiments.papers.experiment` defines the contents of such a module, `comparison` next to it its results.
"""

from phalanx.experiments.papers.comparison import ComparedCell, Sample, Table, compared
from phalanx.experiments.papers.experiment import Context, Exhibit, Experiment, Paper, Scale
from phalanx.experiments.papers.published import Published
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.trace import Trace

__all__ = [
    "ComparedCell",
    "Context",
    "Exhibit",
    "Experiment",
    "Paper",
    "Plot",
    "Published",
    "Rendering",
    "Sample",
    "Scale",
    "Table",
    "Trace",
    "compared",
]
