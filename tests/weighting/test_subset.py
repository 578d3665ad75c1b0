"""Truncation for whichever clients are aggregated at once, against exhaustive search over all subsets."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core import InfeasibleError, TooFewError
from phalanx.rng import numpy_generator
from phalanx.weighting import (
    AsReported,
    Ignore,
    Truncate,
    attacker_share,
    certify_rounds,
    drawn_attackers,
    more_drawn,
    subset_bound,
    truncation_bound,
)

POPULATIONS = st.lists(st.one_of(st.integers(1, 12), st.sampled_from([40, 10**6])), min_size=1, max_size=7)
SHARES = st.sampled_from([0.1, 0.25, 0.3, 1 / 3, 0.35, 0.4, 0.49, 0.5, 0.7, 0.9])


def worst(sizes: list[int], U: int, f: int, q: int) -> Fraction:
    """The largest share that f of q clients hold, over all sets of q and all f of each."""
    V = [min(n, U) for n in sizes]
    shares = []
    for members in itertools.combinations(V, q):
        total = sum(members)
        shares += [Fraction(sum(attackers), total) for attackers in itertools.combinations(members, f)]
    return max(shares)


def by_search(sizes: list[int], f: int, q: int, alpha_star: float) -> int | None:
    """The largest feasible U, by trying those at which anything can change, and all small ones."""
    limit = Fraction(alpha_star).limit_denominator(100)
    tried = {*range(1, 60), *sizes, *(n + 1 for n in sizes)}
    kept = [U for U in tried if max(sizes) >= U and worst(sizes, U, f, q) <= limit]
    return max(kept, default=None)


@given(POPULATIONS, st.data(), SHARES)
def test_the_bound_keeps_every_subset_and_a_larger_one_does_not(sizes, data, alpha_star):
    q = data.draw(st.integers(1, len(sizes)))
    f = data.draw(st.integers(0, q))
    limit, N = Fraction(alpha_star).limit_denominator(100), dict(enumerate(sizes))
    if Fraction(f, q) > limit:
        assert by_search(sizes, f, q, alpha_star) is None
        with pytest.raises(TooFewError):
            subset_bound(N, f, q, alpha_star)
        return
    U = subset_bound(N, f, q, alpha_star)
    assert worst(sizes, U, f, q) <= limit
    assert max(sizes) == U or worst(sizes, U + 1, f, q) > limit
    assert by_search(sizes, f, q, alpha_star) <= U
    kept = {i: min(n, U) for i, n in N.items()}
    assert attacker_share(kept, f, q) == pytest.approx(float(worst(sizes, U, f, q)))


@given(POPULATIONS, st.data(), SHARES)
def test_larger_sets_and_fewer_attackers_are_covered(sizes, data, alpha_star):
    """So the smallest set that an algorithm aggregates decides."""
    q = data.draw(st.integers(1, len(sizes)))
    f = data.draw(st.integers(0, q))
    try:
        U = subset_bound(dict(enumerate(sizes)), f, q, alpha_star)
    except TooFewError:
        return
    limit = Fraction(alpha_star).limit_denominator(100)
    for size, attackers in itertools.product(range(q, len(sizes) + 1), range(f + 1)):
        assert worst(sizes, U, attackers, size) <= limit


@given(POPULATIONS, st.sampled_from([0.0, 0.1, 0.25, 0.5]), SHARES)
def test_of_all_clients_it_is_equation_4(sizes, alpha, alpha_star):
    N, f = dict(enumerate(sizes)), math.ceil(Fraction(alpha).limit_denominator(100) * len(sizes))
    try:
        expected = truncation_bound(N, alpha, alpha_star)
    except InfeasibleError:
        with pytest.raises(TooFewError):
            subset_bound(N, f, len(N), alpha_star)
    else:
        assert subset_bound(N, f, len(N), alpha_star) == expected


def test_by_hand():
    """One of three, next to 1 and 2: 3 of 6. Of all four it is 6 of 12. Two of three are 2/3 of equal weights."""
    N = {0: 1, 1: 2, 2: 3, 3: 1000}
    assert subset_bound(N, attackers=1, size=3, alpha_star=0.5) == 3
    assert subset_bound(N, attackers=1, size=4, alpha_star=0.5) == 6
    assert subset_bound(N, attackers=1, size=99, alpha_star=0.5) == 6, "no set has more clients than there are"
    assert subset_bound(N, attackers=0, size=1, alpha_star=0.5) == 1000
    with pytest.raises(
        TooFewError, match=r"2 attackers of 3 clients at once hold 0\.667 of the weight even if all weigh"
    ):
        subset_bound(N, attackers=2, size=3, alpha_star=0.5)


def test_the_measured_failure_names_its_remedies():
    """Catalyst(5) waits for 11 of 20 clients: 5 of 11 hold .4545 with equal weights, which is more than .35."""
    with pytest.raises(TooFewError) as failure:
        subset_bound(dict.fromkeys(range(20), 72), attackers=5, size=11, alpha_star=0.35)
    assert "Feasible is at least 15 clients at once, or alpha of at most 0.15 (3 of 20 clients)" in str(failure.value)
    assert str(failure.value).endswith("or alpha_star of at least 0.455.")
    for feasible in ({"size": 15}, {"attackers": 3}, {"alpha_star": 0.455}):
        subset_bound(dict.fromkeys(range(20), 72), **{"attackers": 5, "size": 11, "alpha_star": 0.35, **feasible})


@pytest.mark.parametrize(("attackers", "size"), [(-1, 3), (1, 0)])
def test_impossible_sets(attackers, size):
    with pytest.raises(ValueError, match="attackers must be at least 0 and size at least 1"):
        subset_bound({0: 1}, attackers, size, 0.5)


# As a preprocessor


def test_attackers_who_are_fast_hold_alpha_star_of_any_quorum_at_most():
    """The same federation, where truncation over the population leaves the five 0.57 of a quorum of 11."""
    sizes = dict.fromkeys(range(15), 72) | dict.fromkeys(range(15, 20), 10**6)
    quorum = [*range(6), *range(15, 20)]
    shares = {}
    for scope, alpha_star in (("population", 0.35), ("subset", 0.46)):
        truncate = Truncate(0.25, alpha_star, scope)
        among = truncate.among(truncate.enrolled(sizes), quorum)
        shares[scope] = sum(among[i] for i in range(15, 20)) / sum(among.values())
    assert shares["population"] == pytest.approx(0.573, abs=1e-3)
    assert 0.45 < shares["subset"] <= 0.46


@given(POPULATIONS, st.data())
def test_no_set_of_any_size_is_weighed_against_the_promise(sizes, data):
    truncate, N = Truncate(0.3, 0.45, "subset"), dict(enumerate(sizes))
    clients = data.draw(st.sets(st.sampled_from(sorted(N)), min_size=1))
    f = math.ceil(Fraction(3, 10) * len(N))
    enrolled = truncate.enrolled(N)
    if f / len(clients) > 0.45:
        with pytest.raises(TooFewError):
            truncate.among(enrolled, clients)
        return
    weights = truncate.among(enrolled, clients)
    assert weights.keys() == clients
    assert sum(sorted(weights.values())[-f:]) <= 0.45 * sum(weights.values()) + 1e-9


def test_a_set_that_is_too_small_is_held_back_or_unweighted():
    sizes = {0: 1, 1: 1, 2: 1, 3: 9}
    for scope, why in (("subset", "1 attacker of 1 client"), ("cohort", "No alpha is feasible with fewer than 2")):
        hold, equal = (Truncate(0.25, 0.5, scope, how) for how in ("hold", "unweighted"))
        with pytest.raises(TooFewError, match=why):
            hold.among(hold.enrolled(sizes), [3])
        assert equal.among(equal.enrolled(sizes), [3]) == {3: 1.0}
        assert equal.remark(equal.enrolled(sizes), [3]).startswith("unweighted: ")
        assert equal.remark(equal.enrolled(sizes), range(4)) == hold.remark(hold.enrolled(sizes), [3]) == ""
        assert equal.among(equal.enrolled(sizes), range(4)) == hold.among(hold.enrolled(sizes), range(4))
        assert hold.among(hold.enrolled(sizes), []) == {}
    assert AsReported().remark(sizes, [0]) == Ignore().remark(sizes, [0]) == ""


def test_in_a_cluster_all_attackers_can_be():
    """Truncation over a cluster counts alpha of its clients; the scope "subset" counts those of all clients."""
    sizes = dict.fromkeys(range(16), 10) | dict.fromkeys(range(16, 20), 10**6)
    cluster = [*range(6), *range(16, 20)]  # all four attackers, of ten
    shares = {}
    for scope in ("population", "subset"):
        weights = Truncate(0.2, 0.45, scope).within(sizes, cluster, cluster)
        shares[scope] = sum(weights[i] for i in range(16, 20)) / sum(weights.values())
    assert shares["population"] > 0.6, "two of ten are bounded, and there are four"
    assert 0.4 <= shares["subset"] <= 0.45


def test_settings_out_of_range():
    bad = Truncate()
    object.__setattr__(bad, "infeasible", "drop")  # types are checked in tests, and not where users call
    with pytest.raises(ValueError, match="infeasible must be one of 'hold', 'unweighted'"):
        bad.__post_init__()
    with pytest.raises(ValueError, match='drawn needs the scope "subset", got 5'):
        Truncate(scope="cohort", drawn=5)
    with pytest.raises(ValueError, match="drawn must be at least 1"):
        Truncate(scope="subset", drawn=0)
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="delta must lie in"):
            Truncate(delta=delta)


# Clients that are drawn at random


@given(st.integers(1, 9), st.data(), st.sampled_from([0.0, 0.01, 0.1, 0.3, 0.5, 0.9]))
def test_the_number_of_attackers_drawn_by_counting_all_draws(K, data, delta):
    F, k = data.draw(st.integers(0, K)), data.draw(st.integers(1, K))
    found = [sum(i < F for i in draw) for draw in itertools.combinations(range(K), k)]
    for f in range(-1, K + 1):
        assert more_drawn(K, F, k, f) == Fraction(sum(x > f for x in found), len(found))
    f = drawn_attackers(K, F, k, delta)
    assert more_drawn(K, F, k, f) <= Fraction(delta)
    assert f == 0 or more_drawn(K, F, k, f - 1) > Fraction(delta)


def test_drawn_attackers_out_of_range():
    for K, F, k in ((5, 6, 1), (5, -1, 1), (5, 1, 0), (5, 1, 6)):
        with pytest.raises(ValueError, match=r"drawn must lie in 1\.\.5 and byzantine in 0\.\.5"):
            drawn_attackers(K, F, k, 0.1)
    with pytest.raises(ValueError, match=r"delta must lie in \[0, 1\)"):
        drawn_attackers(5, 1, 1, 1.0)
    with pytest.raises(ValueError, match="rounds must be at least 1"):
        certify_rounds({0: 1, 1: 2}, 0.1, 0.5, 1, rounds=0)


def frequency(sizes: dict[int, int], certificate, alpha_star: float, attackers: list[int], draws: int) -> float:
    """How often attackers hold more than alpha* of a round drawn at random, by simulation."""
    rng, weights = numpy_generator(0, "rounds"), {i: min(n, certificate.bound) for i, n in sizes.items()}
    above = 0
    for _ in range(draws):
        drawn = rng.choice(len(sizes), certificate.drawn, replace=False).tolist()
        held = sum(weights[i] for i in drawn if i in attackers)
        above += held > alpha_star * sum(weights[i] for i in drawn)
    return above / draws


@pytest.mark.parametrize("delta", [0.2, 0.05])
@pytest.mark.parametrize("kind", ["equal", "skewed"])
def test_rounds_drawn_at_random_break_the_promise_as_rarely_as_stated(kind, delta):
    rng = numpy_generator(1, "sizes", kind)
    honest = [72] * 90 if kind == "equal" else rng.lognormal(3, 1.5, 90).astype(int).clip(1).tolist()
    sizes, attackers = dict(enumerate([*honest, *[10**6] * 10])), list(range(90, 100))
    found = certify_rounds(sizes, 0.1, 0.45, 20, delta)
    assert found.byzantine == 10
    assert found.share <= 0.45
    exact = float(more_drawn(100, 10, 20, found.attackers))
    assert found.probability == exact <= delta
    draws = 4000
    rate, error = frequency(sizes, found, 0.45, attackers, draws), 4 * math.sqrt(delta / draws)
    assert rate <= exact + error
    if kind == "equal":  # where the bound is attained as soon as one attacker more is drawn
        assert rate == pytest.approx(exact, abs=error)


def test_a_certificate_for_many_rounds_is_the_union_bound():
    sizes = dict.fromkeys(range(100), 10)
    one, many = (certify_rounds(sizes, 0.1, 0.49, 20, 0.1, rounds=rounds) for rounds in (1, 100))
    assert many.attackers > one.attackers
    assert many.bound <= one.bound
    assert many.probability == pytest.approx(100 * float(more_drawn(100, 10, 20, many.attackers)))
    with pytest.raises(TooFewError, match=r"of 4 of 100 clients drawn at random, 2 can be attackers .* Feasible is"):
        certify_rounds(sizes, 0.1, 0.4, 4, 0.01)


def test_drawn_clients_may_be_fewer_than_all_attackers():
    """Ten of 100 attack: ten of a round of ten is infeasible for any set, and three is what is drawn but for 1 %."""
    sizes = dict.fromkeys(range(100), 10)
    any_set, drawn = Truncate(0.1, 0.45, "subset"), Truncate(0.1, 0.45, "subset", drawn=10)
    assert (any_set.attackers(100), drawn.attackers(100)) == (10, 3)
    with pytest.raises(TooFewError):
        any_set.among(any_set.enrolled(sizes), range(10))
    assert drawn.among(drawn.enrolled(sizes), range(10)) == dict.fromkeys(range(10), 10.0)


def test_more_attackers_than_clients_hold_all_of_the_weight_and_no_more():
    with pytest.raises(TooFewError, match=r"2 attackers of 2 clients at once hold 1 of the weight even if all weigh"):
        subset_bound({0: 1, 1: 2}, attackers=5, size=9, alpha_star=0.5)
