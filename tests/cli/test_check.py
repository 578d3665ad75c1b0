"""`phalanx check`: a class of the user's own, in a file or by its import path, and what cannot be checked."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.cli.main import main

OWN = '''
from dataclasses import dataclass

import torch

from phalanx.aggregators import Aggregator, Choice, Krum, Mean, Median, Selection
from phalanx.weighting import AsReported, Ignore


@dataclass(frozen=True)
class Good(Median):
    """A median."""


@dataclass(frozen=True)
class First(Mean):
    """The first row."""

    def aggregate(self, points):
        return points.matrix[0].clone()


@dataclass(frozen=True)
class Shortest(Selection):
    """Averages all rows but the f longest, and forgets that there may be no others."""

    f: int = 1

    def choose(self, points):
        kept = torch.zeros(len(points), dtype=torch.float64)
        kept[torch.argsort(points.norms)[: len(points) - self.f]] = 1.0
        return Choice(points.share * kept / (points.share * kept).sum())


class Unfinished(Aggregator):
    """Lacks `aggregate`."""


class NeedsK(Mean):
    """Makes itself."""

    def __init__(self, k):
        self.k = k


@dataclass(frozen=True)
class Cautious(Krum):
    """Takes a number under another name."""

    attackers: int = 1


@dataclass(frozen=True)
class Told(Median):
    """Needs a number that nothing stands for."""

    patience: int = -1

    def __post_init__(self):
        if self.patience < 0:
            raise TypeError("patience is missing.")


@dataclass(frozen=True)
class Reassuring(AsReported):
    """Says of the sizes as reported that they bound what attackers weigh."""

    def held(self, sizes, f, q, clients, *, parted=False):
        return Ignore().held(sizes, f, q, clients)
'''


@pytest.fixture
def checked(tmp_path, monkeypatch, capsys, request):
    """Check a class of a file, another one for each test; return the status, the output and the messages."""
    name = f"mine_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(subject, *options):
        status = main(["check", subject.replace("mine", name), *options])
        out, err = capsys.readouterr()
        return status, out.replace(name, "mine"), err.replace(name, "mine")

    yield run
    sys.modules.pop(name, None)


def test_a_rule_that_holds_what_it_must(checked):
    status, out, err = checked("mine.py:Good")
    assert (status, out.splitlines()[0]) == (0, "Good is a rule.")
    assert re.search(r"13 of 13 properties hold: .*\battackers\.$", out.strip())
    assert err == "The module mine is imported, which runs its code.\n"


def test_a_rule_that_returns_its_first_row(checked):
    status, out, _ = checked("mine.First")
    assert status == 1
    assert "Not tried: attackers, since its `tolerates` bounds no range, distance or length." in out
    assert not re.search(r"hold: .*attackers", out)
    assert "order: The order of clients must not change the result. Rows [[" in out
    assert "weights: Weights must count. It ignores them: see `points.weights`." in out
    assert "9 of 13 properties hold" in out


def test_a_rule_that_tolerates_nobody_is_tried_with_the_numbers_that_it_has(checked):
    status, out, _ = checked("mine.py:Shortest")
    assert (status, out.splitlines()[0]) == (
        1,
        "Shortest is a rule. It tolerates no attackers by its `tolerates`, and was tried as Shortest(f=1).",
    )
    assert {"translation", "few rows"} <= {line.partition(":")[0] for line in out.splitlines()[1:]}
    assert checked("mine.py:Shortest(f=1)")[1].splitlines()[1:] == out.splitlines()[1:]


def test_a_property_that_its_docstring_excepts_is_left_out(checked):
    status, out, _ = checked("mine.py:First", "--without", "order")
    assert "order" not in out
    assert (status, "9 of 12 properties hold" in out) == (1, True)


def test_a_weighting_that_promises_too_much(checked):
    status, out, _ = checked("mine.py:Reassuring")
    assert (status, out.splitlines()[0]) == (1, "Reassuring is a weighting.")
    assert "share: `held` must bound the attackers' weight. Of f = 1, q = 2, " in out
    assert "5 of 6 properties hold" in out


@pytest.mark.parametrize("subject", ["TrimmedMean", "TrimmedMean(beta=share)", "mine.py:Cautious(f=f, attackers=f)"])
def test_numbers_of_attackers_follow(checked, subject):
    status, out, _ = checked(subject)
    assert (status, "hold:" in out) == (0, True), out


def test_sizes_with_too_few_rows_are_passed_over_for_a_number_that_is_given(checked):
    assert checked("Krum(f=3)")[0] == 0  # at least 9 rows, so that of 7, 8 and 11 one is left
    status, out, _ = checked("Krum(f=30)")
    assert (status, "order: It raised TooFewRowsError." in out) == (1, True)


def test_a_file_that_no_module_can_be_called_like(checked):
    Path("my-rules.py").write_text("")
    status, _, err = checked("my-rules.py:Good(f=f)")
    assert (status, "my-rules.py is no name of a module. Rename it, with letters" in err) == (2, True), err


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("none.py:Best", "none.py:Best: there is no file none.py."),
        (
            "mine.py",
            "mine.py names no class of mine.py. It has Good, First, Shortest, Unfinished, ",
        ),
        ("mine.py:Best", "mine.py:Best names no class of mine.py. It has Good"),
        ("mine.py:dataclass", "mine.py:dataclass is no class that can be checked. Name a subclass of Aggregator, Pre"),
        ("mine.Best", "mine.Best is no class that can be checked."),
        ("mine.py:Unfinished", "mine.py:Unfinished is abstract: define all that it must before it is checked."),
        (
            "mine.py:NeedsK",
            "NeedsK has an `__init__` of its own, with k. Make it a frozen dataclass, which has a field ",
        ),
        ("mine.py:Told", "mine.py:Told cannot be made: patience is missing."),
        ("Krum(f=2.5)", "Krum(f=2.5): subject.f must be an integer, got 2.5."),
        ("Krum(g=2)", "Krum(g=2): subject: Krum has no option 'g'."),
        ("Krum(f=", "Krum(f= lacks a bracket"),
        ("Krum(1)", "Krum(1): give each option of a class by its name, as `Krum(f=6)`."),
        ("Private", "Private needs values for clip, noise_multiplier. Give them."),
        ("TrimmedMean(beta=0.7)", "beta must lie in [0, 0.5), got 0.7"),
        ("Digits", "Digits is no class that can be checked."),
        ("", "'' is no class that can be checked."),
        ("x" * 5000, "is no class that can be checked."),
    ],
)
def test_what_cannot_be_checked(checked, subject, said):
    status, out, err = checked(subject)
    assert (status, out) == (2, "")
    assert said in err
    assert len(err) < 700


def test_only_some_properties_can_be_left_out(checked):
    status, _, err = checked("Krum", "--without", "weights")
    assert (status, "Only translation, scaling, order can be left out, got weights." in err) == (2, True)


def test_the_plugin_has_a_test_for_each_property_next_to_those_of_the_user(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n")
    named = ["--contract", "mine.py:First", "--contract", "Median"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "phalanx.cli.check_plugin", *named]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert re.search(r"3 failed, 23 passed, 1 skipped", done.stdout), done.stdout
    assert "The order of clients must not change the result." in done.stdout
    none = subprocess.run([*command, "--contract", "mine.py:Nobody"], cwd=tmp_path, capture_output=True, check=False)
    assert none.returncode == pytest.ExitCode.INTERRUPTED
    assert b"Nobody names no class" in none.stdout


def test_an_attack_with_a_method_that_nothing_would_call_is_refused(tmp_path, capsys):
    file = tmp_path / "late.py"
    file.write_text(
        "from phalanx.attacks import Attack\n\nclass Late(Attack):\n    def delay(self, seconds, rng): ...\n"
    )
    assert main(["check", f"{file}:Late"]) == 2
    assert "Late.delay would not be called" in (said := capsys.readouterr().err)
    assert "class Late(Delaying)" in said
