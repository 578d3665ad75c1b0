"""The influence of attackers: what it costs, and how near attacks come to it.

python benchmarks/influence.py cost                       time of rules with and without, as the CPU counts it
python benchmarks/influence.py attacks [--count 300]     the best of many attacks on each rule, against its influence

Attacks are random, made for the rule, or found by ascent along finite differences.  A line that says "exceeded" would
be a mistake of the library; the command then ends with status 1.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from phalanx.aggregators import (
    CTMA,
    Aggregator,
    Bucketing,
    CenteredClipping,
    Clip,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    MultiKrum,
    SignMajority,
    TrimmedMean,
)

Rows = torch.Tensor
ROUNDING = 1 + 1e-6  # of the rules: an attack that is longer by less does not exceed a bound
RANDOM = 100  # random attacks for each other one, on rules by coordinate
DIRECTIONS, BATCH, ROUNDS = 16, 35, 4  # of an estimated gradient; attacks at once; least of made attacks and ascent
RESTART = 1500  # attacks of a round, if there are more than so many rounds
SHAPES = ((20, 4, 2), (20, 1, 200), (20, 4, 200), (50, 10, 200))  # rows, attackers, columns
SIZES = ((50, 1_000_000), (100, 100_000), (20, 100_000), (20, 10_000), (20, 1_000))  # rows, columns whose cost is timed
RULES: dict[str, Callable[[int, int], Aggregator]] = {  # for m rows and f attackers
    "Median()": lambda m, f: Median(),
    "TrimmedMean(f / m)": lambda m, f: TrimmedMean(f / m),
    "TrimmedMean(0.4)": lambda m, f: TrimmedMean(0.4),
    "SignMajority()": lambda m, f: SignMajority(),
    "CenteredClipping(radius)": lambda m, f: CenteredClipping(1.0),
    "CenteredClipping(radius, iterations=3)": lambda m, f: CenteredClipping(1.0, 3),
    "GeometricMedian()": lambda m, f: GeometricMedian(),
    "Krum(f)": lambda m, f: Krum(f),
    "MultiKrum(f)": lambda m, f: MultiKrum(f),
    "CTMA(0.3)": lambda m, f: CTMA(0.3),
    "CTMA(0.3, GeometricMedian())": lambda m, f: CTMA(0.3, GeometricMedian()),
    "Clip(radius) >> Mean()": lambda m, f: Clip(1.0) >> Mean(),
    "Clip(radius) >> Median()": lambda m, f: Clip(1.0) >> Median(),
    "Bucketing(2) >> Median()": lambda m, f: Bucketing(2) >> Median(),
}

BY_COLUMN = ("Median()", "TrimmedMean(f / m)", "TrimmedMean(0.4)", "SignMajority()", "Bucketing(2) >> Median()")


def rows_of(m: int, d: int, seed: int) -> tuple[Rows, torch.Tensor]:
    """Return rows of length about 1 with a common direction, and weights such as truncation leaves them."""
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((m, d)) + 0.5 * rng.standard_normal(d)) / d**0.5
    weights = np.minimum(rng.geometric(0.1, m), 8).astype(float)
    return torch.from_numpy(rows), torch.from_numpy(weights)


class Attacker:
    """Tries attacks on one rule, and keeps the best: the largest change of its result.

    Args:
        rule: under attack.
        rows: (m, d), as received.
        weights: (m,), or None.
        f: number of attackers.
        by_column: whether the rule takes each column by itself, so that many attacks are one call.
    """

    def __init__(self, rule: Aggregator, rows: Rows, weights: torch.Tensor | None, f: int, *, by_column: bool) -> None:
        self.rule, self.rows, self.weights, self.f, self.by_column = rule, rows, weights, f, by_column
        self.rng = np.random.default_rng(0)
        self.before = rule(rows, weights)
        self.length = float((rows - rows.mean(0)).norm(dim=1).median())
        self.best, self.tried, self.attack = 0.0, 0, (np.arange(f), rows[:f].clone())
        self.moved = torch.zeros_like(self.before)  # by the best attack, at length one

    def changes(self, attacks: Sequence[tuple[np.ndarray, Rows]]) -> list[float]:
        """Return how far the result moves by each attack: rows, and what replaces them."""
        copies = self.rows.repeat(len(attacks), 1, 1)
        for copy, (attackers, lies) in zip(copies, attacks, strict=True):
            copy[attackers] = lies
        if self.by_column:  # as one call on all columns of all attacks
            k, m, d = copies.shape
            results = self.rule(copies.permute(1, 0, 2).reshape(m, k * d), self.weights).reshape(k, d)
        else:
            results = torch.stack([self.rule(rows, self.weights) for rows in copies])
        moved = (results - self.before).norm(dim=1)
        self.tried += len(attacks)
        best = int(moved.argmax())
        if float(moved[best]) > self.best:
            self.best, self.attack = float(moved[best]), attacks[best]
            self.moved = self._unit(results[best] - self.before)
        return moved.tolist()

    def attackers(self) -> np.ndarray:
        """Return f rows: any, the heaviest, those of the best attack with one changed, or those that hold it back."""
        m, kind = len(self.rows), self.rng.integers(6)
        if kind > 3:  # those whose rows hold the result back the most
            w = np.ones(m) if self.weights is None else self.weights.numpy()
            random = torch.from_numpy(self.rng.standard_normal(self.rows.shape[1]))
            forward = self.moved if kind == 4 else self._unit(random)
            back = ((self.before - self.rows) @ forward).numpy() + self.rng.uniform(0, 2) * self.length
            return np.argsort(w * back)[-self.f :]
        if kind == 0 and self.weights is not None:
            return np.argsort(self.weights.numpy() + 0.5 * self.rng.random(m))[-self.f :]
        if kind > 1:
            kept = self.rng.permutation(self.attack[0])[: self.f - 1]
            return np.append(kept, self.rng.choice(np.setdiff1d(np.arange(m), kept)))
        return self.rng.choice(m, self.f, replace=False)

    def made(self) -> Iterator[tuple[np.ndarray, Rows]]:
        """Yield attacks without end: random ones, and such as rules of each family are weak against."""
        while True:
            attackers = self.attackers()
            rest = np.setdiff1d(np.arange(len(self.rows)), attackers)
            size = self.length * 10.0 ** self.rng.uniform(-1.5, 1.5)
            away = self._unit(self.rows[rest].mean(0) - self.rows[attackers].mean(0))
            random = self._unit(torch.from_numpy(self.rng.standard_normal(self.rows.shape[1])))
            mixed = self._unit(away + self.rng.uniform(0, 1) * random)
            near = self.rows[self.rng.choice(rest, self.rng.integers(1, len(rest) + 1), replace=False)].mean(0)
            lonely = self._unit(near - self.before)
            signs = self._signs(attackers)
            for start, step in (
                (near, mixed * size),
                (near, lonely * size),
                (near, self.moved * size),
                (self.before, self.moved * size),
                (self.before, lonely * size),
                (self.rows[rest].mean(0), mixed * size),
                (self.before, away * 1e6 * self.length),
                (self.before, signs * 1e6 * self.length),
                (torch.zeros_like(near), random * size),
            ):
                yield attackers, (start + step).expand(self.f, -1).clone()

    @staticmethod
    def _unit(vector: Rows) -> Rows:
        return vector / vector.norm().clamp(min=1e-300)

    def _signs(self, attackers: np.ndarray) -> Rows:
        """Return the side of each coordinate to which these attackers can move the result farther."""
        moved = []
        for side in (1.0, -1.0):
            rows = self.rows.clone()
            rows[attackers] = side * 1e6 * self.length
            moved.append((self.rule(rows, self.weights) - self.before).abs())
        self.tried += 2
        return torch.where(moved[0] >= moved[1], 1.0, -1.0).to(self.rows)

    def climb(self, steps: int) -> None:
        """Improve the best attack by ascent along gradients that are estimated by finite differences."""
        (attackers, lies), now, size = self.attack, self.best, 0.3 * self.length
        for _ in range(steps):
            normal = self.rng.standard_normal((DIRECTIONS, *lies.shape))
            normal[: DIRECTIONS // 2] = normal[: DIRECTIONS // 2, :1]  # all attackers together
            ways = torch.from_numpy(normal) * size / lies.shape[1] ** 0.5
            moved = torch.tensor(self.changes([(attackers, lies + sign * way) for sign in (1, -1) for way in ways]))
            slopes = (moved[:DIRECTIONS] - moved[DIRECTIONS:]).to(ways)
            uphill = (slopes[:, None, None] * ways).sum(0)
            uphill *= size / uphill.norm(dim=1).max().clamp(min=1e-300)
            tried = [(attackers, lies + factor * uphill) for factor in (0.3, 1.0, 3.0, 10.0)]
            self.changes(tried)
            if self.best > now:
                (attackers, lies), now, size = self.attack, self.best, size * 1.5
            else:
                size = max(size * 0.6, 1e-5 * self.length)

    def scatter(self, count: int) -> None:
        """Try random attacks of all sizes: each attacker sends numbers of its own."""
        (m, d), f, k = self.rows.shape, self.f, 500
        for _ in range(count // k):
            attackers = self.rng.random((k, m)).argsort(axis=1)[:, :f]
            sizes = self.length * 10.0 ** self.rng.uniform(-2, 4, (k, f, 1)) / d**0.5
            lies = torch.from_numpy(self.rng.standard_normal((k, f, d)) * sizes)
            self.changes(list(zip(attackers, lies, strict=True)))

    def run(self, count: int) -> None:
        """Try `count` attacks that are made for the rule or found by ascent, half of each.

        Every other time they start from nothing, since the best may be a local one.
        """
        made, rounds = self.made(), max(ROUNDS, count // RESTART)
        best, attack, moved = self.best, self.attack, self.moved
        for k in range(1, rounds + 1):
            wanted = count * k / rounds
            self.best, self.attack, self.moved = (0.0, attack, moved) if k % 2 else (best, attack, moved)
            while self.tried < wanted - count / (2 * rounds):
                self.changes([next(made) for _ in range(BATCH)])
            self.climb(max(0, int((wanted - self.tried) / (2 * DIRECTIONS + 4))))
            if self.best > best:
                best, attack, moved = self.best, self.attack, self.moved
        self.best, self.attack, self.moved = best, attack, moved


def attacks(count: int, names: Sequence[str]) -> bool:
    """Print influence and best attack of each rule; return whether an attack exceeded a bound."""
    wrong, tried = False, 0
    print("| rule | rows, attackers, columns | weights | influence | best attack found | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in names:
        for m, f, d in SHAPES:
            for weighted in (False, True):
                rows, w = rows_of(m, d, seed=m + f + d)
                weights = w if weighted else None
                rule = RULES[name](m, f)
                found = rule.influence(rows, weights, f=f)
                kind = "truncated" if weighted else "equal"
                if found.value is None or not found.value < float("inf"):
                    print(f"| `{name}` | {m}, {f}, {d} | {kind} | {found.kind} | | |", flush=True)
                    continue
                attacker = Attacker(rule, rows, weights, f, by_column=name in BY_COLUMN)
                attacker.run(count)
                if name in BY_COLUMN:
                    attacker.scatter(RANDOM * count)
                best, tried = attacker.best, tried + attacker.tried
                exceeded = best > found.value * ROUNDING
                wrong |= exceeded
                ratio = "exceeded" if exceeded else f"{found.value / best:.2f}" if best else "-"
                row = f"| `{name}` | {m}, {f}, {d} | {kind} | {found.value:.4g}, {found.kind} | {best:.4g} | {ratio} |"
                print(row, flush=True)
    print(f"{tried:,} attacks")
    return wrong


def seconds(calls: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return the least processor time of each call; they take turns, so that all meet the same load."""
    least = [float("inf")] * len(calls)
    for _ in range(repeats):
        for k, call in enumerate(calls):
            begun = time.process_time()
            call()
            least[k] = min(least[k], time.process_time() - begun)
    return least


def cost(repeats: int, names: Sequence[str]) -> None:
    """Print the time of each rule alone, and with the influence that is measured in the same pass."""
    print("| rule | rows | weights | alone, ms | with influence, ms | more |")
    print("| --- | --- | --- | --- | --- | --- |")
    for m, d in SIZES:
        rows = torch.from_numpy(np.random.default_rng(0).standard_normal((m, d), dtype=np.float32))
        truncated = torch.from_numpy(np.minimum(np.random.default_rng(0).geometric(0.02, m), 60).astype(float))
        f = m // 10
        for name, weights in (
            *((name, None) for name in names),
            ("Median()", truncated),
            ("TrimmedMean(0.4)", truncated),
        ):
            if name not in names:
                continue
            rule = RULES[name](m, f)

            alone, measured = partial(rule, rows, weights), partial(rule.influence, rows, weights, f=f)
            a, b = seconds((alone, measured), repeats * min(40, max(1, 1_000_000 // d)))
            kind = "equal" if weights is None else "truncated"
            more = f"{100 * (b / a - 1):+.0f} %"
            print(f"| `{name}` | {m} x {d:,} | {kind} | {1e3 * a:.1f} | {1e3 * b:.1f} | {more} |", flush=True)


def main() -> int:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cost", "attacks"])
    parser.add_argument(
        "--count",
        type=int,
        default=1_500,
        help="attacks on each rule, shape and weighting; on rules by coordinate, 100 times as many random ones more",
    )
    parser.add_argument("--rules", nargs="*", default=list(RULES), help="names of rules; all if not given")
    parser.add_argument("--repeats", type=int, default=9, help="timed calls, of which the fastest counts")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "cost":
        cost(arguments.repeats, arguments.rules)
        return 0
    return int(attacks(arguments.count, arguments.rules))


if __name__ == "__main__":
    sys.exit(main())
