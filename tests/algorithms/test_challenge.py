"""Secret shifts of downloads: answers by hand, those of who does not train by their distribution, and runs."""

import dataclasses
import math
from dataclasses import dataclass
from statistics import NormalDist

import pytest
import torch
from scipy.stats import kstest

from phalanx import Run, Until, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import (
    RFFL,
    AsyncRFFL,
    Challenge,
    FedAvg,
    PerCluster,
    Permuted,
    Private,
    Quorum,
    Rewarded,
    Unsent,
)
from phalanx.algorithms.challenge import Asked, ShiftAnswers, proven_quotas
from phalanx.algorithms.private import secretly
from phalanx.attacks import Attack, LazyFreeRider, Mimic, RandomFreeRider, RandomSigns, Rescale, Sybils
from phalanx.attacks.attack import AttackTraits
from phalanx.core import Setting, Updates
from phalanx.models import MLP
from phalanx.promises import promise
from phalanx.rng import generator
from phalanx.runs.federation import Federation
from phalanx.simulation import Lognormal
from phalanx.training import Evaluation

D = 16
PLAIN = Challenge(warmup=0, fade=1.0)


def e(place, d=D):
    """Return a unit vector."""
    return torch.eye(d)[place]


def of(clients, rows, version=0):
    """Return updates of the same version."""
    m = len(clients)
    return Updates(tuple(clients), (version,) * m, (torch.zeros(rows.shape[1]),) * m, rows, torch.ones(m))


def answer(update, shift, common=None):
    """Return a_i of one update."""
    before = Asked({0: shift}, {0: 0}, {0: ShiftAnswers(asked=1)}, common)
    asked = PLAIN.after(before, of((0,), update[None]), torch.ones(D), 1, 4)
    return asked.answers[0].total


def test_answers_by_hand():
    assert answer(-e(0), 5 * e(0)) == 3.0, "sqrt(16) = 4, which is cut"
    assert answer(-e(0) - e(1), e(0)) == pytest.approx(4 / 2**0.5)
    assert answer(e(0) - 3 * e(1), 2 * e(0)) == pytest.approx(-4 / 10**0.5)
    assert answer(7 * (e(0) - 3 * e(1)), 2 * e(0)) == pytest.approx(-4 / 10**0.5), "the length is of no matter"
    assert answer(-e(0) - e(1) + 100 * e(2), e(0), 3 * e(2)) == pytest.approx(4 / 2**0.5), "what all do is taken out"
    assert answer(0 * e(0), e(0)) == answer(2 * e(2), e(0), e(2)) == 0.0, "nothing is left of it"


def test_answers_fade_and_are_measured_in_their_own_deviations():
    two = ShiftAnswers().after(1.0, 0.5).after(2.0, 0.5)
    assert (two.total, two.squares, two.given) == (2.5, 1.25, 2)
    assert two.z == pytest.approx(2.5 / 1.25**0.5)
    assert ShiftAnswers().z == 0.0


@pytest.mark.parametrize(
    ("given", "z", "paid"), [(3, 9.0, 1.0), (4, 2.4, 0.0), (4, 2.75, 0.25), (9, 9.0, 1.0), (9, -9.0, 0.0)]
)
def test_what_is_proven(given, z, paid):
    one = ShiftAnswers(total=2 * z, squares=4.0, given=given)
    assert Challenge(warmup=4).proven(Asked(answers={5: one}), [5, 6]) == {5: pytest.approx(paid), 6: 1.0}


def test_quotas_are_over_the_largest_and_unchanged_if_nobody_has_proven_anything():
    assert proven_quotas({0: 1.0, 1: 0.5, 2: 0.4}, {0: 0.0, 1: 0.5, 2: 1.0}) == {0: 0.0, 1: 0.625, 2: 1.0}
    assert proven_quotas({0: 1.0, 1: 0.5}, {0: 0.0, 1: 0.0}) == {0: 1.0, 1: 0.5}
    assert proven_quotas({0: 1.0, 1: 0.5}, {0: 0.0, 1: 0.0, 2: 0.1}) == {0: 0.0, 1: 0.0}, "2 is absent, and has"


def test_shifts_are_new_for_each_update_and_client_and_as_long_as_stated():
    model = torch.arange(1.0, 1 + D)
    asked, seen = Asked(), []
    for _ in range(3):
        asked = Challenge(strength=0.25).after(asked, of((3, 8), torch.ones(2, D)), model, 1, 4)
        seen += [*asked.shifts.values()]
    lengths = [float(shift.norm()) for shift in seen]
    assert lengths == pytest.approx([0.25 * float(model.norm())] * 6)
    assert len({tuple(shift.tolist()) for shift in seen}) == 6
    assert torch.equal(asked.unshifted(3, asked.shifted(3, model)), model + asked.shifts[3] - asked.shifts[3])
    assert asked.shifted(5, model) is model
    assert PLAIN.after(Asked(), of((0,), torch.ones(1, D)), torch.zeros(D), 1, 4).shifts == {}, (
        "nothing is a share of zero"
    )
    assert asked.of({8}).shifts.keys() == asked.of({8}).answers.keys() == {8}


@pytest.mark.parametrize(("z", "factor"), [(9.0, 1.0), (3.0, 3.0), (0.0, 5.0)])
def test_who_has_proven_less_is_shifted_further(z, factor):
    before = Asked(answers={0: ShiftAnswers(total=2 * z, squares=4.0, given=8)})
    asked = Challenge(strength=0.25, doubt=5.0).after(before, of((0, 1), torch.ones(2, D)), torch.ones(D), 1, 4)
    assert float(asked.shifts[0].norm()) == pytest.approx(0.25 * 4 * factor), "p is 1, 0.5 and 0"
    assert float(asked.shifts[1].norm()) == pytest.approx(0.25 * 4), "it is in its warm-up"


def test_copies_by_hand():
    """Four entries, so that an update along one shift has b = 2 with it and 0 with the others."""
    shifts = {i: e(i, 4) for i in range(3)}
    before = Asked(shifts, dict.fromkeys(shifts, 5), {i: ShiftAnswers(asked=1) for i in shifts})
    rows = torch.stack([-e(1, 4), -e(1, 4), -e(0, 4) - e(1, 4)])
    asked = PLAIN.after(before, of((0, 1, 2), rows, 5), torch.ones(4), 6, 3)
    assert asked.answers[0].of_others == pytest.approx((2 + (4 - 2) / 2**0.5) / 2), "S = 2 / sqrt(2), T = 2 / 2"
    assert asked.answers[1].of_others == pytest.approx(-2 / 2**0.5 / 2), "it answers its own: S = 0, T = -2 / 2"
    assert asked.answers[2].of_others == pytest.approx((2 * 2**0.5 + (4 - 2) / 2**0.5) / 2)
    assert [one.compared for one in asked.answers.values()] == [1.0, 1.0, 1.0]
    assert asked.drawn == {0: 6, 1: 6, 2: 6}


def test_only_shifts_of_its_download_or_later_are_compared():
    shifts = {0: e(0), 1: e(1), 2: e(2)}
    before = Asked(shifts, {0: 3, 1: 4, 2: 5}, {i: ShiftAnswers(asked=1) for i in shifts})
    asked = PLAIN.after(before, of((0,), (-e(1) - e(2))[None], 5), torch.ones(D), 6, 3)
    (b,) = (4 / 2**0.5,)  # with e_2 alone: others may know e_1, and could have moved the model along it
    assert asked.answers[0].of_others == pytest.approx((b + (b**2 - 1) / 2**0.5) / 2**0.5)
    asked = PLAIN.after(before, of((0,), (-e(1) - e(2))[None], 6), torch.ones(D), 7, 3)
    assert (asked.answers[0].given, asked.answers[0].compared, asked.answers[0].copies) == (1, 0.0, 0.0)


@pytest.mark.parametrize(("copies", "paid"), [(2.4, 1.0), (2.75, 0.75), (3.5, 0.0), (-9.0, 1.0)])
def test_who_copies_is_not_paid(copies, paid):
    one = ShiftAnswers(total=9.0, squares=1.0, given=8, of_others=2 * copies, compared=4.0)
    assert Challenge().proven(Asked(answers={5: one}), [5]) == {5: pytest.approx(paid)}


# Who does not train


def fixed(z, turn, rng):
    """Return always the same."""
    return torch.arange(1.0, 1 + 256)


def noisy(z, turn, rng):
    """Return an update with noise that nobody else has."""
    return torch.ones(256) + 0.3 * torch.randn(256, generator=rng)


def sparse(z, turn, rng):
    """Return one entry, another one each turn: not at all normal."""
    return torch.eye(256)[turn % 256]


def stops(z, turn, rng):
    """Return nothing once chance is good: the best that is known to be of help."""
    return torch.zeros(256) if z > 2 else noisy(z, turn, rng)


def grows(z, turn, rng):
    """Return longer ones while chance is good, and others while it is not."""
    return (10.0 if z > 0 else 0.1) * noisy(z, turn, rng) * (1 if z > 0 else -1)


@pytest.mark.parametrize("sent", [fixed, noisy, sparse, stops, grows], ids=lambda one: one.__name__)
def test_an_update_that_does_not_depend_on_its_download_proves_nothing(sent):
    """By 600 clients of 40 answers each: how often one is paid at the end, and what its answers are like."""
    challenge, model, rng = Challenge(sure=2.0, warmup=0), torch.ones(256), generator(1, "challenge test")
    asked, clients, answers = Asked(), tuple(range(600)), list[float]()
    for turn in range(41):
        z = {i: asked.answers[i].z if turn else 0.0 for i in clients}
        before = {i: one.total for i, one in asked.answers.items()}
        rows = torch.stack([sent(z[i], turn, rng) for i in clients])
        asked = challenge.after(asked, of(clients, rows, turn), model, turn + 1, 600)
        if turn:
            answers += [one.total - 0.95 * before[i] for i, one in asked.answers.items()]
    paid = sum(one.z > 2.0 for one in asked.answers.values()) / 600
    chance = NormalDist().cdf(-2.0) * (2 if sent is stops else 1)
    assert paid < chance + 3 * math.sqrt(chance / 600)
    given = [a for a in answers if a]
    assert abs(sum(given)) < 4 * math.sqrt(len(given))
    assert kstest(given[:2000], "norm").pvalue > 1e-3


def test_training_is_proven_on_a_quadratic_loss_and_more_of_it_by_more():
    """Updates are steps of gradient descent: of noise by themselves, and back to the minimum."""
    d, model, z = 64, torch.ones(64), []
    for steps in (1, 5):
        asked, rng = Asked(), generator(2, "training")
        for turn in range(40):
            w = torch.stack([asked.shifted(i, model) for i in range(4)])
            rows = -(1 - 0.9**steps) * (w - torch.randn(4, d, generator=rng) - 1)
            asked = PLAIN.after(asked, of((0, 1, 2, 3), rows, turn), 10 * model, turn + 1, 4)
        z.append(min(one.z for one in asked.answers.values()))
    assert z[0] > 5, z


# In runs


@dataclass(frozen=True)
class NoisyMean(Attack):
    """Sends the mean of three honest updates of the step, with noise of 0.3 of its length."""

    @property
    def traits(self):
        return AttackTraits(omniscient=True)

    def forge(self, update, knowledge, rng):
        rows = [row for i, row in zip(knowledge.clients, knowledge.honest, strict=True) if i in (4, 5, 6)]
        mean = torch.stack(rows).mean(0) if rows else update.delta
        noise = torch.randn(mean.shape, generator=rng)
        return mean + 0.3 * mean.norm() / noise.norm() * noise


PLAN = Run(
    clients=8, attack=RandomFreeRider(), additional_byzantine=2, model=MLP((16,)), evaluation=Evaluation(every=10000)
)
SYSTEMS = [
    Rewarded(FedAvg(Median())),
    Rewarded(FedAvg(Median()), unsent=Unsent()),
    RFFL(),
    RFFL(unsent=Unsent()),
    AsyncRFFL(),
    Rewarded(Quorum(FedAvg(Median()), 5)),
]
FREE_RIDERS = [
    RandomFreeRider(), LazyFreeRider(1e-8), Sybils(LazyFreeRider(1e-3)), Mimic(3), NoisyMean(), Rescale(0.0),
]  # fmt: skip
every_system = pytest.mark.parametrize("algorithm", SYSTEMS, ids=str)


def the_run(algorithm, attack=FREE_RIDERS[0], steps=25, **fields):
    steps = steps if algorithm.traits.synchronous else (8 * steps if isinstance(algorithm, AsyncRFFL) else 4 * steps)
    return dataclasses.replace(PLAN, algorithm=algorithm, attack=attack, until=Until(steps), **fields)


@pytest.mark.parametrize(
    ("algorithm", "attack"),
    [
        pytest.param(a, b, id=f"{a}, {b}", marks=() if i in (0, 2, 4) and k in (1, 4) else pytest.mark.slow)
        for i, a in enumerate(SYSTEMS)
        for k, b in enumerate(FREE_RIDERS)
    ],
)
def test_who_does_not_train_earns_nothing_and_who_does_is_paid(algorithm, attack):
    record = simulate(the_run(algorithm, attack))
    last = [step.state["quota"] for step in list(record.history)[-4:]]
    quota = {i: sum(each.get(i, 0.0) for each in last) / len(last) for i in range(10)}
    assert max(quota[8], quota[9]) <= 0.02
    assert sorted(quota[i] for i in range(8))[4] > 0.3


@pytest.mark.parametrize("algorithm", [one for one in SYSTEMS if getattr(one, "unsent", None) is None], ids=str)
def test_nothing_changes_before_anybody_is_asked(algorithm):
    run = dataclasses.replace(PLAN, algorithm=algorithm, until=Until(1))
    asks = simulate(run).history[-1]
    with pytest.warns(UserWarning, match="rewards agreement"):
        never = simulate(dataclasses.replace(run, algorithm=dataclasses.replace(algorithm, challenge=None))).history[-1]
    assert never.verdicts == asks.verdicts
    assert never.state["reputation"] == asks.state["reputation"]
    assert asks.state.keys() - never.state.keys() >= {"proven"}


@pytest.mark.parametrize("algorithm", [one for one in SYSTEMS if not isinstance(one, Rewarded)], ids=str)
def test_an_excluded_client_keeps_its_model_without_a_shift(algorithm):
    state, _ = algorithm.init(torch.ones(D), dict.fromkeys(range(4), 10))
    for turn in range(9):
        rows = 0.1 * torch.randn(4, D, generator=generator(turn, "rows")) + 1
        rows[3] = -rows[3]
        for i in range(4) if isinstance(algorithm, AsyncRFFL) else [None]:
            there = [i] if i is not None else sorted(state.reputation)
            there = [j for j in there if j in state.reputation]
            batch = Updates(
                tuple(there), (state.version,) * len(there), tuple(algorithm.download(state, j) for j in there),
                rows[there], torch.ones(len(there)),
            )  # fmt: skip
            state, _ = algorithm.step(state, batch) if there else (state, None)
    assert 3 not in state.reputation
    assert 0 in state.asked.shifts
    assert 3 not in state.asked.shifts


@pytest.mark.parametrize(
    ("algorithm", "fields", "fewest"),
    [(RFFL(), {"until": Until(150), "seed": 2}, 3),
     (AsyncRFFL(), {"until": Until(800), "latency": Lognormal(), "seed": 1}, 2)],
    ids=["RFFL", "AsyncRFFL"],
)  # fmt: skip
def test_nobody_is_excluded_late_who_is_seen_to_train_and_attackers_are_as_soon_as_ever(algorithm, fields, fewest):
    """Without challenges the honest are, once their updates have little in common."""
    plain = Run(algorithm=algorithm, clients=10, model=MLP((64,)), evaluation=Evaluation(every=1000), **fields)
    attacked = dataclasses.replace(plain, attack=RandomSigns(), byzantine=2)

    def gone(run, challenge):
        """The steps at which attackers were excluded, and the number of honest clients that were."""
        made = dataclasses.replace(run, algorithm=dataclasses.replace(algorithm, challenge=challenge))
        clients = simulate(made, models=None).summary.clients.items()
        steps = {i: c.excluded.step for i, c in clients if c.excluded}
        bad = {i: steps[i] for i, c in clients if c.byzantine}
        return bad, len(steps) - len(bad)

    by_default, before = ([gone(run, challenge) for run in (plain, attacked)] for challenge in (Challenge(), None))
    assert [bad for bad, _ in by_default] == [bad for bad, _ in before]
    assert sum(honest for _, honest in by_default) == 0
    assert sum(honest for _, honest in before) >= fewest


def test_who_is_seen_to_train_by_hand():
    """By Z_i above `sure`, before the end of the warm-up too, unless what it sends is a copy."""
    answers = {
        0: ShiftAnswers(9.0, 4.0, 4),  # Z = 4.5
        1: ShiftAnswers(4.0, 4.0, 4),  # Z = 2
        2: ShiftAnswers(9.0, 4.0, 4, of_others=9.0, compared=4.0),
    }
    assert Challenge(sure=2.5, warmup=8).training(Asked(answers=answers), (0, 1, 2, 3)) == {0}


@pytest.mark.parametrize("wrapped", [lambda one: one, PerCluster], ids=["alone", "in clusters"])
@every_system
def test_a_run_repeats_and_what_it_evaluates_and_keeps_has_no_shift(algorithm, wrapped):
    run = dataclasses.replace(the_run(wrapped(algorithm), steps=6), attack=None, additional_byzantine=0)
    states, federation = [], Federation(run)
    for _ in range(2):
        simulate(run, observers=[lambda progress: states.append(progress.state)])
    last, again = states[len(states) // 2 - 1], states[-1]
    assert torch.equal(last.model, again.model)
    for i in range(8):
        sent, (*_, kept) = run.algorithm.download(last, i), run.algorithm.candidate_models(last, i).values()
        assert torch.equal(sent, run.algorithm.download(again, i))
        assert float((sent - kept).norm() / last.model.norm()) == pytest.approx(0.1, rel=0.2), "of an earlier model"
        if not run.algorithm.traits.remembers:  # others add what they have sent
            assert torch.equal(federation.served(last, [i], {})[i], kept)


@every_system
def test_real_clients_are_asked_what_nobody_can_compute(algorithm):
    secret = secretly(Permuted(algorithm) if isinstance(algorithm, Rewarded) else algorithm)
    inner = getattr(secret, "algorithm", secret) if isinstance(algorithm, Rewarded) else secret
    assert inner.challenge == dataclasses.replace(algorithm.challenge, seed=None)
    first, again = (
        inner.challenge.after(Asked(), of((0,), torch.ones(1, D)), torch.ones(D), 1, 2).shifts[0] for _ in range(2)
    )
    assert not torch.equal(first, again)


@pytest.mark.parametrize(
    "algorithm", [RFFL(), AsyncRFFL(), Rewarded(FedAvg()), Rewarded(Quorum(FedAvg(Median()), 5))], ids=str
)
def test_all_ask_by_default_and_a_run_says_that_free_riders_are_rewarded_if_it_does_not(algorithm):
    said = "a client that trains nothing and {} agrees. Leave challenge at its default, Challenge()"
    back, copies = said.format("sends back the last change of its model"), said.format("copies another")
    assert algorithm.challenge == Challenge()
    assert not any("rewards agreement" in remark for remark in promise(algorithm, Setting(8)).remarks)
    never = dataclasses.replace(algorithm, challenge=None)
    assert any(back in remark for remark in promise(never, Setting(8)).remarks)
    if not isinstance(algorithm, AsyncRFFL):
        unsent = dataclasses.replace(never, unsent=Unsent())
        assert any(copies in remark for remark in promise(unsent, Setting(8)).remarks)


def test_a_run_says_that_noise_can_hide_who_trains():
    noisy = promise(Private(RFFL(), clip=1.0, noise_multiplier=0.1), Setting(8)).remarks
    assert any("noise on updates can hide that" in remark for remark in noisy)
    for quiet in (Private(RFFL(), 1.0, 0.0), Private(RFFL(challenge=None), 1.0, 0.1)):
        assert not any("can hide that" in remark for remark in promise(quiet, Setting(8)).remarks)
