"""Every rule of the library through the properties that its docstring claims."""

import itertools
import re
import time

import pytest
import torch
from catalogue import CATALOGUE

from phalanx.aggregators import Choice, GeometricMedian, Krum, Mean, Median
from phalanx.aggregators.aggregator import TooFewRowsError, check_rows, weighs_rows
from phalanx.algorithms.rounds import verdicts_of
from phalanx.core import InfeasibleError, Updates

SIZES = (7, 8, 11)

every = pytest.mark.parametrize("entry", CATALOGUE, ids=str)
counted = pytest.mark.parametrize("entry", [entry for entry in CATALOGUE if entry.copies], ids=str)
moved = pytest.mark.parametrize("entry", [entry for entry in CATALOGUE if entry.translation], ids=str)
scaled = pytest.mark.parametrize("entry", [entry for entry in CATALOGUE if entry.scaling], ids=str)
ordered = pytest.mark.parametrize("entry", [entry for entry in CATALOGUE if entry.order], ids=str)


def rows(m, d=5, seed=0, dtype=torch.float64):
    return torch.randn(m, d, generator=torch.Generator().manual_seed(100 * m + seed), dtype=dtype) + 1


def close(got, expected, tolerance=1e-6):
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def cases(entry):
    """Rows, a tolerated number of attackers, and the rule for them."""
    for m in SIZES:
        for f in sorted({0, entry.most(m) // 2, entry.most(m)}):
            yield rows(m, seed=f), f, entry.rule(m, f)


@moved
def test_translation(entry):
    for U, _, rule in cases(entry):
        shift = torch.linspace(-3, 4, U.shape[1], dtype=U.dtype)
        close(rule(U + shift), rule(U) + shift)


@scaled
def test_positive_scaling(entry):
    for U, _, rule in cases(entry):
        for factor in (1e-3, 0.5, 1e4):
            close(rule(factor * U) / factor, rule(U))


@ordered
def test_the_order_of_clients_does_not_matter(entry):
    for U, _, rule in cases(entry):
        weights = torch.arange(1, len(U) + 1, dtype=torch.float64)
        order = torch.randperm(len(U), generator=torch.Generator().manual_seed(1))
        close(rule(U[order]), rule(U))
        close(rule(U[order], weights[order]), rule(U, weights))


@every
def test_only_ratios_of_weights_matter(entry):
    for U, _, rule in cases(entry):
        weights = torch.arange(1, len(U) + 1, dtype=torch.float64)
        close(rule(U, 0.1 * weights), rule(U, weights))
        close(rule(U, torch.full((len(U),), 3.7, dtype=torch.float64)), rule(U))


@counted
def test_a_weight_is_a_number_of_copies(entry):
    """Weights that sum to k m, against so many copies of each row, and k f attackers among them."""
    for m in SIZES:
        for f, k in itertools.product(sorted({0, entry.most(m)}), (1, 2, 3)):
            U, counts = rows(m, seed=f), torch.ones(m, dtype=torch.int64)
            extra = torch.randint(m, (m * (k - 1),), generator=torch.Generator().manual_seed(k))
            counts.index_add_(0, extra, torch.ones_like(extra))
            weighted = entry.rule(m, f)(U, counts.double())
            close(weighted, entry.copies(m * k, f * k)(U.repeat_interleave(counts, 0)))


@every
def test_a_row_without_weight_is_not_there(entry):
    for U, _, rule in cases(entry):
        more = torch.cat([U[:2], torch.full_like(U[:1], 1e30), U[2:]])
        weights = torch.ones(len(more), dtype=torch.float64)
        weights[2] = 0
        close(rule(more, weights), rule(U))
        choice = rule.explained(more, weights)[1]
        assert choice is None or (choice.shares[2] == 0 and len(choice.shares) == len(more))


@every
@pytest.mark.parametrize("far", [1e12, -1e12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_withstands_the_attackers_that_it_claims_wherever_they_stand(entry, far, dtype):
    for m in SIZES:
        f = entry.most(m)
        U = rows(m, seed=9, dtype=dtype)
        for byzantine in itertools.islice(itertools.combinations(range(m), f), 0, None, 31):
            attacked = U.clone()
            attacked[list(byzantine)] = far
            honest = U[[i for i in range(m) if i not in byzantine]]
            error = torch.linalg.vector_norm(entry.rule(m, f)(attacked) - honest.mean(0))
            spread = torch.linalg.vector_norm(honest - honest.mean(0), dim=1).max()
            assert error <= 3 * spread, f"attackers {byzantine} of {m}"


@every
def test_says_what_became_of_each_row(entry):
    for U, _, rule in cases(entry):
        for weights in (None, torch.arange(1, len(U) + 1, dtype=torch.float64)):
            vector, choice = rule.explained(U, weights)
            assert torch.equal(vector, rule(U, weights))
            if choice is not None:
                close(choice.shares @ U, vector)
                assert choice.scores is None or len(choice.scores) == len(U)
                assert choice.reasons is None or len(choice.reasons) == len(U)


@every
def test_an_update_that_is_not_used_has_a_reason_in_words(entry):
    for U, _, rule in cases(entry):
        m = len(U)
        once = Updates(tuple(range(m)), (0,) * m, (torch.zeros(U.shape[1]),) * m, U, torch.zeros(m))
        for verdict in verdicts_of(once, torch.ones(m), rule.explained(U)[1]).values():
            assert verdict.weight > 0 or verdict.reason


def test_the_geometric_median_on_one_update_says_nothing_of_the_others():
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.1], [-1.0, 0.1], [0.0, 0.0]])
    updates = Updates(tuple(range(4)), (0,) * 4, (torch.zeros(2),) * 4, rows, torch.zeros(4))
    found = verdicts_of(updates, torch.ones(4), GeometricMedian().explained(rows)[1])
    assert [verdict.weight > 0 for verdict in found.values()] == [True, False, False, True]
    assert "says nothing of this one" in found[1].reason


def test_an_update_without_weight_is_not_cleared_by_the_rule():
    rows, weights = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([1.0, 1.0, 0.0])
    updates = Updates(tuple(range(3)), (0,) * 3, (torch.zeros(1),) * 3, rows, torch.zeros(3))
    chosen = Choice(torch.tensor([1.0, 0.0, 0.0]))
    reasons = [verdict.reason for verdict in verdicts_of(updates, weights, chosen).values()]
    assert reasons[0] == ""
    assert "says nothing for or against it" in reasons[1]
    assert reasons[2] == "its size counts as 0, so that it has no weight"


@every
def test_leaves_its_arguments_alone_and_keeps_the_dtype(entry):
    for dtype in (torch.float32, torch.float64):
        U = rows(11, dtype=dtype)
        weights = torch.arange(1.0, 12.0)
        before = U.clone(), weights.clone()
        result = entry.rule(11, entry.most(11))(U, weights)
        assert (result.dtype, result.shape) == (dtype, (5,))
        assert torch.equal(U, before[0])
        assert torch.equal(weights, before[1])


@every
@pytest.mark.parametrize(("m", "d"), [(8, 70_000), (10, 1000), (12, 3001)])
def test_the_same_bits_for_any_number_of_threads(entry, m, d):
    U = rows(m, d, dtype=torch.float32)
    rule, weights = entry.rule(m, entry.most(m)), torch.arange(1.0, m + 1)
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            results.append((rule(U), rule(U, weights)))
    finally:
        torch.set_num_threads(threads)
    for plain, weighted in results[1:]:
        assert torch.equal(plain, results[0][0])
        assert torch.equal(weighted, results[0][1])


@every
def test_one_nan_is_refused_in_words(entry):
    U = rows(7)
    U[3, 2] = torch.nan
    with pytest.raises(ValueError, match=r"Rows \[3\] hold NaN or infinite values"):
        entry.rule(7, 0)(U)


@moved
def test_float32_near_an_offset_is_float64(entry):
    """Rows around a point of norm 10,000 lose no digits that they have."""
    U = rows(11, 40) + 1e4 / 40**0.5
    f = entry.most(11)
    U = U.float().double()  # what float32 can hold
    close(entry.rule(11, f)(U.float()).double(), entry.rule(11, f)(U), 2e-3)


@every
def test_whether_a_rule_needs_more_rows_is_known_beforehand(entry):
    """As many rows as it says are enough are enough, whatever is in them; with fewer any rows are too few."""
    for f in (0, 1, 2):
        rule = entry.rule(40, f)
        least = next(m for m in range(1, 13) if complaint(rule, m) is None)
        rule(rows(least))
        assert all(complaint(rule, m) is None for m in range(least, 13))
        for m in range(1, least):
            assert re.fullmatch(rf"k = {m} is too small: .* got \d+\. .* Or raise k\.", complaint(rule, m))
            with pytest.raises(TooFewRowsError):
                rule(rows(m))


def complaint(rule, m):
    """What is said of m rows; None if they are enough."""
    try:
        check_rows(rule, m, "k")
    except TooFewRowsError as error:
        return str(error)
    return None


def test_rows_that_a_rule_can_do_nothing_with_are_not_too_few():
    class Picky(Mean):
        def aggregate(self, points):
            raise InfeasibleError("All look alike.")

    check_rows(Picky(), 3, "k")
    assert weighs_rows(Picky(), 3)
    assert not weighs_rows(Median(), 3)
    assert weighs_rows(Krum(f=1), 5)


@pytest.mark.slow
@pytest.mark.parametrize("m", [10**9, 10**30])
def test_a_trial_of_a_huge_number_of_rows_takes_few(m):
    began = time.monotonic()
    for rule in (Mean(), Median(), Krum(f=2), Krum(f=2500)):
        check_rows(rule, m, "size")
    with pytest.raises(TooFewRowsError, match="size = 4000 is too small"):
        check_rows(Krum(f=2500), 4000, "size")
    assert time.monotonic() - began < 60
