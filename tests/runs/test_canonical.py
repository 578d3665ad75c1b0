"""What identifies a run: every parameter of it, and nothing else."""

import dataclasses
import gc
import importlib
import json
import math
from dataclasses import dataclass, field, replace

import jaxtyping
import numpy as np
import pytest
import torch
import yaml

from phalanx import Algorithm, Guard, LocalSGD, Run, Until
from phalanx.aggregators import Mean, Median, TrimmedMean
from phalanx.algorithms import BASGD, AFLGuard, ByzantineCFL, FedAsync, FedAvg
from phalanx.algorithms.staleness import Hinge, Polynomial
from phalanx.attacks import AllLabelsTo, Gaussian, NonFinite, Rescale, SignFlip
from phalanx.cli.main import main
from phalanx.core import InfeasibleError
from phalanx.data import CSV, Dataset, Digits, Dirichlet, InMemory, PermutedLabels, Uniform
from phalanx.data.held_out import HeldOut
from phalanx.fields import UNIDENTIFIED
from phalanx.models import MLP, LeNet
from phalanx.models.module import TorchModule
from phalanx.runs import canonical as canonical_module
from phalanx.runs.canonical import canonical, configurable, configuration, digest, identity, import_path, source
from phalanx.runs.engine_choice import named
from phalanx.simulation import Constant, Deadline, Late, OnOff
from phalanx.simulation.latency import Lognormal
from phalanx.training.sgd import ExponentialLR, StepLR
from phalanx.weighting import AsReported, Ignore, Truncate

# What stands for None and for words; numbers and lists are changed by a rule.
OTHER = {
    "steps": 7,
    "clip_norm": 1.5,
    "engine": "compiled",
    "seconds": 90.0,
    "max_staleness": 3,
    "buffers": "freeze",
    "attack": SignFlip(),
    "algorithm": FedAvg(Median(), Ignore(), 0.75),
    "aggregate": Mean(),
    "preprocess": Ignore(),
    "data": InMemory(Dataset(torch.ones(1, 1), torch.tensor([0]), 1), Dataset(torch.ones(1, 1), torch.tensor([0]), 1)),
    "partition": Uniform(),
    "model": LeNet(),
    "latency": Constant(),
    "groups": PermutedLabels(),
    "late": Late(),
    "lr": 0.1,
    "form": "strict",
    "start": "glorot",
    "byzantine_per_round": 1,
    "influence": 1,
    "tolerate": 1,
    "availability": OnOff(),
    "deadline": Deadline(),
    "then": "wait",
    "broken_promise": "remark",
    "precision": "bfloat16",
}
KEPT = (canonical_module._forms, canonical_module._modules)
RICH = Run(
    algorithm=FedAvg(TrimmedMean(0.2), AsReported(), 0.5),
    partition=Dirichlet(),
    model=MLP((8, 4)),
    training=LocalSGD(lr=ExponentialLR(), momentum=0.5, weight_decay=0.01),
    attack=Gaussian(),
    byzantine=2,
    participation=0.5,
    latency=Lognormal(),
    validation=0.1,
)


def changed(name, value):
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 2 or 0.125
    if isinstance(value, tuple):
        return (*value, {"metrics": "F1Score", "accept": "leak:age"}.get(name, 3))
    return OTHER[name]


def variants(value):
    """The value with one field changed, wherever in it; each with the path of the field."""
    for f in dataclasses.fields(value):
        inner = getattr(value, f.name)
        if UNIDENTIFIED in f.metadata:
            continue
        if f.name == "server_examples":  # which only some algorithms need
            yield f.name, replace(value, algorithm=AFLGuard(), participation=1.0, server_examples=50)
            continue
        if f.name == "train_truncated":  # which only some weights allow
            yield f.name, replace(value, algorithm=FedAvg(preprocess=Truncate()), train_truncated=True)
            continue
        if not dataclasses.is_dataclass(inner) or f.name in OTHER:
            yield f.name, replace(value, **{f.name: changed(f.name, inner)})
        if dataclasses.is_dataclass(inner):
            for path, other in variants(inner):
                yield f"{f.name}.{path}", replace(value, **{f.name: other})


VARIANTS = dict(variants(RICH))


def test_all_fields_are_among_those_that_are_changed():
    top = {path.split(".")[0] for path in VARIANTS}
    assert top == {f.name for f in dataclasses.fields(Run)}
    assert {"algorithm.aggregate.beta", "training.lr.decay", "training.clip_norm", "guard.max_norm"} < VARIANTS.keys()
    assert {"attack.std", "model.hidden", "until.seconds", "latency.sigma", "data.test_share"} < VARIANTS.keys()


@pytest.mark.parametrize("path", VARIANTS)
def test_identity_changes_with_every_field(path):
    other = VARIANTS[path]
    assert other != RICH
    assert other.identity != RICH.identity
    assert other.slug != RICH.slug


def test_no_two_of_them_share_an_identity():
    found = {run.identity for run in VARIANTS.values()} | {RICH.identity}
    assert len(found) == len(VARIANTS) + 1


def test_a_field_that_changes_no_number_is_in_no_identity_and_in_every_configuration():
    """Records of weights beyond a rule's tolerance, which are refused by default now, keep their identity."""
    named = replace(RICH, algorithm=FedAvg(TrimmedMean(0.2), AsReported(beyond_tolerance="remark"), 0.5))
    assert named != RICH
    assert (named.identity, named.slug) == (RICH.identity, RICH.slug)
    assert canonical(AsReported(beyond_tolerance="remark")) == canonical(AsReported())
    assert configuration(AsReported(beyond_tolerance="remark"))["init_args"] == {"beyond_tolerance": "remark"}


def test_a_run_that_says_the_scope_has_the_identity_from_before_the_default_changed():
    """Runs of releases whose default was "population" keep their identity; a run by the new default has its own."""
    assert canonical(Truncate.as_published(0.1, 0.4))["init_args"] == {"alpha_star": 0.4}
    assert canonical(Truncate(0.1, 0.4))["init_args"] == {"alpha_star": 0.4, "scope": None}
    said = Run(BASGD(3, preprocess=Truncate.as_published(0.1, 0.4)))
    assert Run(BASGD(3, preprocess=Truncate(0.1, 0.4))).identity == said.identity, "updates one at a time: as before"


def test_the_examples_of_the_server_are_told_apart():
    assert Run(AFLGuard(), server_examples=50).identity != Run(AFLGuard(), server_examples=60).identity


def test_classes_of_one_form_are_told_apart():
    runs = [Run(algorithm=FedAvg(rule)) for rule in (Mean(), Median(), TrimmedMean(0.0))]
    runs += [Run(algorithm=FedAsync(staleness=s)) for s in (Polynomial(1.0), Hinge(1.0))]
    runs += [Run(byzantine=1, attack=attack) for attack in (SignFlip(), Rescale(-1.0), NonFinite(), AllLabelsTo(0))]
    assert len({run.identity for run in runs}) == len(runs)


def test_equal_values_have_equal_identities():
    def build():
        return Run(
            algorithm=ByzantineCFL(until_stable=True),
            model=TorchModule("torch.nn.Linear", {"in_features": 2, "out_features": 3}),
            training=LocalSGD(lr=StepLR(0.3, 4)),
            until=Until(steps=3, seconds=9.0),
        )

    one, other = build(), build()
    assert one == other
    assert one.identity == other.identity
    assert replace(one, seed=1).identity == replace(other, seed=1).identity != one.identity


@dataclass(frozen=True)
class Whole:
    """A value with a part."""

    part: object
    name: str = ""


def test_parts_that_runs_share_have_the_form_that_they_have_alone():
    runs = [RICH, *(replace(RICH, seed=seed, attack=attack) for seed in (1, 2) for attack in (SignFlip(), Gaussian()))]
    together = [identity(run, Run) for run in runs]
    alone = []
    for run in runs:
        canonical_module._forms._found.clear()
        alone.append(identity(run, Run))
    assert together == alone
    assert len(set(alone)) == len(runs)


def test_a_kept_form_is_that_of_one_value_and_not_of_an_equal_one():
    values = [Whole(Whole(part)) for part in (1, True, "1", (1,), (True,))]
    assert values[0] == values[1]
    assert values[3] == values[4]
    for _ in range(2):
        assert [canonical(value)["init_args"]["part"]["init_args"]["part"] for value in values] == [
            1, True, "1", [1], [True],
        ]  # fmt: skip
    assert len({identity(value) for value in values}) == 5


def test_a_form_is_not_kept_where_a_file_or_a_container_can_change_it(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b,label\n1,2,x\n3,4,y\n")
    items = [1]
    run = Run(data=HeldOut(CSV(str(tmp_path / "rows.csv"), "label"), 0.2))
    holder = Whole(Whole(items))
    before = identity(replace(run), Run), identity(holder)
    (tmp_path / "rows.csv").write_text("a,b,label\n1,2,x\n3,5,y\n")
    items.append(2)
    assert identity(replace(run), Run) != before[0]
    assert identity(holder) != before[1]


def test_forms_and_modules_are_kept_no_longer_than_their_values():
    gc.collect()
    sizes = [len(kept._found) for kept in KEPT]
    values = [Whole(Whole(number)) for number in range(100)]
    assert all(canonical(value) and source(value) for value in values)
    assert [len(kept._found) for kept in KEPT] == [size + 200 for size in sizes]
    del values
    gc.collect()
    assert [len(kept._found) for kept in KEPT] <= sizes


def test_mappings_do_not_depend_on_their_order():
    one, other = ({"a": 1, "b": [2.0, None]}, {"b": (2.0, None), "a": 1})
    assert identity(one) == identity(other)
    assert identity(frozenset({3, 1, 2})) == identity([1, 2, 3])


def test_the_identity_is_a_sha256():
    assert len(Run().identity) == 64
    assert set(Run().identity) <= set("0123456789abcdef")
    assert Run().identity == Run().identity == identity(Run(), Run) == digest({"form": 3, "value": {}})


# --- names


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (FedAvg, "phalanx.algorithms.FedAvg"),
        (Hinge, "phalanx.algorithms.Hinge"),
        (TrimmedMean, "phalanx.aggregators.TrimmedMean"),
        (MLP, "phalanx.models.MLP"),
        (Digits, "phalanx.data.Digits"),
        (AsReported, "phalanx.weighting.AsReported"),
        (ExponentialLR, "phalanx.training.ExponentialLR"),
        (LocalSGD, "phalanx.LocalSGD"),
        (Guard, "phalanx.Guard"),
        (Run, "phalanx.Run"),
        (torch.nn.Linear, "torch.nn.Linear"),
    ],
)
def test_the_shortest_path_from_which_a_class_can_be_imported(kind, path):
    assert import_path(kind) == path


@dataclass(frozen=True)
class Mine:
    """A class that no package exports, with a field that is derived."""

    rate: float = 0.5
    rates: tuple[float, ...] = (1.0, 2.0)
    names: frozenset[str] = frozenset({"b", "a"})
    derived: object = field(default=None, init=False)


def test_a_form_by_hand():
    fields = {"rate": 0.5, "rates": [1.0, 2.0], "names": ["a", "b"]}
    named = {"class_path": f"{__name__}.Mine", "init_args": fields}
    assert configuration(Mine(), Mine) == fields
    assert configuration(Mine()) == configuration(Mine(), object) == named
    assert canonical(Mine(), Mine) == {}
    assert canonical(Mine(names=frozenset({"c"}))) == named | {"init_args": {"names": ["c"]}}


def test_only_what_could_be_several_classes_is_named():
    config = Run().config
    assert config["algorithm"]["class_path"] == "phalanx.algorithms.FedAvg"
    assert config["algorithm"]["init_args"]["aggregate"] == {"class_path": "phalanx.aggregators.Mean", "init_args": {}}
    assert config["training"]["epochs"] == 1
    assert config["guard"].keys() == {"max_norm", "max_staleness", "max_size"}
    assert config["attack"] is None


# --- what has no form


class Plain:
    def __repr__(self):
        return "a plain thing"


@dataclass(frozen=True)
class Holder:
    inside: object


@pytest.mark.parametrize("wrap", [lambda v: v, Holder, lambda v: [1, v], lambda v: {"a": (v,)}])
@pytest.mark.parametrize("value", [Plain(), torch.ones(2), 1j, b"bytes", Mine, len], ids=repr)
def test_what_cannot_be_told_from_something_else_is_refused(wrap, value):
    with pytest.raises(TypeError) as error:
        identity(wrap(value))
    assert str(error.value).startswith(f"A value of the class {type(value).__name__} has no canonical form")
    assert "Make its class a frozen dataclass of plain values, or give it a property `canonical`." in str(error.value)


class Own:
    """Says itself what identifies it."""

    def __init__(self, name):
        self.name = name

    @property
    def canonical(self):
        return {"name": self.name}


def test_an_own_canonical_form():
    assert canonical(Own("a")) == {"class_path": f"{__name__}.Own", "init_args": {"name": "a"}}
    assert canonical(Own((math.inf,)))["init_args"] == {"name": [".inf"]}
    assert identity(Holder(Own("a"))) == identity(Holder(Own("a"))) != identity(Holder(Own("b")))


# --- data in memory


def in_memory(x=1.0, y=0, name="in-memory", dtype=torch.float32):
    train = Dataset(torch.tensor([[x], [2.0]], dtype=dtype), torch.tensor([y, 1]), 2)
    return InMemory(train, Dataset(torch.zeros(1, 1, dtype=dtype), torch.tensor([0]), 2), name)


def test_data_in_memory_are_identified_by_content():
    base = Run(data=in_memory())
    assert base.identity == Run(data=in_memory()).identity
    others = [in_memory(x=1.5), in_memory(y=1), in_memory(name="mine"), in_memory(dtype=torch.float64)]
    swapped = InMemory(in_memory().train, in_memory().train)
    found = {Run(data=data).identity for data in (*others, swapped)} | {base.identity}
    assert len(found) == 6


# --- files


@pytest.mark.parametrize("run", [Run(), RICH, *VARIANTS.values()], ids=["default", "rich", *VARIANTS])
def test_the_configuration_survives_json(run):
    text = json.dumps(run.config, allow_nan=False)
    assert json.loads(text) == run.config


@pytest.mark.parametrize(
    "run",
    [
        Run(),
        RICH,
        Run(algorithm=ByzantineCFL(), attack=NonFinite("-inf"), byzantine=0.25),
        Run(algorithm=FedAsync(staleness=Hinge()), until=Until(steps=None, seconds=50.0)),
        Run(training=LocalSGD(lr=StepLR(0.3, 4), steps=3, clip_norm=2.0), buffers="average"),
        Run(model=TorchModule("torch.nn.Linear", {"in_features": 2, "out_features": 3}), seed=7),
    ],
    ids=lambda run: run.title,
)
def test_a_saved_run_is_the_same_run_when_it_is_read_again(run, tmp_path, monkeypatch):
    """`phalanx run --config run.json`, up to the moment when the federation would be built."""
    plans = []

    def stop(plan, **_):
        plans.append(plan)
        raise InfeasibleError("far enough")

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # puts sys.path back
    monkeypatch.setattr("phalanx.cli.run.simulate", stop)
    monkeypatch.setattr("phalanx.cli.run.keep_freed_memory", lambda: None)
    path = tmp_path / "run.json"
    run = named(run)  # by which engine nobody says, the federation does
    path.write_text(json.dumps(run.config))
    assert main(["run", "--config", str(path), "--folder", str(tmp_path / "out"), "--threads", "1"]) == 2
    (read,) = plans
    assert read == run
    assert read.identity == run.identity


def test_equal_runs_have_one_identity_whatever_kind_of_number_they_were_given():
    pairs = [
        (Run(participation=1), Run(participation=1.0)),
        (Run(training=LocalSGD(lr=1)), Run(training=LocalSGD(lr=1.0))),
        (Run(byzantine=0), Run(byzantine=0.0)),
        (Run(guard=Guard(max_norm=10)), Run(guard=Guard(max_norm=10.0))),
    ]
    for one, other in pairs:
        assert one == other
        assert one.identity == other.identity


@pytest.mark.usefixtures("_unchecked")
def test_numbers_of_other_libraries_are_plain_numbers():
    one, other = Run(clients=np.int64(3), participation=np.float32(0.5), seed=np.int32(2)), Run(clients=3, seed=2)
    assert one.identity == replace(other, participation=0.5).identity
    json.dumps(one.config)


@pytest.mark.parametrize(("value", "text"), [(math.inf, ".inf"), (-math.inf, "-.inf"), (math.nan, ".nan")])
def test_numbers_that_are_not_finite_have_a_form_that_yaml_reads(value, text):
    @dataclass(frozen=True)
    class Has:
        number: float

    form = canonical(Has(value), Has)
    assert form == {"number": text}
    assert json.loads(json.dumps(form, allow_nan=False)) == form
    assert str(yaml.safe_load(text)) == str(value)


def test_a_digest_survives_json():
    form = {"b": (1, 2), 10: None, 9: [0.1]}
    assert digest(form) == digest(json.loads(json.dumps(form)))


# --- what a run is made by

MINE = """
from dataclasses import dataclass
from phalanx.attacks import Attack
from {name}_helper import FACTOR

@dataclass(frozen=True)
class Zero(Attack):
    def forge(self, update, knowledge, rng):
        return FACTOR * update.delta
"""


def test_the_source_of_own_classes_and_of_what_lies_beside_them(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    mine, helper = tmp_path / "of_my_own.py", tmp_path / "of_my_own_helper.py"
    mine.write_text(MINE.format(name="of_my_own"))
    helper.write_text("class Number(float): ...\nFACTOR = Number(0)")
    import of_my_own

    run = Run(attack=of_my_own.Zero(), byzantine=1)
    first = source(run)
    assert first == source(Run(attack=of_my_own.Zero(), byzantine=2, seed=1))
    helper.write_text("class Number(float): ...\nFACTOR = Number(1)")
    second = source(run)
    mine.write_text(MINE.format(name="of_my_own") + "# a word")
    assert len({None, first, second, source(run)}) == 4


def test_a_module_of_a_package_counts_what_it_imports_of_it_anywhere(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    inner = tmp_path / "of_ours" / "inner"
    inner.mkdir(parents=True)
    for file in (inner.parent / "__init__.py", inner / "__init__.py", inner / "never.py"):
        file.write_text("")
    (inner / "rule.py").write_text(
        MINE.format(name="..numbers").replace("_helper", "")
        + "def later():\n    from . import lazy\n    import of_ours.deep, numpy, no_such_module\n"
    )
    files = {name: inner.parent / f"{name}.py" for name in ("numbers", "deep")} | {"lazy": inner / "lazy.py"}
    for file in files.values():
        file.write_text("FACTOR = 0\n")
    rule = importlib.import_module("of_ours.inner.rule")
    run = Run(attack=rule.Zero(), byzantine=1)
    seen = {source(run)}
    (inner / "never.py").write_text("# nobody imports it")
    assert seen == {source(run)}
    for file in files.values():
        file.write_text("FACTOR = 1\n")
        assert not seen & {source(run)}, file
        seen.add(source(run))


def test_what_the_library_brings_has_no_source_of_its_own_but_named_modules_have():
    assert source(Run()) is source(RICH) is None
    assert source(Run(model=TorchModule("torch.nn.Linear"))) is not None
    assert source(Run(model=TorchModule("no.such.module"))) is not None


def test_what_is_made_of_tensors_is_not_configurable():
    assert configurable(Digits)
    assert not configurable(InMemory)


# --- types


@pytest.fixture
def _unchecked(monkeypatch):
    """As it is outside of tests, where no checker of types looks at calls."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"algorithm": FedAvg}, r"algorithm must be a value, got the class FedAvg\. Write FedAvg\(\)"),
        ({"clients": 2.5}, r"clients must be an integer of at least 1, got 2\.5 \(float\)"),
        ({"clients": True}, "clients must be an integer of at least 1, got True"),
        ({"participation": "half"}, r"participation must be a number in \(0, 1\], got 'half'"),
        ({"data": torch.utils.data.TensorDataset(torch.ones(1))}, r"data must be a Source, .*Wrap tensors: InMemory\("),
        ({"model": "Linear"}, r"model must be a Model, got 'Linear' \(str\)\. Give a torch module, or TorchModule\("),
        ({"until": 3.5}, r"until must be an Until, got 3\.5 \(float\)\. .* or a number of steps"),
        ({"buffers": 1}, r"buffers must be one of 'refuse', 'average', 'freeze', got 1 \(int\)"),
        ({"attack": "Gaussian"}, "attack must be an Attack or null, got 'Gaussian'"),
        ({"data": torch.ones(100, 100)}, r"got tensor\(.{50,60}\.\.\. \(Tensor\)"),
    ],
)
@pytest.mark.usefixtures("_unchecked")
def test_parameters_of_a_wrong_type(fields, why):
    with pytest.raises(TypeError, match=why):
        Run(**fields)
    with pytest.raises(ValueError, match="buffers must be one of 'refuse', 'average', 'freeze', got 'avg'"):
        Run(buffers="avg")


def test_a_class_deep_in_a_run():
    @dataclass(frozen=True)
    class Loose(Algorithm):
        rule: object = None
        init = step = None

    with pytest.raises(TypeError, match=r"rule must be a value, got the class Median\. Write Median\(\)"):
        Run(algorithm=Loose(Median))


@pytest.mark.usefixtures("_unchecked")
def test_a_number_of_steps_will_do():
    assert Run(until=7) == Run(until=Until(steps=7))
    assert Run(until=7).identity == Run(until=Until(steps=7)).identity
