"""Tables and figures of papers, computed again: one folder for each paper, one module for each table or figure.

    phalanx reproduce                                   # what there is, and what it costs
    phalanx reproduce client-weighting figure5          # trains what is missing, then draws and compares

`phalanx.experiments.experiment` says what such a module holds, `phalanx.experiments.results` what it returns.
"""

from phalanx.experiments.experiment import Context, Experiment, Paper, Scale
from phalanx.experiments.published import Published
from phalanx.experiments.results import Comparison, Plot, Rendering, Sample, Table, compared
from phalanx.experiments.trace import Trace

__all__ = [
    "Comparison",
    "Context",
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
