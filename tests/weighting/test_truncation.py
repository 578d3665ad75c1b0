"""U*, its curve, and Definition 1, against exhaustive search."""

import math
import time
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core import InfeasibleError
from phalanx.data import DirichletMultinomialSizes
from phalanx.weighting import TradeOff, concentration, mwp, truncation_bound, truncation_curve, weight_shift
from phalanx.weighting.truncation import attacker_share, largest_share, shortest, top

POPULATIONS = st.lists(st.integers(1, 40), min_size=1, max_size=12)
SHARES = st.sampled_from([0.0, 0.1, 0.2, 0.25, 1 / 3, 0.4, 0.5, 0.7, 0.9])


def exact(sizes: list[int], U: int, alpha: float) -> Fraction:
    """mwp(trunc(N, U), alpha) in exact arithmetic, the top counted as `ceil` counts it."""
    V = sorted(min(n, U) for n in sizes)
    t = math.ceil(Fraction(alpha).limit_denominator(100) * len(V))
    return Fraction(sum(V[len(V) - t :]), sum(V))


def by_search(sizes: list[int], alpha: float, alpha_star: float) -> int | None:
    """Equation 4 by trying every U."""
    limit = Fraction(alpha_star).limit_denominator(100)
    kept = [U for U in range(1, max(sizes) + 1) if exact(sizes, U, alpha) <= limit]
    return max(kept, default=None)


@given(POPULATIONS, SHARES, SHARES.filter(bool))
def test_the_bound_is_the_largest_that_keeps_the_promise(sizes, alpha, alpha_star):
    expected = by_search(sizes, alpha, alpha_star)
    if expected is None:
        with pytest.raises(InfeasibleError):
            truncation_bound(dict(enumerate(sizes)), alpha, alpha_star)
    else:
        assert truncation_bound(dict(enumerate(sizes)), alpha, alpha_star) == expected


@given(POPULATIONS, SHARES.filter(bool))
def test_the_curve_is_what_each_alpha_gives_alone(sizes, alpha_star):
    N, K = dict(enumerate(sizes)), len(sizes)
    curve = truncation_curve(N, alpha_star)
    assert [point.alpha for point in curve] == [t / K for t in range(1, len(curve) + 1)]
    assert curve == [TradeOff(alpha, truncation_bound(N, alpha, alpha_star)) for alpha, _ in curve]
    assert sorted((point.bound for point in curve), reverse=True) == [point.bound for point in curve]
    if (following := (len(curve) + 1) / K) < 1:
        with pytest.raises(InfeasibleError):
            truncation_bound(N, following, alpha_star)


@given(POPULATIONS, SHARES, st.randoms())
def test_order_and_names_of_clients_do_not_matter(sizes, alpha, random):
    shuffled = [*enumerate(sizes, start=7)]
    random.shuffle(shuffled)
    assert mwp(dict(shuffled), alpha) == pytest.approx(mwp(dict(enumerate(sizes)), alpha))


def test_by_hand():
    N = {0: 1, 1: 2, 2: 3, 3: 1000}
    assert mwp(N, 0.25) == 1000 / 1006
    assert truncation_bound(N, 0.25, 0.5) == 6  # 6 of 12
    assert truncation_bound(N, 0.25, 0.6) == 9  # 9 of 15
    assert truncation_bound(N, 0.5, 0.5) == 1  # the top two of 1 + 2 + 2 + 2 hold 4 of 7
    assert truncation_bound(N, 0.0, 0.5) == 1000  # nobody lies: nothing is truncated
    assert truncation_curve(N, 0.5) == [(0.25, 6), (0.5, 1)]


def test_mwp_by_hand():
    N = {5: 6, 3: 1, 4: 2, 9: 3}
    assert [mwp(N, p) for p in (0, 0.25, 0.26, 0.5, 0.75, 1)] == [0, 6 / 12, 9 / 12, 9 / 12, 11 / 12, 1]


@pytest.mark.parametrize(
    ("p", "K", "top"), [(0.1, 10, 1), (0.1, 100, 10), (1 - 0.9, 10, 1), (0.1, 75, 8), (0.3, 10, 3)]
)
def test_the_top_is_not_one_too_many_where_p_times_k_is_whole(p, K, top):
    """The authors' floor(p K) + 1 gives 2, 11, 1, 8 and 4."""
    assert mwp(dict.fromkeys(range(K), 1), p) == pytest.approx(top / K)


def test_the_authors_partition():
    """75 clients; by the paper's ceil(7.5) = 8 clients, and by 7, which are no more than 9.34 % of them."""
    sizes = dict(enumerate(DirichletMultinomialSizes().sizes(60_000).tolist()))
    assert truncation_bound(sizes, 0.1, 0.5) == 875
    assert truncation_bound(sizes, 7 / 75, 0.5) == 1166
    assert mwp(sizes, 7 / 75) == pytest.approx(0.857, abs=5e-4)
    assert mwp(sizes, 0.1) == pytest.approx(0.883, abs=5e-4)


def test_infeasible_settings_name_the_largest_feasible_alpha():
    N = dict.fromkeys(range(10), 5)
    with pytest.raises(
        InfeasibleError, match=r"means 5 of them, who hold 0.5 .* The largest feasible alpha is 0.4 \(4 of 10 clients\)"
    ):
        truncation_bound(N, 0.41, 0.49)
    assert truncation_bound(N, 0.4, 0.49) == 5
    with pytest.raises(InfeasibleError, match="No alpha is feasible with fewer than 3 clients"):
        truncation_bound({0: 1, 1: 1}, 0.1, 0.4)
    assert truncation_curve({0: 1, 1: 1}, 0.4) == []


@pytest.mark.parametrize("share", [-0.1, 1.0, math.nan, math.inf])
def test_shares_out_of_range(share):
    with pytest.raises(ValueError, match=r"alpha must lie in \[0, 1\)"):
        truncation_bound({0: 1}, share, 0.5)
    with pytest.raises(ValueError, match=r"alpha_star must lie in \(0, 1\)"):
        truncation_curve({0: 1}, share)
    with pytest.raises(ValueError, match=r"alpha_star must lie in \(0, 1\), got 0"):
        truncation_bound({0: 1}, 0.1, 0)


@pytest.mark.parametrize("size", [0, -3, 1.5, math.nan, math.inf])
def test_impossible_sizes_name_their_client(size):
    with pytest.raises(ValueError, match=r"got .* for client 7"):
        truncation_bound({1: 10, 7: size}, 0.1, 0.5)


@pytest.mark.parametrize("sizes", [np.array([10, 0]), np.array([10, -3])])
def test_impossible_sizes_of_an_array_name_their_place(sizes):
    with pytest.raises(ValueError, match=r"got .* for client 1"):
        truncation_bound(sizes, 0.1, 0.5)


@pytest.mark.parametrize("size", [0, -0.5, math.nan, math.inf])
def test_a_share_of_impossible_weights_is_refused(size):
    with pytest.raises(ValueError, match="a positive, finite number for each client"):
        mwp({1: 10, 7: size}, 0.5)


def test_no_clients():
    for call in (lambda: truncation_bound({}, 0.1, 0.5), lambda: truncation_curve({}, 0.5), lambda: mwp({}, 0.5)):
        with pytest.raises(ValueError, match="at least one client"):
            call()


def test_a_third_is_a_third():
    for K in (3, 6, 9, 30, 75):
        assert truncation_bound(dict.fromkeys(range(K), 7), 1 / 3, 1 / 3) == 7


def test_a_thousandth_of_a_client_is_one_more():
    equal = dict.fromkeys(range(10), 1)
    assert [mwp(equal, p) for p in (0.1, 0.10001, 1e-12, 0.0)] == pytest.approx([0.1, 0.2, 0.1, 0.0])


def test_sizes_beyond_64_bits_are_exact():
    big = 10**30
    assert truncation_bound({0: big, 1: big, 2: 1}, 0.3, 0.5) == big
    assert truncation_bound({0: big * big, 1: big, 2: 1}, 0.3, 0.5) == big + 1


def test_a_million_clients_take_less_than_a_second():
    draws = np.random.default_rng(0).lognormal(3, 3, 1_000_000).astype(int) + 1
    sizes = dict(enumerate(draws.tolist()))
    begun = time.process_time()
    U = truncation_bound(sizes, 0.1, 0.5)
    assert time.process_time() - begun < 2  # 0.4 s on an idle core
    clipped = np.sort(draws.clip(max=U))
    following = np.sort(draws.clip(max=U + 1))
    assert clipped[-100_000:].sum() / clipped.sum() <= 0.5 < following[-100_000:].sum() / following.sum()


@pytest.mark.parametrize("K", [3, 10, 101, 1999])
def test_the_decimal_fraction_for_a_number_of_clients_is_the_shortest_one(K):
    assert (shortest(1, 3), shortest(7, 150)) == ("0.3", "0.046")
    for t in range(1, K, max(1, K // 50)):
        text = shortest(t, K)
        digits = len(text) - 2
        assert top(float(text), K) == t
        assert all(top(n / 10 ** (digits - 1), K) != t for n in range(10 ** (digits - 1))), "with a digit less, none is"


@pytest.mark.parametrize("K", range(2, 60))
def test_the_alpha_that_an_error_names_is_feasible(K):
    with pytest.raises(InfeasibleError) as error:
        truncation_bound(dict.fromkeys(range(K), 3), 0.9, 0.49)
    if K > 2:
        named = float(str(error.value).partition("feasible alpha is ")[2].partition(" ")[0])
        assert truncation_bound(dict.fromkeys(range(K), 3), named, 0.49) == 3
        assert math.ceil(named * K - 1e-9) == int(0.49 * K)


def test_arrays_whose_sum_has_more_than_64_bits_are_exact():
    sizes = np.random.default_rng(1).integers(10**14, 10**15, 40_000)
    by_client = dict(enumerate(sizes.tolist()))
    assert sum(by_client.values()) > 2**64
    assert mwp(sizes, 0.9) == mwp(by_client, 0.9)
    assert truncation_bound(sizes, 0.4, 0.45) == truncation_bound(by_client, 0.4, 0.45) < sizes.max()


@given(sizes=st.lists(st.integers(1, 10**15), min_size=2, max_size=30), p=st.floats(0.01, 0.99))
def test_arrays_give_what_mappings_give(sizes, p):
    """The totals are beyond 2^53, where floats are no longer exact."""
    by_client, array = dict(enumerate(sizes)), np.array(sizes)
    assert mwp(array, p) == mwp(by_client, p)
    assert concentration(array) == concentration(by_client)
    assert truncation_curve(array, 0.5) == truncation_curve(by_client, 0.5)
    U = truncation_bound(array, 1 / len(sizes), 0.5)
    assert truncation_bound(by_client, 1 / len(sizes), 0.5) == U
    kept = {i: min(size, U) for i, size in by_client.items()}
    assert weight_shift(array, np.minimum(array, U)) == weight_shift(by_client, kept)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("attackers", [0, 1, 2, 3, 4, 9])
def test_the_largest_share_of_attackers_is_that_of_all_sets_tried_out(attackers, size):
    """Also where there are more attackers than are aggregated at once, who then hold all of the weight."""
    weights = {0: 1, 1: 2, 2: 3, 3: 10}
    shares = [
        Fraction(sum(bad), sum(chosen))
        for chosen in combinations(weights.values(), min(size, 4))
        for count in range(min(attackers, len(chosen)) + 1)
        for bad in combinations(chosen, count)
    ]
    assert largest_share(weights, attackers, size) == max(shares)
    assert attacker_share(weights, attackers, size) == pytest.approx(float(max(shares)), abs=1e-15)
    if attackers >= size:
        assert largest_share(weights, attackers, size) == 1
