"""docs/data.md, and what is measured of it: everything is named, commands are understood, the example runs."""

import inspect
import os
import re
import shlex
from pathlib import Path

import jaxtyping
import pytest
import torch
import yaml
from sklearn.datasets import load_breast_cancer

from phalanx import data
from phalanx.cli.main import main
from phalanx.data import Groups, Partition, Schema, Source
from phalanx.rng import borrowed

DOCS = Path(__file__).parents[2] / "docs"
PAGE, MEASURED = (DOCS / "data.md").read_text(), (DOCS / "measurements" / "training.md").read_text()
COMMANDS = re.findall(r"^\$ phalanx ((?:run|partition) (?:.*\\\n)*.*)$", PAGE, re.MULTILINE)
ROWS = re.findall(
    r"^\| `(\w+(?: --data.*?)?)` \| `(\w+(?: --model.*?)?)`(?:, with `(.*?)`)? \|", MEASURED, re.MULTILINE
)
CHOICES = [f"run --data {data} --model {model} {more}" for data, model, more in ROWS]


@pytest.mark.exports
@pytest.mark.parametrize("kind", [Source, Partition, Groups])
def test_every_class_is_in_a_table(kind):
    public = {
        name for name in data.__all__ if inspect.isclass(value := getattr(data, name)) and issubclass(value, kind)
    }
    tables = set(re.findall(r"^\| `(\w+)", PAGE, re.MULTILINE))
    assert public - {kind.__name__} <= tables, "write its row in a table of docs/data.md"


def test_there_are_commands():
    assert len(COMMANDS) >= 5
    assert len(CHOICES) >= 12


@pytest.mark.parametrize("command", COMMANDS + CHOICES)
def test_every_command_is_understood(command, capsys, monkeypatch):
    monkeypatch.delenv("PHALANX_DATA", raising=False)
    arguments = shlex.split(command.replace("\\\n", " "))
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--print_config"])
    assert not stop.value.code
    chosen = yaml.safe_load(capsys.readouterr().out)["data"]["class_path"]
    assert chosen == "phalanx.data." + arguments[arguments.index("--data") + 1]


def test_the_table_is_learned(capsys, tmp_path, monkeypatch):
    example, *_ = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    load_breast_cancer(as_frame=True).frame.to_csv(tmp_path / "cancer.csv", index=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as in a user's program
    with borrowed(0, "test"):
        exec(example, {})
    assert float(capsys.readouterr().out.strip().removesuffix("%")) > 85


def test_the_schema_is_read_and_a_file_checked(capsys, tmp_path, monkeypatch):
    described, images = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert Schema.parse(images.encode(), "images").shape == (1, 224, 224)
    _, example = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "runs" / "hospitals").mkdir(parents=True)
    (tmp_path / "runs" / "hospitals" / "schema.json").write_text(described)
    (tmp_path / "new.csv").write_text("state,sex,age,day\nwell,f,54,1\nsick,m,?,2\n")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(example, names)
    scaled = torch.tensor([(54 - 53.1) / 9.4] * 2, dtype=torch.float64).float()
    assert names["data"].x.tolist() == [[scaled[0], 0, 1, 0], [scaled[1], 1, 0, 1]]
    assert names["data"].y.tolist() == [1, 0]
    assert capsys.readouterr().out == "Not used, as the schema has no such column: 'day'.\n"


def test_the_commands_of_a_schema_print_what_is_shown(capsys, tmp_path, monkeypatch):
    """Each line that is shown, in its order; and the digest of the schema that they make."""
    for file in (DOCS / "tutorials" / "heart").glob("*.csv"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    first, *rows = (tmp_path / "switzerland.csv").read_text().splitlines()
    rows[1] = rows[1].replace("34,1,", "34,m,", 1)
    (tmp_path / "changed.csv").write_text("\n".join([first.replace("age", "Age"), *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    shown = re.findall(r"^\$ phalanx (schema .*)\n((?:(?!\$ |```).*\n)+)", PAGE, re.MULTILINE)
    assert [command.split()[1] for command, _ in shown] == ["init", "check", "check", "statistics", "scale"]
    for command, lines in shown:
        for site in ("cleveland", "hungarian", "switzerland") if "scale" in command else ():
            main(["schema", "statistics", f"{site}.csv", "-o", f"{site}.json"])
            capsys.readouterr()
        main(command.split())
        printed = capsys.readouterr().out
        for line in lines.splitlines():
            if line != "...":
                assert f"{line}\n" in printed, command
                printed = printed.partition(f"{line}\n")[2]


@pytest.mark.slow
def test_the_example_measures(capsys):
    folder = os.environ.get("PHALANX_DATA")
    if not folder or not (Path(folder) / "ag_news").is_dir():
        pytest.skip("PHALANX_DATA does not name a folder with ag_news/")
    (example,) = re.findall(r"^```python\n(.*?)^```$", MEASURED, re.MULTILINE | re.DOTALL)
    threads = torch.get_num_threads()
    exec(example.replace("FOLDER", folder).replace("limit=20", "limit=1"), {})
    torch.set_num_threads(threads)
    assert re.fullmatch(r"\d+ examples a second\n", capsys.readouterr().out)


def test_every_link_leads_somewhere():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", PAGE):
        assert (DOCS / target).exists(), target
