"""Honest clients that ByzantineCFL excludes: the paper's rule against IfUnlike, run by run with the same seeds.

python benchmarks/honest_removals.py [--clients 10 20 100] [--seeds 100 120] [--output honest_removals.jsonl] [--table]

IID digits, the default perceptron (512 hidden units), one local epoch, 30 % attackers; 100 rounds, with 100 clients 40.
A run is one line of the output; a second call goes on where the first one ended.  `--table` prints the table of what is
there.  The settings of `IfUnlike` were chosen on the seeds 0 to 4.
"""

import argparse
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from phalanx import Run, Until, simulate
from phalanx.algorithms import ByzantineCFL
from phalanx.attacks import ALIE, AllLabelsTo, Attack, Gaussian, NoiseInputs, SignFlip
from phalanx.training.evaluation import Evaluation

ATTACKS: Mapping[str, Attack] = {
    "Gaussian(std=1)": Gaussian(std=1.0),
    "NoiseInputs": NoiseInputs(),
    "AllLabelsTo(0)": AllLabelsTo(0),
    "SignFlip": SignFlip(),
    "ALIE": ALIE(),
}
METHODS: Mapping[str, ByzantineCFL] = {"IfUnlike": ByzantineCFL(), "AtOnce": ByzantineCFL.as_published()}
ROUNDS, MANY, FEWER = 100, 100, 40  # rounds; from how many clients on there are fewer, and how many
SHARE = 0.3
Cell = tuple[int, str, int, str]  # clients, attack, seed, method


def cells(clients: Sequence[int], seeds: range) -> Iterator[Cell]:
    """Yield all runs, seed by seed, so that an early end leaves whole seeds."""
    for seed, method, m, attack in product(seeds, METHODS, clients, ATTACKS):
        yield m, attack, seed, method


def plan(cell: Cell) -> Run:
    """Return the run of a cell."""
    m, attack, seed, method = cell
    rounds = ROUNDS if m < MANY else FEWER
    return Run(
        algorithm=METHODS[method],
        clients=m,
        attack=ATTACKS[attack],
        byzantine=SHARE,
        until=Until(steps=rounds),
        evaluation=Evaluation(every=rounds),
        seed=seed,
    )


def measured(cell: Cell) -> dict[str, Any]:
    """Return who was excluded in a run, and its last accuracy."""
    run = plan(cell)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the noise floor, which is below the threshold or hardly above
        history = simulate(run).history
    bad = run.attackers()
    gone = {i: record.step for record in history for i, verdict in record.verdicts.items() if verdict.final}
    out = [sum(not v.accepted and i not in bad for i, v in record.verdicts.items()) for record in history]
    metrics = history[-1].metrics
    return {
        "cell": cell,
        "honest": {i: step for i, step in gone.items() if i not in bad},
        "attackers": {i: step for i, step in gone.items() if i in bad},
        "byzantine": len(bad),
        "left_out": fmean(out) / (run.clients - len(bad)),
        "accuracy": metrics.accuracy if metrics else None,
    }


def read(path: Path) -> dict[Cell, dict[str, Any]]:
    """Return the runs that are there."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return {tuple(each["cell"]): each for each in found}


def interval(k: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of Clopper and Pearson for a probability, of which k of n trials came true."""
    from scipy.stats import beta  # noqa: PLC0415  (slow to import)

    tail = (1 - confidence) / 2
    low = 0.0 if k == 0 else float(beta.ppf(tail, k, n - k + 1))
    return low, 1.0 if k == n else float(beta.ppf(1 - tail, k + 1, n - k))


def table(found: Mapping[Cell, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table, and how many runs exclude nobody honest."""
    yield "| Clients | Attack | Rule | Runs | Honest excluded | Attackers excluded | Accuracy | Honest left out |"
    yield "|---|---|---|---|---|---|---|---|"
    for m, attack, method in product(sorted({cell[0] for cell in found}), ATTACKS, [*METHODS][::-1]):
        if runs := [each for cell, each in found.items() if (*cell[:2], cell[3]) == (m, attack, method)]:
            yield f"| {m} | {attack} | {method} | {len(runs)} | " + " | ".join(_row(runs)) + " |"
    yield ""
    for m, method in product((*sorted({cell[0] for cell in found}), None), [*METHODS][::-1]):
        runs = [each for cell, each in found.items() if cell[3] == method and m in (None, cell[0])]
        if runs:
            clean = sum(not each["honest"] for each in runs)
            low, high = interval(clean, len(runs))
            yield (
                f"{method}, {m or 'all'} clients: no honest client is excluded in {clean} of {len(runs)} runs, "
                f"{100 * clean / len(runs):.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f})"
            )


def _row(runs: Sequence[Mapping[str, Any]]) -> tuple[str, str, str, str]:
    hit, of = sum(bool(each["honest"]) for each in runs), sum(each["byzantine"] for each in runs)
    honest = sum(len(each["honest"]) for each in runs)
    return (
        f"{honest} in {hit} runs" if honest else "0",
        f"{sum(len(each['attackers']) for each in runs)} of {of}",
        f"{100 * fmean(each['accuracy'] for each in runs):.1f} %",
        f"{100 * fmean(each['left_out'] for each in runs):.2f} %",
    )


def main() -> None:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 20, 100])
    parser.add_argument("--seeds", type=int, nargs=2, default=[100, 120], help="the first one, and one past the last")
    parser.add_argument("--output", type=Path, default=Path("honest_removals.jsonl"))
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    arguments = parser.parse_args()
    found = read(arguments.output)
    for cell in () if arguments.table else cells(arguments.clients, range(*arguments.seeds)):
        if cell not in found:
            found[cell] = measured(cell)
            with arguments.output.open("a") as file:
                print(json.dumps(found[cell]), file=file)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
