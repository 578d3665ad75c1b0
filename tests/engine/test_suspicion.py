"""Who is suspicious: the figures by hand, the bet by its theorem, each kind of liar, and nobody who is honest."""

import dataclasses
import statistics

import pytest
import torch

from phalanx import Run, Until, simulate
from phalanx.aggregators import Mean, Median, TrimmedMean
from phalanx.algorithms import FedAsync, FedAvg
from phalanx.attacks import Gaussian, InnerProduct, LazyFreeRider, RandomSigns, ReportSize, Rescale, Sybils
from phalanx.core import Updates
from phalanx.data import Dirichlet, Uniform
from phalanx.engine.suspicion import BET, HONEST, SUSPICIOUS, Conduct, _bet, _of_others, conduct
from phalanx.models import MLP
from phalanx.report import render
from phalanx.rng import generator
from phalanx.runs.checkpoint import Checkpoint
from phalanx.training.evaluation import Evaluation
from phalanx.training.sgd import LocalSGD
from phalanx.weighting import AsReported, Truncate

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of guarantees that these plans do not have
D = 2000


def updates(rows, bases=None):
    m = len(rows)
    base = torch.zeros(rows.shape[1])
    return Updates(tuple(range(m)), (0,) * m, tuple(bases or [base] * m), rows, torch.zeros(m))


def crowd(m=10, seed=0):
    """Rows with a common part, and one of their own that is as long."""
    rng = generator(seed, "crowd")
    return torch.randn(D, generator=rng) + torch.randn(m, D, generator=rng)


def test_the_figures_by_hand():
    rows = torch.tensor([[1.0, 0.0], [0.0, 3.0], [1.0, 1.0], [5.0, 1.0]])
    found = conduct(
        updates(rows),
        torch.tensor([1.0, 1.0]),
        {},
        sizes=dict.fromkeys(range(4), 10),
        weights={0: 10, 1: 5, 2: 10, 3: 1},
    )
    assert [c.distance for c in found.values()] == pytest.approx([1.0, 5**0.5, 0.0, 4.0])
    assert [c.cosine for c in found.values()] == pytest.approx([0.5**0.5, 0.5**0.5, 1.0, 6 / (2 * 26) ** 0.5])
    assert [c.counted for c in found.values()] == [1.0, 0.5, 1.0, 0.1]
    # distances by coordinate: 0, 1, 0, 4 with median 0.5; 1, 2, 0, 0 with median 0.5
    assert [c.coordinates for c in found.values()] == [0.5, 0.0, 1.0, 0.5]


def test_what_is_not_defined_is_none_and_not_zero():
    for result in (None, torch.zeros(D)):
        for one in conduct(updates(crowd()), result, {}).values():
            assert one.cosine is None
            assert one.counted is None
            assert (one.distance is None) is (result is None)
            assert (one.coordinates is None) is (result is None)


def test_against_an_honest_client_the_bet_is_fair():
    """The expectation of the evidence is the evidence, where an update is outlying with probability HONEST."""
    last = Conduct()
    for outlying in [True, False, True, True, False, False, False, True] * 2:
        up, down = _bet(last, True), _bet(last, False)
        assert HONEST * up + (1 - HONEST) * down == pytest.approx(last.evidence, rel=1e-9)
        assert HONEST / 2 * up + (1 - HONEST / 2) * down < last.evidence
        last = dataclasses.replace(last, updates=last.updates + 1, evidence=up if outlying else down)


def test_false_alarms_of_the_bet_are_at_most_one_in_a_hundred():
    """Streams of 300 updates that are outlying as often as an honest client's may be."""
    rng = generator(0, "streams")
    alarms, streams = 0, 2000
    for _ in range(streams):
        last = Conduct()
        for hit in (torch.rand(300, generator=rng) < HONEST).tolist():
            last = Conduct(updates=last.updates + 1, evidence=_bet(last, hit))
            if last.evidence >= SUSPICIOUS:
                alarms += 1
                break
    assert 0 < alarms <= streams / SUSPICIOUS


def test_a_late_liar_is_named_within_a_few_updates():
    last = Conduct()
    for _ in range(200):
        last = Conduct(updates=last.updates + 1, evidence=_bet(last, False))
    count = 0
    while last.evidence < SUSPICIOUS:
        last, count = Conduct(updates=last.updates + 1, evidence=_bet(last, True)), count + 1
    assert count <= 8
    assert BET > HONEST


LIARS = {
    "as long as": lambda rows: 100.0 * rows[0],
    "next to nothing": lambda rows: 1e-6 * rows[0],
    "points against": lambda rows: -3.0 * rows.mean(0),
    "like noise": lambda rows: (
        rows[0].norm() * torch.nn.functional.normalize(torch.randn(D, generator=generator(7, "noise")), dim=0)
    ),
    "client 0 and client 3 sent the same": lambda rows: (1 + 1e-5) * rows[3],
}


@pytest.mark.parametrize("why", LIARS)
@pytest.mark.parametrize("seed", range(3))
def test_each_kind_of_liar_is_outlying_for_its_own_reason(why, seed):
    rows = crowd(12, seed)
    rows[0] = LIARS[why](rows)
    found = conduct(updates(rows), rows.mean(0), {})
    assert why in found[0].outlying
    others = {i for i, one in found.items() if one.outlying} - {0}
    assert others == ({3} if "sent the same" in why else set()), "a copied client is named with its copy"


def alike(m, seed=0):
    """Rows with a common part that is three times as long as their own."""
    rng = generator(seed, "alike")
    return 3 * torch.randn(D, generator=rng) + torch.randn(m, D, generator=rng)


def test_among_four_that_agree_noise_is_outlying_and_else_it_is_not():
    noise = 3 * torch.randn(D, generator=generator(9, "noise"))
    for rows, found in ((alike(4), {2}), (torch.randn(4, D, generator=generator(1, "unlike")), set())):
        rows[2] = noise
        judged = conduct(updates(rows), None, {})
        assert {i for i, one in judged.items() if "next to nothing in common" in one.outlying} == found
        assert {i for i, one in judged.items() if one.outlying} == found
        rows[2] *= 0.2
        assert not any(one.outlying for one in conduct(updates(rows), None, {}).values()), "as of far fewer examples"


def test_who_sends_the_last_change_again_is_outlying_unless_all_resemble_it():
    rows, change = crowd(5), 2 * torch.randn(D, generator=generator(3, "change"))
    rows[4] = change + 0.1 * rows[4]
    assert "repeats the last change of the model" in conduct(updates(rows), None, {}, change=change)[4].outlying
    assert not any(one.outlying for one in conduct(updates(rows), None, {}).values()), "which is not known here"
    led = {4: Conduct(cosine=0.99)}
    assert not any(one.outlying for one in conduct(updates(rows), None, led, change=change).values()), "it was its own"
    still = change + 0.3 * torch.randn(5, D, generator=generator(4, "still"))
    still[4] = change
    assert not any(one.outlying for one in conduct(updates(still), None, {}, change=change).values())


@pytest.mark.parametrize("values", [[3.0, 1.0], [2.0, 2.0, 5.0], [4.0, 1.0, 3.0, 2.0], [1.0, 9.0, 1.0, 7.0, 2.0]])
def test_medians_of_others_are_those_of_the_list_without_one(values):
    assert _of_others(values) == [statistics.median(values[:k] + values[k + 1 :]) for k in range(len(values))]


def test_nobody_of_an_honest_crowd_is_outlying():
    for seed in range(20):
        assert not any(one.outlying for one in conduct(updates(crowd(8, seed)), None, {}).values())


def test_groups_that_started_from_different_models_are_not_compared():
    """Two halves that train against each other: of one model one of two would be outlying, of two models nobody."""
    rows = 3 * crowd(1, 5) + crowd(12)
    rows[7:] = -rows[7:]
    one, other = torch.zeros(D), torch.zeros(D)
    apart = conduct(updates(rows, [one] * 7 + [other] * 5), None, {})
    assert not any(c.outlying for c in apart.values())
    together = conduct(updates(rows), None, {})
    assert {i for i, c in together.items() if "against" in c.outlying} == set(range(7, 12))


def test_fewer_than_four_updates_are_not_judged():
    rows = crowd(3)
    rows[0] *= 1000
    found = conduct(updates(rows), None, {})
    assert all(one == Conduct() for one in found.values()), "not judged, and so nothing is known"


def test_a_size_that_stands_out():
    sizes = {**dict.fromkeys(range(8), 50), 2: 1_000_000}
    found = conduct(updates(crowd(8)), None, {}, sizes=sizes)
    assert {i: c.outlying for i, c in found.items() if c.outlying} == {
        2: "it reports 1,000,000 examples, 20,000 times as many as others"
    }


NAMED = AsReported(beyond_tolerance="remark")
SMALL = Run(
    algorithm=FedAvg(Median(), NAMED),
    clients=8,
    attack=Rescale(-10.0),
    byzantine=2,
    model=MLP((8,)),
    training=LocalSGD(epochs=1, batch_size=32, lr=0.1),
    until=Until(steps=8),
    evaluation=Evaluation(every=8),
    suspicion=True,
)
SENT = (Rescale(-10.0), Gaussian(), InnerProduct(), ReportSize(10_000_000), Sybils(Rescale(1.0)))


def named(record):
    return {i for i, about in record.summary.clients.items() if about.suspicious is not None}


def attackers(record):
    return {i for i, about in record.summary.clients.items() if about.byzantine}


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(0.25), Mean()], ids=lambda rule: rule.title)
@pytest.mark.parametrize("attack", SENT, ids=lambda attack: type(attack).__name__)
def test_attackers_are_named_under_rules_by_coordinate_and_nobody_is_excluded(rule, attack):
    record = simulate(dataclasses.replace(SMALL, algorithm=FedAvg(rule, NAMED), attack=attack))
    assert named(record) == attackers(record)
    assert not any(about.excluded for about in record.summary.clients.values())
    page = render([record], "runs")
    for client in attackers(record):
        reason = record.summary.clients[client].suspicious.reason
        assert reason.split(",")[0] in page
    assert page.count("Suspicious, and not excluded for it") == 1


@pytest.mark.parametrize("partition", [Uniform(), Dirichlet(0.1)], ids=["IID", "Dirichlet"])
def test_nobody_honest_is_named(partition):
    record = simulate(dataclasses.replace(SMALL, attack=None, byzantine=0, partition=partition, until=Until(steps=30)))
    assert named(record) == set()
    assert "Suspicious" not in render([record], "runs")


@pytest.mark.parametrize("attack", [RandomSigns(), LazyFreeRider()], ids=lambda one: type(one).__name__)
def test_one_of_four_that_sends_noise_or_the_last_change_is_named(attack):
    training = LocalSGD(epochs=1, batch_size=16, lr=0.1)
    record = simulate(
        dataclasses.replace(SMALL, clients=4, byzantine=1, attack=attack, training=training, until=Until(20))
    )
    assert named(record) == attackers(record)


def test_to_be_judged_changes_no_other_number():
    plan = dataclasses.replace(SMALL, attack=Rescale(-10.0), algorithm=FedAvg(TrimmedMean(0.25), Truncate(0.25, 0.45)))
    with_it, without = (simulate(dataclasses.replace(plan, suspicion=on)) for on in (True, False))
    bare = [dataclasses.asdict(step) if dataclasses.is_dataclass(step) else step for step in without.history]
    for one, other in zip(with_it.history, bare, strict=True):
        assert not other.conduct
        assert {**_fields(one), "conduct": {}} == {**_fields(other), "conduct": {}}
    assert with_it.summary.final == without.summary.final
    counted = [c.counted for step in with_it.history for c in step.conduct.values()]
    assert min(counted) <= 1.0
    assert max(counted) == 1.0


def _fields(step):
    return {name: getattr(step, name) for name in step.__struct_fields__}


def test_a_resumed_run_goes_on_with_the_evidence(tmp_path):
    plan = dataclasses.replace(SMALL, attack=Rescale(-10.0))

    def stops(progress):
        if progress.step == 4:
            raise KeyboardInterrupt

    whole = simulate(plan)
    with pytest.raises(KeyboardInterrupt):
        simulate(plan, folder=tmp_path, observers=[stops], checkpoint=Checkpoint(every_seconds=0))
    record = simulate(plan, folder=tmp_path, checkpoint=Checkpoint(every_seconds=0))
    assert [step.conduct for step in record.history] == [step.conduct for step in whole.history]
    assert any(step.conduct for step in whole.history)


def test_of_a_copy_both_are_named_and_whose_came_first_where_that_is_known():
    rows = crowd(5)
    rows[1] = rows[4]
    found = conduct(updates(rows), None, {}, named=lambda i: f"clinic {i}")
    for client in (1, 4):
        assert found[client].outlying.startswith("clinic 1 and clinic 4 sent the same update")
        assert found[client].outlying.endswith("which was first is not known")
    single = Updates((1,), (0,), (torch.zeros(D),), rows[1:2], torch.zeros(1))
    (one,) = conduct(single, None, {}, recent={i: rows[i] for i in (0, 2, 3, 4)}).values()
    assert one.outlying.endswith("that of client 4 came first")


def test_single_arrivals_are_compared_with_the_last_ones_of_others():
    plan = dataclasses.replace(SMALL, algorithm=FedAsync(), attack=Gaussian(), until=Until(steps=60))
    record = simulate(plan)
    assert named(record) == attackers(record)
