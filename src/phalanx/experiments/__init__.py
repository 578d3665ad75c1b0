"""Studies: a run, axes on which it changes, and seeds; carried out in parallel, stored by identity, and compared.

    study = Study(Run(clients=20), {"algorithm.aggregate": [Mean(), Median(), Krum(f=6)]}, seeds=5)
    study.run(jobs=2).frame()

On the command line: `phalanx study FILE`, and for runs that exist `phalanx compare FOLDER...`.
"""

from phalanx.experiments.cost import Cost
from phalanx.experiments.grid import Derived, Fields
from phalanx.experiments.results import Results, Row
from phalanx.experiments.statistics import Estimate, PairedTest
from phalanx.experiments.study import Study
from phalanx.experiments.tuning import Tuning
from phalanx.experiments.worst import WorstOf, worst_of

__all__ = [
    "Cost",
    "Derived",
    "Estimate",
    "Fields",
    "PairedTest",
    "Results",
    "Row",
    "Study",
    "Tuning",
    "WorstOf",
    "worst_of",
]
