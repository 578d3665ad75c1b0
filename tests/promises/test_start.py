"""What a run says at its start that it cannot guarantee, and what it refuses."""

import dataclasses
import re
import warnings
from math import comb

import pytest
import torch

import phalanx
from phalanx.aggregators import SMEA, Krum, Mean, Median, NearestNeighborMixing, TrimmedMean
from phalanx.algorithms import (
    BASGD,
    FLAME,
    ByzantineCFL,
    Catalyst,
    ClusteredFL,
    FedAsync,
    FedAvg,
    FedBuff,
    Kardam,
    Permuted,
    Quorum,
)
from phalanx.clustering import Memory
from phalanx.core import InfeasibleError, Setting, Until
from phalanx.engine import LoopSettings, Participation
from phalanx.promises import promise
from phalanx.weighting import AsReported, Ignore, Truncate
from toys import Scripted, remarks

EQUAL = dict.fromkeys(range(20), 72)
LIED = dict.fromkeys(range(15), 72) | dict.fromkeys(range(15, 20), 10**6)
POPULATION, SUBSET = Truncate.as_published(0.25, 0.35), Truncate(0.25, 0.35, "subset")


@pytest.mark.parametrize(
    ("algorithm", "size", "name", "full"),
    [
        (FedAvg(), 8, "round", 8),
        (FLAME(f=1), 8, "round", 8),
        (Permuted(FedAvg()), 8, "round", 8),
        (Quorum(FedAvg(), k=5), 5, "quorum", 5),
        (Quorum(Permuted(FedAvg()), k=5), 5, "quorum", 5),
        (Quorum(ClusteredFL(min_part_size=2), k=5), 1, "cluster", 5),
        (Catalyst(f=2), 5, "quorum", 5),
        (Catalyst(f=2, quorum=7), 7, "quorum", 7),
        (FedBuff(6, distinct=True), 6, "buffer", 6),
        (FedBuff(6), 1, "buffer", 1),
        (BASGD(3), 3, "set of buffers", 3),
        (ClusteredFL(), 1, "cluster", 8),
        (ByzantineCFL(), 1, "benign cluster", 8),
        (Quorum(ByzantineCFL(), k=7), 6, "benign cluster", 7),
        (FedAsync(), 1, "step", 1),
        (Kardam(f=1), 1, "step", 1),
    ],
    ids=str,
)
def test_the_smallest_set(algorithm, size, name, full):
    """Rounds of 8 of 10 clients."""
    found = algorithm.pools(Setting(10, drawn=8))[0]
    assert (found.smallest, found.name, found.full) == (size, name, full)
    assert found.larger


@pytest.mark.parametrize(
    ("algorithm", "where"),
    [
        (Catalyst(5, preprocess=POPULATION), "a quorum of 11: there 5 attackers can hold 0.573"),
        (Quorum(FedAvg(Median(), POPULATION), k=11), "a quorum of 11: there 5 attackers can hold 0.573"),
        (FedBuff(11, aggregate=Median(), preprocess=POPULATION), "a buffer of 1: there 5 attackers can hold 1"),
    ],
    ids=str,
)
def test_truncation_over_the_population_says_that_it_does_not_hold_for_less(algorithm, where):
    (remark,) = remarks(algorithm, LIED)
    assert remark.startswith("Truncate(0.25, 0.35, population) bounds what attackers hold of all 20 clients, not of a ")
    assert where in remark
    assert 'Set scope to "subset", which is feasible with ' in remark
    feasible = Truncate.as_published(0.25, 0.49)
    (remark,) = remarks(Quorum(FedAvg(Median(), feasible), k=11), LIED)
    assert remark.endswith('Set scope to "subset".')


def test_nothing_is_said_of_what_is_guaranteed():
    assert remarks(FedAvg(Median(), Truncate(0.25, 0.49)), LIED) == ()
    assert remarks(FedAvg(Median(), Ignore()), LIED) == ()
    assert remarks(FedAvg(Mean()), LIED, lossy=True) == ()
    for algorithm in (
        Catalyst(5, quorum=15, preprocess=SUBSET),
        Catalyst(5, preprocess=Truncate(0.25, 0.46, "subset")),
        Quorum(FedAvg(Median(), SUBSET), k=15),
        FedBuff(15, aggregate=Median(), preprocess=SUBSET, distinct=True),
        ByzantineCFL(aggregate=Median(), preprocess=Truncate(0.25, 0.46, "subset")),
    ):
        assert remarks(algorithm, LIED) == (), algorithm


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        (
            Catalyst(5, preprocess=SUBSET),
            r"^No quorum can be weighed: 5 attackers of 11 .* For more clients, raise quorum\.$",
        ),
        (
            Quorum(FedAvg(Median(), SUBSET), k=11),
            r"^No quorum can be weighed: .* at least 15 clients.* For more clients, raise k\.$",
        ),
        (
            FedBuff(15, preprocess=SUBSET),
            r"^No buffer can be weighed: 1 attacker of 1 client .* For more clients, set distinct\.$",
        ),
        (FedAvg(Median(), Truncate(0.4, 0.35, "subset")), r"^No round can be weighed: 8 attackers of 20 clients"),
        (
            FedAvg(Median(), Truncate(0.4, 0.35, "cohort")),
            r"^No round of 20 can be weighed: alpha = 0\.4 of 20 clients",
        ),
        (
            FedAvg(Median(), Truncate(0.1, 0.4, "subset", drawn=5)),
            r"5 clients drawn at random .* no clients are drawn\.",
        ),
        (FedAvg(Krum(f=9)), r"needs at least 2f \+ 3 = 21 rows, got 20"),
    ],
    ids=str,
)
def test_what_can_never_be_guaranteed_is_refused_before_the_run_begins(algorithm, why):
    with pytest.raises(InfeasibleError, match=why):
        remarks(algorithm, LIED)
    transport = Scripted({i: [1.0] for i in range(20)}, sizes=LIED)
    with pytest.raises(InfeasibleError, match=why):
        phalanx.run(algorithm, transport, torch.zeros(2), LoopSettings(until=Until(3)))
    assert not transport.sent


def test_a_rule_for_fewer_clients_is_refused_before_the_run_begins():
    """There are 1,307,504 ways to drop 9 of 24."""
    sizes = dict.fromkeys(range(24), 72)
    why = r"SMEA\(f=9\) checks every way to drop f of 24 rows, and there are more than 200000"
    with pytest.raises(InfeasibleError, match=why):
        remarks(FedAvg(SMEA(f=9)), sizes)
    with pytest.raises(InfeasibleError, match=rf"^k = 24 is too large: {why}.* Or lower k\.$"):
        Quorum(FedAvg(SMEA(f=9)), k=24).init(torch.zeros(2), sizes)


@pytest.mark.parametrize(
    ("algorithm", "few", "share", "limit"),
    [
        (FedAvg(Median()), "3 of 20", "0.6", "Median() tolerates less than one half"),
        (FedAvg(TrimmedMean(0.25)), "2 of 20", "0.4", "TrimmedMean(beta=0.25, form='weight') tolerates 0.25 at most"),
        (FedAvg(Krum(f=6)), "2 of 20", "0.4", "Krum(f=6, neighbours='n-f-2') tolerates 0.3 at most"),
        (Permuted(FedAvg(Median())), "3 of 20", "0.6", "Median() tolerates less than one half"),
        (Quorum(FedAvg(Median()), k=11), "1 of 11", "0.999", "Median() tolerates less than one half"),
    ],
    ids=str,
)
def test_reported_sizes_can_give_few_clients_more_weight_than_the_rule_tolerates(algorithm, few, share, limit):
    """Each of the five that lie holds a fifth of the weight of all.  Where one is enough, the run is refused."""
    named = with_weights(algorithm, AsReported(beyond_tolerance="remark"))
    (remark,) = remarks(named, LIED)
    assert remark.startswith(f"AsReported() weighs by what clients report, and {few} clients can hold {share} of")
    assert limit in remark
    assert remark.endswith("which bounds what 2 can hold, or to Ignore().")
    (values,) = re.findall(r"Set preprocess to (Truncate\(.*?\))", remark)
    assert promise(with_weights(algorithm, eval(values)), Setting(20, LIED)).f == 2, "the values that it names"
    if few.startswith("1 of"):
        with pytest.raises(InfeasibleError) as error:
            promise(algorithm, Setting(20, LIED))
        by_name = 'To run all the same, set preprocess to AsReported(beyond_tolerance="remark").'
        assert str(error.value) == f"{remark} {by_name}"
    else:
        assert remarks(algorithm, LIED) == (remark,)


def with_weights(algorithm, preprocess):
    """The algorithm with other weights, within wrappers."""
    inner = getattr(algorithm, "algorithm", None)
    if inner is not None:
        return dataclasses.replace(algorithm, algorithm=with_weights(inner, preprocess))
    return dataclasses.replace(algorithm, preprocess=preprocess)


def test_reported_sizes_that_keep_the_promise_that_is_asked_for_are_not_refused():
    """One of 20 holds a fifth of the weight, which a trimmed mean tolerates."""
    assert promise(FedAvg(TrimmedMean(0.25)), Setting(20, LIED), f=1).f == 1
    with pytest.raises(InfeasibleError, match=r"2 attackers of 20 clients"):
        promise(FedAvg(TrimmedMean(0.25)), Setting(20, LIED), f=2)


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(0.3), Krum(f=6), Mean()], ids=str)
def test_reported_sizes_that_hardly_differ_are_not_mentioned(rule):
    assert remarks(FedAvg(rule), EQUAL) == ()
    assert remarks(FedAvg(rule), {i: 71 + i % 2 for i in EQUAL}) == ()


def test_a_rule_that_tolerates_nobody_has_nothing_to_lose_by_reported_sizes():
    assert remarks(FedAvg(Mean()), LIED) == remarks(FedAvg(Krum(f=0)), LIED) == ()
    assert remarks(FedAvg(Median()), {0: 10**6, 1: 1}) == ()


def test_a_rule_that_tolerates_nobody_makes_truncation_useless():
    (remark,) = remarks(FedAvg(Mean(), Truncate(0.25, 0.49)), EQUAL)
    assert remark == (
        "Truncate(0.25, 0.49) lets attackers have 0.49 of the weight, and Mean() tolerates no share by any proof. "
        "Take a rule that tolerates attackers, such as Median."
    )


def test_unweighted_sets_are_not_refused_and_it_is_said():
    equal = Truncate(0.25, 0.35, "subset", "unweighted")
    (remark,) = remarks(Catalyst(5, preprocess=equal), LIED)
    assert remark.startswith("The clients of a quorum of 11 weigh the same, without a guarantee: 5 attackers of 11")


def test_cohorts_are_made_for_fewer_attackers_than_there_are():
    (remark,) = remarks(Quorum(FedAvg(Median(), Truncate(0.25, 0.35, "cohort")), k=11), EQUAL)
    assert "is made for 3 attackers in a quorum of 11, and 5 of 20 clients can be in it." in remark
    found = remarks(Quorum(FedAvg(Median(), Truncate(0.3, 0.35, "cohort")), k=2), EQUAL)
    assert found[-1].startswith("A quorum of 2 is held back until more updates come: alpha = 0.3 of 2 clients")


def test_clusters_can_hold_all_attackers():
    (remark,) = remarks(ClusteredFL(aggregate=Median(), preprocess=Truncate.as_published(0.25, 0.45)), EQUAL)
    assert "5 attackers of 20 clients can be in one cluster. Set scope" in remark
    (remark,) = remarks(ClusteredFL(aggregate=Median(), preprocess=Truncate(0.25, 0.45, "subset")), EQUAL)
    assert remark.startswith("A cluster of fewer than 12 is lost: 5 attackers of 11 clients")


def test_a_benign_cluster_can_be_too_small():
    (remark,) = remarks(ByzantineCFL(aggregate=Median(), preprocess=SUBSET), EQUAL)
    assert remark.startswith("A benign cluster of fewer than 15 is lost: 5 attackers of 14 clients")


def test_rounds_drawn_at_random_have_a_probability():
    """10 of 100 attack, 10 are drawn; with equal sizes 4 of them hold .4, and 5 hold .5."""
    sizes, chance = dict.fromkeys(range(100), 10), sum(comb(10, x) * comb(90, 10 - x) for x in range(5, 11))
    chance /= comb(100, 10)
    (remark,) = remarks(FedAvg(Median(), Truncate.as_published(0.1, 0.45)), sizes, asked=10)
    assert (
        f"in a round of 10 drawn at random 5 or more of 10 attackers take part with probability {chance:.2g}," in remark
    )
    assert remark.endswith('Set scope to "subset" and drawn to 10.')
    drawn = Truncate(0.1, 0.45, "subset", drawn=10)
    assert remarks(FedAvg(Median(), drawn), sizes, asked=10) == ()
    with pytest.raises(InfeasibleError, match=r"counts on 10 clients drawn .*, and 12 are\. Set drawn to 12"):
        remarks(FedAvg(Median(), drawn), sizes, asked=12)
    assert remarks(FedAvg(Median(), Truncate.as_published(0.1, 0.45)), sizes, asked=50) == (), (
        "all 10 attackers hold 0.2 of 50"
    )
    (remark,) = remarks(FedAvg(Median(), drawn), sizes, asked=10, lossy=True)
    assert "if some cannot be reached, more attackers are drawn" in remark


def test_updates_of_several_rounds_meet_more_attackers_than_one_draw_brings():
    drawn, sizes = Truncate(0.1, 0.45, "subset", drawn=20), dict.fromkeys(range(100), 10)
    made = ClusteredFL(aggregate=Median(), preprocess=drawn, memory=Memory(reuse=0), min_part_size=20)
    assert not any("one round" in remark for remark in remarks(made, sizes, asked=20))
    with pytest.raises(InfeasibleError, match=r"updates of 3 rounds meet in a cluster\. Set memory.reuse to 0"):
        remarks(dataclasses.replace(made, memory=Memory()), sizes, asked=20)


@pytest.mark.parametrize(
    ("algorithm", "lossy", "said"),
    [
        (Catalyst(f=5), False, ""),
        (
            Catalyst(f=5, quorum=16),
            False,
            "If 5 of 20 clients stay silent, 15 are left, and a quorum of 16 never comes",
        ),
        (
            Quorum(FedAvg(Krum(f=3)), k=18),
            False,
            "17 are left, and a quorum of 18 never comes together. Have 21 clients",
        ),
        (FedAvg(Krum(f=6)), False, ""),
        (FedAvg(Krum(f=6)), True, "14 are left, and every such round is lost: Krum(f=6, "),
        (FedAvg(NearestNeighborMixing(f=6) >> Krum(f=6)), True, "14 are left, and every such round is lost"),
        (Permuted(FedAvg(Krum(f=6))), True, "14 are left, and every such round is lost"),
        (FedAvg(Krum(f=5)), True, ""),
        (FLAME(f=7), True, "13 are left, and every such round is lost: FLAME needs at least 2f + 1 = 15 clients"),
        (FedAvg(Median(), Truncate(0.25, 0.3, "subset")), True, "If 5 of 20 clients stay silent, the round is lost"),
        (FedAvg(Median(), Truncate(0.25, 0.34, "subset")), True, ""),
        (
            FedAvg(Median(), Truncate.as_published(0.25, 0.45)),
            True,
            "of a round in which some clients do not answer they can hold",
        ),
    ],
    ids=str,
)
def test_silence_is_looked_at_before_the_run_begins(algorithm, lossy, said):
    found = remarks(algorithm, EQUAL, lossy=lossy)
    assert [said in remark for remark in found] == ([True] if said else []), found


def test_a_run_warns_once_and_shows_observers():
    seen = []
    transport = Scripted({i: [1.0] for i in range(20)}, sizes=LIED)
    with pytest.warns(UserWarning, match="not of a quorum of 11") as caught:
        phalanx.run(
            Catalyst(5, preprocess=POPULATION),
            transport,
            torch.zeros(2),
            LoopSettings(until=Until(15)),
            observers=[seen.append],
        )
    assert len(caught) == 1
    assert seen[0].remarks == (str(caught[0].message),)
    assert all(not progress.remarks for progress in seen[1:])


def test_the_sampler_is_asked_how_many_it_draws():
    transport = Scripted({i: [1.0] for i in range(20)})
    with pytest.raises(InfeasibleError, match=r"2f \+ 3 = 13 rows, got 10"):
        phalanx.run(
            FedAvg(Krum(f=5)), transport, torch.zeros(2), LoopSettings(until=Until(1)), sample=Participation(0.5, 0)
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        phalanx.run(
            FedAvg(Krum(f=5)),
            transport,
            torch.zeros(2),
            LoopSettings(until=Until(1)),
            sample=lambda ready, attempt: ready,
        )


def test_a_trial_does_not_judge_rules_that_need_rows_of_a_kind():
    class Layered(Mean):
        def choose(self, points):
            assert points.matrix.shape[1] == 2 or None
            raise RuntimeError("needs rows of 5 entries")

    assert remarks(FedAvg(Layered()), EQUAL) == ()
