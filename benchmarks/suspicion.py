"""False alarms and power of `phalanx.engine.suspicion`, in 100 rounds of `FedAvg` on digits.

python benchmarks/suspicion.py [--only alarms power rounds] [--seeds 100 101 ...] [--jobs 2]

* `alarms`: honest clients that are named suspicious.
* `power`: attackers that are named, by attack, the median round, and honest clients that are.
* `rounds`: rounds until an attacker that multiplies by -10 is named: of each attacker, by seed.

No seed of these studies was used to choose a limit.
"""

import math
from statistics import median

from as_study import carry_out, markdown

from phalanx import Record, Run, Study, Until
from phalanx.aggregators import GeometricMedian, Mean, Median, TrimmedMean
from phalanx.algorithms import FedAvg
from phalanx.attacks import (
    ALIE,
    FangTrimmedMean,
    Gaussian,
    InnerProduct,
    LabelFlip,
    LazyFreeRider,
    Mimic,
    MinMax,
    RandomFreeRider,
    RandomSigns,
    ReportSize,
    Rescale,
    SignFlip,
)
from phalanx.data import Dirichlet, Uniform
from phalanx.experiments.results import Results, Row
from phalanx.models import MLP
from phalanx.training import Evaluation, LocalSGD

ROUNDS = 100
BASE = Run(
    algorithm=FedAvg(Median()), model=MLP((32,)), until=Until(ROUNDS), evaluation=Evaluation(every=ROUNDS),
    training=LocalSGD(epochs=1, batch_size=16, lr=0.1, engine="compiled"), suspicion=True,
)  # fmt: skip
PARTITIONS = {"IID": Uniform(), "Dirichlet 0.1": Dirichlet(0.1)}
RULES = {"Median": Median(), "TrimmedMean(0.25)": TrimmedMean(0.25), "Mean": Mean()}
ATTACKS = {
    "Rescale(-10)": Rescale(-10.0),
    "SignFlip": SignFlip(),
    "Gaussian": Gaussian(),
    "RandomFreeRider": RandomFreeRider(),
    "RandomSigns": RandomSigns(),
    "FangTrimmedMean": FangTrimmedMean(),
    "InnerProduct": InnerProduct(),
    "MinMax": MinMax(),
    "ALIE": ALIE(),
    "Mimic": Mimic(),
    "ReportSize(1,000,000)": ReportSize(1_000_000),
    "LazyFreeRider": LazyFreeRider(),
    "LabelFlip": LabelFlip(),
}


def teams(*sizes: tuple[int, int]) -> dict[str, dict[str, int]]:
    """Return numbers of clients, and of attackers among them."""
    return {f"{byzantine} of {clients}": {"clients": clients, "byzantine": byzantine} for clients, byzantine in sizes}


def named(record: Record) -> list[list[int]]:
    """Return who was named: the client, the step, and whether it was for sending what another sent."""
    found = {i: about.suspicious for i, about in record.summary.clients.items() if about.suspicious is not None}
    return [[i, one.step, "sent the same update" in one.reason] for i, one in found.items()]


STUDIES = {
    name: Study(
        BASE, {"partition": PARTITIONS, **grid}, seeds=range(100, 100 + seeds), name=name, measures={"named": named}
    )
    for name, seeds, grid in (
        ("alarms", 12, {"algorithm.aggregate": RULES, "clients": (4, 10, 20)}),
        ("power", 2, {"team": teams((4, 1), (20, 4)), "attack": ATTACKS}),
        ("rounds", 4, {
            "algorithm.aggregate": {"Median": Median(), "GeometricMedian": GeometricMedian()},
            "team": teams((4, 1), (8, 1), (20, 4)),
            "attack": {"Rescale(-10)": Rescale(-10.0)},
        }),
    )
}  # fmt: skip


def caught(rows: list[Row]) -> list[float]:
    """Return the step at which each attacker was named; infinity if it was not."""
    steps = [{i: step for i, step, _ in row.trace.measured["named"]} for row in rows]
    return [each.get(i, math.inf) for row, each in zip(rows, steps, strict=True) for i in row.trace.byzantine]


def alarms(results: Results) -> str:
    """Return the table of false alarms."""
    lines = list[tuple[str, ...]]()
    for data in results.axes["partition"]:
        for rule in results.axes["algorithm.aggregate"]:
            rows = results.where({"partition": data, "algorithm.aggregate": rule})
            everyone = sum(row.trace.clients for row in rows)
            wrong = sum(len(row.trace.measured["named"]) for row in rows)
            lines.append((data, rule, str(everyone), str(wrong), f"{100 * wrong / everyone:.1f} %"))
    return markdown(("data", "rule", "honest clients", "named", "share"), lines)


def power(results: Results) -> str:
    """Return the table of attackers and honest clients that were named, and the median round."""

    def cell(rows: list[Row]) -> str:
        steps = caught(rows)
        found = [step for step in steps if step < math.inf]
        wrong = [copied for row in rows for i, _, copied in row.trace.measured["named"] if i not in row.trace.byzantine]
        when = f", round {median(found):g}" if found else ""
        alone, copied = wrong.count(False), wrong.count(True)
        others = (f"; {alone} honest" if alone else "") + (f"; {copied} honest as copied" if copied else "")
        return f"{len(found)} of {len(steps)}{when}{others}"

    across = [(data, team) for data in results.axes["partition"] for team in results.axes["team"]]
    rows = (
        (f"`{attack}`", *(cell(results.where({"attack": attack, "partition": d, "team": t})) for d, t in across))
        for attack in results.axes["attack"]
    )
    return markdown(("attack", *map(", ".join, across)), rows)


def rounds(results: Results) -> str:
    """Return the table of the rounds until an attacker is named."""

    def cell(rows: list[Row]) -> str:
        found = caught(rows)
        said = f"median {median(found):g}, {min(found):g} to {max(found):g}"
        return said.replace("inf", f"never ({sum(map(math.isinf, found))} of {len(found)})")

    lines = list[tuple[str, ...]]()
    for data in results.axes["partition"]:
        for rule in results.axes["algorithm.aggregate"]:
            at = {"partition": data, "algorithm.aggregate": rule}
            lines.append((data, rule, *(cell(results.where({**at, "team": team})) for team in results.axes["team"])))
    return markdown(("data", "rule", *results.axes["team"]), lines)


def table(results: Results) -> str:
    """Return the table of one study."""
    return {"alarms": alarms, "power": power, "rounds": rounds}[results.name](results)


if __name__ == "__main__":
    carry_out(__doc__, STUDIES, table, "suspicion")
