"""Mistakes on the command line, end to end.

Every one of them fails before a federation is built.  Other tests define classes of their own, which are choices too
while they are loaded: lists are compared by what must be in them.
"""

import re
import sys
import warnings

import pytest

from phalanx import aggregators, attacks, training
from phalanx.cli import main as cli
from phalanx.cli.advice import KNOWN_AS, near

ALGORITHMS = ("ByzantineCFL", "FedAsync", "FedAvg")
ATTACKS = ("AllLabelsTo", "Gaussian", "NoiseInputs", "NonFinite", "Rescale", "SignFlip")
RULES = ("Mean", "Median", "TrimmedMean")
SCHEDULES = ("ExponentialLR", "StepLR")


@pytest.fixture
def said(capsys, monkeypatch, tmp_path):
    """What the command says: the sentence, and the line that points to the help."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setattr("phalanx.cli.run.simulate", lambda *_, **__: pytest.fail("a federation was run"))

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main(list(arguments))
        captured = capsys.readouterr()
        assert ended.value.code == 2
        assert captured.out == ""
        *sentence, pointer = [line for line in captured.err.splitlines() if not line.startswith("The module ")]
        program = "phalanx" if sentence[0].startswith("phalanx: ") else f"phalanx {arguments[0]}"
        assert pointer == f"See: {program} --help"
        assert sentence[0].startswith(f"{program}: ")
        return "\n".join(sentence).removeprefix(f"{program}: ")

    return call


def names(text):
    return set(re.findall(r"[\w.-]+\w", text))


def is_advice(text):
    """A single sentence or two without the words of the parser."""
    return "\n" not in text and not re.search(r"Parser key|Subtypes|<class|NestedArg|Namespace", text)


# --- options


@pytest.mark.parametrize(
    ("given", "meant", "others"),
    [
        ("--algoritm", "--algorithm", ("--algorithm", "--attack", "--clients", "--seed", "--until.steps")),
        ("--bizantine", "--byzantine", ("--byzantine",)),
        ("--until.stepz", "--until.steps", ("--until.steps", "--until.seconds")),
        ("--guard.norm", "--guard.max_norm", ("--guard.max_norm", "--guard.max_size", "--guard.max_staleness")),
        ("--evaluation.evry", "--evaluation.every", ("--evaluation.every",)),
    ],
)
def test_unknown_options(said, given, meant, others):
    for arguments in ((given, "3"), (f"{given}=3",)):
        text = said("run", *arguments)
        assert text.startswith(f"There is no option {given}. Did you mean {meant}? There are: ")
        assert is_advice(text)
        assert set(others) <= names(text)


def test_an_unknown_option_with_a_prefix_lists_those_with_that_prefix_only(said):
    listed = said("run", "--until.stepz", "3").split("There are: ")[1]
    assert listed == "--until.seconds, --until.steps."


def test_an_unknown_option_that_is_near_nothing(said):
    text = said("run", "--xyzzy")
    assert text.startswith("There is no option --xyzzy. There are: ")
    assert {"--algorithm", "--config", "--folder"} <= names(text)


@pytest.mark.parametrize(
    ("command", "given", "meant"), [("demo", "--sede", "--seed"), ("partition", "--picure", "--picture")]
)
def test_unknown_options_of_other_commands(said, command, given, meant):
    text = said(command, given, "1")
    assert text.startswith(f"There is no option {given}. Did you mean {meant}? There are: ")


# --- classes


@pytest.mark.parametrize(
    ("arguments", "path", "value", "meant", "choices"),
    [
        (["--algorithm", "FedAvgg"], "algorithm", "FedAvgg", "FedAvg", ALGORITHMS),
        (["--algorithm", "fedavg"], "algorithm", "fedavg", "FedAvg", ALGORITHMS),
        (["--algorithm=ByzantineCLF"], "algorithm", "ByzantineCLF", "ByzantineCFL", ALGORITHMS),
        (["--attack", "Gausian"], "attack", "Gausian", "Gaussian", (*ATTACKS, "null")),
        (["--data", "MNISTT"], "data", "MNISTT", "MNIST", ("CIFAR10", "Digits", "FashionMNIST", "MNIST")),
        (["--partition", "Diriclet"], "partition", "Diriclet", "Dirichlet", ("Dirichlet", "Shards", "Uniform")),
        (["--model", "LeNett"], "model", "LeNett", "LeNet", ("MLP", "LeNet", "TorchModule")),
        (["--latency", "LogNormale"], "latency", "LogNormale", "Lognormal", ("Constant", "Lognormal", "Normal")),
        (["--algorithm.aggregate", "Medan"], "algorithm.aggregate", "Medan", "Median", RULES),
        (["--algorithm", "FedAvg", "--algorithm.aggregate", "Medan"], "algorithm.aggregate", "Medan", "Median", RULES),
        (
            ["--algorithm", "ByzantineCFL", "--algorithm.aggregate", "TrimedMean"],
            "algorithm.aggregate",
            "TrimedMean",
            "TrimmedMean",
            RULES,
        ),
        (["--algorithm.preprocess", "Ignor"], "algorithm.preprocess", "Ignor", "Ignore", ("AsReported", "Ignore")),
        (
            ["--algorithm", "FedAsync", "--algorithm.staleness", "Hing"],
            "algorithm.staleness",
            "Hing",
            "Hinge",
            ("Undiscounted", "Hinge", "Polynomial"),
        ),
        (["--attack", "IPM"], "attack", "IPM", "InnerProduct", ATTACKS),
        (["--attack", "ModelReplacement"], "attack", "ModelReplacement", "ConstrainAndScale", ATTACKS),
        (["--algorithm.aggregate", "rfa"], "algorithm.aggregate", "rfa", "GeometricMedian", RULES),
        (["--training.lr", "ExponentalLR"], "training.lr", "ExponentalLR", "ExponentialLR", ("number", *SCHEDULES)),
    ],
)
def test_unknown_classes(said, arguments, path, value, meant, choices):
    text = said("run", *arguments)
    assert text.startswith(f"{path} must be ")
    assert ", or the import path of your own " in text
    assert f", got {value}. Did you mean {meant}?" in text
    assert is_advice(text)
    assert set(choices) <= names(text)


def test_names_of_the_literature_are_those_of_classes():
    known = {*aggregators.__all__, *attacks.__all__, *training.__all__}
    assert {*KNOWN_AS.values()} <= known
    assert not {*KNOWN_AS} & {name.lower() for name in known}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("phalanx.aggregators.Median", "it is no subclass of Algorithm"),
        ("torch.nn.Linear", "it is no subclass of Algorithm"),
        ("nosuch.module.Foo", "No module named 'nosuch'"),
        ("phalanx.nosuch.Foo", "No module named 'phalanx.nosuch'"),
        ("phalanx.algorithms.Foo", "module 'phalanx.algorithms' has no attribute 'Foo'"),
    ],
)
def test_import_paths_that_lead_nowhere(said, given, why):
    text = said("run", "--algorithm", given)
    assert text.startswith("algorithm must be one of ")
    assert f"got {given} ({why})" in text
    assert is_advice(text)
    assert set(ALGORITHMS) <= names(text)


def test_a_class_that_is_nested_and_wrong(said):
    text = said("run", "--algorithm.aggregate", "phalanx.algorithms.FedAvg")
    assert text.startswith("algorithm.aggregate must be one of ")
    assert "(it is no subclass of Aggregator)" in text
    assert set(RULES) <= names(text)


# --- fields of a class


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--algorithm.agregate", "Mean"],
            "algorithm: FedAvg has no option 'agregate'. Did you mean aggregate? "
            "It has: aggregate, preprocess, server_lr.",
        ),
        (
            ["--algorithm.aggregate", "TrimmedMean", "--algorithm.aggregate.bta", "0.1"],
            "algorithm.aggregate: TrimmedMean has no option 'bta'. Did you mean beta? It has: beta, form.",
        ),
        (
            ["--algorithm.aggregate", "Median", "--algorithm.aggregate.beta", "0.1"],
            "algorithm.aggregate: Median has no option 'beta'. It has none.",
        ),
        (
            ["--attack", "Gaussian", "--attack.st", "1"],
            "attack: Gaussian has no option 'st'. Did you mean std? It has: std, add.",
        ),
        (
            ["--attack", "Gaussian", "--attack.factor", "1"],
            "attack: Gaussian has no option 'factor'. It has: std, add.",
        ),
        (
            ["--training.lr", "ExponentialLR", "--training.lr.deca", "0.9"],
            "training.lr: ExponentialLR has no option 'deca'. Did you mean decay? It has: start, decay.",
        ),
        (
            ["--model", "MLP", "--model.hiden", "[3]"],
            "model: MLP has no option 'hiden'. Did you mean hidden? It has: hidden, dropout, start.",
        ),
    ],
)
def test_unknown_fields_of_a_class(said, arguments, sentence):
    assert said("run", *arguments) == sentence


# --- values


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--clients", "many"], "clients must be an integer, got many."),
        (["--clients=many"], "clients must be an integer, got many."),
        (["--clients", "2.5"], "clients must be an integer, got 2.5."),
        (["--seed", "1.5"], "seed must be an integer, got 1.5."),
        (["--participation", "half"], "participation must be a number, got half."),
        (["--seed", "some"], "seed must be an integer, got some."),
        (["--training.epochs", "few"], "training.epochs must be an integer, got few."),
        (["--training.clip_norm", "x"], "training.clip_norm must be a number, or null, got x."),
        (["--until.steps", "x"], "until.steps must be an integer, or null, got x."),
        (["--buffers", "avg"], "buffers must be one of refuse, average, freeze, got avg."),
        (["--attack", "NonFinite", "--attack.value", "nann"], "attack.value must be one of nan, inf, -inf, got nann."),
        (["--attack", "Gaussian", "--attack.add", "maybe"], "attack.add must be true or false, got maybe."),
        (["--partition", "Dirichlet", "--partition.alpha", "x"], "partition.alpha must be a number, got x."),
        (["--model", "MLP", "--model.hidden", "x"], "model.hidden must be a list, such as [1, 2], got x."),
        (["--algorithm.server_lr", "fast"], "algorithm.server_lr must be a number, got fast."),
        (
            ["--algorithm", "FedAsync", "--algorithm.staleness", "Hinge", "--algorithm.staleness.b", "x"],
            "algorithm.staleness.b must be an integer, got x.",
        ),
        (
            ["--algorithm.aggregate", "TrimmedMean", "--algorithm.aggregate.beta", "x"],
            "algorithm.aggregate.beta must be a number, got x.",
        ),
        (
            ["--until", "x"],
            "until must be given by its options (steps, seconds) or by a file that holds them, got x.",
        ),
    ],
)
def test_values_of_a_wrong_type(said, arguments, sentence):
    assert said("run", *arguments) == sentence


def test_a_number_or_a_class(said):
    text = said("run", "--training.lr", "abc")
    assert text.startswith("training.lr must be a number, or one of ")
    assert ", or the import path of your own Schedule, got abc." in text
    assert set(SCHEDULES) <= names(text)


def test_values_of_other_commands(said):
    assert said("demo", "--seed", "x") == "seed must be an integer, got x."
    assert said("partition", "--clients", "x") == "clients must be an integer, got x."


# --- commands and files


@pytest.mark.parametrize("arguments", [["runn"], []], ids=str)
def test_unknown_and_missing_commands(said, arguments):
    text = said(*arguments)
    assert {"run", "demo", "partition", "report"} <= names(text)
    assert all(argument in text for argument in arguments)


def test_a_config_file_that_is_not_there(said, tmp_path):
    text = said("run", "--config", str(tmp_path / "none.yaml"))
    assert str(tmp_path / "none.yaml") in text
    assert "does not exist" in text


@pytest.mark.parametrize(
    ("content", "start", "contained"),
    [
        ("algorithm: FedAvgg\n", "algorithm must be one of ", ("got FedAvgg. Did you mean FedAvg?", *ALGORITHMS)),
        ("clients: many\n", "clients must be an integer, got many.", ()),
        ("training:\n  epochs: x\n", "training.epochs must be an integer, got x.", ()),
        ("attack:\n  class_path: Gausian\n", "attack must be one of ", ("Did you mean Gaussian?", *ATTACKS)),
        (
            "attack:\n  class_path: Gaussian\n  init_args:\n    st: 1\n",
            "attack: Gaussian has no option 'st'.",
            ("Did you mean std? It has: std, add.",),
        ),
        ("klients: 3\n", "", ("klients",)),
        ("clients: [3\n", "", ("line 1",)),
    ],
)
def test_mistakes_in_a_config_file(said, tmp_path, content, start, contained):
    path = tmp_path / "run.yaml"
    path.write_text(content)
    text = said("run", "--config", str(path))
    assert text.startswith(start)
    assert all(part in text for part in contained)


def test_an_unknown_key_of_a_configuration_file_is_named_with_the_right_ones(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text("klients: 3")
    with pytest.raises(SystemExit):
        cli.main(["run", "--config", str(tmp_path / "mine.yaml")])
    assert "no option 'klients'. Did you mean clients? It has: algorithm, data, clients" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("run --threads x", "threads must be an integer, got x"),
        ("run --attack.std 1", "attack.std is an option of a class: choose the class first"),
        ("run --client 3", "There is no option --client. Did you mean --clients?"),
    ],
)
def test_what_is_no_parameter_of_a_run_or_comes_too_early(capsys, command, says):
    with pytest.raises(SystemExit):
        cli.main(command.split())
    assert says in capsys.readouterr().err


# --- what a first user tries


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("run --lr -1", "There is no option --lr. Did you mean --training.lr? There are: "),
        ("run --steps 3", "There is no option --steps. Did you mean --training.steps or --until.steps? There are: "),
        ("run --aggregate Median", "There is no option --aggregate. Did you mean --algorithm.aggregate? There are: "),
        ("run --std 3", "There is no option --std. There are: "),
        ("demo --lr 3", "There is no option --lr. There are: "),
        ("run extra", "Nothing can be made of extra: values follow an option, whose name begins with --."),
        (
            "run --training.lr.start 0.1",
            "training.lr.start is an option of a class: choose the class first, training.lr",
        ),
        ("run --data HuggingFace", "data: HuggingFace needs path. Give --data.path VALUE."),
        ("partition --model TorchModule", "model: TorchModule needs path. Give --model.path VALUE."),
        ("run --data InMemory", "data: InMemory is made of what no option can hold. Make the run in Python, or choose"),
        ("report", "Name the folder of at least one run, such as runs/NAME."),
        ("report --title x", "Name the folder of at least one run, such as runs/NAME."),
    ],
)
def test_what_a_first_user_tries(said, arguments, sentence):
    assert said(*arguments.split()).startswith(sentence)


def test_a_rule_that_was_taken_for_an_algorithm(said):
    assert said("run", "--algorithm", "Medan").endswith("got Medan. Did you mean --algorithm.aggregate Median?")
    assert "Did you mean" not in said("run", "--algorithm", "Something")


def test_a_name_that_is_there_is_meant_before_one_of_the_literature():
    assert near("RFA", ["GeometricMedian", "rfa"]) == "rfa"
    assert near("RFA", ["GeometricMedian", "Median"]) == "GeometricMedian"


def test_what_cannot_be_given_as_an_option_is_not_offered(said, capsys):
    assert "InMemory" not in said("run", "--data", "Foo")
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    assert "InMemory" not in capsys.readouterr().out


def test_hidden_options_are_not_listed(said):
    assert not {"--threads", "--device", "--again"} & names(said("partition", "--xyzzy"))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("training:\n  lrr: 0.1\n", "training: LocalSGD has no option 'lrr'. Did you mean lr? It has: epochs, steps, "),
        ("until:\n  stepz: 1\n", "until: Until has no option 'stepz'. Did you mean steps? It has: steps, seconds."),
        (
            "- clients\n",
            "A configuration file must be a mapping of options to values, as `clients: 10`, got `- clients`.",
        ),
        ("3", "A configuration file must be a mapping of options to values, as `clients: 10`, got `3`."),
    ],
)
def test_more_mistakes_in_a_config_file(said, tmp_path, content, sentence):
    (tmp_path / "run.yaml").write_text(content)
    for command in ("run", "partition"):
        assert said(command, "--config", str(tmp_path / "run.yaml")).startswith(sentence)
