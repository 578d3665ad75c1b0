"""Everything at once, and each defence switched off in turn: the table of docs/measurements/everything-at-once.md.

python benchmarks/intersection.py [--seeds 5] [--rows NAME ...]

The federation is that of examples/everything.yaml.  Each row: the accuracy of what honest clients that have ever
answered are served in the end, of the worse one of the two groups, and the correlation of that accuracy with what
clients reach alone, the mean of the two groups; mean and 95 % interval over the seeds.
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from phalanx import Record, Run, simulate
from phalanx.aggregators import DensestMajority, Mean
from phalanx.algorithms import Catalyst, FedAvg, PerCluster, Rewarded, Standalone
from phalanx.cli.configuration import Draft
from phalanx.core import Until
from phalanx.experiments import Estimate
from phalanx.fairness import fairness_by_cluster, received_accuracy
from phalanx.simulation import Deadline
from phalanx.training import Evaluation
from phalanx.weighting import AsReported, Truncate

EXAMPLE = Path(__file__).parents[1] / "examples" / "everything.yaml"


def example() -> Run:
    """Return the run of the example."""
    draft = Draft(Run)
    draft.load(EXAMPLE)
    run: Run = draft.make(Run)
    return run


def rows(run: Run) -> dict[str, Run]:
    """Return the runs of the table by name."""
    clusters = run.algorithm
    assert isinstance(clusters, PerCluster)
    rewards = clusters.algorithm
    assert isinstance(rewards, Rewarded)
    catalyst = rewards.algorithm
    assert isinstance(catalyst, Catalyst)
    assert isinstance(catalyst.preprocess, Truncate)

    def with_(inner: Catalyst | FedAvg) -> Run:
        return replace(run, algorithm=replace(clusters, algorithm=replace(rewards, algorithm=inner)))

    in_rounds = FedAvg(aggregate=DensestMajority(), preprocess=catalyst.preprocess)
    return {
        "everything": run,
        "sizes as reported": with_(replace(catalyst, preprocess=AsReported())),
        "truncated over all clients": with_(
            replace(catalyst, preprocess=replace(catalyst.preprocess, scope="population"))
        ),
        "no filter, the mean": with_(replace(catalyst, aggregate=Mean())),
        "one model for all": replace(run, algorithm=rewards),
        "rounds with a deadline": replace(with_(in_rounds), deadline=Deadline(10.0), evaluation=Evaluation()),
        "no rewards": replace(run, algorithm=replace(clusters, algorithm=catalyst)),
    }


def alone(run: Run) -> Mapping[int, float]:
    """Return the accuracy that each client reaches without the others."""
    plan = replace(run, algorithm=Standalone(), availability=None, until=Until(20), evaluation=Evaluation(every=20))
    return received_accuracy(simulate(plan))


def figures(record: Record, standalone: Mapping[int, float]) -> dict[str, float | None]:
    """Return the figures of one run."""
    received, heard = received_accuracy(record), {i for step in record.history for i in step.verdicts}
    groups = dict[int, list[int]]()
    for i, client in record.summary.clients.items():
        if i in heard and not client.byzantine and client.group is not None:
            groups.setdefault(client.group, []).append(i)
    found = fairness_by_cluster({i: standalone[i] for i in received}, received, groups)
    fair = [one.coefficient for one in found.values() if one.coefficient is not None]
    return {
        "accuracy": fmean(received[i] for who in groups.values() for i in who),
        "worse group": min(fmean(received[i] for i in who) for who in groups.values()),
        "fairness": fmean(fair) if len(fair) == len(groups) else None,
    }


def interval(values: list[float | None]) -> str:
    """Return the mean and the half width of its 95 % interval, in percent; a dash where a run has no such figure."""
    return "-" if None in values else Estimate.of(v for v in values if v is not None).text(100)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", nargs="*", default=None)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    run = example()
    every: dict[str, list[dict[str, float | None]]] = {}
    by_seed: Callable[[int], Run] = lambda seed: replace(run, seed=seed)  # noqa: E731
    standalone = [alone(by_seed(seed)) for seed in range(options.seeds)]
    print("| | accuracy | worse group | fairness |\n| --- | --- | --- | --- |", flush=True)
    for name in options.rows or rows(run):
        every[name] = [figures(simulate(rows(by_seed(s))[name]), standalone[s]) for s in range(options.seeds)]
        cells = [interval([one[kind] for one in every[name]]) for kind in ("accuracy", "worse group", "fairness")]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
