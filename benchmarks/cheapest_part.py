"""Everything at once against its own parts, on three data sets: what of it could be left out.

python benchmarks/cheapest_part.py [--only digits heart fashion] [--jobs 2] [--data_dir FOLDER]

The federation is that of examples/everything.yaml.  On heart disease (docs/tutorials/heart) the rows of four
hospitals are dealt to 24 clients, of Fashion-MNIST 10,000 examples.  A row: the accuracy of the models that honest
clients are served in the end, with half of its 95 % interval; everything minus it, with p of a paired t test by Holm
for all pairs of rows; seconds of one process.  The seeds are others than those that the example was made with.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from as_study import carry_out, leads, markdown
from intersection import EXAMPLE, example

from phalanx import Study
from phalanx.aggregators import Median
from phalanx.algorithms import Catalyst, FedAvg, PerCluster, Quorum, Rewarded, Standalone
from phalanx.core import Until
from phalanx.data import CSV, Digits, FashionMNIST, LognormalSizes
from phalanx.models import MLP
from phalanx.training import Evaluation
from phalanx.weighting import Ignore, Truncate

SEEDS = range(10, 20)
ALL = "everything"
HEART = CSV(
    str(EXAMPLE.parents[1] / "docs/tutorials/heart/*.csv"), label="target", missing=("?",), impute="indicator",
    class_names={"healthy": (0,), "ill": (1, 2, 3, 4)},
)  # fmt: skip
DATA: Mapping[str, Mapping[str, Any]] = {
    "digits": {"data": Digits()},
    "heart": {"data": HEART, "partition": LognormalSizes(mu=3.0, sigma=0.5), "model": MLP((64,))},
    "fashion": {"data": FashionMNIST(limit=10_000), "model": MLP((64,))},
}


def compositions() -> Mapping[str, Mapping[str, Any]]:
    """Return everything, and what is left of it without some parts."""
    clusters = example().algorithm
    assert isinstance(clusters, PerCluster)
    assert isinstance(clusters.algorithm, Rewarded)
    catalyst = clusters.algorithm.algorithm
    assert isinstance(catalyst, Catalyst)
    truncate = catalyst.preprocess
    assert isinstance(truncate, Truncate)
    ignoring = replace(catalyst, preprocess=Ignore())

    def by_cluster(algorithm: Any) -> Mapping[str, Any]:
        return {"algorithm": replace(clusters, algorithm=algorithm)}

    alone = {"algorithm": Standalone(), "availability": None, "until": Until(20)}
    return {
        ALL: {"algorithm": clusters},
        "no rewards": by_cluster(catalyst),
        "no rewards, sizes ignored": by_cluster(ignoring),
        "a median of seven for Catalyst": by_cluster(Quorum(FedAvg(Median(), truncate), 7)),
        "a median of seven, sizes ignored": by_cluster(Quorum(FedAvg(Median(), Ignore()), 7)),
        "one model for all, sizes ignored": {"algorithm": ignoring},
        "training alone": alone,
    }


def study(data: str) -> Study:
    """Return the study of a data set."""
    base = replace(example(), evaluation=Evaluation(every=10**6), **DATA[data])
    return Study(base, {"composition": compositions()}, seeds=SEEDS, name=data)


def table(results: Any) -> str:
    """Return the table in Markdown; the tests are those of everything with each row."""
    cells = {labels[0]: rows for labels, rows in results.cells()}
    ahead = leads(results, "composition", ALL, "received_accuracy")
    out = list[list[str]]()
    for name, rows in cells.items():
        accuracy, seconds = (results.estimate(rows, m) for m in ("received_accuracy", "wall_seconds"))
        out.append([name, accuracy.text(100.0), *ahead.get(name, ("-", "-")), f"{seconds.mean:.1f}"])
    return f"{results.name}\n\n{markdown(('', 'accuracy, %', 'everything minus it', 'p', 'seconds'), out)}\n"


if __name__ == "__main__":
    carry_out(__doc__, {data: study(data) for data in DATA}, table, "cheapest_part")
