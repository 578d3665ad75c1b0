"""What free riders earn, with and without `Unsent` and `Challenge`: the tables of docs/rffl.md.

python benchmarks/free_riders.py [--only digits images copies] [--seeds 0 1 2 3 4] [--jobs 2] [--data_dir FOLDER]

Ten honest clients hold 4, 20, 50, 90, 120, 150, 180, 220, 270 and 334 digits; another two attack.  The quota is a
client's reputation over the largest one, its mean over the last third of the run; an excluded client has 0.  Each row:
the mean and the largest, over the seeds, of the better attacker's, and its mean in all rounds; the means of that of the
honest client with four examples, and of the median of the honest; the rank correlation of the honest quotas with sizes,
and with how often they have answered; the mean accuracy of the honest clients' models at the end, in percent.

`images`: the price of `Challenge` for ten clients with 600 images of MNIST each, and the least that one has proven.
`copies`: what two more clients earn there that know of challenges, with `Unsent` and the default challenge.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from as_study import carry_out, markdown
from scipy.stats import spearmanr
from typing_extensions import override

from papers.catalyst.populations import Subset
from phalanx import Record, Run, Study, Until
from phalanx.aggregators import Median
from phalanx.algorithms import RFFL, AsyncRFFL, Challenge, FedAvg, Quorum, Rewarded, Unsent
from phalanx.attacks import (
    Attack,
    Duplicate,
    Flood,
    LazyFreeRider,
    Mimic,
    RandomFreeRider,
    Replay,
    Rescale,
    Scheduled,
    Sybils,
    Together,
)
from phalanx.attacks.attack import AttackTraits, Forged, Knowledge, Remembering, Update
from phalanx.core import Algorithm
from phalanx.data import MNIST
from phalanx.data.partition import Ints, Partition
from phalanx.experiments.results import Results, Row
from phalanx.models import MLP, CoxCNN, XuLyuMnistCNN
from phalanx.runs.schema import StepRecord
from phalanx.simulation import Lognormal
from phalanx.training import Evaluation, LocalSGD

SIZES = (4, 20, 50, 90, 120, 150, 180, 220, 270, 334)
FAINT = 1e-8  # noise that only prevents an update of zero: a client that begins with none is paid nothing, forever
M = FedAvg(Median())

ALGORITHMS: Mapping[str, Algorithm] = {
    "Rewarded": Rewarded(M),
    "Rewarded, both": Rewarded(M, unsent=Unsent()),
    "Rewarded, Unsent": Rewarded(M, unsent=Unsent(), challenge=None),
    "Rewarded, None": Rewarded(M, challenge=None),
    "RFFL": RFFL(),
    "RFFL, both": RFFL(unsent=Unsent()),
    "RFFL, as published": RFFL.as_published(),
    "AsyncRFFL": AsyncRFFL(),
    "AsyncRFFL, None": AsyncRFFL(challenge=None),
    "Rewarded quorum": Rewarded(Quorum(M, 7)),
    "Rewarded quorum, both": Rewarded(Quorum(M, 7), unsent=Unsent()),
    "Rewarded quorum, None": Rewarded(Quorum(M, 7), challenge=None),
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

    traits: ClassVar[AttackTraits] = AttackTraits(omniscient=True)
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
    "nothing": Rescale(0.0),  # as an honest client without examples
    "random": RandomFreeRider(),
    "random, short": RandomFreeRider(1e-3),
    "random, the same twice": Sybils(RandomFreeRider(1e-2)),
    "last change": LazyFreeRider(FAINT),
    "last change without noise": LazyFreeRider(0.0),
    "last change, noise 0.001": LazyFreeRider(1e-3),
    "last change, noise 0.01": LazyFreeRider(1e-2),
    "last change, the same twice": Sybils(LazyFreeRider(1e-3)),
    "last change, at once": Together(LazyFreeRider(FAINT), Flood()),
    "last change, three answers each": Together(LazyFreeRider(FAINT), Duplicate()),
    "last change, a turn late": Together(LazyFreeRider(FAINT), Replay()),
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
    "its own for 15 turns, then that one": Stale(15),
    "trains in one of two turns": Scheduled(LazyFreeRider(FAINT), every=2),
    "copy of whom Mimic learns": Mimic(),
    "copy, three answers each": Together(Mimic(9), Duplicate()),
    "copy of the median client": Mimic(5),
    "copy of the largest client": Mimic(9),
    "copy, noise of 0.03": NoisyCopy((9,), 0.03),
    "copy, noise of 0.3": NoisyCopy((9,), 0.3),
    "copy, noise of 0.3, the same twice": Sybils(NoisyCopy((9,), 0.3)),
    "copy, noise of its length": NoisyCopy((9,), 1.0),
    "mean of three, noise of 0.3": NoisyCopy((5, 8, 9), 0.3),
}


def quotas(record: Record) -> dict[int, float]:
    """Return the mean quota of each client in the last third of a run: as paid, or reputation over the largest one."""
    steps = [*record.history]
    return _means(record, steps[len(steps) * 2 // 3 :])


def always(record: Record) -> dict[int, float]:
    """Return the same over the whole run, the first answers included, which are paid without proof."""
    return _means(record, record.history)


def _means(record: Record, steps: Iterable[StepRecord]) -> dict[int, float]:
    shares = [_shares(step.state) for step in steps if step.state]
    return {i: fmean(each.get(i, 0.0) for each in shares) for i in record.summary.clients}


def answers(record: Record) -> dict[int, int]:
    """Return how often each client has answered."""
    return Counter(i for step in record.history for i in step.verdicts)


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


def paced(algorithm: Algorithm) -> Mapping[str, Any]:
    """Return 30 rounds, as many updates one by one, or 300 quorums, so that slow clients answer 20 times."""
    if algorithm.traits.synchronous:
        return {"algorithm": algorithm}
    steps = 300 if isinstance(algorithm, Rewarded) else 30 * (len(SIZES) + 2)
    return {"algorithm": algorithm, "until": Until(steps), "latency": Lognormal()}


def digits() -> Study:
    """Return the study of what free riders earn."""
    base = Run(
        clients=len(SIZES), attack=RandomFreeRider(), additional_byzantine=2, partition=Sizes(), model=MLP((32,)),
        until=Until(30), evaluation=Evaluation(every=10000),
    )  # fmt: skip
    methods = {name: paced(algorithm) for name, algorithm in ALGORITHMS.items()}
    measures = {"quotas": quotas, "answers": answers, "always": always}
    return Study(base, {"method": methods, "attack": ATTACKS}, seeds=5, name="digits", measures=measures)


def images() -> Study:
    """Return the study of the price of `Challenge` for ten clients with 600 images of MNIST each."""
    base = Run(
        algorithm=ALGORITHMS["Rewarded"], data=Subset(MNIST(), 6000, 1000), clients=10, attack=RandomFreeRider(),
        additional_byzantine=1, model=CoxCNN(), until=Until(20), evaluation=Evaluation(every=10000),
        training=LocalSGD(lr=0.05, engine="compiled"),
    )  # fmt: skip
    strengths = {"None": None, **{"default": Challenge()}, **{str(s): Challenge(s) for s in (0.2, 0.4)}}
    models = {type(model).__name__: model for model in (XuLyuMnistCNN(), CoxCNN())}
    return Study(base, {"model": models, "algorithm.challenge": strengths}, seeds=1, name="images")


def copies() -> Study:
    """Return the study of attackers that know of challenges, among the clients of `images`."""
    algorithm = ALGORITHMS["Rewarded, both"]
    base = replace(images().base, algorithm=algorithm, additional_byzantine=2, until=Until(25))
    models = {type(model).__name__: model for model in (MLP((64,)), XuLyuMnistCNN(), CoxCNN())}
    attacks = {name: attack for name, attack in ATTACKS.items() if isinstance(attack, Back)}
    measures = {"quotas": quotas, "answers": answers, "always": always}
    return Study(base, {"model": models, "attack": attacks}, seeds=3, name="copies", measures=measures)


def served(row: Row) -> float:
    """Return the mean accuracy of honest clients' models at the end, in percent."""
    return 100 * fmean(row.trace.received_accuracy.values())


def figures(row: Row) -> tuple[float, ...]:
    """Return the figures of a run, in the order of the columns."""
    trace = row.trace
    found = [trace.measured["quotas"][str(i)] for i in range(trace.clients)]
    honest = [i for i in range(trace.clients) if i not in trace.byzantine]
    quota, bad = [found[i] for i in honest], max(found[i] for i in trace.byzantine)
    by = [[trace.held[i] for i in honest], [trace.measured["answers"].get(str(i), 0) for i in honest]]
    ever = max(trace.measured["always"][str(i)] for i in trace.byzantine)
    return bad, bad, ever, quota[0], median(quota), *(correlation(quota, other) for other in by), served(row)


def table(results: Results) -> str:
    """Return the table of one study."""
    if results.name == "images":
        return markdown(("model", "strength", "accuracy", "least proven"), map(price, results.rows))
    first = "model" if results.name == "copies" else "algorithm"
    head = (
        first,
        "two clients send",
        "attacker",
        "at most",
        "in all rounds",
        "four examples",
        "median",
        "size",
        "answers",
    )
    lines = list[list[str]]()
    for names, rows in results.cells():
        columns = zip(*map(figures, rows), strict=True)
        means = [max(column) if k == 1 else fmean(column) for k, column in enumerate(columns)]
        lines.append([*names, *("-" if math.isnan(mean) else f"{mean:.2f}" for mean in means)])
    return markdown((*head, "accuracy"), lines)


def price(row: Row) -> list[str]:
    """Return a line of the table of prices, with the least that a client of the ten has proven."""
    proven = row.trace.state.get("proven", ({},))[-1]
    least = min((share for i, share in proven.items() if int(i) < 10), default=math.nan)
    return [*row.labels.values(), f"{served(row):.1f}", f"{least:.2f}"]


STUDIES = {"digits": digits, "images": images, "copies": copies}

if __name__ == "__main__":
    carry_out(__doc__, STUDIES, table, "free_riders")
