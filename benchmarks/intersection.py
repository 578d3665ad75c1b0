"""Everything at once, and each defence switched off in turn: a table of docs/measurements/everything-at-once.md.

python benchmarks/intersection.py [--jobs 2]

The federation is that of examples/everything.yaml.  Each row: the accuracy of what honest clients are served in the
end, of the worse one of the two groups, and the correlation of that accuracy with what clients reach alone, the mean of
the two groups; mean and 95 % interval over the seeds.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from as_study import carry_out, markdown

from phalanx import Run, Study, Until
from phalanx.aggregators import DensestMajority, Mean
from phalanx.algorithms import Catalyst, FedAvg, PerCluster, Rewarded, Standalone
from phalanx.cli.configuration import Draft
from phalanx.experiments import Estimate
from phalanx.experiments.results import Results, Row
from phalanx.fairness import fairness_by_cluster
from phalanx.simulation import Deadline
from phalanx.training import Evaluation
from phalanx.weighting import AsReported, Truncate

EXAMPLE = Path(__file__).parents[1] / "examples" / "everything.yaml"
ALONE = "training alone"
COLUMNS = ("accuracy", "worse group", "fairness")


def example() -> Run:
    """Return the run of the example."""
    draft = Draft(Run)
    draft.load(EXAMPLE)
    run: Run = draft.make(Run)
    return run


def compositions(run: Run) -> Mapping[str, Mapping[str, Any]]:
    """Return the fields of the rows by name."""
    clusters = run.algorithm
    assert isinstance(clusters, PerCluster)
    rewards = clusters.algorithm
    assert isinstance(rewards, Rewarded)
    catalyst = rewards.algorithm
    assert isinstance(catalyst, Catalyst)
    assert isinstance(catalyst.preprocess, Truncate)

    def with_(inner: Catalyst | FedAvg) -> Mapping[str, Any]:
        return {"algorithm": replace(clusters, algorithm=replace(rewards, algorithm=inner))}

    in_rounds = FedAvg(aggregate=DensestMajority(), preprocess=catalyst.preprocess)
    over_all = replace(catalyst.preprocess, scope="population")
    return {
        "everything": {"algorithm": clusters},
        "sizes as reported": with_(replace(catalyst, preprocess=AsReported(beyond_tolerance="remark"))),
        "truncated over all clients": with_(replace(catalyst, preprocess=over_all)),
        "no filter, the mean": with_(replace(catalyst, aggregate=Mean())),
        "one model for all": {"algorithm": rewards},
        "rounds with a deadline": {**with_(in_rounds), "deadline": Deadline(10.0)},
        "no rewards": {"algorithm": replace(clusters, algorithm=catalyst)},
        ALONE: {"algorithm": Standalone(), "availability": None, "until": Until(20)},
    }


def figures(row: Row, alone: Row) -> list[float | None]:
    """Return the figures of one run, those of COLUMNS."""
    received, bad, groups = row.trace.received_accuracy, {*row.trace.byzantine}, dict[int, list[int]]()
    for i, group in row.trace.groups.items():
        if i not in bad:
            groups.setdefault(group, []).append(i)
    found = fairness_by_cluster({i: alone.trace.received_accuracy[i] for i in received}, received, groups)
    fair = [one.coefficient for one in found.values() if one.coefficient is not None]
    by_group = [fmean(received[i] for i in who) for who in groups.values()]
    return [row.value("received_accuracy"), min(by_group), fmean(fair) if len(fair) == len(groups) else None]


def interval(values: list[float | None]) -> str:
    """Return the mean and the half width of its 95 % interval, in percent; a dash where a run has no such figure."""
    return "-" if None in values else Estimate.of(v for v in values if v is not None).text(100)


def table(results: Results) -> str:
    """Return the table."""
    alone = {row.trace.seed: row for row in results.where({"composition": ALONE})}
    lines = []
    for (name,), rows in results.cells():
        if name != ALONE:
            columns = zip(*(figures(row, alone[row.trace.seed]) for row in rows), strict=True)
            lines.append([name, *(interval([*column]) for column in columns)])
    return markdown(("", *COLUMNS), lines)


if __name__ == "__main__":
    base = replace(example(), evaluation=Evaluation(every=10**6))
    study = Study(base, {"composition": compositions(base)}, seeds=5, name="intersection")
    carry_out(__doc__, {study.name: study}, table, "intersection")
