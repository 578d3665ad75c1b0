"""Attackers who know everything, and a judge who does not: it reads off rows and results what the attackers reached.

Attackers send negative entries, honest clients positive ones; clipping, scaling, averaging over time and permutations
keep that.  So the judge sees in the rows of each rule call whose they are: attackers must hold less than one half of
the weight, the result of a median must lie between honest entries, and that of a filter must have an honest row in it
and be no longer than one.  It takes nothing from `phalanx.promises` but the number that a run says
it tolerates.

What attackers can choose are factors, each with its levels.  `visits` has each cell of the page of compositions that is
guaranteed meet every pair of them, in 20 runs or so; with COMPOSITIONS=3 in the environment every three, in 70; with
COMPOSITIONS=all it meets all that attackers can choose, in 1,257,360 runs for all cells, six hours of a core.  `draw`
also nests wrappers.
"""

import dataclasses
import itertools
import os
import random
import warnings
from dataclasses import dataclass, field
from functools import cache

import torch

import phalanx
from compositions import ALGORITHMS, ALONE, PARTICIPATION, PREPROCESSING, WRAPPERS, F, cells, composed
from phalanx.aggregators import Aggregator, Median
from phalanx.aggregators.flame import DensestMajority
from phalanx.core import InfeasibleError, Setting, StalledError, Until
from phalanx.engine import Guard, LoopSettings, LostRounds, Participation
from phalanx.engine.connection import Arrivals, Reply
from phalanx.rng import generator, numpy_generator
from phalanx.weighting import Truncate

N, D = 12, 20
SIZES = {
    "equal": [50], "mixed": [1, 10, 100, 1000], "tiny": [1, 500, 500, 500], "huge": [50, 50, 10**9, 10**18],
    "zero": [50, 50, 500],
}  # fmt: skip
TIMING = ("attackers first", "attackers last", "random")
LOUD = -1e4
MOST = 1.05  # the largest entry of an honest update
LAYERS = 400  # entries of the adapters of `LowRankProducts`, before D others that show the judge whose a row is


@dataclass
class Hostile:
    """A transport whose attackers choose their sizes, times, absences, groups, and whom they resemble.

    Args:
        seed: of all draws.
        sizes: a key of `SIZES`. With "zero" one client reports 0, and is not enrolled.
        timing: one of `TIMING`, in three of four waits.
        most: who reports the largest sizes: "attackers", "honest" or "anyone".
        lossy: whether answers of honest clients can be lost.
        absence: what half of the attackers do each time, by turns: "invalid" answers, or none ("silent"); "": nothing.
        late: who joins after some waits: "one", "two" or "refused" attackers, who reported 0 before, or "honest".
        leaving: who leaves between tasks, and comes back: "anyone", or "attackers", half of them at a time. An attacker
            then joins again, with another size.
        patience: number of own answers until which attackers behave.
        sly: factor by which attackers send what their group does, but for one negative entry; 0: all are.
        victims: number of honest clients whose group all attackers join; None: groups of every other client.
        size: number of entries of an update.
        tolerate: number of attackers that the run is set to tolerate; None: as many as its settings give.
    """

    seed: int
    sizes: str
    timing: str
    most: str = "anyone"
    lossy: bool = False
    absence: str = ""
    late: str = ""
    leaving: str = ""
    patience: int = 0
    sly: float = 0.0
    victims: int | None = None
    size: int = D
    tolerate: int | None = None
    attackers: frozenset[int] = frozenset()
    now: float = 0.0
    open: dict[int, int] = field(default_factory=dict)
    answers: dict[int, int] = field(default_factory=dict)

    def __post_init__(self):
        self.rng, self.noise = numpy_generator(self.seed, "hostile"), generator(self.seed, "hostile")
        self.order = self.rng.permutation(N).tolist()  # those that are attackers first
        self.coming = {"": [], "one": self.order[:1], "honest": self.order[-1:]}.get(self.late, self.order[:2])
        drawn = [int(self.rng.choice(SIZES[self.sizes])) for _ in range(N)]
        drawn = drawn if self.most == "anyone" else sorted(drawn, reverse=self.most == "attackers")
        self.reported = dict(sorted(zip(self.order, drawn, strict=True)))
        self.nobody = self.order.pop(-2) if self.sizes == "zero" else None
        self.place = {i: place for place, i in enumerate(self.order)} | {self.nobody: -1}
        self.waits, self.away = 0, set[int]()

    @property
    def joins(self):
        return bool(self.late)

    def enroll(self):
        absent = {} if self.late == "refused" else self.coming
        zero = {self.nobody, *self.coming}
        return {i: 0 if i in zero else size for i, size in self.reported.items() if i not in absent}

    def turn_on(self, f):
        """The first of the order are attackers."""
        self.attackers = frozenset(self.order[:f])

    def here(self, clients):
        if self.leaving == "anyone":
            self.away |= {i for i in clients if self.rng.random() < 0.2}
        elif self.leaving:
            self.away |= {i for i in clients & self.attackers if self._turn(i, self.waits)}
        return clients - self.away

    def send(self, downloads, version):
        self.open |= dict.fromkeys(downloads, version)

    def receive(self, *, every):
        self.now += 1.0
        self.waits += 1
        joined = {i: self.reported[i] for i in self.coming} if self.waits == 3 else {}
        if self.leaving and self.waits == 5:
            joined = {self.order[0]: 10**18}
        back, self.away = frozenset(self.away), set()
        ranks = {"attackers first": -1, "attackers last": 1, "random": 0}
        sign = ranks[self.timing] if self.rng.random() < 0.75 else 0
        queue = sorted(self.open, key=lambda i: (sign * (i in self.attackers), self.rng.random()))
        queue = queue if every else queue[:1]
        lost = {i: "silent" for i in queue if self.lossy and self._silent(i)}
        replies = tuple(self._reply(i) for i in queue if i not in lost)
        for i in queue:
            self.open.pop(i)
        return Arrivals(replies, {}, lost, joined, back=back)

    def _turn(self, i, count):
        """Whether an attacker is among the half whose turn it is."""
        return (self.place[i] + count) % 2 == 0

    def _silent(self, i):
        if i in self.attackers and self.absence == "silent":
            return self._turn(i, self.waits)
        return self.rng.random() < (0.1 if i in self.attackers else 0.6)

    def _reply(self, i):
        version = self.open[i]
        count = self.answers[i] = self.answers.get(i, 0) + 1
        like = i in self.attackers or self.place[i] >= len(self.order) - (self.victims or 0)
        group = i % 2 if self.victims is None else like
        delta = torch.where(torch.arange(self.size) % 2 == group, 1.0, 0.2)
        delta += (MOST - 1) * torch.rand(self.size, generator=self.noise)
        if i in self.attackers and count > self.patience:
            delta = self.sly * delta if self.sly else torch.full_like(delta, LOUD)
            delta[-1] = -delta[-1].abs()
            if self.absence == "invalid" and self._turn(i, count):
                delta[0] = torch.nan
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
        least: of that entry or mean for an honest client; variates of these are differences, a little below 0 at times.
        calls: number of calls.
        attacked: number of those that had rows of attackers.
        broken: for each call that broke the promise, the number of rows, and of those of attackers; or what else did.
    """

    sly: float = 0.0
    least: float = 0.0
    calls: int = 0
    attacked: int = 0
    broken: list = field(default_factory=list)


def judged(monkeypatch):
    """The verdicts on all calls of the rules in `JUDGED`."""
    found = Verdicts()

    def seen(rule, m, rows, weights, honest, result, shares):
        if type(rule) not in JUDGED:
            return
        found.calls += 1
        found.attacked += not bool(honest.all())
        less = float(weights[~honest].sum()) < 0.5 * float(weights.sum())
        if not less or not JUDGED[type(rule)](rows[honest], result, None if shares is None else shares[honest]):
            found.broken.append((m, int((~honest).sum())))

    watch_rules(monkeypatch, seen, lambda rows: (rows.amin(1) if found.sly else rows.mean(1)) >= found.least)
    return found


def survived(found, algorithm, hostile, sample):
    """Carry out a run; return the number of attackers that it tolerates; `found` are the verdicts on it alone."""
    found.sly, found.calls, found.attacked, found.broken = hostile.sly, 0, 0, []
    found.least = -1.0 if variates(algorithm) else 0.0
    promise, last, weights = attacked(algorithm, hostile, sample)
    if promise is not None and not no_farther(algorithm, promise, last.state, last.enrolled - hostile.attackers):
        found.broken.append("a model went farther than honest updates bring it")
    found.broken += [f"a weight of {weight:g}" for weight in weights if not -1e-9 <= weight <= 1 + 1e-9]
    return promise and promise.f


def no_farther(algorithm, promise, state, honest):
    """Return whether models are where steps between honest entries bring them, or where nothing is said of that.

    Entries of honest updates are between 0.2 and `MOST`, and those of momenta, which begin at 0, at most that.
    """
    if any(bound.pool.bounds != "result" or bound.tolerance.means != "range" for bound in promise.bounds):
        return True
    models = [algorithm.download(state, i)[:D] for i in honest]
    return all(float(m.min()) >= -1e-3 and float(m.max()) <= state.version * MOST + 1e-3 for m in models)


GUARANTEED = [(where, shown) for where, (shown, _) in cells() if shown.startswith("y")]
LEFT_OUT = [where for where, shown in GUARANTEED if shown == ALONE]  # nothing is aggregated
VISITED = [where for where, shown in GUARANTEED if shown != ALONE]
BY = os.environ.get("COMPOSITIONS", "2")  # how many levels of factors meet in some run of each cell; "all": all
TRIES = 16  # further adversaries for a level that has brought no row of an attacker into a call of a rule
LOSSY = ("deadline", "silent", "leaves")


def variates(algorithm):
    """Return whether honest clients send differences, which have negative entries."""
    return "SCAFFOLD" in repr(algorithm)


def factors(algorithm, case):
    """The levels of each factor that attackers can choose in a case of `PARTICIPATION`."""
    joins = case == "joins" and algorithm.traits.can_join
    clusters = any(pool.parted or pool.chosen == "updates" for pool in algorithm.pools(Setting(N)))
    return {
        "sizes": tuple(SIZES),
        "most": ("attackers", "honest", "anyone"),
        "timing": ("random",) if algorithm.traits.synchronous else TIMING,
        "absence": ("", "invalid", "silent") if case in LOSSY else ("", "invalid"),
        "late": ("one", "two", "refused", "honest") if joins else ("",),
        "leaving": ("anyone", "attackers") if case == "leaves" else ("",),
        "patience": (0, 2),
        "sly": (0.0,) if variates(algorithm) else (0.0, 1.0, 1e4),
        "victims": (None, 0, 1, 4) if clusters else (None, 1),
    }


@cache
def covering(levels, by, seed):
    """Rows of levels, one of each factor, such that any levels of `by` factors meet in a row; drawn, and few.

    Args:
        levels: those of each factor.
        by: number of factors; all rows there are if it is None.
        seed: of the draws.
    """
    if by is None:
        return [*itertools.product(*levels)]
    rng, rows = random.Random(seed), []
    groups = [*itertools.combinations(range(len(levels)), by)]
    met = lambda row: {(group, tuple(row[k] for k in group)) for group in groups}  # noqa: E731
    left = {(group, chosen) for group in groups for chosen in itertools.product(*(levels[k] for k in group))}
    for group, chosen in sorted(left, key=repr):
        if (group, chosen) in left:
            fixed = dict(zip(group, chosen, strict=True))
            drawn = [tuple(fixed.get(k, rng.choice(of)) for k, of in enumerate(levels)) for _ in range(20)]
            rows.append(max(drawn, key=lambda row: len(left & met(row))))
            left -= met(rows[-1])
    return rows


def visits(number):
    """Yield adversaries for a cell of the page that is guaranteed, by its place in `VISITED`, with their levels.

    Those of `covering`; then, for each level in whose runs no attacker got into a call of a rule, further ones.  The
    caller sends back whether one did, and the generator returns the levels without any.
    """
    *names, case = VISITED[number]
    algorithm = composed(*names)
    possible = factors(algorithm, case)
    by = None if BY == "all" else int(BY)
    seeds, missing = itertools.count(number, len(VISITED)), {(name, one) for name, of in possible.items() for one in of}
    for row in covering(tuple(possible.values()), by, number % 8):
        chosen = dict(zip(possible, row, strict=True))
        if (yield against(algorithm, case, next(seeds), chosen)):
            missing -= chosen.items()
    for name, level in sorted(missing, key=repr):
        for _ in range(TRIES):
            rng = random.Random(seed := next(seeds))
            chosen = {other: rng.choice(of) for other, of in possible.items()} | {name: level}
            if (yield against(algorithm, case, seed, chosen)):
                missing.discard((name, level))
                break
    return missing


def draw(seed):
    """A composition and an adversary, drawn by a seed; None if the composition does not exist."""
    rng = numpy_generator(seed, "composition")
    names = sorted({name for name, *_ in VISITED} | {name for name in ALGORITHMS if "Median" in name})
    algorithm = ALGORITHMS[names[rng.integers(len(names))]]
    try:
        if hasattr(algorithm, "preprocess"):
            ways = [*PREPROCESSING.values(), Truncate(F / N, 0.4, scope="cohort")]
            chosen = ways[rng.integers(len(ways))]
            algorithm = dataclasses.replace(algorithm, preprocess=chosen)
        for _ in range(rng.integers(4)):
            wrapper = list(WRAPPERS.values())[rng.integers(len(WRAPPERS))]
            algorithm = wrapper(algorithm)
    except (ValueError, InfeasibleError):
        return None
    case = list(PARTICIPATION)[rng.integers(len(PARTICIPATION))]
    chosen = {name: of[rng.integers(len(of))] for name, of in factors(algorithm, case).items()}
    return against(algorithm, case, seed, chosen | {"tolerate": (None, 1, 2, 3)[rng.integers(4)]})


def against(algorithm, case, seed, chosen):
    """An algorithm, an adversary with the chosen levels, and a sampler, for a case of `PARTICIPATION`."""
    size = D + LAYERS if algorithm.traits.knows_layout else D
    sampled = case == "sampled" and algorithm.traits.synchronous
    hostile = Hostile(seed, lossy=case in LOSSY, size=size, **chosen)
    return algorithm, hostile, Participation(0.75, seed) if sampled else phalanx.engine.everyone


def attacked(algorithm, hostile, sample):
    """Carry out a run; return its promise and last progress, None if it is refused, and the weights of all verdicts."""
    promise, last, weights = None, None, set()

    def watch(progress):
        nonlocal promise, last
        last = progress
        weights.update(verdict.weight for verdict in progress.state.verdicts.values())
        if promise is None:
            promise = progress.promise
            hostile.turn_on(min(promise.f, N))

    try:
        with warnings.catch_warnings(action="ignore"):
            phalanx.run(
                algorithm,
                hostile,
                torch.zeros(hostile.size),
                LoopSettings(
                    until=Until(8 if algorithm.traits.synchronous else 5 * N),
                    lost_rounds=LostRounds("skip", 100),
                    guard=Guard(max_size=10**18),
                    tolerate=hostile.tolerate,
                ),
                sample=sample,
                observers=[watch],
            )
    except (StalledError, ValueError, InfeasibleError):
        pass  # silence is no harm
    return promise, last, weights
