"""Each composition that is recommended against its own parts, on three data sets: what of it could be left out.

python benchmarks/cheapest_part.py [--only momentum-digits ...] [--jobs 2] [--data_dir FOLDER]

"everything" is examples/everything.yaml; the others are compositions that `phalanx choose` offers.  Heart disease
(docs/tutorials/heart) is that of four hospitals, each of which is divided into as many clients as the others; of
Fashion-MNIST 10,000 examples are used, or 1,500.  A row: without attack, and under the attack that is worst for it of
three (for "everything" that of the example), the accuracy of the models that honest clients are served in the end, with
half of its 95 % interval; the whole minus it under attack, with p of a paired t test by Holm for all pairs of rows;
seconds of one process.  The seeds are others than those that the example was made with.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
from as_study import carry_out, markdown
from intersection import EXAMPLE, example

from phalanx import Run, Study
from phalanx.aggregators import AdaptiveClip, Aggregator, Mean, Median, NearestNeighborMixing, TrimmedMean
from phalanx.algorithms import Catalyst, FedAvg, PerCluster, Quorum, Rewarded, Standalone, WorkerMomentum
from phalanx.attacks import ALIE, InnerProduct, SignFlip
from phalanx.core import Until
from phalanx.data import CSV, Digits, Dirichlet, FashionMNIST, Natural, PermutedLabels
from phalanx.experiments import Estimate
from phalanx.experiments.results import Results
from phalanx.experiments.statistics import holm, paired
from phalanx.models import MLP
from phalanx.simulation import Lognormal
from phalanx.training import Evaluation
from phalanx.weighting import Ignore, Truncate

SEEDS = range(10, 20)
IGNORE = Ignore()
ATTACKS = {"none": None, "SignFlip": SignFlip(), "ALIE": ALIE(), "InnerProduct": InnerProduct()}
HEART = CSV(
    str(EXAMPLE.parents[1] / "docs/tutorials/heart/*.csv"), label="target", missing=("?",), impute="indicator",
    class_names={"healthy": (0,), "ill": (1, 2, 3, 4)},
)  # fmt: skip
Rows = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Departments(Natural):
    """Each owner's examples are dealt among as many clients as those of the others."""

    def assign(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Return the client of each example; `labels` are owners here."""
        present, owners = np.unique(labels, return_inverse=True)
        each = clients // len(present)
        return owners * each + rng.integers(each, size=len(owners))


def data(examples: int, width: int) -> Mapping[str, Mapping[str, Any]]:
    """Return the fields of a run for each data set: of Fashion-MNIST, so many examples, and so wide a perceptron."""
    return {
        "digits": {"data": Digits()},
        "heart": {"data": HEART, "partition": Departments(), "model": MLP((64,))},
        "fashion": {"data": FashionMNIST(limit=examples), "model": MLP((width,))},
    }


def everything() -> Rows:
    """Return the rows of the example."""
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

    return {
        "the whole": {"algorithm": clusters},
        "no rewards": by_cluster(catalyst),
        "no rewards, sizes ignored": by_cluster(ignoring),
        "a median of seven for Catalyst": by_cluster(Quorum(FedAvg(Median(), truncate), 7)),
        "a median of seven, sizes ignored": by_cluster(Quorum(FedAvg(Median(), Ignore()), 7)),
        "one model for all, sizes ignored": {"algorithm": ignoring},
        "training alone": {"algorithm": Standalone(), "availability": None, "until": Until(20)},
    }


ALONE: Mapping[str, Any] = {"algorithm": Standalone(), "until": Until(20)}
F, N = 2, 12  # attackers and clients; F_GROUPS and N_GROUPS where there are two groups
F_GROUPS, N_GROUPS = 3, 24
MIXED, TRIMMED = NearestNeighborMixing(F), TrimmedMean(F / N)
BOUND, BOUND_OF_FEW = Truncate(F / N, 0.3, scope="subset"), Truncate(F / N, 0.45, scope="subset")


def fedavg(rule: Aggregator, preprocess: Any = IGNORE) -> FedAvg:
    """Return FedAvg with a rule."""
    return FedAvg(aggregate=rule, preprocess=preprocess)


def momentum() -> Rows:
    """Return the parts of a trimmed mean of clipped and mixed momenta, in rounds."""
    clip = AdaptiveClip(F)

    def of(rule: Aggregator, preprocess: Any = IGNORE) -> Mapping[str, Any]:
        return {"algorithm": WorkerMomentum(fedavg(rule, preprocess), 0.9)}

    return {
        "the whole": of(clip >> MIXED >> TRIMMED),
        "no momentum": {"algorithm": fedavg(clip >> MIXED >> TRIMMED)},
        "no clip": of(MIXED >> TRIMMED),
        "no mixing": of(clip >> TRIMMED),
        "no trimmed mean": of(clip >> MIXED >> Mean()),
        "momentum and trimmed mean": of(TRIMMED),
        "trimmed mean": {"algorithm": fedavg(TRIMMED)},
        "trimmed mean, truncated sizes": {"algorithm": fedavg(TrimmedMean(0.3), BOUND)},
        "median": {"algorithm": fedavg(Median())},
        "mean": {"algorithm": fedavg(Mean())},
        "training alone": ALONE,
    }


def clusters(inner: Any) -> Mapping[str, Any]:
    """Return an algorithm for each group."""
    return {"algorithm": PerCluster(inner, min_part_size=7, memory=0.9)}


def groups() -> Rows:
    """Return the parts of a trimmed mean of mixed updates in each group, in rounds."""
    mixed, trimmed = NearestNeighborMixing(F_GROUPS), TrimmedMean(F_GROUPS / 7)
    bound = Truncate(F_GROUPS / N_GROUPS, 0.45, scope="subset")
    return {
        "the whole": clusters(fedavg(mixed >> trimmed)),
        "no mixing": clusters(fedavg(trimmed)),
        "no trimmed mean": clusters(fedavg(mixed >> Mean())),
        "median": clusters(fedavg(Median())),
        "median, truncated sizes": clusters(fedavg(Median(), replace(bound, infeasible="unweighted"))),
        "mean": clusters(fedavg(Mean())),
        "one model for all": {"algorithm": fedavg(mixed >> TrimmedMean(F_GROUPS / N_GROUPS))},
        "training alone": ALONE,
    }


def arrivals() -> Rows:
    """Return the parts of a trimmed mean of the first answers, mixed with their neighbours."""

    def of(rule: Aggregator, preprocess: Any = IGNORE) -> Mapping[str, Any]:
        return {"algorithm": Quorum(fedavg(rule, preprocess), N - F)}

    few = TrimmedMean(F / (N - F))
    return {
        "the whole": of(MIXED >> few),
        "no mixing": of(few),
        "no trimmed mean": of(MIXED >> Mean()),
        "median": of(Median()),
        "median, truncated sizes": of(Median(), BOUND_OF_FEW),
        "mean": of(Mean()),
        "rounds": {"algorithm": fedavg(MIXED >> TRIMMED)},
        "Catalyst": {"algorithm": Catalyst(F, preprocess=Ignore())},
        "training alone": ALONE,
    }


def late() -> Rows:
    """Return the parts of Catalyst with a median and truncated sizes."""
    return {
        "the whole": {"algorithm": Catalyst(F, aggregate=Median(), preprocess=BOUND_OF_FEW)},
        "sizes ignored": {"algorithm": Catalyst(F, aggregate=Median(), preprocess=Ignore())},
        "its own filter": {"algorithm": Catalyst(F, preprocess=BOUND_OF_FEW)},
        "its own filter, sizes ignored": {"algorithm": Catalyst(F, preprocess=Ignore())},
        "no late updates": {"algorithm": Quorum(fedavg(Median(), BOUND_OF_FEW), 2 * F + 1)},
        "no late updates, sizes ignored": {"algorithm": Quorum(fedavg(Median()), 2 * F + 1)},
        "training alone": ALONE,
    }


def groups_of_arrivals() -> Rows:
    """Return the parts of a median of the first answers of each group."""
    first = Quorum(fedavg(Median()), 7)
    return {
        "the whole": clusters(first),
        "mean": clusters(Quorum(fedavg(Mean()), 7)),
        "rounds": clusters(fedavg(Median())),
        "one model for all": {"algorithm": first},
        "Catalyst in each group": clusters(Catalyst(F_GROUPS, preprocess=Ignore())),
        "training alone": ALONE,
    }


ROUNDS: Mapping[str, Any] = {
    "clients": N, "attack": SignFlip(), "byzantine": F, "partition": Dirichlet(0.5), "until": Until(20),
}  # fmt: skip
ARRIVALS: Mapping[str, Any] = ROUNDS | {"latency": Lognormal(), "until": Until(seconds=20)}
GROUPS: Mapping[str, Any] = {"clients": N_GROUPS, "byzantine": F_GROUPS, "groups": PermutedLabels(2)}
SYSTEMS: Mapping[str, tuple[Mapping[str, Any], Rows]] = {
    "momentum": (ROUNDS, momentum()),
    "groups": ({**ROUNDS, **GROUPS, "partition": Run().partition}, groups()),
    "arrivals": (ARRIVALS, arrivals()),
    "late": (ARRIVALS, late()),
    "groups-arrivals": ({**ARRIVALS, **GROUPS, "partition": Run().partition}, groups_of_arrivals()),
}


def studies() -> Mapping[str, Study]:
    """Return the studies by name."""
    rare, found = Evaluation(every=10**6), dict[str, Study]()
    for where, fields in data(10_000, 64).items():
        base, name = replace(example(), evaluation=rare, **fields), f"everything-{where}"
        found[name] = Study(base, {"composition": everything()}, seeds=SEEDS, name=name)
    for system, (settings, rows) in SYSTEMS.items():
        for where, fields in data(1_500, 32).items():
            base, name = Run(**{"evaluation": rare, **settings, **fields}), f"{system}-{where}"
            found[name] = Study(base, {"composition": rows, "attack": ATTACKS}, seeds=SEEDS, name=name)
    return found


def outcomes(results: Results, name: str) -> tuple[str, str, dict[int, float]]:
    """Return, of a composition, the accuracy without attack, the worst attack, and the accuracies by seed under it."""
    attacks = {attack: {"attack": attack} for attack in results.axes.get("attack", ())} or {"of the example": {}}
    runs = {attack: results.where({"composition": name} | at) for attack, at in attacks.items()}
    found = {
        attack: {row.trace.seed: row.value("received_accuracy") or 0.0 for row in rows} for attack, rows in runs.items()
    }
    clean = found.pop("none", None)
    worst = min(found, key=lambda attack: fmean(found[attack].values()))
    return "-" if clean is None else Estimate.of(clean.values()).text(100.0), worst, found[worst]


def table(results: Results) -> str:
    """Return the table in Markdown; the tests are those of the whole with each row."""
    found = {name: outcomes(results, name) for name in results.axes["composition"]}
    seeds, pairs = sorted({row.trace.seed for row in results.rows}), [*itertools.combinations(found, 2)]
    differences = {(a, b): [found[a][2][s] - found[b][2][s] for s in seeds] for a, b in pairs}
    adjusted = dict(zip(pairs, holm([paired(d) for d in differences.values()]), strict=True))
    whole, lines = next(iter(found)), list[Sequence[str]]()
    for name, (clean, worst, values) in found.items():
        seconds = results.estimate(results.where({"composition": name}), "wall_seconds")
        pair = (whole, name)
        ahead = (Estimate.of(differences[pair]).text(100.0), f"{adjusted[pair]:.2g}") if name != whole else ("-", "-")
        lines.append([name, clean, Estimate.of(values.values()).text(100.0), worst, *ahead, f"{seconds.mean:.1f}"])
    head = ("", "no attack", "attacked", "by", "the whole minus it", "p", "seconds")
    return f"{results.name}\n\n{markdown(head, lines)}\n"


if __name__ == "__main__":
    carry_out(__doc__, studies(), table, "cheapest_part")
