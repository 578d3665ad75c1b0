"""Whom RFFL and AsyncRFFL exclude in long runs, by default and without challenges.

python benchmarks/late_exclusions.py [--jobs 2]

Digits, ten clients, a perceptron of 64 hidden units; 150 rounds, or 800 arrivals.  Each cell: honest clients that are
excluded, the mean over the seeds and in brackets the most; then the excluded of the attackers of all seeds.
"""

from statistics import fmean

from as_study import carry_out, crossed

from phalanx import Run, Study, Until
from phalanx.algorithms import RFFL, AsyncRFFL
from phalanx.attacks import RandomSigns, SignFlip
from phalanx.data import Dirichlet, Uniform
from phalanx.experiments.results import Results, Row
from phalanx.models import MLP
from phalanx.simulation import Lognormal
from phalanx.training import Evaluation

ROUNDS = {"until": Until(150)}
ARRIVALS = {"until": Until(800), "latency": Lognormal()}
STUDY = Study(
    Run(clients=10, byzantine=2, model=MLP((64,)), attack=SignFlip(), evaluation=Evaluation(every=800)),
    {
        "server": {
            "`RFFL()`": {"algorithm": RFFL(), **ROUNDS},
            "`RFFL(challenge=None)`": {"algorithm": RFFL(challenge=None), **ROUNDS},
            "`AsyncRFFL()`": {"algorithm": AsyncRFFL(), **ARRIVALS},
            "`AsyncRFFL(challenge=None)`": {"algorithm": AsyncRFFL(challenge=None), **ARRIVALS},
        },
        "federation": {
            f"{kind}, {words}": {"partition": partition, "attack": attack}
            for kind, partition in (("IID", Uniform()), ("Dirichlet(0.5)", Dirichlet(0.5)))
            for words, attack in (("no attack", None), ("random signs", RandomSigns()), ("signs turned", SignFlip()))
        },
    },
    seeds=5,
    name="late_exclusions",
)


def cell(rows: list[Row]) -> str:
    """Return a cell of the table."""
    honest = [row.trace.honest_excluded for row in rows]
    gone, of = sum(len(row.trace.excluded) for row in rows), sum(len(row.trace.byzantine) for row in rows)
    attackers = f"; {gone - sum(honest)} of {of}" if of else ""
    return f"{fmean(honest):.1f} ({max(honest)}){attackers}"


def table(results: Results) -> str:
    """Return the table."""
    return crossed(results, "federation", "server", cell)


if __name__ == "__main__":
    carry_out(__doc__, {STUDY.name: STUDY}, table, "late_exclusions")
