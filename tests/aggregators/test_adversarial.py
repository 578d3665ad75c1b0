"""Hostile rows against every rule and every chain of two: the bounds of `docs/rules/` hold, and nothing takes long.

Attackers send rows of any size up to the guard's limit in any direction, copies and near-copies of honest rows, ties,
subnormal numbers, mixed scales, and rows that are placed to make a rule slow.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product as every
from typing import NamedTuple

import numpy as np
import pytest
import torch
from catalogue import CATALOGUE

from phalanx.aggregators import (
    CAF,
    CTMA,
    MDA,
    SMEA,
    AdaptiveClip,
    Bucketing,
    Bulyan,
    CenteredClipping,
    Clip,
    DnC,
    FLAMEFilter,
    FoolsGoldWeights,
    GeometricMedian,
    Krum,
    MeaMed,
    Mean,
    Median,
    MoNNA,
    MultiKrum,
    NearestNeighborMixing,
    SignMajority,
    TrimmedMean,
)
from phalanx.aggregators.aggregator import TooFewRowsError
from phalanx.aggregators.flame import DensestMajority
from phalanx.core import InfeasibleError
from phalanx.engine.guard import Guard

M, D = 11, 6  # rows and columns
LIMIT = Guard().max_norm
RADIUS = 2.0  # of the rules that clip


class Situation(NamedTuple):
    """Rows, of which the last f are hostile, with the share of the weight that these hold."""

    rows: torch.Tensor
    weights: torch.Tensor | None
    f: int
    seed: int

    @property
    def honest(self):
        return self.rows[: len(self.rows) - self.f].double()

    @property
    def share(self):
        if self.weights is None:
            return self.f / len(self.rows)
        return float(self.weights[len(self.weights) - self.f :].sum() / self.weights.sum())

    @property
    def diameter(self):
        return float(torch.cdist(self.honest, self.honest).max())

    @property
    def longest(self):
        return float(self.honest.norm(dim=1).max())


# --- what attackers send: from the honest rows, the number of attackers, the size and a generator, f rows


def along(honest, f, size, rng):
    return np.tile(size * honest[0] / np.linalg.norm(honest[0]), (f, 1))


def against(honest, f, size, rng):
    mean = honest.mean(0)
    return np.tile(-size * mean / np.linalg.norm(mean), (f, 1))


def axis(honest, f, size, rng):
    return size * np.tile(np.eye(honest.shape[1])[rng.integers(honest.shape[1])], (f, 1))


def all_directions(honest, f, size, rng):
    rows = rng.standard_normal((f, honest.shape[1]))
    return size * rows / np.linalg.norm(rows, axis=1, keepdims=True)


def opposite(honest, f, size, rng):
    return all_directions(honest, 1, size, rng) * np.where(np.arange(f) % 2, -1, 1)[:, None]


def ladder(honest, f, size, rng):
    """On a line, each a multiple as far as the one before: every distance has another scale."""
    return all_directions(honest, 1, 1.0, rng) * np.geomspace(size ** (1 / f), size, f)[:, None]


def mixed_scales(honest, f, size, rng):
    rows = 1e-30 * rng.standard_normal((f, honest.shape[1]))
    rows[:, rng.integers(honest.shape[1])] = size
    return rows


def copies(honest, f, size, rng):
    return np.tile(honest[rng.integers(len(honest))], (f, 1))


def near_copies(honest, f, size, rng):
    return honest[rng.integers(len(honest), size=f)] * (1 + 1e-6 * rng.standard_normal((f, 1)))


def at_the_mean(honest, f, size, rng):
    return np.tile(honest.mean(0), (f, 1))


def nothing(honest, f, size, rng):
    return np.zeros((f, honest.shape[1]))


def subnormal(honest, f, size, rng):
    return 1e-42 * rng.choice([-1.0, 1.0], (f, honest.shape[1]))


def mirrored(honest, f, size, rng):
    """As far from the mean as honest rows, on the other side: ties of distances."""
    return 2 * honest.mean(0) - honest[:f]


def on_the_rim(honest, f, size, rng):
    """Together, as far out as the farthest honest row."""
    far = np.linalg.norm(honest - honest.mean(0), axis=1).max()
    return np.tile(honest.mean(0) + all_directions(honest, 1, far, rng), (f, 1))


def just_beside(honest, f, size, rng):
    """Next to one honest row, where the iteration of a geometric median is slowest."""
    return honest[:1] + 1e-5 * rng.standard_normal((f, honest.shape[1]))


SIZED = (along, against, axis, all_directions, opposite, ladder, mixed_scales)
PLACED = (copies, near_copies, at_the_mean, nothing, subnormal, mirrored, on_the_rim, just_beside)
FAR = (30.0, 0.99 * LIMIT)
SIZES = (1e-30, 1.0, 30.0, 1e7, 1e13, 0.99 * LIMIT)


def situations(f, seeds, dtypes=(torch.float32, torch.float64), sizes=SIZES, m=M, weighting=(False, True), turns=False):
    """Return situations with f attackers of average weight at most.

    Each seed has other honest rows. With `turns` a seed has each attack in one of the dtypes, with or without weights,
    the next seed in the next: all of them in as many seeds as there are kinds.
    """
    attacks = [*every(SIZED, sizes), *((attack, 1.0) for attack in PLACED)]
    kinds = [*every(dtypes, weighting)]
    for seed, (place, (attack, size)), (turn, (dtype, weighted)) in every(seeds, enumerate(attacks), enumerate(kinds)):
        if turns and turn != (seed + place) % len(kinds):
            continue
        rng = np.random.default_rng([seed, f, *attack.__name__.encode(), round(abs(np.log10(size)))])
        honest = rng.standard_normal((m - f, D)) + 3 * rng.standard_normal(D) / np.sqrt(D)
        rows = torch.from_numpy(np.concatenate([honest, attack(honest, f, size, rng)])).to(dtype)
        weights = None
        if weighted:
            reported = rng.integers(1, 6, m).astype(float)
            reported[m - f :] *= min(1.0, f / (m - f) * reported[: m - f].sum() / max(reported[m - f :].sum(), 1e-9))
            weights = torch.from_numpy(reported)
        yield Situation(rows, weights, f, seed), f"{attack.__name__}, {size:.0e}, {dtype}, {weights is not None}"


# --- the bounds, in the order of the table of `docs/rules.md`


def in_the_honest_range(situation, result):
    honest = situation.honest
    slack = 1e-6 * honest.abs().max()
    return bool(((result >= honest.min(0).values - slack) & (result <= honest.max(0).values + slack)).all())


def in_twice_the_range(situation, result):
    """No entry is farther from the honest range than this is wide: kept entries are as near as the honest ones."""
    honest = situation.honest
    width = (honest.max(0).values - honest.min(0).values) * (1 + 1e-5)
    return bool(((result >= honest.min(0).values - width) & (result <= honest.max(0).values + width)).all())


def with_the_agreeing(situation, result):
    """Where all honest entries have one sign, the result has it."""
    signs = situation.honest.sign()
    agreed = (signs == signs[0]).all(0)
    return bool((result.sign() == signs[0])[agreed].all())


def near_an_honest_row(situation, result):
    """A Krum score is a sum of at most m squared distances, and that of an honest row at most m squared diameters."""
    nearest = float((situation.honest - result).norm(dim=1).min())
    return nearest <= (len(situation.rows) ** 0.5 + 1) * situation.diameter * (1 + 1e-5)


def twice_the_diameter(situation, result):
    return float((situation.honest - result).norm(dim=1).max()) <= 2 * situation.diameter * (1 + 1e-5)


def no_farther_than_honest(situation, result):
    """From the first row, the trusted one."""
    own = situation.honest - situation.honest[0]
    return float((result - situation.honest[0]).norm()) <= float(own.norm(dim=1).max()) * (1 + 1e-5)


def within_the_factor(situation, result):
    """The geometric median: from any point."""
    a, honest = situation.share, situation.honest
    points = [torch.zeros(D, dtype=torch.float64), honest.mean(0), honest[0], 5 * honest[1]]
    factor = 2 * (1 - a) / (1 - 2 * a) * (1 + 1e-5)
    return all(float((result - z).norm()) <= factor * float((honest - z).norm(dim=1).max()) for z in points)


def by_the_spread(situation, result):
    """The error is at most four times the largest standard deviation times the root of f / m, the mean's own included.

    The constant is ours: the papers prove the order.  Attackers hold a quarter of the weight at most.
    """
    honest, weights = situation.honest, situation.weights
    w = torch.ones(len(honest)).double() if weights is None else weights[: len(honest)]
    mean = (w[:, None] * honest).sum(0) / w.sum()
    spread = float(torch.linalg.eigvalsh(((honest - mean) * (w / w.sum())[:, None]).T @ (honest - mean))[-1]) ** 0.5
    return float((result - mean).norm()) <= 4 * spread * (situation.f / len(situation.rows)) ** 0.5


def no_longer_than_honest(situation, result):
    return float(result.norm()) <= situation.longest * (1 + 1e-5)


def anywhere(situation, result):
    return bool(torch.isfinite(result).all())


class Claim(NamedTuple):
    """A rule for m rows and f attackers, the most attackers among m rows, and what its page promises."""

    rule: Callable
    most: Callable
    bound: Callable


def below_half(m):
    return (m - 1) // 2


CLAIMS = {
    "Mean": Claim(lambda m, f: Mean(), below_half, anywhere),
    "Median": Claim(lambda m, f: Median(), below_half, in_the_honest_range),
    "TrimmedMean": Claim(lambda m, f: TrimmedMean(f / m), below_half, in_the_honest_range),
    "MeaMed": Claim(lambda m, f: MeaMed(f), below_half, in_twice_the_range),
    "SignMajority": Claim(lambda m, f: SignMajority(), below_half, with_the_agreeing),
    "Krum": Claim(lambda m, f: Krum(f), lambda m: (m - 3) // 2, near_an_honest_row),
    "Krum, n-f-1": Claim(lambda m, f: Krum(f, "n-f-1"), below_half, near_an_honest_row),
    "MultiKrum": Claim(lambda m, f: MultiKrum(f), lambda m: (m - 3) // 2, near_an_honest_row),
    "Bulyan": Claim(lambda m, f: Bulyan(f), lambda m: (m - 3) // 4, in_twice_the_range),
    "MDA": Claim(lambda m, f: MDA(f), below_half, twice_the_diameter),
    "MoNNA": Claim(lambda m, f: MoNNA(f), below_half, no_farther_than_honest),
    "GeometricMedian": Claim(lambda m, f: GeometricMedian(), below_half, within_the_factor),
    "CenteredClipping": Claim(lambda m, f: CenteredClipping(RADIUS), below_half, anywhere),
    "SMEA": Claim(lambda m, f: SMEA(f), lambda m: m // 4, by_the_spread),
    "CAF": Claim(lambda m, f: CAF(f), lambda m: m // 4, by_the_spread),
    "DnC": Claim(lambda m, f: DnC(f), below_half, anywhere),
    "FoolsGoldWeights": Claim(lambda m, f: FoolsGoldWeights(), below_half, anywhere),
    "FLAMEFilter": Claim(lambda m, f: FLAMEFilter(), below_half, no_longer_than_honest),
    "DensestMajority": Claim(lambda m, f: DensestMajority(), below_half, anywhere),
}
BEFORE = {
    "Clip": lambda f: Clip(RADIUS),
    "AdaptiveClip": AdaptiveClip,
    "NearestNeighborMixing": NearestNeighborMixing,
    "Bucketing": lambda f: Bucketing(2),
}


def broken(claim, cases):
    """Return the situations in which a rule breaks its bound or its word."""
    found = []
    for situation, name in cases:
        try:
            rule = claim.rule(len(situation.rows), situation.f)
            result = rule(situation.rows, situation.weights, turn=situation.seed)
        except InfeasibleError as error:
            found += [f"{name}: {error}"] if isinstance(error, TooFewRowsError) else []
            continue
        if not bool(torch.isfinite(result).all()) or not claim.bound(situation, result.double()):
            found.append(f"{name}: {result.tolist()}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMS)
def test_its_bound_holds(name):
    claim = CLAIMS[name]
    found = broken(claim, situations(claim.most(M), range(1), (torch.float32,), sizes=(1e-30, *FAR)))
    assert not found, f"{len(found)} broken, " + "\n".join(found[:5])


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMS)
def test_its_bound_holds_everywhere(name):
    claim = CLAIMS[name]
    sizes = (*SIZES, 1e-10, 1e-3, 3.0, 1e3, 1e5, 1e10, 0.5 * LIMIT, 9e17)
    for f in range(1, claim.most(M) + 1):
        found = broken(claim, situations(f, range(4), sizes=sizes, turns=True))
        assert not found, f"f = {f}: {len(found)} broken, " + "\n".join(found[:5])


def influence(rule, situation, centre, **options):
    """Return how far attackers have moved the result from where it is if they send the centre."""
    rows, m = situation.rows.double(), len(situation.rows)
    silent = rows.clone()
    silent[m - situation.f :] = centre
    here, there = (rule(given, situation.weights, **options) for given in (rows, silent))
    return float((here - there).norm())


def test_who_is_clipped_moves_the_result_by_its_share_of_the_radius():
    previous = torch.full((D,), 0.1, dtype=torch.float64)
    for situation, name in situations(4, range(1), sizes=FAR):
        most = situation.share * RADIUS * (1 + 1e-6)
        assert influence(Clip(RADIUS) >> Mean(), situation, 0.0) <= most, name
        assert influence(CenteredClipping(RADIUS, iterations=1), situation, 0.1, previous=previous) <= most, name


def test_an_honest_update_is_admitted():
    for situation, name in situations(below_half(M), range(1), sizes=FAR):
        shares = DensestMajority().explained(situation.rows, situation.weights)[1].shares
        assert float(shares[: len(situation.honest)].sum()) > 0, name


# --- chains of two


def kept(situation, result):
    """What a chain keeps of its rule: attackers of any length leave the result among lengths of honest rows."""
    most = 2 * len(situation.rows) ** 0.5 * (situation.diameter + situation.longest)
    return float((result - situation.honest.mean(0)).norm()) <= most


def chains():
    without = ("Mean", "DnC", "FoolsGoldWeights", "DensestMajority", "MoNNA", "CenteredClipping", "SignMajority")
    return [(before, rule) for before in BEFORE for rule in CLAIMS if before in ("Clip", "AdaptiveClip")
            or rule not in without]  # fmt: skip


def chained(before, name):
    """Return the claim of a chain, and the situations for it.

    Two rows make a bucket: so the rows are even in number, and of equal weight for rules that count rows.
    """
    claim, buckets = CLAIMS[name], before == "Bucketing"
    bound = anywhere if name in ("Mean", "DnC", "FoolsGoldWeights") else kept
    chain = claim._replace(rule=partial(chain_of, before, claim, buckets), bound=bound)
    counts = buckets and name not in ("Median", "GeometricMedian", "FLAMEFilter")
    f, weighting = 1 if buckets or name == "Bulyan" else 2, (False,) if counts else (False, True)
    return chain, partial(situations, f, m=14 if buckets else M, weighting=weighting)


def chain_of(before, claim, buckets, m, f):
    return BEFORE[before](f) >> claim.rule(m // 2 if buckets else m, f)


@pytest.mark.parametrize(("before", "name"), chains())
def test_a_chain_keeps_what_its_rule_tolerates(before, name):
    claim, cases = chained(before, name)
    found = broken(claim, cases(range(1), (torch.float32,), FAR[1:]))
    assert not found, f"{len(found)} broken, " + "\n".join(found[:5])


@pytest.mark.slow
@pytest.mark.parametrize(("before", "name"), chains())
def test_a_chain_keeps_what_its_rule_tolerates_everywhere(before, name):
    claim, cases = chained(before, name)
    found = broken(claim, cases(range(6), turns=True))
    assert not found, f"{len(found)} broken, " + "\n".join(found[:5])


# --- order and time

ROUNDING = {torch.float32: 2e-5, torch.float64: 1e-9}  # of the longest row that counts


def order_of_clients(rule, cases):
    """Return the situations in which another order of the clients gives another result, or other rows count.

    Of rows that tie, any may be chosen: the shares of equal rows are added up.  Bulyan is looked at where no scores
    tie, exactly or by rounding: where no rows are equal, and none is so far out that the sum of its squared distance
    and one between honest rows is the former.
    """
    found = []
    for situation, name in cases:
        m, rows = len(situation.rows), situation.rows.double()
        order = torch.from_numpy(np.random.default_rng(situation.seed).permutation(m))
        weights = None if situation.weights is None else situation.weights[order]
        made = rule(m, situation.f)
        alike = (torch.cdist(rows, rows) <= 1e-6 * situation.longest).double()
        if isinstance(made, Bulyan) and (float(alike.sum()) > m or float(rows.abs().max()) > 1e5):
            continue
        try:
            vector, choice = made.explained(situation.rows, situation.weights)
            other, chosen = made.explained(situation.rows[order], weights)
        except InfeasibleError:
            continue
        counts = torch.zeros(m).bool() if choice is None else choice.shares > 0
        scale = float(rows[counts].norm(dim=1).max()) if bool(counts.any()) else situation.longest
        if float((vector - other).double().norm()) > ROUNDING[situation.rows.dtype] * max(scale, situation.longest):
            found.append(f"{name}: {vector.tolist()} or {other.tolist()}")
        if choice is not None and chosen is not None:
            back = torch.zeros(m, dtype=torch.float64)
            back[order] = chosen.shares
            if not torch.allclose(alike @ choice.shares, alike @ back, rtol=1e-3, atol=1e-6):
                found.append(f"{name}: shares {choice.shares.tolist()} or {back.tolist()}")
    return found


@pytest.mark.parametrize("name", [name for name in CLAIMS if name != "MoNNA"])  # which has a trusted row, by its place
def test_the_order_of_clients_does_not_matter(name):
    claim = CLAIMS[name]
    found = order_of_clients(claim.rule, situations(min(2, claim.most(M)), range(1), (torch.float32,), FAR))
    assert not found, f"{len(found)} differ, " + "\n".join(found[:5])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CLAIMS if name != "MoNNA"])
def test_the_order_of_clients_matters_nowhere(name):
    claim = CLAIMS[name]
    dtypes = (torch.float32,) if name == "GeometricMedian" else (torch.float32, torch.float64)  # it stops short of 1e-9
    found = order_of_clients(claim.rule, situations(min(2, claim.most(M)), range(2), dtypes))
    assert not found, f"{len(found)} differ, " + "\n".join(found[:5])


def seconds(rule, situation):
    """Return the least of three times that a call takes, by the clock of this process."""
    taken = []
    for _ in range(3):
        begun = time.process_time()
        with suppress(InfeasibleError):  # a search that gives up must do so in time
            rule(situation.rows, situation.weights)
        taken.append(time.process_time() - begun)
    return min(taken)


def slow_rows(name, m, f, sizes):
    """Return the situations in which a rule takes far longer than for attackers who behave."""
    rule = CLAIMS[name].rule(m, f)
    benign = max(seconds(rule, s) for s, n in situations(f, range(2), (torch.float32,), (1.0,), m) if "mean" in n)
    cases = situations(f, range(1), (torch.float32,), sizes, m)
    return [f"{n}: {taken:.3f} s, benign {benign:.4f} s"
            for s, n in cases if (taken := seconds(rule, s)) > 30 * benign + 0.3]  # fmt: skip


@pytest.mark.parametrize("name", CLAIMS)
def test_hostile_rows_take_little_longer(name):
    found = slow_rows(name, M, CLAIMS[name].most(M), FAR)
    assert not found, "\n".join(found[:5])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CLAIMS if name != "SMEA"])  # which checks every way to drop f rows
def test_hostile_rows_take_little_longer_among_many(name):
    found = slow_rows(name, 30, min(CLAIMS[name].most(30), 9), SIZES)
    assert not found, "\n".join(found[:5])


# --- the range of float64


EXPONENTS = {
    torch.float64: (-1000, -700, -560, -520, -460, -400, -200, 200, 400, 490),
    torch.float32: (-125, -100, -60, 60, 100),
}


@pytest.mark.parametrize("entry", [entry for entry in CATALOGUE if entry.scaling], ids=str)
@pytest.mark.parametrize("dtype", EXPONENTS)
def test_a_power_of_two_changes_nothing(entry, dtype):
    """Down to 2^-1000, where the squares of all distances underflow."""
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(np.concatenate([1 + rng.standard_normal((M - 2, D)), np.full((2, D), 100.0)])).to(dtype)
    rule = entry.rule(M, min(2, max(entry.most(M), 1)))
    for exponent in EXPONENTS[dtype]:
        scaled = rule.explained(rows * 2.0**exponent)[0].double() / 2.0**exponent
        torch.testing.assert_close(scaled, rule(rows).double(), rtol=1e-6, atol=1e-6, msg=f"2^{exponent}")


@pytest.mark.parametrize("exponent", [-1000, -560, -420])
def test_distances_clips_and_influences_have_the_unit_of_faint_rows(exponent):
    scale = 2.0**exponent
    rows = torch.from_numpy(np.random.default_rng(1).standard_normal((M, D)))
    median = Median().influence(rows * scale)
    if exponent < -500:
        assert median.kind == "unknown"
    else:
        assert median.value == pytest.approx(Median().influence(rows).value * scale, rel=1e-9)
    for rule in (GeometricMedian(), MoNNA(2), MDA(2), CTMA(0.2, GeometricMedian()), Krum(2), MultiKrum(2)):
        ordinary, faint = rule.influence(rows).value, rule.influence(rows * scale).value
        assert (ordinary is None) == (faint is None)
        assert ordinary is None or faint / scale == pytest.approx(ordinary, rel=1e-6), rule
        if not isinstance(rule, Krum | MultiKrum):  # whose scores are squares
            scores = [rule.explained(given)[1].scores for given in (rows, rows * scale)]
            np.testing.assert_allclose(np.array(scores[1]) / scale, scores[0], rtol=1e-6, atol=1e-6, err_msg=str(rule))
    for small, large in (
        (Clip(RADIUS * scale) >> CAF(2), Clip(RADIUS) >> CAF(2)),
        (CenteredClipping(RADIUS * scale), CenteredClipping(RADIUS)),
        (Bucketing(2) >> AdaptiveClip(1) >> NearestNeighborMixing(1) >> CAF(1), None),
    ):
        wanted = (large or small)(rows)
        torch.testing.assert_close(small(rows * scale) / scale, wanted, rtol=1e-6, atol=1e-6)
    for centre in (torch.zeros(D).double(), rows[0]):
        found = CenteredClipping(RADIUS * scale)(rows * scale, previous=centre * scale)
        wanted = CenteredClipping(RADIUS)(rows, previous=centre)
        torch.testing.assert_close(found / scale, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [name for name, claim in CLAIMS.items() if claim.bound is not anywhere])
@pytest.mark.parametrize("largest", [1e-170, 1e-120, 1e-100, 1.0, 1e15])
def test_who_sends_larger_rows_among_faint_ones_gains_nothing(name, largest):
    """Distances below 1e-154 count as zero; with all honest rows fainter than that, no result is farther away."""
    claim, rng = CLAIMS[name], np.random.default_rng(0)
    f = min(2, claim.most(M))
    honest = 1e-170 * (1 + 0.1 * rng.standard_normal((M - f, D)))
    hostile = np.array([largest, 1e-156])[:f, None] * rng.standard_normal((f, D))
    rows = torch.from_numpy(np.concatenate([honest, hostile]))
    if name != "SignMajority":  # whose entries are signs
        assert float((claim.rule(M, f)(rows) - rows[0]).abs().max()) < 1e-153


def test_the_mean_of_integers_is_exact_in_float64():
    rng = np.random.default_rng(0)
    for m in range(1, 30):
        column = rng.integers(-100, 100, m)
        column[0] -= column.sum() % m
        assert Mean()(torch.from_numpy(column[:, None].astype(float))).item() == column.sum() // m
    assert Mean()(torch.tensor([[1.0], [4.0], [7.0]], dtype=torch.float64)).item() == 4.0


def test_where_buckets_are_not_full_an_attacker_may_hold_more_than_an_average_one():
    """11 rows make six buckets, and a full one has 2/11 of the weight: f = 1 of six does not cover it, f = 2 does."""
    rows = torch.cat([torch.linspace(-1, 1, 10, dtype=torch.float64)[:, None], torch.full((1, 1), 1e12).double()])
    results = {f: [float((Bucketing(2) >> TrimmedMean(f / 6))(rows, turn=turn)) for turn in range(20)] for f in (1, 2)}
    assert max(results[1]) > 1e9
    assert max(results[2]) <= 1.0
