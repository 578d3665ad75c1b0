"""Tables and figures of papers, computed again: one folder for each paper.

    phalanx reproduce                                   # lists the experiments and their costs
    phalanx reproduce client-weighting figure5          # trains what is missing, then draws and compares

`phalanx.reproduce.experiment` defines the contents of such a module, `phalanx.reproduce.results` its results.
"""

from phalanx.reproduce.experiment import Context, Exhibit, Experiment, Paper, Scale
from phalanx.reproduce.published import Published
from phalanx.reproduce.results import Comparison, Plot, Rendering, Sample, Table, compared
from phalanx.studies.trace import Trace

__all__ = [
    "Comparison",
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
