"""Server optimisers and corrected training against FedAvg, where clients are unlike.

python benchmarks/unlike_clients.py [--output build/unlike_clients.jsonl] [--table]

Digits, 20 clients by Dirichlet(0.1), half of them in each round, two epochs of minibatches of 16, 40 rounds.  Each
algorithm has the same grid of three local learning rates, and three values of its own parameter, if it has one; the
pair with the best last accuracy of seed 100 is run with the seeds 0 to 2.  A run is one line of the output; a second
call goes on where the first one ended.  `--table` prints the table of what is there.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from phalanx import Run, Until, simulate
from phalanx.algorithms import SCAFFOLD, Algorithm, FedAdam, FedAvg, FedAvgM, FedDyn, FedNova, FedYogi
from phalanx.data import Dirichlet
from phalanx.training import Evaluation, LocalSGD

RATES = (0.03, 0.1, 0.3)
Maker = Callable[[LocalSGD, float], Algorithm]
METHODS: Mapping[str, tuple[Maker, tuple[float, ...]]] = {
    "FedAvg": (lambda training, value: FedAvg(), (0.0,)),
    "FedAvgM": (lambda training, value: FedAvgM(FedAvg(), server_lr=value), (0.1, 0.3, 1.0)),
    "FedAdam": (lambda training, value: FedAdam(FedAvg(), server_lr=value), (0.01, 0.03, 0.1)),
    "FedYogi": (lambda training, value: FedYogi(FedAvg(), server_lr=value), (0.01, 0.03, 0.1)),
    "SCAFFOLD": (lambda training, value: SCAFFOLD(), (0.0,)),
    "FedDyn": (lambda training, value: FedDyn(alpha=value), (0.01, 0.1, 1.0)),
    "FedNova": (lambda training, value: FedNova(training), (0.0,)),
}
TUNING, SEEDS = 100, (0, 1, 2)
EARLY, ROUNDS = 10, 40
QUANTILE = 4.303  # of Student's t with two degrees of freedom, for 95 %
Cell = tuple[str, float, float, int]  # method, local learning rate, its own parameter, seed


def measured(cell: Cell) -> dict[str, Any]:
    """Return the accuracies of a run, in %, after `EARLY` and after all rounds."""
    method, lr, value, seed = cell
    training = LocalSGD(epochs=2, batch_size=16, lr=lr)
    run = Run(
        algorithm=METHODS[method][0](training, value),
        clients=20,
        partition=Dirichlet(0.1),
        participation=0.5,
        training=training,
        until=Until(ROUNDS),
        evaluation=Evaluation(every=EARLY),
        seed=seed,
    )
    found = {line.step: line.metrics.accuracy for line in simulate(run).history if line.metrics}
    return {"cell": cell, "early": 100 * (found[EARLY] or 0.0), "last": 100 * (found[ROUNDS] or 0.0)}


def read(path: Path) -> dict[Cell, dict[str, Any]]:
    """Return the runs that are there."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return {tuple(each["cell"]): each for each in found}


def best(method: str, found: Mapping[Cell, dict[str, Any]]) -> tuple[float, float]:
    """Return the pair of parameters with the best last accuracy of the seed for tuning."""
    pairs = [(lr, value) for lr in RATES for value in METHODS[method][1]]
    return max(pairs, key=lambda pair: found[method, *pair, TUNING]["last"])


def interval(values: list[float]) -> str:
    """Return the mean of some values, and half its 95 % interval by Student's t."""
    return f"{fmean(values):.1f} ± {QUANTILE * stdev(values) / len(values) ** 0.5:.1f}"


def table(found: Mapping[Cell, dict[str, Any]]) -> str:
    """Return the table in Markdown."""
    lines = [
        f"| algorithm | local lr | its own | {EARLY} rounds, % | {ROUNDS} rounds, % | minus FedAvg, points |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    plain = best("FedAvg", found)
    base = [found["FedAvg", *plain, seed]["last"] for seed in SEEDS]
    for method, (_, values) in METHODS.items():
        lr, value = best(method, found)
        runs = [found[method, lr, value, seed] for seed in SEEDS]
        own = f"{value:g}" if len(values) > 1 else "-"
        early, last = ([run[when] for run in runs] for when in ("early", "last"))
        gain = interval([a - b for a, b in zip(last, base, strict=True)]) if method != "FedAvg" else "-"
        lines.append(f"| {method} | {lr:g} | {own} | {interval(early)} | {interval(last)} | {gain} |")
    return "\n".join(lines)


def main() -> None:
    """Carry out what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("build/unlike_clients.jsonl"))
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    found = read(options.output)

    def carry_out(cell: Cell) -> None:
        if cell not in found:
            found[cell] = measured(cell)
            with options.output.open("a") as file:
                file.write(json.dumps(found[cell]) + "\n")

    for method, (_, values) in METHODS.items() if not options.table else ():
        for lr in RATES:
            for value in values:
                carry_out((method, lr, value, TUNING))
        for seed in SEEDS:
            carry_out((method, *best(method, found), seed))
    print(table(found))


if __name__ == "__main__":
    main()
