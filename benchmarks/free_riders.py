"""What free riders earn, with and without `Unsent` and `Challenge`: the tables of docs/rffl.md.

python benchmarks/free_riders.py [--seeds 5] [--first 0] [--algorithms NAME ...] [--rows NAME ...] [--images FOLDER]

Ten honest clients hold 4, 20, 50, 90, 120, 150, 180, 220, 270 and 334 digits; another two attack.  The quota is a
client's reputation over the largest one, its mean over the last third of the run; an excluded client has 0.  Each row:
the mean and the largest, over the seeds, of the better attacker's; the means of that of the honest client with four
examples, and of the median of the honest; the rank correlation of the honest quotas with sizes, and with how often
they have answered; the mean accuracy of the honest clients' models at the end, in percent.
"""

import argparse
import math
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import ClassVar, Literal

import numpy as np
import torch
from scipy.stats import spearmanr
from typing_extensions import override

from papers.catalyst.populations import Subset
from phalanx import Record, Run, Until, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import RFFL, AsyncRFFL, Challenge, FedAvg, Quorum, Rewarded, Unsent
from phalanx.attacks import Attack, LazyFreeRider, Mimic, RandomFreeRider, Rescale, Scheduled, Sybils
from phalanx.attacks.attack import AttackTraits, Forged, Knowledge, Remembering, Update
from phalanx.core import Algorithm
from phalanx.data import MNIST
from phalanx.data.partition import Ints, Partition
from phalanx.models import MLP, CoxCNN, XuLyuMnistCNN
from phalanx.simulation import Lognormal
from phalanx.training import Evaluation, LocalSGD

SIZES = (4, 20, 50, 90, 120, 150, 180, 220, 270, 334)
STRENGTH = 0.2  # of the shifts: the model has 2,410 entries only
FAINT = 1e-8  # noise that only prevents an update of zero: a client that begins with none is paid nothing, forever

ALGORITHMS: Mapping[str, Algorithm] = {
    "Rewarded": Rewarded(FedAvg(Median())),
    "Rewarded, Unsent": Rewarded(FedAvg(Median()), unsent=Unsent()),
    "Rewarded, Challenge": Rewarded(FedAvg(Median()), challenge=Challenge(STRENGTH)),
    "Rewarded, both": Rewarded(FedAvg(Median()), unsent=Unsent(), challenge=Challenge(STRENGTH)),
    "RFFL": RFFL(),
    "RFFL, Unsent": RFFL(unsent=Unsent()),
    "RFFL, Challenge": RFFL(challenge=Challenge(STRENGTH)),
    "RFFL, both": RFFL(unsent=Unsent(), challenge=Challenge(STRENGTH)),
    "AsyncRFFL": AsyncRFFL(),
    "AsyncRFFL, Challenge": AsyncRFFL(challenge=Challenge(STRENGTH)),
    "Rewarded quorum": Rewarded(Quorum(FedAvg(Median()), 7)),
    "Rewarded quorum, Unsent": Rewarded(Quorum(FedAvg(Median()), 7), unsent=Unsent()),
    "Rewarded quorum, Challenge": Rewarded(Quorum(FedAvg(Median()), 7), challenge=Challenge(STRENGTH)),
    "Rewarded quorum, both": Rewarded(Quorum(FedAvg(Median()), 7), unsent=Unsent(), challenge=Challenge(STRENGTH)),
}


@dataclass(frozen=True)
class Sizes(Partition):
    """Clients hold `SIZES`."""

    @override
    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        return rng.permutation(np.repeat(np.arange(len(SIZES)), SIZES))[: len(labels)]


@dataclass(frozen=True)
class Changes(Remembering):
    """Makes its update of all models that it was sent.

    Args:
        how: "earlier": the change `back` turns before the last; "total": that since its first download; "mixed": the
            last six, with random coefficients; "signs", "cubes", "half": a function of each entry of the last one;
            "ratio": that times the ratio of its entries to those of the one before.
        back: see above.
    """

    how: Literal["earlier", "total", "mixed", "signs", "cubes", "half", "ratio"]
    back: int = 0

    @override
    def respond(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Forged:
        sent = (*(update.memory if isinstance(update.memory, tuple) else ()), update.base)
        changes = [b - a for a, b in pairwise(sent)]
        noise = FAINT * torch.randn(update.base.shape, generator=rng)
        made = self._made(changes, rng) if len(changes) > max(self.back, 1) else torch.zeros_like(update.base)
        return Forged(made + noise, sent)

    def _made(self, changes: list[torch.Tensor], rng: torch.Generator) -> torch.Tensor:
        last = changes[-1]
        if self.how == "earlier":
            return changes[-1 - self.back]
        if self.how == "total":
            return torch.stack(changes).sum(0)
        if self.how == "mixed":
            return sum((torch.randn((), generator=rng) * x for x in changes[-6:]), torch.zeros_like(last))
        of_entries = {
            "signs": last.sign(),
            "cubes": last**3,
            "half": last * (torch.rand(last.shape, generator=rng) < 0.5),
            "ratio": last * (last / torch.where(changes[-2] == 0, 1.0, changes[-2])).clamp(-1, 1.5),
        }
        made = of_entries[self.how]
        return made * last.norm() / made.norm().clamp(min=1e-12)


@dataclass(frozen=True)
class Back(Remembering):
    """Knows of `Challenge`: goes back by a tenth of the last change of what it was sent, or of the difference of two.

    It sends that with all earlier changes up to `turns`, or with the mean of honest updates of the step; it trains
    until it has them.  In a pair it compares its download with that of the other attacker.
    """

    traits: ClassVar[AttackTraits] = AttackTraits(omniscient=True, remembers=True)
    turns: int = 6
    of: tuple[int, ...] = ()
    paired: bool = False

    @override
    def respond(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Forged:
        sent = (*(update.memory if isinstance(update.memory, tuple) else ()), update.base)[-2 - self.turns :]
        if len(sent) < 2 + self.turns:
            return Forged(update.delta, sent)
        last, earlier = sent[-1] - sent[-2], sent[-2] - sent[0]
        made = _mean(knowledge, self.of, earlier * last.norm() / earlier.norm().clamp(min=1e-12))
        if self.paired and knowledge is not None:
            others = [one.base for one in knowledge.colluders if one.client != update.client]
            last = update.base - others[0] if others else last
        return Forged(made - 0.1 * last + FAINT * torch.randn(last.shape, generator=rng), sent)


@dataclass(frozen=True)
class Stale(Remembering):
    """Trains in its first turns, and sends the last of these updates in all others."""

    turns: int

    @override
    def respond(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Forged:
        turn, kept = update.memory if isinstance(update.memory, tuple) else (0, update.delta)
        sent = update.delta if turn < self.turns else kept
        return Forged(sent, (turn + 1, sent))


def _mean(knowledge: Knowledge | None, of: tuple[int, ...], otherwise: torch.Tensor) -> torch.Tensor:
    """Return the mean of some honest updates of the step, or another update where there are none."""
    known = () if knowledge is None else zip(knowledge.clients, knowledge.honest, strict=True)
    rows = [row for i, row in known if i in of]
    mean: torch.Tensor = torch.stack(rows).mean(0) if rows else otherwise
    return mean


@dataclass(frozen=True)
class NoisyCopy(Attack):
    """Sends the mean of some honest updates of the step, with noise of `noise` times its length; noise without any."""

    traits: ClassVar[AttackTraits] = AttackTraits(omniscient=True)
    of: tuple[int, ...]
    noise: float

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> torch.Tensor:
        mean = _mean(knowledge, self.of, FAINT * torch.randn(update.base.shape, generator=rng))
        noise = torch.randn(mean.shape, generator=rng)
        return mean + self.noise * mean.norm() / noise.norm() * noise


ATTACKS: Mapping[str, Attack] = {
    "nothing": Rescale(0.0),
    "random": RandomFreeRider(),
    "last change": LazyFreeRider(FAINT),
    "last change, noise 0.001": LazyFreeRider(1e-3),
    "last change, noise 0.01": LazyFreeRider(1e-2),
    "last change, the same twice": Sybils(LazyFreeRider(1e-3)),
    "change before the last": Changes("earlier", 1),
    "change of 6 turns ago": Changes("earlier", 6),
    "all changes since the start": Changes("total"),
    "a random mix of six changes": Changes("mixed"),
    "signs of the last change": Changes("signs"),
    "cubes of the last change": Changes("cubes"),
    "half of the last change": Changes("half"),
    "last change, extrapolated": Changes("ratio"),
    "goes back": Back(),
    "mean of three, goes back": Back(1, (5, 8, 9)),
    "mean of three, compares downloads": Back(1, (5, 8, 9), paired=True),
    "its first update, always": Stale(1),
    "trains in one of two turns": Scheduled(LazyFreeRider(FAINT), every=2),
    "copy of the median client": Mimic(5),
    "copy of the largest client": Mimic(9),
    "copy, noise of 0.3": NoisyCopy((9,), 0.3),
    "copy, noise of its length": NoisyCopy((9,), 1.0),
    "mean of three, noise of 0.3": NoisyCopy((5, 8, 9), 0.3),
}


def quotas(record: Record) -> dict[int, float]:
    """Return the mean quota of each client in the last third of a run: as paid, or reputation over the largest one."""
    steps = [*record.history]
    shares = [_shares(step.state) for step in steps[len(steps) * 2 // 3 :]]
    return {i: fmean(each.get(i, 0.0) for each in shares) for i in record.summary.clients}


def _shares(state: Mapping[str, Mapping[int, float]]) -> Mapping[int, float]:
    """Return the quota of each client that has one."""
    if state.get("quota"):
        return state["quota"]
    most = max(state["reputation"].values(), default=0.0) or 1.0
    return {i: r / most for i, r in state["reputation"].items()}


def correlation(honest: Sequence[float], other: Sequence[float]) -> float:
    """Return the rank correlation of quotas with another figure of the same clients; NaN where one does not vary."""
    varies = len({*honest}) > 1 and len({*other}) > 1
    return float(spearmanr(honest, other).statistic) if varies else math.nan


def plan(algorithm: Algorithm) -> Run:
    """Return the run: 30 rounds, as many updates one by one, or 300 quorums, so that slow clients answer 20 times."""
    n = len(SIZES) + 2
    run = Run(
        algorithm=algorithm, clients=len(SIZES), attack=RandomFreeRider(), additional_byzantine=2, partition=Sizes(),
        model=MLP((32,)), until=Until(30), evaluation=Evaluation(every=10000),
    )  # fmt: skip
    if algorithm.traits.synchronous:
        return run
    return replace(run, until=Until(300 if isinstance(algorithm, Rewarded) else 30 * n), latency=Lognormal())


def price_on_images(data_dir: Path) -> None:
    """Print the accuracy of ten clients with 600 images of MNIST each, and the least that one has proven."""
    print("| model | strength | accuracy | least proven |\n| --- | --- | --- | --- |", flush=True)
    for model in (XuLyuMnistCNN(), CoxCNN()):
        for strength in (None, 0.05, 0.1, 0.2, 0.4):
            challenge = None if strength is None else Challenge(strength)
            run = Run(
                algorithm=Rewarded(FedAvg(Median()), challenge=challenge), data=Subset(MNIST(), 6000, 1000),
                clients=10, attack=RandomFreeRider(), additional_byzantine=1, model=model, until=Until(20),
                training=LocalSGD(lr=0.05, engine="compiled"), evaluation=Evaluation(every=10000),
            )  # fmt: skip
            step = simulate(run, data_dir=data_dir).history[-1]
            accuracy = 100 * fmean(each or 0.0 for each in step.metrics.received_accuracy.values())
            proven = min((p for i, p in step.state.get("proven", {}).items() if i < 10), default=math.nan)
            print(f"| {type(model).__name__} | {strength} | {accuracy:.1f} | {proven:.2f} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--algorithms", nargs="*", choices=ALGORITHMS, default=[*ALGORITHMS])
    parser.add_argument("--rows", nargs="*", choices=ATTACKS, default=[*ATTACKS])
    parser.add_argument("--images", type=Path, help="the price of `Challenge` on MNIST instead, which lies there")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of promises that are missing
    torch.set_num_threads(1)  # sums of several threads round otherwise
    if options.images:
        return price_on_images(options.images)
    columns = (
        "algorithm",
        "two clients send",
        "attacker",
        "at most",
        "four examples",
        "median",
        "size",
        "answers",
        "accuracy",
    )
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}", flush=True)
    for algorithm in options.algorithms:
        for name in options.rows:
            rows = list[tuple[float, ...]]()
            for seed in range(options.first, options.first + options.seeds):
                record = simulate(replace(plan(ALGORITHMS[algorithm]), attack=ATTACKS[name], seed=seed))
                found, clients = quotas(record), record.summary.clients
                answers = Counter(i for step in record.history for i in step.verdicts)
                honest = [i for i in found if not clients[i].byzantine]
                quota = [found[i] for i in honest]
                by = [[clients[i].size or 0 for i in honest], [answers[i] for i in honest]]
                bad = max(q for i, q in found.items() if clients[i].byzantine)
                served = record.history[-1].metrics.received_accuracy.values()
                accuracy = 100 * fmean(each or 0.0 for each in served)
                rows.append((bad, bad, quota[0], median(quota), *(correlation(quota, other) for other in by), accuracy))
            means = [max(column) if k == 1 else fmean(column) for k, column in enumerate(zip(*rows, strict=True))]
            cells = ("-" if math.isnan(mean) else f"{mean:.2f}" for mean in means)
            print(f"| {algorithm} | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
