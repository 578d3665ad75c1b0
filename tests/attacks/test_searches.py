"""Searches of the server's rule against brute force, and the attacks that are built on them."""

from dataclasses import dataclass

import pytest
import torch
from federations import cloud, rng, seen, sent, update
from test_omniscient import Fooled, brute_force_krum

from phalanx.aggregators import Aggregator, CenteredClipping, Krum, Mean, Median, MultiKrum
from phalanx.algorithms import ClusteredFL, FedAvg, PerCluster, Quorum
from phalanx.algorithms.quorum import QuorumState
from phalanx.attacks import ALIE, FangKrum, FangTrimmedMean, InnerProduct, Knowledge, Mimic, MinMax, Tailored
from phalanx.attacks.search import damage, grid_search
from phalanx.core import InfeasibleError


@pytest.mark.parametrize("peak", [-300.0, -2.2, -0.011, 0.0, 0.37, 5.0, 77.0])
def test_grid_search_finds_a_peak_on_either_side(peak):
    assert grid_search(lambda x: -abs(x - peak)) == pytest.approx(peak, rel=0.01, abs=0.002)


def test_grid_search_is_not_lured_by_the_first_peak():
    def objective(x):
        return max(1 - abs(x - 1), 3 - 8 * abs(x + 6.6), 0.0)

    assert grid_search(objective) == pytest.approx(-6.6, abs=0.01)
    assert grid_search(objective, both_signs=False) == pytest.approx(1.0, abs=0.01)


def test_grid_search_on_slopes_steps_and_plains():
    assert grid_search(lambda x: x) == 2**15
    assert grid_search(lambda x: -x) == -(2**15)
    assert grid_search(lambda x: 1.0) == 0.0
    assert grid_search(lambda x: x if x <= 0.37 else 0.0) == pytest.approx(0.37, abs=1e-3)
    assert grid_search(lambda x: min(abs(x), 6.0)) in (-6.0, 6.0) or abs(grid_search(lambda x: min(abs(x), 6.0))) >= 6.0


@pytest.mark.parametrize(
    "rule", [Median(), *(pytest.param(r, marks=pytest.mark.slow) for r in (Krum(4), MultiKrum(4)))], ids=str
)
def test_a_grid_finds_what_brute_force_finds(rule):
    draw = torch.Generator().manual_seed(1)
    rows = torch.randn(20, generator=draw) + 2 * torch.rand(20, generator=draw) * torch.randn(16, 20, generator=draw)
    knowledge = seen(rows[:12], rows[12:].tolist(), rule=rule)
    mu, sigma = rows[:12].mean(0), rows[:12].std(0, correction=0)
    scan = torch.linspace(-20, 20, 201).tolist()
    best = max(damage(knowledge, mu + z * sigma) for z in scan)
    assert damage(knowledge, sent(ALIE("grid"), knowledge)[0]) >= 0.98 * best
    best = max(damage(knowledge, -e * mu) for e in scan)
    assert damage(knowledge, sent(InnerProduct("grid"), knowledge)[0]) >= 0.98 * best


@dataclass(frozen=True)
class Halved(Aggregator):
    """Takes half of the last row, if there is no previous result; nothing moves it in odd turns."""

    def __call__(self, deltas, weights=None, *, turn=0, previous=None):
        if turn % 2:
            return deltas[0]
        return deltas[-1] / 2 if previous is None else previous

    def aggregate(self, points):
        return self(points.matrix)


def test_outcomes_as_on_the_server():
    last = torch.tensor([5.0, 5.0])
    knowledge = seen([[1.0, 0.0]], rule=Halved(), turn=2, last=last)
    forged = torch.tensor([4.0, 4.0])
    assert knowledge.outcome(forged).tolist() == [2.0, 2.0], "as in the first call"
    assert knowledge.outcome(forged, carried=True).tolist() == [5.0, 5.0]
    odd = seen([[1.0, 0.0]], rule=Halved(), turn=3)
    assert odd.outcome(forged, carried=True).tolist() == [1.0, 0.0]


def test_centered_clipping_starts_from_its_last_result():
    last = torch.full((20,), 3.0)
    rule = CenteredClipping(0.5)
    knowledge = cloud(rule=rule, turn=4, last=last)
    forged = -torch.ones(20)
    rows = torch.cat((knowledge.honest, forged.expand(4, -1)))
    assert torch.equal(knowledge.outcome(forged, carried=True), rule(rows, turn=4, previous=last))
    assert not torch.equal(knowledge.outcome(forged, carried=True), knowledge.outcome(forged))


def test_algorithms_show_the_next_call_of_their_rule():
    model, sizes = torch.zeros(2), dict.fromkeys(range(8), 5)
    for algorithm in (FedAvg(), FedAvg(Median())):
        state = algorithm.init(model, sizes)[0]._replace(version=3, aggregate=model + 1)
        turn, last = algorithm.carried(state)
        assert (turn, last.tolist()) == (3, [1.0, 1.0])
        turn, last = Quorum(algorithm, k=5).carried(QuorumState(state, {}, frozenset(), {}))
        assert (turn, last.tolist()) == (3, [1.0, 1.0])
    for several in (ClusteredFL(), PerCluster(FedAvg())):
        assert several.carried(several.init(model, sizes)[0]) == (0, None)


@dataclass(frozen=True)
class Fussy(Aggregator):
    """Has no result if the last row is long."""

    def __call__(self, deltas, weights=None, **options):
        if deltas[-1].norm() > 2:
            raise InfeasibleError("The last row is long.")
        return deltas[-1]

    def aggregate(self, points):
        return self(points.matrix)


def test_a_rule_without_a_result_ends_no_search():
    knowledge = seen([[1.0, 0.0], [1.0, 0.0]], rule=Fussy())
    assert damage(knowledge, torch.tensor([9.0, 0.0])) == 0.0
    assert sent(InnerProduct("grid"), knowledge)[0, 0] == pytest.approx(-2.0, abs=0.01)
    assert sent(InnerProduct("search"), knowledge)[0, 0] == pytest.approx(-2.0, abs=0.1)


# Tailored


def test_tailored_by_hand():
    """mu = (2, 0), and the rule takes what is no longer than 3: (-3, 0) is 5 away from mu."""
    knowledge = seen([[1.0, 0.0], [3.0, 0.0]], rule=Fooled(3.0))
    assert sent(Tailored("unit"), knowledge)[0].tolist() == pytest.approx([-3.0, 0.0], abs=1e-2)
    best = sent(Tailored(), knowledge)
    assert best[0].norm() <= 3.0
    assert damage(knowledge, best[0]) == pytest.approx(5.0, abs=1e-2)


@pytest.mark.parametrize("rule", [Median(), pytest.param(Krum(4), marks=pytest.mark.slow)], ids=str)
def test_who_knows_the_rule_does_more_damage_than_who_does_not(rule):
    knowledge = cloud(12, d=30, b=4, rule=rule)
    by_kind = [damage(knowledge, sent(Tailored(kind), knowledge)[0]) for kind in ("unit", "std", "sign")]
    assert damage(knowledge, sent(Tailored(), knowledge)[0]) == max(by_kind)
    for kind, most in zip(("unit", "std", "sign"), by_kind, strict=True):
        assert most >= 0.99 * damage(knowledge, sent(MinMax(kind), knowledge)[0])


def test_tailored_needs_a_rule_and_leaves_equal_updates_alone():
    assert Tailored().traits.needs_rule
    with pytest.raises(InfeasibleError, match="rule is not known"):
        sent(Tailored(), cloud())
    assert sent(Tailored("std"), seen([[1.0, 2.0]] * 3, rule=Mean())).tolist() == [[1.0, 2.0]]


# Partial knowledge


def other_honest(knowledge):
    """The same attackers among other honest clients."""
    return Knowledge(100 - knowledge.honest, knowledge.byzantine, knowledge.clients, knowledge.colluders)


@pytest.mark.parametrize("attack", [FangKrum(knows="own"), FangTrimmedMean(knows="own")])
def test_partial_knowledge_is_of_the_attackers_alone(attack):
    knowledge = cloud()
    assert torch.equal(sent(attack, knowledge), sent(attack, other_honest(knowledge)))


def test_fang_on_the_trimmed_mean_from_own_updates_by_hand():
    """Means 2, -1 and 0, deviations 1, 2 and 0."""
    knowledge = seen([[9.0, 9.0, 9.0]], [[1.0, -3.0, 0.0], [3.0, 1.0, 0.0]])
    assert sent(FangTrimmedMean(knows="own"), knowledge).tolist() == [[-2.0, 7.0, 0.0]] * 2
    drawn = sent(FangTrimmedMean(knows="own", draw="uniform"), knowledge)
    assert ((drawn[:, 0] >= -2) & (drawn[:, 0] <= -1)).all()
    assert not torch.equal(drawn[0], drawn[1])


def test_fang_on_krum_from_own_updates_is_chosen_among_these():
    own = 0.05 + 0.3 * torch.randn(6, 20, generator=torch.Generator().manual_seed(3))
    knowledge = seen(torch.zeros(9, 20), own.tolist())
    forged = sent(FangKrum(knows="own"), knowledge)[0]
    assert torch.equal(forged.sign(), -own.mean(0).sign())
    crafted = next(k for k in range(1, 7) if brute_force_krum(torch.cat((forged.expand(k, -1), own)), 6 - 3) < k)
    assert crafted <= 6


# Mimic with a warm-up


def remembered(attack, rounds):
    """The update and the memory of an attacker in each round of these honest updates."""
    memory, found = None, []
    for rows in rounds:
        knowledge = seen(rows, [[0.0] * len(rows[0])])
        delta, memory = attack.respond(update([0.0] * len(rows[0]))._replace(memory=memory), knowledge, rng())
        found.append((delta.tolist(), memory))
    return found


def test_mimic_keeps_the_client_that_it_has_learned():
    first, then = [[1.0, 0.0], [1.0, 5.0], [1.0, -1.0]], [[4.0, 9.0], [1.0, 2.0], [3.0, -9.0]]
    once = remembered(Mimic(warmup=1), [first, then, first])
    assert [delta for delta, _ in once] == [[1.0, 5.0], [1.0, 2.0], [1.0, 5.0]]
    assert once[0][1] == once[2][1], "nothing is learned after the warm-up"
    again = remembered(Mimic(), [first, then])
    assert again[1][0] in ([4.0, 9.0], [3.0, -9.0]), "without a warm-up the client changes"


def test_mimic_averages_over_its_warm_up():
    """z turns from the axis of the first round towards that of the later ones, which vary more often."""
    wide, tall = [[3.0, 0.1], [-3.0, 0.0], [0.0, -0.1]], [[0.1, 3.0], [0.0, -3.0], [0.0, 0.3]]
    memories = [memory for _, memory in remembered(Mimic(warmup=9), [wide, *[tall] * 8])]
    assert [memory.rounds for memory in memories] == list(range(1, 10))
    assert memories[0].direction[0].abs() > 0.99
    assert memories[-1].direction[1].abs() > memories[-1].direction[0].abs()
    assert all(float(memory.direction.norm()) == pytest.approx(1.0) for memory in memories)
    expected = (torch.tensor(wide).mean(0) + 8 * torch.tensor(tall).mean(0)) / 9
    assert torch.allclose(memories[-1].mean, expected, atol=1e-6)


def test_a_warm_up_needs_something_to_learn():
    with pytest.raises(ValueError, match="warmup must be at least 1"):
        Mimic(warmup=0)
    with pytest.raises(ValueError, match='target "learned"'):
        Mimic(target=3, warmup=5)
