"""What free riders earn under `Rewarded`, which rewards by agreement.

The table of docs/measurements/everything-at-once.md.

python benchmarks/free_riders.py [--seeds 5] [--rows NAME ...]

Ten honest clients hold digits, unequally; another two attack.  The quota is a client's reputation over the largest
one, its mean over the last ten steps; an excluded client has 0.  Each row: that of the attacker with the larger one,
the median of the honest clients, by seed, and the rank correlation of the honest clients' with their sizes.
"""

import argparse
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median

import torch
from scipy.stats import spearmanr
from typing_extensions import override

from phalanx import Record, Run, Until, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import FedAvg, Rewarded
from phalanx.attacks import Attack, LazyFreeRider, Mimic, RandomFreeRider, Rescale, Sybils
from phalanx.attacks.attack import Forged, Knowledge, Remembering, Update
from phalanx.data import LognormalSizes
from phalanx.training import Evaluation

LAST = 10  # steps
REWARDED = Rewarded(FedAvg(Median()))


@dataclass(frozen=True)
class EarlierChange(Remembering):
    """Sends the last but one change of what it downloads: what it knows, and the server does not expect."""

    @override
    def respond(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Forged:
        before = update.memory if isinstance(update.memory, tuple) else ()
        sent = (*before, update.base)[-3:]
        return Forged(sent[-2] - sent[-3] if len(sent) == 3 else torch.zeros_like(update.base), sent)


ATTACKS: Mapping[str, Attack] = {
    "sends nothing": Rescale(0.0),
    "random": RandomFreeRider(),
    "last change": LazyFreeRider(0.0),
    "last change, noise 0.001": LazyFreeRider(1e-3),
    "last change, noise 0.01": LazyFreeRider(1e-2),
    "last change, the same twice": Sybils(LazyFreeRider(0.0)),
    "last change, the same noise 0.01 twice": Sybils(LazyFreeRider(1e-2)),
    "change before the last": EarlierChange(),
    "copy of an honest client": Mimic(0),
}


def quotas(record: Record) -> dict[int, float]:
    """Return the mean quota of each client in the last steps: reputation over the largest one; 0 if it has none."""
    last = [step.state["reputation"] for step in list(record.history)[-LAST:]]
    most = [max(one.values(), default=0.0) or 1.0 for one in last]
    shares = {i: [one.get(i, 0.0) / top for one, top in zip(last, most, strict=True)] for i in record.summary.clients}
    return {i: fmean(each) for i, each in shares.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", nargs="*", choices=ATTACKS, default=[*ATTACKS])
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of promises that are missing
    torch.set_num_threads(1)  # sums of several threads round otherwise
    columns = ("two clients send", "attackers, by seed", "honest median, by seed", "with size")
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}", flush=True)
    base = Run(
        algorithm=REWARDED, clients=10, attack=RandomFreeRider(), additional_byzantine=2,
        partition=LognormalSizes(sigma=0.5), until=Until(30), evaluation=Evaluation(every=1000),
    )  # fmt: skip
    for name in options.rows:
        bad, good, fair = list[float](), list[float](), list[float]()
        for seed in range(options.seeds):
            record = simulate(replace(base, attack=ATTACKS[name], seed=seed))
            found, clients = quotas(record), record.summary.clients
            bad.append(max(q for i, q in found.items() if clients[i].byzantine))
            honest = {i: q for i, q in found.items() if not clients[i].byzantine}
            good.append(median(honest.values()))
            fair.append(float(spearmanr([*honest.values()], [clients[i].size for i in honest]).statistic))
        cells = (", ".join(f"{q:.2f}" for q in some) for some in (bad, good))
        print(f"| {name} | {' | '.join(cells)} | {fmean(fair):.2f} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
