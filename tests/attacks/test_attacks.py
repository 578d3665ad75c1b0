"""What holds for every attack, and the attacks on the update that see nothing."""

import dataclasses
import inspect
import math

import pytest
import torch
from federations import aggregate, cloud, rng, sent, update

from exported import lacking
from phalanx import attacks
from phalanx.attacks import (
    ALIE,
    AllLabelsTo,
    Attack,
    Backdoor,
    Chameleon,
    ClaimVersion,
    Colluding,
    ConstrainAndScale,
    DistributedBackdoor,
    Divided,
    Duplicate,
    EdgeCases,
    FangKrum,
    FangTrimmedMean,
    Flood,
    Gaussian,
    HoldBack,
    InGroup,
    InnerProduct,
    LabelFlip,
    LabelPermutation,
    LabelShift,
    LabelSwap,
    LazyFreeRider,
    Linger,
    Mimic,
    MinMax,
    MinSum,
    ModelNegation,
    Neurotoxin,
    NoiseInputs,
    NonFinite,
    OnCredit,
    OwnTraining,
    PoisonedFL,
    ProjectedTraining,
    RandomFreeRider,
    RandomInversion,
    RandomPerturbation,
    RandomRescale,
    RandomSigns,
    Replay,
    ReportSize,
    ReportTimes,
    Rescale,
    Scheduled,
    SignFlip,
    Sybils,
    Tailored,
    Together,
    Update,
)
from phalanx.attacks.attack import HOOKS
from phalanx.attacks.data import goal, poison
from phalanx.attacks.size import reported_size
from phalanx.core import InfeasibleError
from phalanx.data import Dataset
from phalanx.rng import generator
from phalanx.runs.canonical import canonical

DELTA = torch.tensor([1.0, -2.0, 0.0])
UPDATE = Update(3, 0, torch.tensor([4.0, 5.0, -6.0]), DELTA)
ON_DATA = [
    AllLabelsTo(),
    Backdoor(),
    DistributedBackdoor(),
    EdgeCases(1, 2),
    LabelFlip(1, 2),
    LabelPermutation(),
    LabelShift(),
    LabelSwap(1, 2),
    NoiseInputs(),
]
ON_SIZE = [ReportSize(), ReportTimes()]
OMNISCIENT = [
    ALIE(),
    ALIE(1.5, "own"),
    FangKrum(),
    FangKrum(knows="own"),
    FangTrimmedMean(),
    FangTrimmedMean(knows="own"),
    InnerProduct(),
    Mimic(),
    Mimic(warmup=2),
    MinMax(),
    MinSum(),
]
RANDOM = [
    Gaussian(),
    LazyFreeRider(),
    RandomFreeRider(),
    RandomInversion(),
    RandomPerturbation(),
    RandomRescale(),
    RandomSigns(),
    FangTrimmedMean(draw="uniform"),
]
FIXED = [ModelNegation(), NonFinite(), PoisonedFL(), Rescale(), SignFlip()]
ON_TRAINING = [Chameleon(), ConstrainAndScale(), Neurotoxin(), ProjectedTraining()]
SEARCHING = [Tailored()]
MADE_OF_OTHERS = [
    Divided(SignFlip(), Gaussian()),
    InGroup(ALIE(z=0.0)),
    OnCredit(Rescale(-5.0)),
    Scheduled(SignFlip()),
    Sybils(Gaussian()),
    Together(LabelShift(), ReportSize()),
    Together(Rescale(2.0), ALIE()),
]
ON_TIME = [Flood(), Linger(), HoldBack(), Replay(), Duplicate(), ClaimVersion()]
LISTED = [*ON_DATA, *ON_SIZE, *ON_TIME, *OMNISCIENT, *RANDOM, *FIXED, *ON_TRAINING, *MADE_OF_OTHERS]
ALL = [*LISTED, *(make(6, 1) for _, make in lacking(Attack, {type(a) for a in [*LISTED, *SEARCHING]}))]


def name(attack):
    return type(attack).__name__


def images(n=60):
    draw = generator(5, "data")
    return Dataset(torch.rand(n, 1, 6, 6, generator=draw), torch.randint(0, 4, (n,), generator=draw), 4)


@pytest.mark.exports
def test_every_attack_is_in_this_list():
    exported = {getattr(attacks, word) for word in attacks.__all__}
    concrete = {kind for kind in exported if issubclass(kind, Attack) and not inspect.isabstract(kind)}
    there = {type(attack) for attack in [*ALL, *SEARCHING]}
    assert concrete - {Attack} == there, "write a line in one of the lists above for an attack that needs values"
    assert attacks.__all__ == sorted(attacks.__all__)


@pytest.mark.parametrize("attack", [*ALL, *SEARCHING], ids=name)
def test_an_attack_is_a_value_that_a_configuration_can_name(attack):
    assert dataclasses.replace(attack) == attack
    assert hash(dataclasses.replace(attack)) == hash(attack)
    assert canonical(attack, Attack)["class_path"] == f"phalanx.attacks.{name(attack)}"


@pytest.mark.parametrize("attack", ALL, ids=name)
def test_what_is_sent_looks_like_an_update_and_is_the_same_for_the_same_stream(attack):
    knowledge = cloud()
    before = knowledge.honest.clone()
    forged = sent(attack, knowledge)
    assert forged.shape == (4, 20)
    assert forged.dtype == knowledge.honest.dtype
    assert torch.equal(forged, sent(attack, cloud())) or isinstance(attack, NonFinite)
    assert torch.equal(knowledge.honest, before)
    assert all(torch.equal(a.delta, b.delta) for a, b in zip(knowledge.colluders, cloud().colluders, strict=True))


@pytest.mark.parametrize("attack", RANDOM, ids=name)
def test_random_attackers_differ_from_each_other_and_with_the_seed(attack):
    forged = sent(attack, cloud())
    assert not torch.equal(forged[0], forged[1])
    assert not torch.equal(forged, sent(attack, cloud(), seed=1))


@pytest.mark.parametrize("attack", OMNISCIENT, ids=name)
def test_omniscient_attackers_agree_and_draw_nothing(attack):
    forged = sent(attack, cloud())
    assert all(torch.equal(row, forged[0]) for row in forged)
    assert torch.equal(forged, sent(attack, cloud(), seed=1))
    assert forged.isfinite().all()


@pytest.mark.parametrize("attack", [*OMNISCIENT, Sybils(Gaussian())], ids=name)
def test_omniscient_attackers_that_are_shown_nothing_say_so(attack):
    with pytest.raises(InfeasibleError, match=f"{name(attack)} needs to see the updates of other clients"):
        attack.forge(UPDATE, None, rng())


@pytest.mark.parametrize("attack", OMNISCIENT, ids=name)
@pytest.mark.parametrize("h", [0, 1, 2])
def test_few_honest_updates_are_no_trouble(attack, h):
    knowledge = cloud(h, b=3)
    forged = sent(attack, knowledge)
    assert forged.isfinite().all()
    if h == 0:
        assert torch.equal(forged, torch.stack([u.delta for u in knowledge.colluders])), "nobody to hide among"


@pytest.mark.parametrize("attack", [Attack(), *ALL], ids=name)
def test_attacks_leave_alone_what_they_do_not_attack(attack):
    parts = {type(a) for a in ([attack.first, attack.second] if isinstance(attack, Together) else [attack])}
    honest = images()
    if not parts & {type(a) for a in ON_SIZE}:
        assert reported_size(attack, 7) == 7
    if not parts & {type(a) for a in ON_DATA}:
        assert poison(attack, honest, rng()) is honest
        assert goal(attack, honest) is None
    if parts <= {type(a) for a in ON_DATA + ON_SIZE} | {Attack}:
        assert attack.forge(UPDATE, None, rng()) is DELTA
        assert not attack.traits.omniscient
    assert not attack.traits.needs_rule


@pytest.mark.parametrize(
    ("attack", "forged"),
    [
        (Attack(), [1.0, -2.0, 0.0]),
        (SignFlip(), [-1.0, 2.0, 0.0]),
        (Rescale(-10.0), [-10.0, 20.0, 0.0]),
        (Rescale(100.0), [100.0, -200.0, 0.0]),
        (Rescale(0.0), [0.0, 0.0, 0.0]),
        (ModelNegation(), [-4.0, -5.0, 6.0]),
        (ModelNegation(2.0), [-8.0, -10.0, 12.0]),
        (RandomInversion(1.0), [1.0, -0.5, 1e10]),
        (NonFinite("inf"), [math.inf] * 3),
    ],
)
def test_what_is_sent_by_hand(attack, forged):
    assert attack.forge(UPDATE, None, rng()).tolist() == pytest.approx(forged)


def test_nan_sender():
    assert NonFinite().forge(UPDATE, None, rng()).isnan().all()


def test_model_negation_undoes_the_model():
    negated = UPDATE.base + ModelNegation().forge(UPDATE, None, rng())
    assert negated.tolist() == [0.0, 0.0, 0.0]
    opposite = UPDATE.base + ModelNegation(2.0).forge(UPDATE, None, rng())
    assert torch.equal(opposite, -UPDATE.base)


WIDE = UPDATE._replace(delta=torch.full((100_000,), 3.0), base=torch.zeros(100_000))


def test_gaussian_has_the_moments_asked_for_and_its_own_stream():
    noise = Gaussian(std=2.0).forge(WIDE, None, rng())
    assert abs(noise.mean()) < 0.03
    assert noise.std().item() == pytest.approx(2.0, rel=0.01)
    assert Gaussian(std=2.0, add=True).forge(WIDE, None, rng()).mean().item() == pytest.approx(3.0, abs=0.03)
    assert torch.equal(noise, Gaussian(std=2.0).forge(WIDE, None, rng()))
    assert not torch.equal(noise, Gaussian(std=2.0).forge(WIDE, None, rng(1)))


def test_random_perturbation_is_in_proportion_to_the_length():
    length = WIDE.delta.norm().item()
    perturbed = RandomPerturbation(0.1).forge(WIDE, None, rng())
    assert perturbed.mean().item() == pytest.approx(3.0, abs=0.02 * length / 10)
    assert perturbed.std().item() == pytest.approx(0.1 * length, rel=0.01)
    alone = RandomPerturbation(0.1, replace=True).forge(WIDE, None, rng())
    assert torch.allclose(alone, perturbed - WIDE.delta, atol=1e-3)
    nothing = RandomPerturbation().forge(WIDE._replace(delta=torch.zeros(5)), None, rng())
    assert nothing.tolist() == [0.0] * 5


def test_random_signs_keep_magnitudes_and_lose_direction():
    forged = RandomSigns().forge(WIDE, None, rng())
    assert torch.equal(forged.abs(), WIDE.delta)
    assert abs(forged.mean().item()) < 0.03


def test_random_rescaling_and_inversion_by_share():
    forged = RandomRescale(10.0).forge(WIDE, None, rng())
    assert forged.abs().max() <= 30.0
    assert forged.std().item() == pytest.approx(30.0 / 3**0.5, rel=0.01)
    inverted = RandomInversion(0.25).forge(WIDE, None, rng())
    assert (inverted != 3.0).double().mean().item() == pytest.approx(0.25, abs=0.01)
    assert inverted.unique().tolist() == pytest.approx([1 / 3, 3.0])


def test_free_riders():
    noise = RandomFreeRider(0.5).forge(WIDE, None, rng())
    assert noise.abs().max() <= 0.5
    assert abs(noise.mean().item()) < 0.005
    later = update([1.0, 1.0], base=[5.0, 7.0], previous=torch.tensor([4.0, 9.0]))
    assert LazyFreeRider(std=0.0).forge(later, None, rng()).tolist() == [1.0, -2.0]
    assert LazyFreeRider(std=0.0).forge(later._replace(previous=None), None, rng()).tolist() == [0.0, 0.0]
    own = LazyFreeRider(std=0.0, downloads="changes")
    assert own.forge(later, None, rng()).tolist() == later.base.tolist()
    assert own.forge(later._replace(previous=None), None, rng()).tolist() == [0.0, 0.0]
    noisy = LazyFreeRider(std=0.1).forge(WIDE._replace(previous=WIDE.base - 1), None, rng())
    assert noisy.mean().item() == pytest.approx(1.0, abs=0.01)
    assert noisy.std().item() == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize(
    "attack",
    [
        Rescale(-10.0),
        SignFlip(),
        ModelNegation(),
        RandomSigns(),
        InnerProduct(epsilon=4.0),
        FangTrimmedMean(of="update"),
    ],
    ids=name,
)
def test_what_undoes_progress(attack):
    """The mean goes less far along the honest mean than with honest clients in the attackers' place."""
    knowledge = cloud()
    mu = knowledge.honest.mean(0)
    assert aggregate(attack, knowledge) @ mu < 0.9 * (aggregate(Attack(), knowledge) @ mu)


@pytest.mark.parametrize("attack", [Rescale(-10.0), InnerProduct(epsilon=4.0)], ids=name)
def test_what_turns_the_mean_round(attack):
    """4 of 16 attackers: above epsilon = 12 / 4 the inner product is negative, and just below it is not."""
    knowledge = cloud()
    mu = knowledge.honest.mean(0)
    assert aggregate(attack, knowledge) @ mu < 0
    assert aggregate(InnerProduct(2.9), knowledge) @ mu > 0


@pytest.mark.parametrize(
    "attack",
    [
        Gaussian(5.0),
        RandomFreeRider(5.0),
        RandomInversion(),
        RandomPerturbation(1.0),
        RandomRescale(),
        ALIE(1.5),
        MinMax(),
        MinMax("std"),
        MinMax("sign"),
        MinSum(),
        FangKrum(),
        FangTrimmedMean(),
        Mimic(),
    ],
    ids=name,
)
def test_what_drives_the_mean_away(attack):
    """The mean ends up farther from the honest mean than with honest clients in the attackers' place."""
    knowledge = cloud()
    mu = knowledge.honest.mean(0)
    honestly = (aggregate(Attack(), knowledge) - mu).norm()
    assert (aggregate(attack, knowledge) - mu).norm() > 1.5 * honestly


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gaussian(std=0),
        lambda: Rescale(math.inf),
        lambda: RandomPerturbation(0.0),
        lambda: RandomRescale(-1.0),
        lambda: RandomInversion(0.0),
        lambda: RandomInversion(1.5),
        lambda: ModelNegation(0.0),
        lambda: RandomFreeRider(math.nan),
        lambda: LazyFreeRider(-1.0),
        lambda: AllLabelsTo(-1),
        lambda: LabelFlip(1, 1),
        lambda: LabelFlip(-1, 1),
        lambda: LabelSwap(2, 2),
        lambda: NoiseInputs(1.0, 1.0),
        lambda: NoiseInputs(0.0, math.inf),
        lambda: Backdoor(share=0.0),
        lambda: Backdoor(value=math.inf),
        lambda: Backdoor(margin=-1),
        lambda: Backdoor(target=3, source=3),
        lambda: Backdoor(target=-3),
        lambda: ALIE(math.nan),
        lambda: InnerProduct(0.0),
        lambda: Mimic(-1),
        lambda: MinMax(start=0.0),
        lambda: MinSum(precision=math.inf),
        lambda: FangKrum(0.0),
        lambda: FangTrimmedMean(b=1.0),
        lambda: ReportSize(0),
        lambda: ReportTimes(0.0),
    ],
)
def test_out_of_range(make):
    with pytest.raises(ValueError, match=r"must (be|lie)"):
        make()


def test_an_attack_of_ones_own_that_colludes():
    class Opposite(Colluding):
        def collude(self, knowledge):
            return -knowledge.honest.mean(0)

    knowledge = cloud()
    assert torch.equal(sent(Opposite(), knowledge)[2], -knowledge.honest.mean(0))


def test_an_attack_is_called_by_few_names():
    """What else an attack does is asked of bases with at most three names; `OwnTraining` has two fields more."""
    assert {name for name in vars(Attack) if not name.startswith("_")} == {"traits", "forge"}
    for base in HOOKS.values():
        own = {name for name in vars(base) if not name.startswith("_")} - {"traits", "forge"}
        assert 1 <= len(own) <= (5 if base is OwnTraining else 3)
        assert inspect.isabstract(base)
        assert base.__name__ in attacks.__all__


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("inherited", [False, True])
def test_a_hook_without_its_base_is_refused_since_nothing_would_call_it(hook, inherited):
    base = HOOKS[hook]
    mixin = type("Mixin", (), {hook: lambda *_: None})
    with pytest.raises(TypeError, match=rf"Mine.{hook} would not be called.*: class Mine\({base.__name__}\)"):
        type("Mine", (mixin, Attack) if inherited else (Attack,), {} if inherited else {hook: lambda *_: None})
    type("Mine", (base,), {hook: lambda *_: None})
    type("Mine", (Attack,), {hook: 1.0, "__annotations__": {hook: float}})  # a field of this name is no hook
