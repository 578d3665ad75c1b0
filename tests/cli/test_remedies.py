"""Remedies of promises and errors are said as options too, and these options are understood."""

import re
import shlex

import pytest

from phalanx import Run
from phalanx.aggregators import Median
from phalanx.algorithms import FedAvg, Quorum
from phalanx.cli import options
from phalanx.cli.main import main
from phalanx.cli.remedies import remedy_options
from phalanx.weighting import Truncate

VALUES = {"ALPHA": "0.2", "ALPHA_STAR": "0.45", "MIN_PART_SIZE": "5", "F": "1"}
UNEQUAL = ["--partition", "LognormalSizes", "--clients", "12", "--until.steps", "1"]


def plan_of(words):
    return options.run().options(words).draft.make(Run)


@pytest.mark.parametrize(
    ("algorithm", "count"),
    [
        ("--algorithm FedAvg --algorithm.aggregate Median", 3),
        ("--algorithm FedAvg --algorithm.aggregate Median --algorithm.preprocess.beyond_tolerance remark", 3),
        ("--algorithm Quorum --algorithm.k 7 --algorithm.algorithm FedAvg --algorithm.algorithm.aggregate Median", 3),
        ("--algorithm ClusteredFL --algorithm.aggregate Median", 2),
        ("--algorithm FedAvg --algorithm.aggregate Krum --algorithm.aggregate.f 6", 1),
        ("--algorithm FedAvg", 1),
        ("--algorithm RFFL", 0),
    ],
)
def test_what_is_said_can_be_given(algorithm, count, capsys):
    main(["run", *shlex.split(algorithm), *UNEQUAL, "--dry_run"])
    said = "".join(capsys.readouterr())
    found = re.findall(r"^On the command line: (.*)$", said, re.MULTILINE)
    choices = found[0].split("; ") if found else []
    assert len(choices) == count
    before = plan_of([*shlex.split(algorithm), *UNEQUAL])
    for choice in choices:
        words = [VALUES.get(word, word) for word in shlex.split(choice)]
        assert plan_of([*shlex.split(algorithm), *UNEQUAL, *words]) != before, choice


def test_the_innermost_field_is_meant_and_what_belongs_together_is_one_choice():
    inner = Run(Quorum(FedAvg(Median(), Truncate(0.1, 0.4)), 7))
    said = remedy_options('Set scope to "subset" and drawn to 5, or drawn to null. Raise k.', inner)
    assert said == (
        "On the command line: --algorithm.algorithm.preprocess.scope subset --algorithm.algorithm.preprocess.drawn 5; "
        "--algorithm.algorithm.preprocess.drawn null; --algorithm.k K"
    )
    said = "On the command line: --algorithm.aggregate Median"
    assert remedy_options("Choose another rule, such as Median. Raise the deadline.", Run()) == said
    assert remedy_options("Take a rule that tolerates attackers, such as Median.", Run()) == said


def test_the_end_of_a_run_says_it_too(tmp_path, capsys):
    words = ["--algorithm", "FedAvg", "--algorithm.aggregate", "Median", "--deadline.seconds", "5"]
    main(["run", *words, "--clients", "5", "--until.steps", "1", "--model", "MLP", "--folder", str(tmp_path / "run")])
    assert "On the command line: --algorithm.preprocess Truncate" in capsys.readouterr().out
