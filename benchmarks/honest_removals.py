"""Honest clients that ByzantineCFL excludes: the paper's rule against IfUnlike, run by run with the same seeds.

python benchmarks/honest_removals.py [--only "10 clients"] [--jobs 2]

IID digits, the default perceptron (512 hidden units), one local epoch, 30 % attackers; 100 rounds, with 100 clients 40.
"clean": 6,000 images of Fashion-MNIST, 14 clients of whom none attacks, 60 rounds.
The settings of `IfUnlike` were chosen on the seeds 0 to 4.
"""

from statistics import fmean

from as_study import carry_out, markdown

from phalanx import Run, Study, Until
from phalanx.algorithms import ByzantineCFL
from phalanx.attacks import ALIE, AllLabelsTo, Gaussian, NoiseInputs, SignFlip
from phalanx.data import FashionMNIST
from phalanx.experiments.results import Results, Row
from phalanx.training.evaluation import Evaluation

METHODS = {"AtOnce": {"algorithm": ByzantineCFL.as_published()}, "IfUnlike": {"algorithm": ByzantineCFL()}}
ATTACKS = [Gaussian(std=1.0), NoiseInputs(), AllLabelsTo(0), SignFlip(), ALIE()]
ROUNDS = {10: 100, 20: 100, 100: 40}  # by number of clients


def study(clients: int, rounds: int) -> Study:
    """Return the study of federations of one size."""
    base = Run(
        clients=clients, attack=ATTACKS[0], byzantine=0.3, until=Until(rounds), evaluation=Evaluation(every=rounds)
    )
    return Study(base, {"attack": ATTACKS, "rule": METHODS}, seeds=range(100, 120), name=f"{clients} clients")


def clean() -> Study:
    """Return the study of other images, where nobody attacks."""
    base = Run(data=FashionMNIST(limit=6000), clients=14, byzantine=0, until=Until(60), evaluation=Evaluation(every=60))
    return Study(base, {"attack": {"none": None}, "rule": METHODS}, seeds=range(100, 110), name="14 clients")


def interval(k: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of Clopper and Pearson for a probability, of which k of n trials came true."""
    from scipy.stats import beta  # noqa: PLC0415  (slow to import)

    tail = (1 - confidence) / 2
    low = 0.0 if k == 0 else float(beta.ppf(tail, k, n - k + 1))
    return low, 1.0 if k == n else float(beta.ppf(1 - tail, k + 1, n - k))


def counts(rows: list[Row]) -> list[str]:
    """Return the cells of a row: runs, exclusions, accuracy, and the share of honest updates that were left out."""
    honest, traces = [row.trace.honest_excluded for row in rows], [row.trace for row in rows]
    gone, of = sum(len(t.excluded) for t in traces) - sum(honest), sum(len(t.byzantine) for t in traces)
    hit = sum(map(bool, honest))
    accuracy, left = fmean(t.final() or 0.0 for t in traces), fmean(t.filtered["honest"] or 0.0 for t in traces)
    return [
        str(len(rows)),
        f"{sum(honest)} in {hit} runs" if hit else "0",
        f"{gone} of {of}",
        f"{100 * accuracy:.1f} %",
        f"{100 * left:.2f} %",
    ]


def tables(results: Results) -> str:
    """Return the table, and how many runs exclude nobody honest."""
    head = ("Clients", "Attack", "Rule", "Runs", "Honest excluded", "Attackers excluded", "Accuracy", "Honest left out")
    lines = [markdown(head, ([results.name.split()[0], *names, *counts(rows)] for names, rows in results.cells())), ""]
    for rule in METHODS:
        rows = results.where({"rule": rule})
        clean = sum(not row.trace.honest_excluded for row in rows)
        low, high = interval(clean, len(rows))
        lines.append(
            f"{rule}, {results.name}: no honest client is excluded in {clean} of {len(rows)} runs, "
            f"{100 * clean / len(rows):.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f})"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    studies = {f"{m} clients": study(m, rounds) for m, rounds in ROUNDS.items()}
    carry_out(__doc__, {**studies, "clean": clean()}, tables, "honest_removals")
