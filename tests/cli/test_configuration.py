"""Values from options and files: what is read, kept and refused; what is written makes the same value again."""

import inspect
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from phalanx.aggregators import AdaptiveClip, Chain, Krum, Median, NearestNeighborMixing, Steps, TrimmedMean
from phalanx.algorithms import AboveNoise, ByzantineCFL, FedAsync, FedAvg, Hinge, Permuted, Quorum
from phalanx.attacks import Attack, Gaussian, LabelFlip, NonFinite, Rescale, Together
from phalanx.cli import advice
from phalanx.cli.configuration import ConfigurationError, Draft, Text, by_default, from_file, parameters
from phalanx.data import SwappedLabels
from phalanx.models import MLP, TorchModule
from phalanx.runs.canonical import configurable
from phalanx.runs.plan import Run
from phalanx.simulation import Deadline
from phalanx.training.sgd import ExponentialLR, LocalSGD
from phalanx.weighting import Ignore, Truncate


def made(*options, root=Run):
    """Return the value that options make, each a path and what was typed."""
    draft = Draft(root)
    for path, text in options:
        draft.set(path, Text(text))
    draft.check()
    return draft.make(root)


def read(content, tmp_path, root=Run):
    """Return the value that a file makes."""
    (tmp_path / "run.yaml").write_text(content)
    draft = Draft(root)
    draft.load(tmp_path / "run.yaml")
    draft.check()
    return draft.make(root)


# --- what comes out


STEPS = Steps((AdaptiveClip(6), NearestNeighborMixing(6)))
RUNS = [
    Run(),
    Run(algorithm=FedAvg(Chain(STEPS, Krum(6))), clients=30),
    Run(algorithm=ByzantineCFL(AboveNoise(0.1), aggregate=TrimmedMean(0.2), preprocess=Truncate())),
    Run(algorithm=Permuted(Quorum(FedAvg(Median()), 3), 7)),
    Run(algorithm=FedAsync(staleness=Hinge(3.0, 5)), training=LocalSGD(lr=ExponentialLR(0.5))),
    Run(attack=Together(Gaussian(2.0), Rescale(-10.0)), byzantine=0.25, deadline=Deadline(3.0)),
    Run(attack=NonFinite("-inf"), byzantine=2, model=MLP((3, 4)), groups=SwappedLabels(((1, 2), (3, 4)))),
    Run(model=TorchModule("torch.nn.Linear", {"in_features": 64, "out": [1, {"a": None}]})),
    Run(training=LocalSGD(clip_norm=float("inf"), lr=1e-07)),
]


@pytest.mark.parametrize("run", RUNS, ids=range(len(RUNS)))
def test_what_is_written_makes_the_same_run_again(run, tmp_path):
    assert read(yaml.safe_dump(run.config), tmp_path) == run
    draft = Draft(Run)
    for name, value in run.config.items():
        draft.set(name, value)
    assert read(yaml.safe_dump(draft.config()), tmp_path) == run


def every(base, seen):
    """Return all classes that a field of the class, or of a class in it, can hold."""
    for kind in [base, *advice.classes(base)]:
        if kind not in seen and kind.__module__.startswith("phalanx."):
            seen.add(kind)
            for parameter in parameters(kind).values() if hasattr(kind, "__dataclass_fields__") else ():
                for inner in advice.bases(parameter.kind):
                    every(inner, seen)
    return seen


def test_every_class_of_the_library_is_made_from_its_defaults():
    kinds = {kind for kind in every(Run, set()) if hasattr(kind, "__dataclass_fields__") and configurable(kind)}
    assert len(kinds) > 100
    for kind in kinds:
        if not inspect.isabstract(kind) and len(by_default(kind).values) == len(parameters(kind)):
            assert Draft(kind).make(kind) == kind()


# --- what is taken over


def test_an_option_further_in_changes_nothing_else():
    run = made(("algorithm.aggregate", "TrimmedMean"), ("algorithm.aggregate.beta", "0.3"), ("model.dropout", "0.5"))
    assert run == Run(algorithm=FedAvg(TrimmedMean(0.3)), model=MLP((512,), 0.5))


def test_the_same_class_keeps_what_it_had_and_another_one_does_not():
    options = [("attack", "Gaussian"), ("attack.std", "3"), ("byzantine", "2")]
    assert made(*options, ("attack", "Gaussian")).attack == Gaussian(3.0)
    assert made(*options, ("attack", "Rescale"), ("attack", "Gaussian")).attack == Gaussian()
    assert made(("model", "MLP")).model == MLP((512,))
    assert made(("algorithm", "ByzantineCFL")).algorithm == ByzantineCFL(preprocess=Ignore())


def test_null_takes_a_class_away():
    assert made(("attack", "Gaussian"), ("attack", "null")).attack is None
    with pytest.raises(ConfigurationError, match=r"attack\.std is an option of a class: choose the class first"):
        made(("attack", "Gaussian"), ("attack", "null"), ("attack.std", "1"))


def test_a_dataclass_that_is_the_only_choice_needs_no_name():
    assert made(("deadline.seconds", "3")).deadline == Deadline(3.0)
    assert made(("deadline", "{seconds: 3, grace: 1}")).deadline == Deadline(3.0, 1)
    assert made(("algorithm", "ByzantineCFL"), ("algorithm.threshold.margin", "0.5")).algorithm.threshold == AboveNoise(
        0.5
    )


# --- files


def test_short_forms_of_a_class_in_a_file(tmp_path):
    wanted = Run(attack=Gaussian(2.0), byzantine=2)
    for name in ("Gaussian", "phalanx.attacks.Gaussian"):
        form = f"{{class_path: {name}, init_args: {{std: 2}}}}"
        assert read(f"byzantine: 2\nattack: {form}", tmp_path) == wanted
    assert read("byzantine: 2\nattack: Gaussian\nattack.std: 2", tmp_path) == wanted
    assert read("algorithm: {init_args: {server_lr: 2}}", tmp_path) == read("algorithm: {server_lr: 2}", tmp_path)
    assert read("attack: {class_path: LabelFlip, init_args: null}\nbyzantine: 1", tmp_path).attack == LabelFlip()


def test_a_file_for_a_group_of_options(tmp_path):
    (tmp_path / "sgd.yaml").write_text("lr: 0.5\nepochs: 2")
    assert made(("training", str(tmp_path / "sgd.yaml")), ("training.epochs", "3")).training == LocalSGD(3, lr=0.5)
    assert read(f"training: {tmp_path / 'sgd.yaml'}", tmp_path).training == LocalSGD(2, lr=0.5)


def test_numbers_as_people_write_them(tmp_path):
    for text in ("1e-3", "1E-3", "0.001", ".001", "+1e-3"):
        assert made(("training.lr", text)).training.lr == 0.001
        assert read(f"training: {{lr: {text}}}", tmp_path).training.lr == 0.001
    for text in ("inf", ".inf", "+inf", "Inf"):
        assert made(("training.clip_norm", text)).training.clip_norm == float("inf")
    assert made(("byzantine", "3"), ("attack", "Gaussian")).byzantine == 3
    assert made(("byzantine", "0.3"), ("attack", "Gaussian")).byzantine == 0.3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("clients: 3\nseed: 1\nclients: 4", "clients occurs twice"),
        ("training: {lr: 1, lr: 2}", "lr occurs twice"),
        ("clients: [3", "is not valid YAML: line 1: expected"),
        ("attack: {class_path: Gaussian, std: 2}", "attack has std next to class_path. Put the options"),
        ("attack: {std: 2}", "attack.std is an option of a class: choose the class first, by class_path"),
        ("attack: {}", "attack must be one of .*, got {}"),
        ("attack: {class_path: Gaussian, init_args: 3}", "attack.init_args must be a mapping of options"),
        ("clients: true", "clients must be an integer, got true"),
        ("clients: '3'", "clients must be an integer, got 3"),
        ("data: {class_path: HuggingFace, init_args: {path: 3}}", "data.path must be text, got 3"),
        ("model: {class_path: MLP, init_args: {hidden: [3, x]}}", r"model.hidden\[1\] must be an integer, got x"),
        ("algorithm: {class_path: phalanx.core.Algorithm}", "must be .* phalanx.core.Algorithm .it is abstract"),
    ],
)  # fmt: skip
def test_mistakes_in_files(content, message, tmp_path):
    with pytest.raises(ConfigurationError, match=message):
        read(content, tmp_path)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "run.yaml").write_bytes(b"\xff\xfe\xff")
    for name, message in (
        ("none", "does not exist"),
        (".", "cannot be read"),
        ("run.yaml", "line 1: the text is not UTF-8"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            Draft(Run).load(tmp_path / name)


STEPS_OF = "algorithm.aggregate.before"
CHAIN = [("algorithm.aggregate", "Chain"), (STEPS_OF, "Steps")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([("clients.x", "3")], "clients.x is an option of a class: choose the class first, clients is an integer"),
        ([("nosuch", "3")], "Run has no option 'nosuch'"),
        ([("groups", "SwappedLabels"), ("groups.pairs", "[[1, 2, 3]]")], r"groups.pairs\[0\] must be a list"),
        ([*CHAIN, (f"{STEPS_OF}.steps", "[AdaptivClip]")], r"steps\[0\] must be .* Did you mean AdaptiveClip"),
        ([*CHAIN, (f"{STEPS_OF}.steps", "[{class_path: AdaptiveClip, init_args: {g: 1}}]")], "Clip has no option 'g'"),
        ([CHAIN[0]], "algorithm.aggregate: Chain needs before, rule. Give --algorithm.aggregate.before VALUE --algo"),
    ],
)
def test_mistakes_in_options(options, message):
    with pytest.raises(ConfigurationError, match=message):
        made(*options)


# --- classes of the user's own


@dataclass(frozen=True)
class Mixed(Attack):
    """Holds one of each kind.

    Args:
        path: a file.
        words: some words.
    """

    path: Path = Path("here")
    words: tuple[str, ...] = ("a", "b")
    pair: tuple[int, str] = (1, "x")
    ids: frozenset[int] = frozenset({1})
    choice: Literal["one", 2] | None = None
    anything: Any = None
    table: dict[str, int] = field(default_factory=dict)
    text: str | None = "t"
    flag: bool = False


class Plain(Attack):
    """No dataclass."""

    def __init__(self, factor: float, *rest: int, name: "Nowhere" = "x", **more: int) -> None:
        self.factor, self.name = factor, name


@dataclass
class Holder:
    """Holds an attack that has a default."""

    attack: Attack = Mixed()
    other: Attack | None = None
    number: int = 3


def attack(*options):
    return made(*(("attack." + path, text) for path, text in options), root=Holder).attack


def test_fields_of_other_types():
    assert attack() == Mixed()
    assert attack(("path", "a/b")).path == Path("a/b")
    assert attack(("words", "[x, y]")).words == ("x", "y")
    assert attack(("pair", "[2, y]")).pair == (2, "y")
    assert attack(("ids", "[2, 2, 3]")).ids == frozenset({2, 3})
    assert [attack(("choice", text)).choice for text in ("one", "2", "null")] == ["one", 2, None]
    assert attack(("anything", "[1, {a: b}]")).anything == [1, {"a": "b"}]
    assert attack(("table", "{a: 1}"), ("table.b", "2")).table == {"a": 1, "b": 2}
    assert [attack(("text", text)).text for text in ("null", "3", "", "~")] == [None, "3", "", "~"]
    assert attack(("flag", "true")).flag is True


def test_a_class_that_is_no_dataclass():
    here = f"{__name__}.Plain"
    plain = made(("attack", here), ("attack.factor", "3"), ("attack.name", "n"), root=Holder).attack
    assert (type(plain), plain.factor, plain.name) == (Plain, 3, "n")
    with pytest.raises(ConfigurationError, match=r"attack: Plain needs factor\. Give --attack\.factor VALUE"):
        made(("attack", here), root=Holder)


def test_a_class_whose_module_is_broken_is_named_with_the_reason(tmp_path, monkeypatch):
    (tmp_path / "broken_on_purpose.py").write_text("1 / 0")
    (tmp_path / "lacking_on_purpose.py").write_text("import nosuch")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match="broken_on_purpose cannot be imported: ZeroDivisionError: division"):
        made(("attack", "broken_on_purpose.Attack"))
    with pytest.raises(ConfigurationError, match=r"got lacking_on_purpose.Attack \(No module named 'nosuch'\)"):
        made(("attack", "lacking_on_purpose.Attack"))
    sys.modules.pop("broken_on_purpose", None)


def test_paths_and_defaults_that_are_no_dataclasses_are_written():
    draft = Draft(Holder)
    written = draft.config()
    assert written["attack"]["init_args"]["path"] == "here"
    assert written["attack"]["init_args"]["words"] == ["a", "b"]


def test_a_class_without_a_form_is_refused_with_a_sentence():
    """It is found by its name, though no help offers it, and no run with it has an identity."""
    draft = Draft(Run)
    draft.set("task", {"class_path": "phalanx.attacks.chameleon._Contrast", "init_args": {"temperature": 1.0}})
    with pytest.raises(
        ConfigurationError, match="A value of the class _Contrast has no canonical form, so a run with it"
    ):
        draft.make(Run)


def test_an_example_that_is_not_here_is_in_the_repository(tmp_path, monkeypatch):
    """The wheel holds no examples, and the help names some."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"examples/mnist.yaml does not exist\. .* git clone https://"):
        from_file(Path("examples/mnist.yaml"))
    with pytest.raises(ConfigurationError, match=r"mine.yaml does not exist\.$"):
        from_file(Path("mine.yaml"))


def test_a_misspelt_file_is_named_as_it_is_written(tmp_path):
    for name in ("rounds.yaml", "arrivals.yml", "round.txt"):
        (tmp_path / name).write_text("")
    with pytest.raises(ConfigurationError, match=rf"does not exist\. Did you mean {tmp_path}/rounds\.yaml\?$"):
        from_file(tmp_path / "round.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "link.yaml").symlink_to("nowhere.txt")
    for name in ("zzz.yaml", "folder.yml", "link.yaml"):
        with pytest.raises(ConfigurationError, match=r"does not exist\.$"):
            from_file(tmp_path / name)
