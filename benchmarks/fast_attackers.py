"""Fast attackers who report false sizes, with truncation over all clients or for each set.

The table of docs/measurements/weighting.md.

python benchmarks/fast_attackers.py [--jobs 2]

20 equal clients on digits; 5 flip the signs of their updates, report a million examples, and answer at once.  Accuracy
in percent after 330 arrivals, 450 with quorums of 15, and with `FedBuff` after 30 seconds, where attackers answer after
0.2 and the others after 1 second; each seed.
"""

from dataclasses import replace
from typing import Any

from as_study import carry_out, crossed, percent

from phalanx import Run, Study, Until
from phalanx.aggregators import Median
from phalanx.algorithms import Catalyst, FedAvg, FedBuff, Quorum
from phalanx.attacks import Attack, Flood, ReportSize, SignFlip, Together
from phalanx.experiments.grid import Derived
from phalanx.experiments.results import Results
from phalanx.simulation import Lognormal
from phalanx.weighting import Ignore, Preprocess, Truncate


def attack(seconds: float) -> Attack:
    """Return the attack of those who answer after some seconds."""
    return Together(ReportSize(1_000_000), Together(SignFlip(), Flood(seconds)))


def buffered(size: int, *, distinct: bool = False) -> dict[str, Any]:
    """Return the fields of a run with a buffer."""
    algorithm = FedBuff(size, aggregate=Median(), distinct=distinct)
    return {"algorithm": algorithm, "attack": attack(0.2), "latency": Run().latency, "until": Until(seconds=30.0)}


def by(sizes: Preprocess) -> Derived:
    """Return what makes weights of the sizes that clients report, in any of the algorithms."""

    def weighted(algorithm: Any) -> Any:
        if isinstance(algorithm, Quorum):
            return replace(algorithm, algorithm=weighted(algorithm.algorithm))
        return replace(algorithm, preprocess=sizes)

    return Derived(lambda run: {"algorithm": weighted(run["algorithm"])})


STUDY = Study(
    Run(clients=20, byzantine=5, attack=attack(0.01), latency=Lognormal()),
    {
        "composition": {
            "Catalyst(5)": {"algorithm": Catalyst(5), "until": Until(330)},
            "Catalyst(5, quorum=15)": {"algorithm": Catalyst(5, quorum=15), "until": Until(450)},
            "Quorum(FedAvg(Median()), 11)": {"algorithm": Quorum(FedAvg(Median()), k=11), "until": Until(330)},
            "Quorum(FedAvg(Median()), 15)": {"algorithm": Quorum(FedAvg(Median()), k=15), "until": Until(450)},
            "FedBuff(11, Median())": buffered(11),
            "FedBuff(15, Median(), distinct)": buffered(15, distinct=True),
        },
        "sizes": {
            "population": by(Truncate.as_published(0.25, 0.35)),
            "subset": by(Truncate(0.25, 0.35, scope="subset")),
            "subset, alpha_star=0.49": by(Truncate(0.25, 0.49, scope="subset")),
            "Ignore": by(Ignore()),
        },
    },
    seeds=5,
    name="fast_attackers",
    leave_out=True,
)


def tables(results: Results) -> str:
    """Return the table: each seed, and the mean with its interval; what cannot begin is a dash."""
    return crossed(
        results, "composition", "sizes",
        lambda rows: f"{', '.join(percent(row, 'accuracy') for row in rows)}: {results.estimate(rows).text(100.0)}",
    )  # fmt: skip


if __name__ == "__main__":
    carry_out(__doc__, {STUDY.name: STUDY}, tables, "fast_attackers")
