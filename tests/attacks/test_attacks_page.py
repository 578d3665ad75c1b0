"""docs/attacks.md: every attack has its section, and every command works."""

import inspect
import re
import shlex
from pathlib import Path

import pytest
import yaml

from generated import COMMAND
from phalanx import attacks
from phalanx.attacks import Attack
from phalanx.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs" / "attacks.md").read_text()
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
PLAIN = [name for name, text in SECTIONS.items() if not re.search(rf"--attack(\.\w+)* {name} ", text)]
COMMANDS = re.findall(r"^phalanx (run .*)$", PAGE, re.MULTILINE)
COMMANDS += [f"run --attack {name} --byzantine 0.3" for name in PLAIN]  # as the page says of those without a command


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHALANX_DATA", raising=False)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))


@pytest.mark.exports
def test_every_attack_has_a_section():
    kinds = {getattr(attacks, name) for name in attacks.__all__}
    names = {kind.__name__ for kind in kinds if issubclass(kind, Attack) and not inspect.isabstract(kind)} - {"Attack"}
    assert SECTIONS.keys() == names, f"an attack has a section `### NAME` in docs/attacks.md, exported by `{COMMAND}`"
    for name, text in SECTIONS.items():
        assert {"sees", "source", "harm"} <= set(re.findall(r"^\| (\w+) \|", text, re.MULTILINE)), name
        assert f"[{name}](#{name.lower()})" in PAGE, f"name {name} in the table under 'When they attack'"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_understood(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*shlex.split(command), "--print_config"])
    assert not stop.value.code
    chosen = yaml.safe_load(capsys.readouterr().out)["attack"]["class_path"]
    assert chosen == "phalanx.attacks." + re.search(r"--attack (\w+)", command)[1]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs(command, capsys):
    assert main([*shlex.split(command), "--until.steps", "2", "--threads", "1", "--folder", "here"]) == 0
    assert "Report: here" in capsys.readouterr().out
