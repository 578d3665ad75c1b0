"""Every exported rule, attack, algorithm, weighting, partition, model and task obeys its contract.

The subjects are the exports themselves: whoever exports a class has it checked.  Planted members of each kind that do
not obey are caught, once they are exported.
"""

import itertools
import math
import random
import re
from dataclasses import InitVar, dataclass, field, replace

import jaxtyping
import numpy as np
import pytest
import torch
from torch import nn

from exported import SETTINGS, excepted, is_base, subjects, unexported
from generated import COMMAND
from phalanx import aggregators, algorithms, attacks, data, models, training, weighting
from phalanx.aggregators import Aggregator, Choice, Mean, Median, Points, PreAggregator, Selection
from phalanx.aggregators.monna import lowest
from phalanx.algorithms import FedAvg
from phalanx.algorithms.wrapper import Wrapper
from phalanx.attacks import Attack, Misreporting, Poisoning
from phalanx.contracts import breaches, rules
from phalanx.contracts.breach import examined, same
from phalanx.contracts.subject import KINDS, examine
from phalanx.core import Algorithm, Correction, InfeasibleError, Traits
from phalanx.data import Partition, Uniform
from phalanx.models import MLP, Model
from phalanx.training import Classification, Regression, Task
from phalanx.weighting import AsReported, Ignore, Preprocess

SLOW = {"LoRA"}  # peft takes seconds to import


def broken(kind):
    """The properties that a class lacks, but for those that its docstring excepts."""
    name = kind.__name__
    without = ("translation", "order") if name == "Steps" else excepted(kind)
    return breaches(kind, without, **SETTINGS.get(name, {}))


@pytest.fixture(autouse=True)
def _without_types(monkeypatch):
    """As in a user's program: a wrong member is caught by its contract, not by its types."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def every():
    """All subjects, as parameters of a test; those that take seconds are slow."""
    for kind in subjects():
        yield pytest.param(kind, id=kind.__name__, marks=[pytest.mark.slow] if kind.__name__ in SLOW else [])


@pytest.mark.parametrize("kind", every())
def test_what_is_exported_obeys_its_contract(kind):
    found = broken(kind)
    assert not found, "\n".join(map(str, found))


@pytest.mark.exports
def test_every_public_class_of_each_kind_is_exported():
    """A rule in a file that no package exports is found by its base."""
    assert unexported() == {}, COMMAND

    def below(kind):
        for child in kind.__subclasses__():
            yield child
            yield from below(child)

    own = {kind for base in KINDS for kind in below(base) if kind.__module__.startswith("phalanx.")}
    public = {kind.__name__ for kind in own if not is_base(kind) and kind.__name__[0] != "_"}
    assert public == {kind.__name__ for kind in subjects()}
    assert all(any(issubclass(kind, base) for kind in subjects()) for base in KINDS)


def test_no_setting_is_left_of_a_class_that_has_gone():
    assert SETTINGS.keys() <= {kind.__name__ for kind in subjects()}


@pytest.mark.parametrize("kind", [kind for kind in subjects() if excepted(kind)])
def test_an_exception_that_is_not_needed_is_none(kind):
    assert {breach.property for breach in breaches(kind)} == {*excepted(kind)}


class FirstRow(Mean):
    def aggregate(self, points):
        return points.matrix[0].clone()


class Unweighted(Mean):
    def aggregate(self, points):
        return points.matrix.mean(0)


class Mutating(Mean):
    def __call__(self, deltas, weights=None, **options):
        deltas[0] = 0
        return super().__call__(deltas, weights, **options)


class Random(Mean):
    def aggregate(self, points):
        return super().aggregate(points) + torch.randn(1)


class Offset(Mean):
    def aggregate(self, points):
        return super().aggregate(points) + 1


class Double(Mean):
    def __call__(self, deltas, weights=None, **options):
        return super().__call__(deltas, weights, **options).half()


class Boastful(Mean):
    def tolerates(self, q):
        return Median().tolerates(q)


class Fragile(Mean):
    def aggregate(self, points):
        return points.matrix[3] * 0 + super().aggregate(points)


@dataclass(frozen=True)
class WithoutLongest(Selection):
    """For no attacker it is the mean, and obeys."""

    f: int

    def choose(self, points):
        return Choice(
            lowest(points.norms, points.share, 1 - self.f / len(points)) * len(points) / (len(points) - self.f)
        )


@dataclass(frozen=True)
class Idle(Attack):
    """Attacks nothing."""


@dataclass(frozen=True)
class Scribbling(Attack):
    def forge(self, update, knowledge, rng):
        return update.delta.mul_(-1)


@dataclass(frozen=True)
class Shaky(Attack):
    def forge(self, update, knowledge, rng):
        return torch.randn(len(update.delta))


@dataclass(frozen=True)
class Short(Attack):
    def forge(self, update, knowledge, rng):
        return update.delta[1:]


@dataclass(frozen=True)
class Clairvoyant(Attack):
    def forge(self, update, knowledge, rng):
        return -knowledge.honest.mean(0)


@dataclass(frozen=True)
class Relabelling(Poisoning):
    def poison(self, data, rng):
        data.y.zero_()
        return data


@dataclass(frozen=True)
class Boasting(Misreporting):
    def reported_size(self, size):
        return 0


@dataclass
class Changeable(Attack):
    strength: float = 1.0

    def forge(self, update, knowledge, rng):
        return -update.delta


@dataclass(frozen=True)
class Writing(FedAvg):
    def step(self, state, updates):
        state.model.add_(1.0)
        return super().step(state, updates)


@dataclass(frozen=True)
class Greedy(FedAvg):
    def step(self, state, updates):
        updates.deltas.zero_()
        return super().step(state, updates)


@dataclass(frozen=True)
class Drawing(FedAvg):
    def step(self, state, updates):
        after, ready = super().step(state, updates)
        return after._replace(model=after.model + torch.randn(1)), ready


@dataclass(frozen=True)
class Overwriting(Wrapper):
    """Changes the state of the algorithm within."""

    def step(self, state, updates):
        after, ready = super().step(state, updates)
        state.model.copy_(after.model)
        return after, ready

    def pools(self, setting, state=None):
        return super().pools(setting, state)


@dataclass(frozen=True)
class Silent(FedAvg):
    def step(self, state, updates):
        after, ready = super().step(state, updates)
        return after._replace(verdicts={}), ready


@dataclass(frozen=True)
class Forgetful(FedAvg):
    def step(self, state, updates):
        after, ready = super().step(state, updates)
        return after, set(ready) - {2}


@dataclass(frozen=True)
class Jumping(FedAvg):
    def step(self, state, updates):
        after, ready = super().step(state, updates)
        return after._replace(version=after.version + 5), ready


@dataclass(frozen=True)
class Partial(FedAvg):
    def step(self, state, updates):
        after, ready = super().step(state, updates)
        return after._replace(model=state.model + updates.deltas[0]), ready


@dataclass(frozen=True)
class Overweight(FedAvg):
    def step(self, state, updates):
        after, ready = super().step(state, updates)
        return after._replace(verdicts={i: replace(v, weight=2.0) for i, v in after.verdicts.items()}), ready


class Taller(AsReported):
    def __call__(self, sizes):
        return super().__call__(sizes) | {-1: 1.0}


class Emptying(Ignore):
    def __call__(self, sizes):
        sizes.clear()
        return {}


class Loyal(Ignore):
    """Gives the client with the lowest name all the weight."""

    def __call__(self, sizes):
        return {client: float(client == next(iter(sizes))) for client in sizes}


class Reassuring(AsReported):
    def held(self, sizes, f, q, clients, *, parted=False):
        return Ignore().held(sizes, f, q, clients)


class Shuffling(Ignore):
    def __call__(self, sizes):
        return {client: float(torch.rand(()) + 0.1) for client in sizes}


class Sharing(Uniform):
    def split(self, labels, clients, rng, owners=None):
        parts = super().split(labels, clients, rng, owners)
        return [parts[0], *parts[:-1]]


class Losing(Uniform):
    def split(self, labels, clients, rng, owners=None):
        return [part[1:] for part in super().split(labels, clients, rng, owners)]


class Global(Uniform):
    def assign(self, labels, clients, rng):
        return torch.randint(0, clients, labels.shape).numpy()


class Blind(Uniform):
    uses_labels = False

    def assign(self, labels, clients, rng):
        return labels % clients


class Sorting(Uniform):
    def split(self, labels, clients, rng, owners=None):
        labels.zero_()
        return super().split(labels, clients, rng, owners)


class Certain(MLP):
    def build(self, shape, classes):
        return nn.Sequential(super().build(shape, classes), nn.Softmax(1))


class Narrow(MLP):
    def build(self, shape, classes):
        return super().build(shape, classes + 1)


class Idling(MLP):
    def build(self, shape, classes):
        module = super().build(shape, classes)
        module.register_parameter("idle", nn.Parameter(torch.zeros(3)))
        return module


class Asleep(MLP):
    def build(self, shape, classes):
        return super().build(shape, classes).eval()


class Seeded(MLP):
    def build(self, shape, classes):
        torch.seed()
        return super().build(shape, classes)


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Mixing(MLP):
    def build(self, shape, classes):
        return nn.Sequential(super().build(shape, classes), Centred())


class Summing(Classification):
    def loss(self, outputs, y):
        return super().loss(outputs, y) * len(y)


class Detached(Regression):
    def loss(self, outputs, y):
        return super().loss(outputs, y).detach()


class Halving(Regression):
    def loss(self, outputs, y):
        return super().loss(outputs.mul_(0.5) if not outputs.requires_grad else outputs * 0.5, y.mul_(0.5))


class Noisy(Classification):
    def loss(self, outputs, y):
        return super().loss(outputs + torch.randn_like(outputs), y)


class Miscounting(Classification):
    def count(self, y):
        return 7


class Generous(Classification):
    def correct(self, outputs, y):
        return y


class ByIdentity:
    """Two of the same fields are not equal."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


@dataclass(frozen=True, eq=False)
class RuleByIdentity(ByIdentity, Median):
    pass


class Counting(Median):
    """Has no decorator: its fields are frozen, and new names are not."""

    calls = 0

    def aggregate(self, points):
        self.calls += 1
        return super().aggregate(points)


@dataclass(frozen=True)
class Listing(Median):
    ranks: list = field(default_factory=list)


@dataclass(frozen=True)
class Twice(Aggregator):
    def aggregate(self, points):
        return 2 * points.combine(points.share)


@dataclass(frozen=True)
class Powers(Aggregator):
    """Its weights matter by more than their ratios."""

    def aggregate(self, points):
        powers = points.share ** (1 + points.mass / 1000)
        return points.combine(powers / powers.sum())


class Reviving(Mean):
    """Gives rows without weight a little."""

    def __call__(self, deltas, weights=None, **options):
        return super().__call__(deltas, None if weights is None else weights.clamp(min=0.01), **options)


class Misattributed(Mean):
    def choose(self, points):
        return Choice(points.share.flip(0))


class Sample(Mean):
    """Divides by one less than the number of rows."""

    def aggregate(self, points):
        return super().aggregate(points) * (len(points) - 1) / torch.tensor(len(points) - 1.0)


class Cut(Mean):
    """Drops only rows beyond a length, and claims what a median tolerates."""

    def tolerates(self, q):
        return Median().tolerates(q)

    def aggregate(self, points):
        kept = points.share * (points.matrix.norm(dim=1) < 1e9)
        return points.combine(kept / kept.sum())


class Deep(Cut):
    """Drops only rows within a length."""

    def aggregate(self, points):
        kept = points.share * ((points.matrix.norm(dim=1) < 20) | (points.matrix.norm(dim=1) > 1e9))
        return points.combine(kept / kept.sum())


class Shallow(Median):
    """Follows a row of a length that few lies have."""

    def aggregate(self, points):
        lengths = points.matrix.double().norm(dim=1)
        odd = (lengths > 30) & (lengths < 60)
        return points.matrix[odd][0].clone() if bool(odd.any()) else super().aggregate(points)


class Lopsided(Median):
    """A median without weights, a mean with unequal ones."""

    def aggregate(self, points):
        alike = bool((points.weights == points.weights[0]).all())
        return super().aggregate(points) if alike else points.combine(points.share)


class Headcount(Median):
    """Follows all once more than half of the rows, by number, lie far to one side in every entry."""

    side = 1.0

    def aggregate(self, points):
        far = (self.side * points.matrix > 2.9).all(1)
        crowd = 2 * int(far.sum()) > len(points)
        return points.combine(points.share) if crowd else super().aggregate(points)


class HeadcountBelow(Headcount):
    side = -1.0


class Rooted(Median):
    """Uses the roots of weights."""

    def aggregate(self, points):
        return Median()(points.matrix, points.weights.sqrt())


class Doubting(Median):
    """Trusts its fourth row."""

    def aggregate(self, points):
        return points.matrix[3] + 0 * super().aggregate(points) if len(points) > 3 else super().aggregate(points)


@dataclass(frozen=True)
class Passing(PreAggregator):
    """Lets rows pass; those below change them."""

    def mix(self, points):
        return self.passed(points, points.matrix, points.weights)

    def passed(self, points, matrix, weights):
        return Points.of(matrix, weights, points.turn, points.previous)


@dataclass(frozen=True, eq=False)
class PassingByIdentity(ByIdentity, Passing):
    pass


class PassingNoise(Passing):
    def mix(self, points):
        return self.passed(points, points.matrix + torch.randn(1), points.weights)


class PassingZeros(Passing):
    def mix(self, points):
        points.base.zero_()
        return points


class PassingHalves(Passing):
    def mix(self, points):
        return self.passed(points, points.matrix[:, 1:], points.weights)


class PassingFour(Passing):
    def mix(self, points):
        return self.passed(points, points.matrix[:4], points.weights[:4])


class PassingTwice(Passing):
    def mix(self, points):
        return self.passed(points, 2 * points.matrix, points.weights)


class PassingMore(Passing):
    def mix(self, points):
        return self.passed(points, points.matrix + 1, points.weights)


class PassingPowers(Passing):
    def mix(self, points):
        return self.passed(points, points.matrix, points.share ** (1 + points.mass / 1000))


class PassingAlike(Passing):
    def mix(self, points):
        return self.passed(points, points.matrix, torch.ones_like(points.weights))


class PassingAbsent(Passing):
    def mix(self, points):
        return self.passed(points, points.matrix * len(points.there) / len(points), points.weights)


class PassingUntraced(Passing):
    def mix(self, points):
        mixed = points.mixed(torch.eye(len(points), dtype=torch.float64), points.weights)
        mixed.combine, mixed.traced = points.combine, lambda coefficients: coefficients.flip(0)
        return mixed


class PassingFragile(Passing):
    def mix(self, points):
        return self.passed(points, points.matrix + 0 * points.matrix[3], points.weights)


class PassingMeans(Passing):
    """Replaces every row by the mean, and says that a median after it tolerates as many attackers."""

    def keeps(self, q, then):
        return then.tolerates(q)

    def mix(self, points):
        return points.mixed(points.share.expand(len(points), -1), points.weights)


@dataclass(frozen=True)
class Reclassing(Poisoning):
    def poison(self, data, rng):
        return replace(data, classes=11)


@dataclass(frozen=True)
class Gambling(Attack):
    """Draws from Python's own generator."""

    def forge(self, update, knowledge, rng):
        return -update.delta * (1 + random.random())


@dataclass(frozen=True, eq=False)
class ServerByIdentity(ByIdentity, FedAvg):
    pass


COUNT = itertools.count()


@dataclass(frozen=True)
class Fickle(FedAvg):
    """Its verdicts differ from call to call, its models do not."""

    def step(self, state, updates):
        after, ready = super().step(state, updates)
        verdicts = {i: replace(v, weight=v.weight / (1 + next(COUNT))) for i, v in after.verdicts.items()}
        return after._replace(verdicts=verdicts), ready


@dataclass(frozen=True)
class Talkative(FedAvg):
    traits = Traits(vectors=2)


@dataclass(frozen=True)
class KeepsInSecret(FedAvg):
    traits = Traits()

    def upload(self, delta, memory):
        return delta, delta


@dataclass(frozen=True)
class CorrectsInSecret(FedAvg):
    traits = Traits()

    def correction(self, local, download, reach):
        return Correction(torch.zeros_like(download), 0.1)


@dataclass(frozen=True, eq=False)
class WeightsByIdentity(ByIdentity, Ignore):
    pass


@dataclass(frozen=True, eq=False)
class PartsByIdentity(ByIdentity, Uniform):
    pass


class Reversed(Uniform):
    def split(self, labels, clients, rng, owners=None):
        return [part.flip(0) for part in super().split(labels, clients, rng, owners)]


@dataclass(frozen=True, eq=False)
class ModelByIdentity(ByIdentity, MLP):
    pass


@dataclass(frozen=True, eq=False)
class TaskByIdentity(ByIdentity, Classification):
    pass


class Approximate(Classification):
    def outputs(self, data):
        return np.int64(super().outputs(data))


PLANTED = (
    (FirstRow, {"order", "weights"}),
    (Unweighted, {"weights"}),
    (Mutating, {"arguments"}),
    (Random, {"repetition"}),
    (Offset, {"scaling"}),
    (Double, {"form"}),
    (Boastful, {"attackers"}),
    (WithoutLongest, {"translation"}),
    (Fragile, {"few rows"}),
    (Idle, {"attacks"}),
    (Scribbling, {"arguments"}),
    (Shaky, {"repetition"}),
    (Short, {"update"}),
    (Clairvoyant, {"knowledge"}),
    (Relabelling, {"arguments"}),
    (Boasting, {"reports"}),
    (Changeable, {"value"}),
    (Writing, {"purity"}),
    (Greedy, {"purity"}),
    (Drawing, {"purity"}),
    (Overwriting, {"purity"}),
    (Silent, {"verdicts"}),
    (Forgetful, {"verdicts"}),
    (Jumping, {"versions"}),
    (Partial, {"names"}),
    (Overweight, {"verdicts"}),
    (Taller, {"form"}),
    (Emptying, {"arguments"}),
    (Loyal, {"names"}),
    (Reassuring, {"share"}),
    (Shuffling, {"repetition"}),
    (Sharing, {"holders"}),
    (Losing, {"holders"}),
    (Global, {"repetition"}),
    (Blind, {"labels"}),
    (Sorting, {"arguments"}),
    (Certain, {"form"}),
    (Narrow, {"form"}),
    (Idling, {"training"}),
    (Asleep, {"form"}),
    (Seeded, {"start"}),
    (Mixing, {"repetition"}),
    (Summing, {"mean"}),
    (Detached, {"loss"}),
    (Halving, {"repetition"}),
    (Noisy, {"repetition"}),
    (Miscounting, {"counts"}),
    (Generous, {"counts"}),
    (RuleByIdentity, {"value"}),
    (Listing, {"value"}),
    (Counting, {"value"}),
    (Twice, {"translation"}),
    (Powers, {"ratios"}),
    (Reviving, {"absence"}),
    (Misattributed, {"shares"}),
    (Sample, {"few rows"}),
    (Cut, {"attackers"}),
    (Deep, {"attackers"}),
    (Shallow, {"attackers"}),
    (Lopsided, {"attackers"}),
    (Headcount, {"attackers"}),
    (HeadcountBelow, {"attackers"}),
    (Rooted, {"attackers"}),
    (Doubting, {"attackers"}),
    (PassingByIdentity, {"value"}),
    (PassingNoise, {"repetition"}),
    (PassingZeros, {"arguments"}),
    (PassingHalves, {"form"}),
    (PassingFour, {"order"}),
    (PassingTwice, {"translation"}),
    (PassingMore, {"scaling"}),
    (PassingPowers, {"ratios"}),
    (PassingAlike, {"weights"}),
    (PassingAbsent, {"absence"}),
    (PassingUntraced, {"shares"}),
    (PassingFragile, {"few rows"}),
    (PassingMeans, {"attackers"}),
    (Reclassing, {"data"}),
    (Gambling, {"repetition"}),
    (ServerByIdentity, {"value"}),
    (Fickle, {"purity"}),
    (Talkative, {"form"}),
    (KeepsInSecret, {"form"}),
    (CorrectsInSecret, {"form"}),
    (WeightsByIdentity, {"value"}),
    (PartsByIdentity, {"value"}),
    (Reversed, {"form"}),
    (ModelByIdentity, {"value"}),
    (TaskByIdentity, {"value"}),
    (Approximate, {"outputs"}),
)
HOMES = {
    Aggregator: aggregators,
    PreAggregator: aggregators,
    Attack: attacks,
    Algorithm: algorithms,
    Preprocess: weighting,
    Partition: data,
    Model: models,
    Task: training,
}


@pytest.mark.parametrize(("wrong", "lacks"), PLANTED)
def test_a_wrong_member_is_caught_once_it_is_exported(wrong, lacks, monkeypatch):
    """By the suite, for the reason for which it was planted, and not because it raised an error."""
    package = next(package for base, package in HOMES.items() if issubclass(wrong, base))
    monkeypatch.setattr(package, wrong.__name__, wrong, raising=False)
    monkeypatch.setattr(package, "__all__", [*package.__all__, wrong.__name__])
    subjects.cache_clear()
    try:
        assert wrong in subjects()
    finally:
        subjects.cache_clear()
    found = {breach.property: breach for breach in broken(wrong)}
    assert lacks <= found.keys()
    assert not [name for name in lacks if found[name].sentence.startswith("It raised")], "caught for another reason"
    assert all(breach.sentence.endswith(".") and breach.example for breach in found.values())


@pytest.mark.parametrize("base", KINDS)
def test_every_property_of_every_kind_has_a_wrong_member(base):
    """One that lacks it for the reason for which it was planted, as the test above shows."""
    assert KINDS[base].properties.keys() == set().union(*(lacks for wrong, lacks in PLANTED if issubclass(wrong, base)))


def test_a_property_that_was_not_tried_does_not_hold():
    """Attackers of a rule that tolerates none, for example."""
    for subject, untried in ((Mean, {"attackers"}), (algorithms.FedAsync, {"names"}), (data.Shards, {"labels"})):
        found = examine(subject, lambda m, f: {})
        assert found.untried.keys() == untried
        assert not untried & {*found.holding}
        assert not found.broken
    never = examined({"one": lambda make: iter(()), "two": lambda make: iter([None])}, lambda m, f: None)
    assert ([*never.untried], never.holding, never.broken) == (["one"], ["two"], [])


def test_a_rule_without_results_has_no_property_of_results():
    @dataclass(frozen=True)
    class Never(Mean):
        def aggregate(self, points):
            raise InfeasibleError("Never.")

    @dataclass(frozen=True)
    class NaN(Mean):
        def aggregate(self, points):
            return super().aggregate(points) * math.nan

    assert examine(Never, lambda m, f: {}).holding == ["value"]
    found = examine(NaN, lambda m, f: {})
    assert (found.holding, {breach.property for breach in found.broken}) == (["value"], {"form", "few rows"})
    assert all("finite" in why or "tolerates" in why for why in found.untried.values())


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        (int, "int has no contract. Name a subclass of one of these: Aggregator, PreAggregator, Attack, Algorithm, "),
        (Aggregator, "Only a class that defines all that it must can be checked, got <class 'phalanx.aggregators"),
        (3, "Only a class that defines all that it must can be checked, got 3."),
    ],
)
def test_what_has_no_contract(subject, said):
    with pytest.raises(InfeasibleError, match=re.escape(said)):
        breaches(subject)


@dataclass(frozen=True)
class Initial(Median):
    k: InitVar[int] = 3


class Bare(Median):
    def __init__(self, k=3):
        """Keeps nothing."""


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        (Initial, "Initial takes k as `InitVar`, which it does not keep: two that differ in it would be equal."),
        (Bare, "Bare has an `__init__` of its own, with k."),
    ],
)
def test_arguments_that_are_no_fields(subject, said):
    with pytest.raises(InfeasibleError, match=re.escape(said)):
        breaches(subject)


def test_each_way_to_hold_weight_meets_every_lie():
    ways = [list(way) for way in rules._held(Median().tolerates(7), 7, 3)]
    assert len(ways) == 6
    assert min(map(len, ways)) >= len(rules.LIES) == 8


def test_only_what_a_docstring_may_except_can_be_left_out():
    assert breaches(aggregators.SignMajority, ("translation", "scaling")) == []
    with pytest.raises(InfeasibleError, match="Only translation, scaling, order can be left out, got weights"):
        breaches(Median, ("weights",))


@pytest.mark.parametrize(
    ("one", "other"),
    [(math.nan, 0.0), (math.inf, torch.finfo(torch.float32).max), (0.0, -0.0), (1.0, 1.0 + 2**-23)],
)
def test_values_are_the_same_to_the_bit(one, other):
    assert same({"a": (torch.tensor([one]),)}, {"a": (torch.tensor([one]),)})
    assert not same({"a": (torch.tensor([one]),)}, {"a": (torch.tensor([other]),)})
    assert not same(torch.tensor([one]), torch.tensor(one))
    assert same(torch.tensor([[one, other]]).T, torch.tensor([[one], [other]]))
