"""Runs in which attackers once held more than was promised: what they are promised now, and what the audit does."""

import copy
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch

import phalanx
from adversary import Hostile
from phalanx import Run, Until, simulate
from phalanx.aggregators import Mean, Median, TrimmedMean
from phalanx.algorithms import RFFL, ByzantineCFL, Catalyst, ClusteredFL, FedAvg, PerCluster, Quorum
from phalanx.algorithms.byzantine_cfl import AtOnce
from phalanx.core import Algorithm, InfeasibleError, Setting, StalledError, TooFewError, Updates
from phalanx.engine import LoopSettings, LostRounds
from phalanx.models import MLP
from phalanx.promises import PromiseError, combine, held, promise, watched
from phalanx.runs.record import Record
from phalanx.runs.replay import UpdateReplay
from phalanx.simulation import Deadline, Lognormal
from phalanx.training import Evaluation
from phalanx.weighting import AsReported, Ignore, Truncate
from toys import Scripted, updates

ONCE, SUBSET = Truncate.as_published(2 / 12, 0.4), Truncate(2 / 12, 0.4, scope="subset")


def f_of(algorithm, clients=12, **setting):
    return promise(algorithm, Setting(clients, **setting)).f


def test_a_plain_mean_of_one_client_says_that_it_promises_nothing():
    found = promise(FedAvg(), Setting(12, dict.fromkeys(range(12), 100), drawn=1))
    assert found.f == 0
    assert found.sentence.startswith("Promises nothing: a mean tolerates no attacker")
    assert found.text[0] == found.sentence


def test_of_a_cluster_of_which_some_are_drawn_two_can_answer():
    algorithm = PerCluster(FedAvg(Median(), Ignore()))
    assert f_of(algorithm) == 1, "a smallest cluster is of three"
    assert f_of(algorithm, drawn=6) == 0
    assert f_of(PerCluster(FedAvg(Median(), SUBSET)), drawn=6) == 2, "smaller sets are not weighed"


def test_a_benign_cluster_can_be_of_four_where_answers_are_lost():
    equal = dict.fromkeys(range(12), 100)
    for preprocess, f in ((Ignore(), 3), (Truncate.as_published(2 / 12, 0.4), 2)):
        algorithm = ByzantineCFL(aggregate=Median(), preprocess=preprocess)
        assert f_of(algorithm, sizes=equal) == f
        assert f_of(algorithm, sizes=equal, lossy=True) == 0


@pytest.mark.parametrize(
    "algorithm",
    [Quorum(FedAvg(Median(), ONCE), 7), Catalyst(2, quorum=7, preprocess=ONCE)],
    ids=str,
)
def test_clients_that_join_can_report_anything(algorithm):
    sizes = dict.fromkeys(range(12), 100)
    assert promise(algorithm, Setting(12, sizes)).f == 2
    assert promise(algorithm, Setting(12, sizes, joins=True)).f == 0


def test_the_promise_is_computed_again_when_clients_join():
    """Eleven are there, and a quorum of equal sizes tolerates three; the twelfth reports a billion."""
    transport = Hostile(0, "equal", "random", late="one")
    transport.__class__ = type("Silent", (Hostile,), {"joins": False})  # it does not say beforehand that clients join
    transport.reported[transport.order[0]] = 10**9
    seen = []
    with warnings.catch_warnings(action="ignore"):
        phalanx.run(
            Quorum(FedAvg(Median(), AsReported()), 7),
            transport,
            torch.zeros(20),
            LoopSettings(until=Until(60)),
            observers=[seen.append],
        )
    promises = [progress.promise for progress in seen if progress.promise is not None]
    assert [one.f for one in promises] == [3, 0]
    assert any("After clients have joined: Promises nothing" in remark for p in seen for remark in p.remarks)


LEFT = "left in a {}: {} The promise for {} holds such steps back."


def leaving(turns):
    """Twelve clients, of whom some do not answer in some turns."""
    return Scripted({i: [1.0] for i in range(12)}, lost={i: list(which) for i, which in turns.items()})


@pytest.mark.parametrize(
    ("algorithm", "f", "transport", "said"),
    [
        (
            FedAvg(Median(), Ignore()),
            2,
            leaving({0: range(1, 9)} | dict.fromkeys(range(4, 12), range(2, 9)) | {3: range(4, 9), 2: range(5, 9)}),
            [
                "With 3 clients " + LEFT.format("round", "Tolerates any 1 of 3 clients.", 2),
                "With 2 clients "
                + LEFT.format(
                    "round",
                    "Promises nothing: a round can be of 2 clients, of which one attacker is too many. To tolerate "
                    "one, have more clients take part in each round, or set tolerate to 1: smaller sets are then not "
                    "aggregated.",
                    2,
                ),
            ],
        ),
        (FedAvg(Median(), Ignore()), 2, leaving(dict.fromkeys(range(5, 12), range(2, 9))), []),
        (
            ClusteredFL(aggregate=Median()),
            2,
            leaving(dict.fromkeys(range(4, 12), range(2, 9))),
            ["With 4 clients " + LEFT.format("cluster", "Tolerates any 1 of 4 clients.", 2)],
        ),
        (
            ClusteredFL(aggregate=Median(), split_rounds=(2,)),
            2,
            Scripted({i: [1.0 if i < 7 else -1.0] for i in range(12)}, lost={i: [*range(2, 9)] for i in (10, 11)}),
            ["With 3 clients " + LEFT.format("cluster", "Tolerates any 1 of 3 clients.", 2)],
        ),
        (
            ByzantineCFL(exclusion=AtOnce(), aggregate=TrimmedMean(0.3)),
            3,
            Scripted({i: [1.0 if i < 8 else -1.0] for i in range(12)}),
            ["With 8 clients " + LEFT.format("benign cluster", "Tolerates any 2 of 8 clients.", 3)],
        ),
    ],
    ids=["leave", "enough are left", "of a cluster", "of one of two clusters", "excluded"],
)
@pytest.mark.parametrize("resumed", [False, True])
def test_a_step_held_back_says_once_what_those_who_are_left_promise(algorithm, f, transport, said, resumed):
    """In the step in which it happens; the promise stays, and is kept by holding back."""
    transport, seen, kept = copy.deepcopy(transport), [], []
    transport.snapshot, transport.restore = lambda: None, lambda snapshot: None

    def run(steps, resume=None):
        settings = LoopSettings(until=Until(steps), tolerate=f, lost_rounds=LostRounds(most=20))
        with warnings.catch_warnings(action="ignore"), suppress(StalledError):
            phalanx.run(
                algorithm,
                transport,
                torch.zeros(2),
                settings,
                observers=[seen.append],
                on_snapshot=lambda take: kept.append(take()),
                resume=resume,
            )

    run(8)
    if resumed:
        run(9, kept[-1])
    assert [remark for progress in seen for remark in progress.remarks if "clients left" in remark] == said
    assert [progress.promise.f for progress in seen if progress.promise is not None] == [f]
    assert all(share < 0.5 for progress in seen for share in progress.shares)


def test_late_answers_shift_by_no_more_than_the_honest_range_and_say_so():
    """Honest clients only, changes in [0, 1]^2: the second step moves by (-1, 2)."""
    found = promise(Catalyst(2, quorum=7, aggregate=Median()), Setting(14))
    assert [(bound.pool.name, bound.pool.bounds) for bound in found.bounds] == [
        ("quorum", "result"),
        ("set of late answers", "shift"),
    ]
    assert "Late answers shift the model in a step by at most 2.09 times the honest range." in found.text
    assert promise(Catalyst(2, quorum=7, aggregate=Median(), window=1), Setting(14)).bounds[-1].pool.bounds == "result"
    assert promise(Catalyst.as_published(2), Setting(14)).f == 0, "late answers are not judged"


def test_answers_in_time_are_weighed_by_their_own_set_in_the_late_path():
    """Two fast attackers report a billion; afterwards, five late honest answers are judged with the seven in time."""
    algorithm = Catalyst(2, quorum=7, aggregate=Median(), preprocess=SUBSET)
    state, _ = algorithm.init(torch.zeros(4), dict.fromkeys(range(10), 100) | {10: 10**9, 11: 10**9})
    ones, bad = torch.ones(4), torch.tensor([1.0, 1.0, 1.0, -1.0])

    def arrive(state, client, version, delta, base):
        return algorithm.step(state, Updates((client,), (version,), (base,), delta[None], torch.ones(1)))[0]

    with watched(2) as shares:
        base = state.model
        for client in (10, 11, *range(5)):
            state = arrive(state, client, 0, bad if client > 9 else ones, base)
        one = state.model
        for client in range(5, 10):
            state = arrive(state, client, 0, ones, base)
        for client in (10, 11, *range(5)):
            state = arrive(state, client, 1, ones, one)
    assert torch.equal(state.model, 2 * torch.ones(4))
    assert len(shares) == 6, "two quorums with their lengths, and late answers with and without the early ones"
    assert max(shares) <= 0.4 + 1e-12


def test_a_majority_is_counted_among_those_who_are_enrolled():
    assert f_of(ByzantineCFL(aggregate=Median()), clients=12) == 3
    assert f_of(ByzantineCFL(aggregate=Median()), clients=11) == 2


def test_truncation_over_the_population_promises_nothing_of_a_quorum_whatever_is_reported():
    algorithm = Quorum(FedAvg(Median(), ONCE), 7)
    assert f_of(algorithm) == 0
    lied = dict.fromkeys(range(10), 100) | {10: 10**9, 11: 10**9}
    assert promise(algorithm, Setting(12, lied)).f == 1, "one of them holds less than a half of seven"


def test_the_default_of_truncation_bounds_whatever_is_aggregated():
    for algorithm in (Quorum(FedAvg(Median(), Truncate(2 / 12, 0.4)), 7), FedAvg(Median(), Truncate(2 / 12, 0.4))):
        assert f_of(algorithm, lossy=True, joins=True) == 2
    with pytest.raises(InfeasibleError, match=r"No round can be weighed: 2 attackers of 4.*set drawn to 4\.$"):
        promise(FedAvg(Median(), Truncate(2 / 40, 0.4)), Setting(40, drawn=4))
    assert f_of(FedAvg(Median(), Truncate(2 / 40, 0.4, drawn=4)), clients=40, drawn=4) == 2


def test_parts_keep_the_number_of_attackers():
    """Of 12 clients 3 may be attackers, and all of these can be in a cluster of 7: 3 of 7 cannot be held to 0.4."""
    algorithm = PerCluster(FedAvg(Median(), Truncate(3 / 12, 0.4, scope="subset")))
    inner, _ = algorithm._within(_state(12)).part(None or _fed(), dict.fromkeys(range(7), 10))
    with pytest.raises(TooFewError, match="3 attackers of 7 clients"):
        algorithm._within(_state(12)).weights(inner, range(7))


def _state(clients):
    state, _ = PerCluster(FedAvg()).init(torch.zeros(2), dict.fromkeys(range(clients), 10))
    return state


def _fed():
    return FedAvg().init(torch.zeros(2), dict.fromkeys(range(12), 10))[0]


def test_nothing_is_promised_of_rounds_that_shrink_by_exclusions_without_a_proof():
    assert f_of(Quorum(RFFL(aggregate=Median()), 7)) == 0


def test_certain_and_probable_numbers_of_attackers_are_told_apart():
    found = promise(FedAvg(Median(), Ignore()), Setting(100, drawn=20, steps=100))
    assert found.f == 9
    assert found.likely > 9
    assert 0 < found.unlikely <= 0.01
    assert f"Tolerates any 9 of 100 clients; {found.likely}, chosen before the draws" in found.sentence
    assert promise(FedAvg(Median(), Ignore()), Setting(100, drawn=20)).likely is None


def test_a_required_number_is_kept_by_the_audit_or_refused():
    algorithm = PerCluster(FedAvg(Median(), Ignore()))
    found = promise(algorithm, Setting(12, drawn=6), f=2)
    assert found.f == 2
    assert {bound.by for bound in found.bounds} == {"audit"}
    with pytest.raises(InfeasibleError, match="2 attackers of 12 clients: A mean tolerates no attacker"):
        promise(FedAvg(), Setting(12), f=2)


# The audit


def test_what_any_clients_hold_is_counted_by_client():
    assert held(1, [1.0, 1.0, 2.0], [0, 1, 2]) == 0.5
    assert held(1, [1.0, 1.0, 2.0], [0, 0, 2]) == 0.5
    assert held(2, [1.0, 1.0, 2.0], [0, 1, 2]) == 0.75
    assert held(1, [1.0, 1.0], [{0, 1}, {2}]) == 0.5
    assert held(3, [0.0, 0.0], [0, 1]) == 0.0


def test_a_call_that_breaks_the_promise_is_held_back():
    rows = torch.randn(4, 3)
    with (
        watched(2) as shares,
        pytest.raises(PromiseError, match=r"2 clients could hold 0\.5 of the weight of this round of 4"),
    ):
        combine(Median(), rows, None, range(4), "round")
    assert shares == []
    with watched(1) as shares:
        combine(Median(), rows, None, range(4), "round")
    assert shares == [0.25]
    with watched(0) as shares:
        combine(Mean(), rows, None, range(4), "round")
    assert shares == [], "nothing is promised"
    with watched(1), pytest.raises(PromiseError, match=r"TrimmedMean tolerates 0\.2 at most"):
        combine(TrimmedMean(0.2), rows, None, range(4), "round")


ONE_HEAVY = torch.tensor([1.0, 1.0, 1.0, 1.0, 9.0])  # more than half of the weight is of one client


def test_a_call_that_breaks_the_promise_is_done_with_equal_weights_or_as_it_is_by_name():
    rows = torch.tensor([[0.0], [1.0], [2.0], [3.0], [50.0]])
    for then, result, share in (("unweighted", 2.0, 0.2), ("remark", 50.0, 9 / 13)):
        broken = []
        with watched(1, broken, then) as shares:
            found, choice = combine(Median(), rows, ONE_HEAVY, range(5), "round")
        assert found.tolist() == [result]
        assert shares == [pytest.approx(share)]
        assert (choice and choice.shares.tolist()) == (None if then == "remark" else [pytest.approx(0.2)] * 5)
        assert len(broken) == 1
    ignored = torch.tensor([1.0, 1.0, 1.0, 0.0, 9.0])
    with watched(1, [], "unweighted"):
        found, _ = combine(Median(), rows, ignored, range(5), "round")
    assert found.tolist() == [1.5], "what had no weight has none"


@pytest.mark.parametrize("then", ["hold", "unweighted", "remark"])
def test_rounds_that_lose_clients_are_held_back_or_taken_and_counted(then):
    """Of six clients two may be attackers; from the third round on two are silent, so that two are half of four."""
    seen = []
    transport = Scripted({i: [1.0] for i in range(6)}, lost={4: [2, 3], 5: [2, 3]})
    settings = LoopSettings(until=Until(4), tolerate=2, broken_promise=then)
    phalanx.run(FedAvg(Median(), Ignore()), transport, torch.zeros(2), settings, observers=[seen.append])
    said = [remark for progress in seen for remark in progress.remarks if "would be broken" in remark]
    taken = {"hold": 0, "unweighted": 2, "remark": 2}[then]
    assert seen[-1].state.version == 2 + taken
    assert [progress.broken for progress in seen] == [0, 0, 0, taken and 1, taken and 1]
    assert [len(progress.shares) for progress in seen] == [0, 1, 1, taken and 1, taken and 1]
    words = {
        "unweighted": "It is aggregated with equal weights, and counted.",
        "remark": "It is aggregated all the same",
    }
    assert len(said) == taken
    assert all(words[then] in remark and "2 clients could hold 0.5 of the weight" in remark for remark in said)
    promised = seen[0].promise
    assert promised.sentence.endswith("Tolerates any 2 of 6 clients." if then == "hold" else ", and counted.")
    assert any("of fewer than 5 are not aggregated" in sentence for sentence in promised.text) == (then == "hold")


@pytest.mark.parametrize("then", ["hold", "unweighted", "remark"])
def test_exclusions_that_leave_too_few_are_held_back_or_taken(then):
    """Of twelve clients four are excluded, and of the eight that are left three are too many."""
    seen = []
    algorithm = ByzantineCFL(exclusion=AtOnce(), aggregate=TrimmedMean(0.3))
    settings = LoopSettings(until=Until(4), tolerate=3, broken_promise=then)
    transport = Scripted({i: [1.0 if i < 8 else -1.0] for i in range(12)})
    with warnings.catch_warnings(action="ignore"), suppress(StalledError):
        phalanx.run(algorithm, transport, torch.zeros(2), settings, observers=[seen.append])
    assert (sum(progress.broken for progress in seen) > 0) == (then != "hold")
    assert (seen[-1].state.model[0] > 2) == (then != "hold"), "it goes on"


@pytest.mark.parametrize("then", ["hold", "unweighted", "remark"])
def test_the_record_counts_what_breaks_the_promise_and_a_replay_does_the_same(then, tmp_path):
    plan = Run(
        algorithm=FedAvg(Median(), Ignore()), clients=6, tolerate=2, latency=Lognormal(each_turn=True),
        deadline=Deadline(1.1), model=MLP((8,)), until=Until(6), broken_promise=then,
    )  # fmt: skip
    with warnings.catch_warnings(action="ignore"):
        record = simulate(plan, folder=tmp_path, keep_updates=True)
    promised = record.summary.promise
    assert promised.broken == sum(step.broken for step in record.history)
    assert (promised.broken > 0) == (then != "hold")
    if promised.calls:
        assert f"{promised.calls - promised.broken} of {promised.calls} aggregations within" in promised.audit
    assert Record.load(tmp_path) == record
    assert all(step.same for step in UpdateReplay(tmp_path, plan.algorithm).steps()), "what was taken is taken again"
    assert len({replace(plan, broken_promise=one).identity for one in ("hold", "unweighted", "remark")}) == 3


def test_a_round_of_too_few_is_lost_and_says_why():
    algorithm = FedAvg(Median(), Ignore())
    state, _ = algorithm.init(torch.zeros(2), dict.fromkeys(range(5), 1))
    with watched(2), pytest.raises(TooFewError, match="the promise for 2 would be broken"):
        algorithm.step(state, updates([[1.0, 0.0]] * 4))


@pytest.mark.parametrize(("senders", "shares"), [(0, (1 / 3,)), (1, (1 / 5,)), (2, ())])
def test_attackers_who_send_no_numbers_stop_no_round_and_count_as_attackers(senders, shares):
    """Of six clients two may be attackers."""
    answers, seen = {i: [float("nan") if i < senders else 1.0] for i in range(6)}, []
    phalanx.run(
        FedAvg(Median(), Ignore()),
        Scripted(answers),
        torch.zeros(2),
        LoopSettings(until=Until(3)),
        observers=[seen.append],
    )
    assert seen[0].promise.f == 2
    assert [progress.shares for progress in seen[1:]] == [pytest.approx(shares)] * 3
    assert seen[-1].state.version == 3


@dataclass(frozen=True)
class AtOnceMedian(Median):
    """A median that takes no time."""

    def explained(self, deltas, weights=None, **options):
        return deltas[0], None


@pytest.mark.parametrize("clients", [5, 20, 100])
def test_the_audit_takes_less_than_a_fiftieth_of_a_round(clients):
    """Of processor time, the least of several: digits, one epoch, a model of 10,000 entries."""
    seen = []
    plan = Run(
        algorithm=FedAvg(Median(), Ignore()),
        clients=clients,
        model=MLP((133,)),
        until=Until(5),
        evaluation=Evaluation(every=100),
    )
    record = simulate(plan, observers=[lambda progress: seen.append(time.process_time())])
    assert record.summary.promise.calls == 5
    a_round = min(after - before for before, after in pairwise(seen))
    rows, weights = torch.zeros(clients, 10_000), torch.ones(clients, dtype=torch.float64)

    def an_audit():
        start = time.process_time()
        for _ in range(100):
            with watched(record.summary.promise.f) as shares:
                combine(AtOnceMedian(), rows, weights, range(clients), "round")
        assert len(shares) == 1
        return (time.process_time() - start) / 100

    assert min(an_audit() for _ in range(5)) < a_round / 50


def test_what_does_not_say_what_it_combines_promises_nothing():
    class Own(Algorithm):
        def init(self, model, sizes): ...
        def step(self, state, updates): ...

    class Rule(Median):
        title = "Mine"
        tolerates = phalanx.aggregators.Aggregator.tolerates

    assert promise(Own(), Setting(5)).missing == ("It is not said what Own combines. Define `pools`.",)
    found = promise(FedAvg(Rule(), Ignore()), Setting(5))
    assert found.missing[0].startswith("The rule Mine states no share of the weight that it tolerates.")


def test_one_client_that_reports_one_example_takes_nobody_out_of_the_range():
    """All weigh alike then: a price, and no breach."""
    sizes, truncate = dict.fromkeys(range(24), 500), Truncate(3 / 24, 0.45, scope="subset")
    assert truncate.bound(sizes, 7) == 500
    assert truncate.bound(sizes | {0: 1}, 7) == 1
    found = promise(Quorum(FedAvg(Median(), truncate), 7), Setting(24, sizes | {0: 1}))
    assert found.f == 3
    assert found.beyond == (
        "Truncate(0.125, 0.45, subset) counts sizes above 1 as 1, those of 23 of 24 clients, which weigh alike. "
        "Client 0 reports the least, 1.",
    )
    assert promise(Quorum(FedAvg(Median(), truncate), 7), Setting(24, sizes)).beyond == ()
