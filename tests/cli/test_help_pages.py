"""The stored help is what the classes of today give, and looks the same."""

import json
import subprocess
import sys

import pytest

from generated import COMMAND
from phalanx.cli.deferred import STORED
from phalanx.cli.main import main
from phalanx.cli.parser import Parser

GENERATED = """
import json
from phalanx.cli.help_pages import parsers
print(json.dumps({name: [parser.page, parser.format_help()] for name, parser in parsers()}))
"""


@pytest.fixture(scope="module")
def generated():
    """Each page, and its text, as a process makes them that knows no classes of these tests."""
    done = subprocess.run([sys.executable, "-c", GENERATED], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def stored():
    return json.loads(STORED.read_text(encoding="utf-8"))


@pytest.mark.exports
def test_the_stored_help_is_that_of_today(generated, stored):
    assert len(generated) > 100
    changed = {name for name in generated.keys() | stored.keys() if stored.get(name) != generated.get(name, [None])[0]}
    assert not changed, f"run `{COMMAND}` and commit help.json"


def test_it_looks_like_the_help_of_the_parser_that_reads_the_options(generated):
    for name, (page, text) in generated.items():
        assert Parser.of(page).format_help() == text, name


def shown(capsys, command):
    with pytest.raises(SystemExit) as stop:
        main(command.split())
    out, err = capsys.readouterr()
    return stop.value.code, out, err


def test_help_is_shown_wherever_it_is_asked_for(capsys, generated):
    for command in ("run --help", "run -h", "run --clients 3 --attack.std 2 --help"):
        assert shown(capsys, command) == (0, generated["phalanx run"][1], "")
    for command in ("run --attack.help Gaussian", "partition --attack.help=Gaussian"):
        assert shown(capsys, command) == (0, generated["attack Gaussian"][1], "")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run --clients --help", "phalanx run: --clients needs a value."),
        ("run --attack.help Gausian", "phalanx run: attack must be one of ALIE, "),
        ("run --attac.help", "phalanx run: There is no option --attac.help."),
        ("run --attack.std=-- --help", "phalanx run: --attack.std needs a value."),
    ],
)
def test_mistakes_are_those_of_the_whole_parser(capsys, command, said):
    status, out, err = shown(capsys, command)
    assert (status, out) == (2, "")
    assert err.startswith(said)
    assert err.endswith("See: phalanx run --help\n")


def test_what_is_not_stored_is_made(capsys):
    status, out, _ = shown(capsys, "run --algorithm Quorum --algorithm.algorithm.help Catalyst")
    assert status == 0
    assert out.startswith("Catalyst: ")
