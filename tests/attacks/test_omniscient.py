"""The attacks that see the honest updates: by hand, by brute force, by what the papers say."""

from dataclasses import dataclass

import pytest
import torch
from federations import aggregate, cloud, rng, seen, sent, update
from hypothesis import given
from hypothesis import strategies as st

from phalanx.aggregators import Aggregator, Mean, Median, TrimmedMean
from phalanx.attacks import ALIE, FangKrum, FangTrimmedMean, InnerProduct, Mimic, MinMax, MinSum
from phalanx.attacks.fang import krum_choice
from phalanx.attacks.minmax import halving
from phalanx.attacks.omniscient import supported
from phalanx.attacks.search import damage, line_search
from phalanx.core import InfeasibleError


def one(attack, knowledge):
    return sent(attack, knowledge)[0]


# A little is enough


def test_alie_by_hand():
    knowledge = seen([[0.0, 0.0], [2.0, 4.0]], own=[[1.0, 9.0], [3.0, 9.0]])
    assert one(ALIE(1.5), knowledge).tolist() == [2.5, 5.0]
    assert one(ALIE(-1.0), knowledge).tolist() == [0.0, 0.0]
    assert one(ALIE(1.5, estimate="own"), knowledge).tolist() == [3.5, 9.0]


def test_alie_z_of_both_versions():
    """50 workers, 12 of them corrupted: s = 26 - 12 = 14; phi(z) is 24/38, or 36/50."""
    assert supported(38, 12) == pytest.approx(0.33604, abs=1e-5)
    assert supported(38, 12, preprint=True) == pytest.approx(0.58284, abs=1e-5)
    knowledge = cloud(38, b=12)
    mu, sigma = knowledge.honest.mean(0), knowledge.honest.std(0, correction=0)
    assert torch.allclose(one(ALIE(), knowledge), mu + supported(38, 12) * sigma)
    assert torch.allclose(one(ALIE("preprint"), knowledge), mu + supported(38, 12, preprint=True) * sigma)


def test_alie_z_for_few_and_for_many_attackers():
    assert supported(19, 1) < 0, "the formula gives one attacker nothing"
    assert supported(18, 2) == pytest.approx(0.0, abs=1e-12)
    assert supported(3, 8) == supported(3, 2), "a majority of attackers needs no supporter"
    assert supported(1, 5) == 0.0


@given(st.integers(2, 60), st.integers(1, 60))
def test_the_preprint_is_never_the_smaller(honest, attackers):
    assert supported(honest, attackers, preprint=True) >= supported(honest, attackers)


def test_alie_stays_among_the_honest_and_hurts_the_median_of_many_entries():
    knowledge = cloud(30, d=500, b=12)
    forged, honest = one(ALIE(), knowledge), knowledge.honest
    inside = (forged >= honest.amin(0)) & (forged <= honest.amax(0))
    assert inside.all()
    mu = honest.mean(0)
    bare = (Median()(honest) - mu).norm()
    assert damage(seen(honest, [[0.0] * 500] * 12, rule=Median()), forged) > 2 * bare


# Searching the server's rule


@dataclass(frozen=True)
class Fooled(Aggregator):
    """Takes the last row if it is no longer than `limit`, and the first if it is."""

    limit: float

    def __call__(self, deltas, weights=None, **options):
        return deltas[-1] if deltas[-1].norm() <= self.limit else deltas[0]

    def aggregate(self, points):
        return self(points.matrix)


@pytest.mark.parametrize("peak", [0.01, 0.3, 1.0, 5.0, 77.0])
def test_line_search_finds_a_peak(peak):
    asked = []

    def objective(x):
        asked.append(x)
        return -abs(x - peak)

    assert line_search(objective) == pytest.approx(peak, rel=0.2, abs=0.02)
    assert len(asked) == 16
    assert min(asked) >= 0


def test_line_search_on_slopes_steps_and_plains():
    assert line_search(lambda x: x) == 2**15 - 1
    assert line_search(lambda x: -x) == 0.0
    assert line_search(lambda x: 1.0) == 0.0
    assert line_search(lambda x: x if x <= 0.37 else 0.0) == pytest.approx(0.37, abs=0.01)
    assert line_search(lambda x: min(x, 6.0)) >= 6.0


@pytest.mark.parametrize("rule", [Mean(), Median(), TrimmedMean(0.3)])
def test_search_does_more_damage_than_a_guess(rule):
    knowledge = cloud(12, d=50, b=4, rule=rule)
    best = damage(knowledge, one(ALIE("search"), knowledge))
    assert best >= max(damage(knowledge, one(ALIE(z), knowledge)) for z in (0.5, 1.0, 4.0))
    assert best > damage(knowledge, one(ALIE(), knowledge))
    best = damage(knowledge, one(InnerProduct("search"), knowledge))
    assert best >= max(damage(knowledge, one(InnerProduct(epsilon), knowledge)) for epsilon in (0.01, 0.1, 1.0, 10.0))


def test_search_by_hand():
    """The rule takes what is sent while it is no longer than 0.5: epsilon must come close to 0.5 from below."""
    knowledge = seen([[1.0, 0.0], [1.0, 0.0]], rule=Fooled(0.5))
    forged = one(InnerProduct("search"), knowledge)
    assert forged[1] == 0
    assert -0.5 <= forged[0] < -0.49
    assert attack_is_unbounded(Mean())


def attack_is_unbounded(rule):
    knowledge = seen([[1.0, 0.0], [1.0, 0.0]], rule=rule)
    return one(InnerProduct("search"), knowledge)[0] == -(2**15 - 1)


def test_search_counts_weights_as_the_server_does():
    """Of three clients of equal weight the median is honest; with most of the weight it is the attacker's."""
    honest = [[1.0, 0.0], [2.0, 0.0]]
    weighted = seen(honest, rule=Median(), weights={0: 1.0, 1: 1.0, 2: 10.0})
    assert weighted.outcome(torch.tensor([-7.0, 0.0])).tolist() == [-7.0, 0.0]
    assert seen(honest, rule=Median()).outcome(torch.tensor([-7.0, 0.0])).tolist() == [1.0, 0.0]


def test_search_without_a_rule():
    assert ALIE("search").traits.needs_rule
    assert InnerProduct("search").traits.needs_rule
    with pytest.raises(InfeasibleError, match="rule is not known"):
        one(ALIE("search"), cloud())


# Inner product manipulation


def test_inner_product_by_hand():
    knowledge = seen([[1.0, 0.0], [3.0, 2.0]])
    assert one(InnerProduct(0.5), knowledge).tolist() == [-1.0, -0.5]


def test_a_small_inner_product_deceives_krum_and_a_large_one_does_not():
    """The honest lie around a short mean, farther from each other than from its opposite."""
    honest = cloud(12, d=20, b=5).honest - 0.95
    for epsilon, chosen in ((0.1, True), (1.0, True), (30.0, False)):
        forged = sent(InnerProduct(epsilon), seen(honest, [[0.0] * 20] * 5))
        assert (krum_choice(torch.cat((forged, honest)), 5) < 5) == chosen


# Mimic


def test_mimic_copies_a_client_by_id():
    knowledge = seen([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    assert one(Mimic(1), knowledge).tolist() == [2.0, 0.0]
    assert one(Mimic(9), knowledge).tolist() == [1.0, 0.0], "after the last comes the first"
    absent = type(knowledge)(knowledge.honest, knowledge.byzantine, (0, 4, 7), knowledge.colluders)
    assert one(Mimic(1), absent).tolist() == [2.0, 0.0], "client 1 does not take part, client 4 is the next"


def test_mimic_learns_who_lies_farthest_out():
    honest = [[1.0, 0.1], [1.1, -0.1], [0.9, 5.0], [1.0, 1.0]]
    assert one(Mimic(), seen(honest)).tolist() == pytest.approx([0.9, 5.0])
    assert one(Mimic(), seen([[-x for x in row] for row in honest])).tolist() == pytest.approx([-0.9, -5.0])


def test_mimic_outweighs_a_minority():
    """Heterogeneous clients: what only one of ten holds gets the weight of four."""
    honest = torch.zeros(10, 2)
    honest[:, 0], honest[3, 1] = 1.0, 6.0
    knowledge = seen(honest, [[1.0, 0.0]] * 3)
    assert aggregate(Mimic(), knowledge)[1].item() == pytest.approx(4 * 6 / 13)


# Min-Max and Min-Sum


def test_min_max_and_min_sum_by_hand():
    """mu = 3.  Min-Max: distance to 7 at most 7, so 0.  Min-Sum: 3 gamma^2 + 26 = 74, gamma = 4, so -1."""
    knowledge = seen([[0.0], [2.0], [7.0]], [[3.0]])
    assert one(MinMax(), knowledge).item() == pytest.approx(0.0, abs=1e-4)
    assert one(MinMax("sign"), knowledge).item() == pytest.approx(0.0, abs=1e-4)
    assert one(MinSum(), knowledge).item() == pytest.approx(-1.0, abs=1e-4)


def test_perturbations_by_hand():
    knowledge = seen([[2.0, 4.0], [4.0, 4.0]], [[3.0, 4.0]])  # mu = (3, 4), deviation (sqrt 2, 0), distance 2
    unit = one(MinMax(), knowledge) - torch.tensor([3.0, 4.0])
    assert (unit / unit.norm()).tolist() == pytest.approx([-0.6, -0.8])
    std = one(MinMax("std"), knowledge) - torch.tensor([3.0, 4.0])
    assert std.tolist() == pytest.approx([-1.0, 0.0], abs=1e-4), "1 + gamma sqrt 2 <= 2"
    sign = one(MinMax("sign"), knowledge) - torch.tensor([3.0, 4.0])
    assert sign[0] == sign[1]
    assert sign[0] < 0


@pytest.mark.parametrize("perturbation", ["unit", "std", "sign"])
@pytest.mark.parametrize("scale", [0.05, 1.0, 10.0])
def test_gamma_is_the_largest_that_keeps_within_the_bound(perturbation, scale):
    x = scale * cloud().honest
    distances = torch.cdist(x.double(), x.double()) ** 2
    for attack, bound in (
        (MinMax(perturbation), distances.max()),
        (MinSum(perturbation), distances.sum(1).max()),
    ):
        forged = one(attack, seen(x, [[0.0] * 20])).double()
        mu = x.double().mean(0)
        for stretch, within in ((0.999, True), (1.001, False)):
            squares = ((mu + stretch * (forged - mu) - x) ** 2).sum(1)
            measured = squares.max() if isinstance(attack, MinMax) else squares.sum()
            assert bool(measured <= bound) == within


@given(st.floats(1e-3, 19.9))
def test_halving_comes_as_close_as_asked(edge):
    assert halving(lambda gamma: gamma <= edge, 10.0, 1e-5) == pytest.approx(edge, abs=2e-5)


def test_equal_updates_leave_no_room():
    knowledge = seen([[1.0, 2.0]] * 3)
    for attack in (MinMax(), MinSum(), MinMax("std"), MinMax("sign")):
        assert one(attack, knowledge).tolist() == pytest.approx([1.0, 2.0], abs=1e-4)


# Fang et al.


def test_fang_on_the_trimmed_mean_by_hand():
    """Entries that would rise from 1 and from -1, that would fall from -1 and from 1, and one that would stay."""
    honest = [[1.0, -1.0, -3.0, -3.0, -1.0], [3.0, 3.0, -1.0, 1.0, 1.0]]
    knowledge = seen(honest, [[2.0, 2.0, -2.0, -2.0, 0.0]])
    assert one(FangTrimmedMean(of="update"), knowledge).tolist() == [0.5, -2.0, -0.5, 2.0, 0.0]
    assert one(FangTrimmedMean(b=4.0, of="update"), knowledge).tolist() == [0.25, -4.0, -0.25, 4.0, 0.0]
    based = update([2.0, 2.0, -2.0, -2.0, 0.0], 2, base=[10.0] * 5)
    forged = FangTrimmedMean().forge(based, knowledge, rng())
    assert (forged + 10).tolist() == [5.5, 4.5, 18.0, 22.0, 10.0]


def test_fang_on_the_trimmed_mean_draws_from_the_interval():
    knowledge = cloud(d=400)
    forged, end = (sent(FangTrimmedMean(draw=draw, of="update"), knowledge) for draw in ("uniform", "end"))
    low, high = end[0].minimum(knowledge.honest.amin(0)), knowledge.honest.amin(0)
    assert ((forged >= low) & (forged <= high)).all()
    share = (high - forged) / (high - low)
    assert share.mean().item() == pytest.approx(0.5, abs=0.05)


def test_fang_beats_the_trimmed_mean_that_it_is_made_for():
    knowledge = cloud(12, d=200, b=4, rule=TrimmedMean(0.25))
    mu = knowledge.honest.mean(0)
    shifted = knowledge.outcome(one(FangTrimmedMean(of="update"), knowledge)) - mu
    assert (shifted <= 1e-6).all(), "every entry would have risen, every entry is pushed down"
    assert shifted.norm() > 2 * (TrimmedMean(0.25)(knowledge.honest) - mu).norm()


def brute_force_krum(rows, f):
    scores = []
    for i, row in enumerate(rows):
        squares = sorted(((row - other) ** 2).sum().item() for j, other in enumerate(rows) if j != i)
        scores.append(sum(squares[: len(rows) - f - 2]))
    return scores.index(min(scores))


@given(st.integers(0, 200))
def test_krum_is_krum(seed):
    rows = torch.randn(9, 4, generator=torch.Generator().manual_seed(seed))
    assert krum_choice(rows, 2) == brute_force_krum(rows.double(), 2)


def test_fang_deceives_krum_as_far_as_it_can():
    honest = 0.05 + 0.3 * torch.randn(12, 20, generator=torch.Generator().manual_seed(3))
    knowledge = seen(honest, [[0.05] * 20] * 5)
    forged = sent(FangKrum(), knowledge)
    assert krum_choice(torch.cat((forged, honest)), 5) < 5
    assert krum_choice(torch.cat((2 * forged, honest)), 5) >= 5, "twice as far is too far"
    assert forged[0] @ honest.mean(0) < 0
    assert len(forged[0].abs().unique()) == 1, "lambda times signs"


def test_fang_gives_up_at_the_smallest_lambda():
    tight = torch.ones(12, 20) + 1e-4 * torch.randn(12, 20, generator=torch.Generator().manual_seed(3))
    forged = one(FangKrum(), seen(tight, [[1.0] * 20] * 3))
    assert forged.tolist() == pytest.approx([-1e-5] * 20)
