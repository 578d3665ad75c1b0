"""Attackers who know everything, and a judge who does not: it reads off rows and results what the attackers reached.

Attackers send negative entries, honest clients positive ones; clipping, scaling, averaging over time and permutations
keep that.  So the judge sees in the rows of each rule call whose they are: attackers must hold less than one half of
the weight, the result of a median must lie between honest entries, and that of a filter must have an honest row in it
and be no longer than one.  It takes nothing from `phalanx.promises` but the number that a run says
it tolerates.

`visits` goes through all cells of the page of compositions that are guaranteed; `draw` also nests wrappers.
"""

import dataclasses
import warnings
from dataclasses import dataclass, field

import torch

import phalanx
from compositions import ALGORITHMS, ALONE, PARTICIPATION, PREPROCESSING, WRAPPERS, cells, composed
from phalanx.aggregators import Aggregator, Median
from phalanx.aggregators.flame import DensestMajority
from phalanx.core import InfeasibleError, StalledError, Until
from phalanx.engine import Guard, LoopSettings, LostRounds, Participation
from phalanx.engine.connection import Arrivals, Reply
from phalanx.rng import generator, numpy_generator

N, D = 12, 20
SIZES = {"equal": [50], "mixed": [1, 10, 100, 1000], "tiny": [1, 500, 500, 500], "huge": [50, 50, 10**9, 10**18]}
TIMING = ("attackers first", "attackers last", "random")
LOUD = -1e4
LAYERS = 400  # entries of the adapters of `LowRankProducts`, before D others that show the judge whose a row is


@dataclass
class Hostile:
    """A transport whose attackers choose their sizes, times, absences, groups, and whom they resemble.

    Args:
        seed: of all draws.
        sizes: a key of `SIZES`.
        timing: one of `TIMING`, in three of four waits.
        lossy: whether answers of honest clients can be lost.
        late: clients that join after some waits.
        patience: number of own answers until which attackers behave.
        leaving: whether clients leave between tasks, and come back; an attacker then joins again, with another size.
        sly: factor by which attackers send what their group does, but for one negative entry; 0: all are.
        victims: number of honest clients whose group all attackers join; None: groups of every other client.
        size: number of entries of an update.
    """

    seed: int
    sizes: str
    timing: str
    lossy: bool = False
    late: int = 0
    patience: int = 0
    leaving: bool = False
    sly: float = 0.0
    victims: int | None = None
    size: int = D
    attackers: frozenset[int] = frozenset()
    now: float = 0.0
    open: dict[int, int] = field(default_factory=dict)
    answers: dict[int, int] = field(default_factory=dict)

    def __post_init__(self):
        self.rng, self.noise = numpy_generator(self.seed, "hostile"), generator(self.seed, "hostile")
        self.order = self.rng.permutation(N).tolist()  # those that are attackers first
        self.reported = {i: int(self.rng.choice(SIZES[self.sizes])) for i in range(N)}
        if self.rng.random() < 0.5:  # the attackers report the most
            ranked = sorted(self.reported.values(), reverse=True)
            self.reported = dict(sorted(zip(self.order, ranked, strict=True)))
        self.waits, self.away = 0, set[int]()

    @property
    def joins(self):
        return bool(self.late)

    def enroll(self):
        coming = set(self.order[: self.late])  # attackers come late
        return {i: size for i, size in self.reported.items() if i not in coming}

    def turn_on(self, f):
        """The first of the order are attackers."""
        self.attackers = frozenset(self.order[:f])

    def here(self, clients):
        if self.leaving:
            self.away |= {i for i in clients if self.rng.random() < 0.2}
        return clients - self.away

    def send(self, downloads, version):
        self.open |= dict.fromkeys(downloads, version)

    def receive(self, *, every):
        self.now += 1.0
        self.waits += 1
        joined = {i: self.reported[i] for i in self.order[: self.late]} if self.waits == 3 else {}
        if self.leaving and self.waits == 5:
            joined = {self.order[0]: 10**18}
        back, self.away = frozenset(self.away), set()
        ranks = {"attackers first": -1, "attackers last": 1, "random": 0}
        sign = ranks[self.timing] if self.rng.random() < 0.75 else 0
        queue = sorted(self.open, key=lambda i: (sign * (i in self.attackers), self.rng.random()))
        if every:
            lost = {i: "silent" for i in queue if self.lossy and self._silent(i)}
            replies = tuple(self._reply(i) for i in queue if i not in lost)
            self.open.clear()
            return Arrivals(replies, {}, lost, joined, back=back)
        if not queue:
            return Arrivals((), {}, {}, joined, back=back)
        (i, *_) = queue
        if self.lossy and self._silent(i):
            del self.open[i]
            return Arrivals((), {}, {i: "silent"}, joined, back=back)
        return Arrivals((self._reply(i),), {}, {}, joined, back=back)

    def _silent(self, i):
        return self.rng.random() < (0.1 if i in self.attackers else 0.6)

    def _reply(self, i):
        version = self.open.pop(i)
        count = self.answers[i] = self.answers.get(i, 0) + 1
        group = i % 2 if self.victims is None else i in self.attackers or i in self.order[N - self.victims :]
        delta = torch.where(torch.arange(self.size) % 2 == group, 1.0, 0.2)
        delta += 0.05 * torch.rand(self.size, generator=self.noise)
        if i in self.attackers and count > self.patience:
            delta = self.sly * delta if self.sly else torch.full_like(delta, LOUD)
            delta[-1] = -delta[-1].abs()
        return Reply(i, version, delta, 1.0)


def watch_rules(monkeypatch, seen, of_honest=lambda rows: rows.mean(1) >= 0):
    """Have `seen` called with each call of a rule: the rule, its number of rows, those with a weight, their weights,
    which of them are honest, the result, and the shares of them that the rule has chosen, if it chooses.
    """
    original = Aggregator.explained

    def explained(rule, deltas, weights=None, **options):
        made = original(rule, deltas, weights, **options)
        if deltas.shape[1] >= D:
            weights = torch.ones(len(deltas)) if weights is None else weights
            used = weights > 0
            rows, shares = deltas[used], None if made[1] is None else made[1].shares[used]
            seen(rule, len(deltas), rows, weights[used], of_honest(rows[:, :D]), made[0], shares)
        return made

    monkeypatch.setattr(Aggregator, "explained", explained)


def watch_medians(monkeypatch, seen):
    """Have `seen` called with each call of a median: its rows with a weight, the honest ones of them, the result."""

    def one(rule, m, rows, weights, honest, result, shares):
        if isinstance(rule, Median) and rows.shape[1] == D:
            seen(m, rows, rows[honest], result)

    watch_rules(monkeypatch, one)


def in_range(rows, result, shares):
    """Return whether a result lies between the entries of honest rows."""
    slack = 1e-4 * rows.abs().amax(0).clamp(min=1)
    return bool(((result >= rows.amin(0) - slack) & (result <= rows.amax(0) + slack)).all())


def no_longer(rows, result, shares):
    """Return whether an honest row is in the mean, and the result no longer than the longest."""
    return float(shares.sum()) > 0 and float(result.norm()) <= float(rows.norm(dim=1).max()) * (1 + 1e-4)


JUDGED = {Median: in_range, DensestMajority: no_longer}  # FLAME and Catalyst clip before they call the latter


@dataclass
class Verdicts:
    """What was seen in the calls of rules of a run.

    Args:
        sly: of the attackers; if it is not 0, one negative entry shows an attacker, and the mean of all if it is.
        attacked: number of calls that had rows of attackers.
        broken: for each call that broke the promise, the number of rows, and of those of attackers.
    """

    sly: float = 0.0
    attacked: int = 0
    broken: list = field(default_factory=list)


def judged(monkeypatch):
    """The verdicts on all calls of the rules in `JUDGED`."""
    found = Verdicts()

    def seen(rule, m, rows, weights, honest, result, shares):
        if type(rule) not in JUDGED:
            return
        found.attacked += not bool(honest.all())
        less = float(weights[~honest].sum()) < 0.5 * float(weights.sum())
        if not less or not JUDGED[type(rule)](rows[honest], result, None if shares is None else shares[honest]):
            found.broken.append((m, int((~honest).sum())))

    watch_rules(monkeypatch, seen, lambda rows: (rows.amin(1) if found.sly else rows.mean(1)) >= 0)
    return found


def survived(found, algorithm, hostile, sample):
    """Carry out a run; return the number of attackers that it tolerates; `found` are the verdicts on it alone."""
    found.sly, found.attacked, found.broken = hostile.sly, 0, []
    return attacked(algorithm, hostile, sample)


GUARANTEED = [(where, shown) for where, (shown, _) in cells() if shown.startswith("y")]
LEFT_OUT = [where for where, shown in GUARANTEED if shown == ALONE]  # nothing is aggregated
VISITED = [where for where, shown in GUARANTEED if shown != ALONE]
TRIES = 16  # adversaries for a cell, until one of them gets rows into a call of a rule


def visits(number):
    """Yield adversaries for a cell of the page that is guaranteed, by its place in `VISITED`."""
    *names, case = VISITED[number]
    for seed in range(number, number + TRIES * len(VISITED), len(VISITED)):
        yield against(composed(*names), case, seed, numpy_generator(seed, "visit"))


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
    return against(algorithm, list(PARTICIPATION)[rng.integers(len(PARTICIPATION))], seed, rng)


def against(algorithm, case, seed, rng):
    """An algorithm, an adversary that is drawn, and a sampler, for a case of `PARTICIPATION`."""
    variates = "SCAFFOLD" in repr(algorithm)  # honest changes of which have negative entries
    hostile = Hostile(
        seed,
        list(SIZES)[rng.integers(len(SIZES))],
        TIMING[rng.integers(len(TIMING))],
        lossy=case in ("deadline", "silent", "leaves"),
        late=1 + int(rng.integers(2)) if case == "joins" and algorithm.traits.can_join else 0,
        patience=int(rng.choice([0, 0, 2])),
        leaving=case == "leaves",
        sly=0.0 if variates else float(rng.choice([0.0, 0.0, 1.0, 1e4])),
        victims=None if rng.random() < 0.5 else int(rng.integers(7)),
        size=D + LAYERS if algorithm.traits.knows_layout else D,
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
                torch.zeros(hostile.size),
                LoopSettings(
                    until=Until(steps if algorithm.traits.synchronous else steps * N),
                    lost_rounds=LostRounds("skip", 100),
                    guard=Guard(max_size=10**18),
                ),
                sample=sample,
                observers=[watch],
            )
    except StalledError:
        pass  # silence is no harm
    except (ValueError, InfeasibleError):
        return promised[0] if promised else None
    return promised[0]
