"""What one liar of four costs the others: real hospitals, each of which lies in turn, and rules that four can use.

python benchmarks/one_liar.py [--seeds 5] [--rules "geometric median"]
python benchmarks/one_liar.py --seeds 3 --impute median --lr 0.1 --hidden 32 [--rounds 8]   # as examples/flower trains

Heart disease of four hospitals (docs/tutorials/heart).  The accuracy is that of each honest hospital on its
own test patients.  A row: the mean over honest hospitals, seeds and who lies; the worst liar's mean; the honest
hospital that loses most to a liar, in the mean of the seeds; how often the liar is called suspicious, and some honest
hospital.
"""

import argparse
import statistics
import warnings
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.aggregators import CenteredClipping, GeometricMedian, Mean, Median, NearestNeighborMixing, TrimmedMean
from phalanx.algorithms import FedAvg
from phalanx.attacks import Gaussian, Mimic, ReportSize, Rescale, SignFlip
from phalanx.core import Algorithm
from phalanx.data import CSV, Natural
from phalanx.models import MLP
from phalanx.weighting import AsReported, Ignore

HOSPITALS = sorted(Path(__file__).parents[1].glob("docs/tutorials/heart/*.csv"))
RULES: dict[str, Algorithm] = {
    "mean, sizes as reported": FedAvg(Mean(), AsReported()),
    "median": FedAvg(Median(), Ignore()),
    "trimmed mean": FedAvg(TrimmedMean(0.25), Ignore()),
    "geometric median": FedAvg(GeometricMedian(), Ignore()),
    "centered clipping": FedAvg(CenteredClipping(), Ignore()),
    "mixing of nearest, median": FedAvg(NearestNeighborMixing(1) >> Median(), Ignore()),
}
LIES = {
    "a size of 1,000,000": ReportSize(1_000_000),
    "the sign": SignFlip(),
    "times -10": Rescale(-10.0),
    "times 10": Rescale(10.0),
    "noise": Gaussian(1.0),
    "copies of another": Mimic(),
    "copies of switzerland": Mimic(target=[path.stem for path in HOSPITALS].index("switzerland")),
}


def plan_of(given: argparse.Namespace) -> Run:
    """Return the plan without a liar."""
    tables = CSV(
        str(HOSPITALS[0].parent / "*.csv"), label="target", missing=("?",), impute=given.impute,
        class_names={"healthy": (0,), "ill": (1, 2, 3, 4)},
    )  # fmt: skip
    return Run(
        data=tables, partition=Natural(), clients=len(HOSPITALS), model=MLP((given.hidden,)),
        training=LocalSGD(epochs=2, batch_size=16, lr=given.lr), until=Until(given.rounds), suspicion=True,
    )  # fmt: skip


def outcome(plan: Run) -> tuple[dict[int, float], set[int]]:
    """Return the accuracy of each honest hospital on its own test patients, in percent, and who is suspicious."""
    record = simulate(plan)
    accuracy = record.history[-1].metrics.client_accuracy
    assert accuracy is not None
    suspicious = {i for i, client in record.summary.clients.items() if client.suspicious}
    return {i: 100 * share for i, share in accuracy.items()}, suspicious


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rules", nargs="*", choices=tuple(RULES), default=tuple(RULES))
    parser.add_argument("--impute", choices=("indicator", "median"), default="indicator")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    seeds = range(given.seeds)
    warnings.simplefilter("ignore")  # what the runs do not promise is what is measured
    names = [path.stem for path in HOSPITALS]
    print("| rule | lie | without it | mean | worst liar | worst hospital | liar named | honest named |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for rule in given.rules:
        plan = replace(plan_of(given), algorithm=RULES[rule])
        clean = {seed: outcome(replace(plan, seed=seed))[0] for seed in seeds}
        before = statistics.mean(share for each in clean.values() for share in each.values())
        for lie, attack in LIES.items():
            changes, named, honest, tried = defaultdict[tuple[int, int], list[float]](list), 0, 0, 0
            for liar in range(len(HOSPITALS)):
                for seed in seeds:
                    after, suspicious = outcome(replace(plan, seed=seed, attack=attack, byzantine=(names[liar],)))
                    for i in after.keys() - {liar}:
                        changes[liar, i].append(after[i] - clean[seed][i])
                    tried, named, honest = tried + 1, named + (liar in suspicious), honest + bool(suspicious - {liar})
            pairs = {pair: statistics.mean(found) for pair, found in changes.items()}
            liars = {k: statistics.mean(v for (who, _), v in pairs.items() if who == k) for k in range(len(HOSPITALS))}
            worst, (by, at) = min(liars, key=lambda k: liars[k]), min(pairs, key=lambda pair: pairs[pair])
            print(
                f"| {rule} | {lie} | {before:.1f} | {statistics.mean(liars.values()):+.1f} | "
                f"{liars[worst]:+.1f}, {names[worst]} | {pairs[by, at]:+.1f}, {names[at]} by {names[by]} | "
                f"{named} of {tried} | {honest} of {tried} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
