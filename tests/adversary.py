"""Attackers who know everything, and a judge who does not: it reads off rows and results what the attackers reached.

Attackers send negative entries, honest clients positive ones; clipping, scaling, averaging over time and permutations
keep that.  So the judge sees in the rows of each rule call whose they are, and asks of a median only that its result
lies between honest entries.  It takes nothing from `phalanx.promises` but the number that a run says it tolerates.
"""

import dataclasses
import warnings
from dataclasses import dataclass, field

import torch

import phalanx
from compositions import ALGORITHMS, PARTICIPATION, PREPROCESSING, WRAPPERS
from phalanx.aggregators import Aggregator, Median
from phalanx.core import InfeasibleError, StalledError, Until
from phalanx.engine import LoopSettings, LostRounds, Participation
from phalanx.engine.connection import Arrivals, Reply
from phalanx.rng import numpy_generator

N, D = 12, 20
SIZES = {"equal": [50], "mixed": [1, 10, 100, 1000], "tiny": [1, 500, 500, 500], "huge": [50, 50, 50, 10**9]}
TIMING = ("attackers first", "attackers last", "random")
LOUD = -1e4


@dataclass
class Hostile:
    """A transport whose attackers choose their sizes, times, absences, and whom they resemble.

    Args:
        seed: of all draws.
        sizes: a key of `SIZES`.
        timing: one of `TIMING`.
        lossy: whether answers of honest clients can be lost.
        late: clients that join after some waits.
        patience: number of own answers until which attackers behave.
    """

    seed: int
    sizes: str
    timing: str
    lossy: bool = False
    late: int = 0
    patience: int = 0
    attackers: frozenset[int] = frozenset()
    now: float = 0.0
    open: dict[int, int] = field(default_factory=dict)
    answers: dict[int, int] = field(default_factory=dict)

    def __post_init__(self):
        self.rng = numpy_generator(self.seed, "hostile")
        self.order = self.rng.permutation(N).tolist()  # those that are attackers first
        self.reported = {i: int(self.rng.choice(SIZES[self.sizes])) for i in range(N)}
        if self.rng.random() < 0.5:  # the attackers report the most
            ranked = sorted(self.reported.values(), reverse=True)
            self.reported = dict(sorted(zip(self.order, ranked, strict=True)))
        self.waits = 0

    @property
    def joins(self):
        return bool(self.late)

    def enroll(self):
        coming = set(self.order[: self.late])  # attackers come late
        return {i: size for i, size in self.reported.items() if i not in coming}

    def turn_on(self, f):
        """The first of the order are attackers."""
        self.attackers = frozenset(self.order[:f])

    def send(self, downloads, version):
        self.open |= dict.fromkeys(downloads, version)

    def receive(self, *, every):
        self.now += 1.0
        self.waits += 1
        joined = {i: self.reported[i] for i in self.order[: self.late]} if self.waits == 3 else {}
        ranks = {"attackers first": -1, "attackers last": 1, "random": 0}
        sign = ranks[self.timing]
        queue = sorted(self.open, key=lambda i: (sign * (i in self.attackers), self.rng.random()))
        if every:
            lost = {i: "silent" for i in queue if self.lossy and self._silent(i)}
            replies = tuple(self._reply(i) for i in queue if i not in lost)
            self.open.clear()
            return Arrivals(replies, {}, lost, joined)
        if not queue:
            return Arrivals((), {}, {}, joined)
        (i, *_) = queue
        return Arrivals((self._reply(i),), {}, {}, joined)

    def _silent(self, i):
        return self.rng.random() < (0.1 if i in self.attackers else 0.6)

    def _reply(self, i):
        version = self.open.pop(i)
        count = self.answers[i] = self.answers.get(i, 0) + 1
        group = i % 2
        honest = torch.where(torch.arange(D) % 2 == group, 1.0, 0.2) + 0.05 * torch.rand(D)
        delta = torch.full((D,), LOUD) if i in self.attackers and count > self.patience else honest
        return Reply(i, version, delta, 1.0)


def watch_medians(monkeypatch, seen):
    """Have `seen` called with each call of a median: its rows with a weight, the honest ones of them, the result."""
    original = Aggregator.explained

    def explained(rule, deltas, weights=None, **options):
        made = original(rule, deltas, weights, **options)
        if isinstance(rule, Median) and deltas.shape[1] == D:
            rows = deltas if weights is None else deltas[weights > 0]
            seen(len(deltas), rows, rows[rows.mean(1) >= 0], made[0])
        return made

    monkeypatch.setattr(Aggregator, "explained", explained)


def judged(monkeypatch):
    """A list to which the calls of medians are added whose result was not between the entries of honest rows."""
    found, slack = [], 1e-4

    def seen(m, rows, honest, result):
        if not len(honest) or bool(((result < honest.amin(0) - slack) | (result > honest.amax(0) + slack)).any()):
            found.append((m, len(rows) - len(honest)))

    watch_medians(monkeypatch, seen)
    return found


def draw(seed):
    """A composition and an adversary, drawn by a seed; None if the composition does not exist."""
    rng = numpy_generator(seed, "composition")
    names = [name for name in ALGORITHMS if "Median" in name or name in ("DeMoA", "BASGD", "AsyncMomentum")]
    algorithm = ALGORITHMS[names[rng.integers(len(names))]]
    try:
        if hasattr(algorithm, "preprocess"):
            chosen = list(PREPROCESSING.values())[rng.integers(len(PREPROCESSING))]
            algorithm = dataclasses.replace(algorithm, preprocess=chosen)
        for _ in range(rng.integers(3)):
            wrapper = list(WRAPPERS.values())[rng.integers(len(WRAPPERS))]
            algorithm = wrapper(algorithm)
    except (ValueError, InfeasibleError):
        return None
    if algorithm.traits.needs_reference or algorithm.traits.knows_layout:
        return None
    case = list(PARTICIPATION)[rng.integers(len(PARTICIPATION))]
    hostile = Hostile(
        seed,
        list(SIZES)[rng.integers(len(SIZES))],
        TIMING[rng.integers(len(TIMING))],
        lossy=case in ("deadline", "silent", "leaves"),
        late=1 + int(rng.integers(2)) if case == "joins" and algorithm.traits.can_join else 0,
        patience=int(rng.choice([0, 0, 2])),
    )
    sampled = case == "sampled" and algorithm.traits.synchronous
    return algorithm, hostile, Participation(0.75, seed) if sampled else phalanx.engine.everyone


def attacked(algorithm, hostile, sample, steps=8):
    """Carry out a run; return the number of attackers that it says it tolerates, None if it is refused."""
    promised = []

    def watch(progress):
        if progress.promise is not None and not promised:
            promised.append(progress.promise.f)
            hostile.turn_on(min(progress.promise.f, N))

    try:
        with warnings.catch_warnings(action="ignore"):
            phalanx.run(
                algorithm,
                hostile,
                torch.zeros(D),
                LoopSettings(
                    until=Until(steps if algorithm.traits.synchronous else steps * N),
                    lost_rounds=LostRounds("skip", 100),
                ),
                sample=sample,
                observers=[watch],
            )
    except StalledError:
        pass  # silence is no harm
    except (ValueError, InfeasibleError):
        return promised[0] if promised else None
    return promised[0]
