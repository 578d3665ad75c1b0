"""The cases on rules of libraries: the scorecard's page follows from the records, and our own column from our rules."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from phalanx.cli.main import main
from phalanx.cli.options import check
from phalanx.conformance import CASES, LIBRARIES, phalanx_rules, record, running
from phalanx.conformance.outcomes import outcomes
from phalanx.conformance.process import LibraryProcess
from phalanx.conformance.suite import judged

FOLDER = Path(__file__).parent.parent / "benchmarks"
LIAR = '''"""A library with one rule, which is wrong in two ways."""

import numpy as np

from phalanx.conformance import RuleForm

PACKAGES = ("numpy",)


def forms(rule, parameters, matrix, sizes=None):
    def call(_):
        matrix[...] = 0 if len(matrix) == 1 else matrix
        return matrix.mean(0)

    return {"only": RuleForm(call)} if rule == "Mean" else {}


def array(result):
    return np.asarray(result)
'''


@pytest.fixture
def card(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return runpy.run_path(str(FOLDER / "scorecard.py"))


def test_the_page_is_made_from_the_records(card):
    assert set(card["stored"]()) == set(LIBRARIES)
    assert card["page"](card["stored"]()) == card["PAGE"].read_text(), "python benchmarks/scorecard.py --render"


def test_our_column_is_what_our_rules_do(card):
    class Here(LibraryProcess):
        def ask(self, order, **given):
            given |= json.loads(json.dumps({"inputs": given["inputs"]}))
            return outcomes(phalanx_rules, **given)

    here = Here((), {}, 1.0)
    recorded = card["stored"]()["phalanx"]["verdicts"]
    assert [*recorded] == [case.name for case in CASES]
    for case in CASES:
        for rule in case.rules:
            met = {form: verdict.met for form, verdict in judged(case, rule, here).items()}
            assert met == {form: met for form, (met, _) in recorded[case.name][rule].items()}, (case.name, rule)


def test_a_library_that_is_not_here_and_one_that_is_none(capsys, monkeypatch):
    monkeypatch.setattr("phalanx.conformance.libraries.find_spec", lambda _: None)
    for name in {*LIBRARIES} - {"phalanx"}:
        assert main(["check", "--library", name]) == 2
        assert re.search(r"is not installed here\. Install it: pip install \S", capsys.readouterr().err)
    for words in (["--library", "pandas"], ["--library", "no.py"], [], ["Median", "--library", "phalanx"]):
        assert main(["check", *words]) == 2
        assert capsys.readouterr().err.startswith("phalanx check: ")


def test_the_help_names_all_libraries_and_counts_the_cases():
    said = " ".join(check().format_help().split())
    assert all(name in said for name in LIBRARIES)
    assert f"against {len(CASES)} cases" in said


def test_a_library_of_a_file(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(LIAR)
    (tmp_path / "json.py").write_text("raise SystemExit('the folder takes the place of packages')")
    monkeypatch.chdir(tmp_path)
    assert main(["check", "--library", "mine.py"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("mine: python 3.")
    assert "The caller's rows: 1 of 1\n" in said
    assert "A single row: 0 of 1\n  Mean: no, beyond by" in said
    assert "Half of the rows may lie: -\n" in said
    (tmp_path / "mine.py").write_text(f"{LIAR}\n\ndef forms(*_):\n    return {{}}\n")
    assert main(["check", "--library", "mine.py"]) == 2
    assert "mine has none of the rules of the cases, so that nothing was tried." in capsys.readouterr().err
    (tmp_path / "mine.py").write_text("import nothing_such")
    assert main(["check", "--library", "mine.py"]) == 2
    assert "mine cannot be imported: ModuleNotFoundError: No module named 'nothing_such'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flower", "nvflare"])
def test_a_library_that_is_here_does_what_its_record_says(name, card):
    recorded = card["stored"]()[name]
    with running(LIBRARIES[name]) as process:
        again = record(LIBRARIES[name], process)
    if any(again["versions"].get(package) != number for package, number in recorded["versions"].items()):
        pytest.skip("the record is of other versions")
    again["verdicts"].pop("offset")  # differs between processors
    for case, rules in again["verdicts"].items():
        assert rules == recorded["verdicts"][case], case


def test_the_plugin_has_a_test_for_each_case_and_rule(tmp_path):
    (tmp_path / "mine.py").write_text(LIAR)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "phalanx.conformance.plugin", "--library", "mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    found = dict(re.findall(r"(\d+) (passed|failed|skipped)", done.stdout.splitlines()[-1]))
    counts = {what: int(number) for number, what in found.items()}
    means = sum("Mean" in case.rules for case in CASES)
    assert counts["skipped"] == sum(len(case.rules) for case in CASES) - means
    assert counts["passed"] + counts["failed"] == means
    assert "one-Mean" in done.stdout


def test_judges_see_what_is_wrong():
    cases = {case.name: case for case in CASES}
    fine, nan = np.ones(50).tolist(), [float("nan"), *np.ones(49)]

    def judge(name, *results, **more):
        return cases[name].judge([{"result": result, "changed": False, **more} for result in results])

    assert judge("nan", fine) == (True, "in range")
    assert judge("nan", nan) == (False, "NaN")
    assert judge("far", [1e9] * 50).met is False
    assert judge("copies", [2.0] * 50).met is False
    assert cases["copies"].judge([{"error": "IndexError: 3"}]) == (False, "IndexError")
    assert cases["nan"].judge([{"error": "ValueError: NaN"}]) == (True, "ValueError")
    assert judge("none", fine) == (False, "a result")
    assert judge("none", None) == (True, "no result")
    assert [judge("declared", [share, 0, 0]).met for share in (0.1, 0.6, -0.1)] == [True, False, False]
    assert [judge("even", [value]).met for value in (2.0, 1.5, 4.0)] == [None, True, False]
    assert judge("ties", [5.0], [5.0]).said != judge("ties", [5.0], [-5.0]).said
    assert [judge("offset", [0.0], [8192 + off]).met for off in (0.0, 0.001, 0.02)] == [True, True, False]
    assert [judge("twice", [1.0], [1.0 + off]).met for off in (0.0, 1e-16, 1e-15)] == [True, True, False]
    assert judge("arguments", fine, changed=True) == (False, "overwritten")
