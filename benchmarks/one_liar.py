"""What one liar of four costs the others: real hospitals, each of which lies in turn, and rules that four can use.

python benchmarks/one_liar.py [--only twenty_rounds] [--seeds 0 1 2 3 4] [--jobs 2]

Heart disease of four hospitals (docs/tutorials/heart), for `twenty_rounds` and as `examples/flower` trains.  The
accuracy is that of each honest hospital on its own test patients.  A row: the mean over honest hospitals, seeds and who
lies; the worst liar's mean; the honest hospital that loses most to a liar, in the mean of the seeds; how often the liar
is called suspicious, and some honest hospital.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from as_study import carry_out, markdown

from phalanx import LocalSGD, Record, Run, Study, Until
from phalanx.aggregators import CenteredClipping, GeometricMedian, Mean, Median, NearestNeighborMixing, TrimmedMean
from phalanx.algorithms import FedAvg
from phalanx.attacks import Gaussian, Mimic, ReportSize, Rescale, SignFlip
from phalanx.data import CSV, Natural
from phalanx.experiments.results import Results, Row
from phalanx.models import MLP
from phalanx.weighting import AsReported, Ignore

HOSPITALS = sorted(Path(__file__).parents[1].glob("docs/tutorials/heart/*.csv"))
NAMES = [path.stem for path in HOSPITALS]
RULES = {
    "mean, sizes as reported": FedAvg(Mean(), AsReported()),
    "median": FedAvg(Median(), Ignore()),
    "trimmed mean": FedAvg(TrimmedMean(0.25), Ignore()),
    "geometric median": FedAvg(GeometricMedian(), Ignore()),
    "centered clipping": FedAvg(CenteredClipping(), Ignore()),
    "mixing of nearest, median": FedAvg(NearestNeighborMixing(1) >> Median(), Ignore()),
}
LIES = {
    "none": None,
    "a size of 1,000,000": ReportSize(1_000_000),
    "the sign": SignFlip(),
    "times -10": Rescale(-10.0),
    "times 10": Rescale(10.0),
    "noise": Gaussian(1.0),
    "copies of another": Mimic(),
    "copies of switzerland": Mimic(target=NAMES.index("switzerland")),
}
TABLES = CSV(
    str(HOSPITALS[0].parent / "*.csv"), label="target", missing=("?",), impute="indicator",
    class_names={"healthy": (0,), "ill": (1, 2, 3, 4)},
)  # fmt: skip
TWENTY = Run(
    data=TABLES, partition=Natural(), clients=len(HOSPITALS), model=MLP((16,)),
    training=LocalSGD(epochs=2, batch_size=16, lr=0.05), until=Until(20), suspicion=True,
)  # fmt: skip
FLOWER = replace(
    TWENTY, data=replace(TABLES, impute="median"), model=MLP((32,)), training=replace(TWENTY.training, lr=0.1)
)


def suspicious(record: Record) -> list[int]:
    """Return who became suspicious."""
    return [i for i, client in record.summary.clients.items() if client.suspicious]


STUDIES = {
    name: Study(
        base,
        {"algorithm": RULES, "attack": LIES, "liar": {name: {"byzantine": (name,)} for name in NAMES}},
        seeds=seeds,
        name=name,
        measures={"suspicious": suspicious},
    )
    for name, base, seeds in (("twenty_rounds", TWENTY, 5), ("flower", FLOWER, 3))
}


def line(clean: list[Row], lied: list[Row]) -> Iterator[str]:
    """Yield the cells of a row, of the runs without and with a lie; a liar is known by its number."""
    before = {row.trace.seed: row.trace.client_accuracy for row in clean}
    changes, named, honest = defaultdict[tuple[int, int], list[float]](list), 0, 0
    for row in lied:
        liar, doubted = NAMES.index(row.labels["liar"]), {*row.trace.measured["suspicious"]}
        named, honest = named + (liar in doubted), honest + bool(doubted - {liar})
        for i in row.trace.client_accuracy.keys() - {liar}:
            changes[liar, i].append(100 * (row.trace.client_accuracy[i] - before[row.trace.seed][i]))
    pairs = {pair: fmean(found) for pair, found in changes.items()}
    liars = {k: fmean(change for (who, _), change in pairs.items() if who == k) for k in range(len(NAMES))}
    worst, (by, at) = min(liars, key=lambda k: liars[k]), min(pairs, key=lambda pair: pairs[pair])
    yield f"{100 * fmean(share for each in before.values() for share in each.values()):.1f}"
    yield f"{fmean(liars.values()):+.1f}"
    yield f"{liars[worst]:+.1f}, {NAMES[worst]}"
    yield f"{pairs[by, at]:+.1f}, {NAMES[at]} by {NAMES[by]}"
    yield from (f"{count} of {len(lied)}" for count in (named, honest))


def table(results: Results) -> str:
    """Return the table of one study."""
    head = ("rule", "lie", "without it", "mean", "worst liar", "worst hospital", "liar named", "honest named")
    by_rule = {rule: results.where({"algorithm": rule, "attack": "none"}) for rule in results.axes["algorithm"]}
    rows = (
        (rule, lie, *line(clean, results.where({"algorithm": rule, "attack": lie})))
        for rule, clean in by_rule.items()
        for lie in results.axes["attack"]
        if lie != "none"
    )
    return f"{results.name}\n\n{markdown(head, rows)}\n"


if __name__ == "__main__":
    carry_out(__doc__, STUDIES, table, "one_liar")
