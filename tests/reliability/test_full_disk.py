"""A disk that is full while a command writes: a sentence names the file, nothing whole is lost, and it can be repeated.

Without the rights of root a disk has no end, but each file can have one.  To write beyond it is an error of that kind.
"""

import contextlib
import importlib
import os
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from phalanx.cli.main import COMMANDS, GROUPS, main
from phalanx.experiments.leaderboard import board
from phalanx.experiments.leaderboard.tiers import TIERS
from phalanx.experiments.line_store import LineStore
from phalanx.numerics import compilation

SMALL = "--clients 3 --model MLP --model.hidden '[]' --until.steps 2 --training.epochs 1"
QUICK = {  # of each command that writes: how it does, and what makes it write over the files that are there
    "report": ("report run --out page.html", ""),
    "predict": ("predict run --data new.csv --out predictions.csv", ""),
    "weights": ("weights sizes.csv --alpha 0.3 --weights w.csv", ""),
    "schema init": ("schema init table.csv --target y --out new.json", "--again"),
    "schema statistics": ("schema statistics table.csv --schema schema.json --out told.json", "--again"),
    "schema scale": (
        "schema scale site.json --schema schema.json --rule pooled --accept 'pooled scaling' --out scaled.json",
        "--again",
    ),
    "schema sign": ("schema sign schema.json --key coordinator.pem", ""),
    "flower coordinator": ("flower coordinator --roster new/roster.yaml", None),
    "flower key": ("flower key new.pem", None),
    "flower kit": ("flower kit consortium.yaml --folder kit", None),
    "flower request": ("flower request Site client.pem {key} --out new.request", "--again"),
    "flower certificates": ("flower certificates localhost --folder certificates", None),
    "flower certificates, next authority": ("flower certificates --folder known --next_authority", None),
    "flower enrol": ("flower enrol site.request --roster roster.yaml", None),
    "flower revoke": ("flower revoke 0 --roster members.yaml", None),
    "flower readmit": ("flower readmit 0 --roster members.yaml", None),
    "flower rotate": ("flower rotate 0 second.request --roster members.yaml", None),
    "flower watch": ("flower watch run --page watch.html", ""),
}
SLOW = {
    "run": (f"run {SMALL} --folder out --keep_updates", None),  # begun again, it removes the record first
    "partition": ("partition --clients 3 --picture holdings.svg", ""),
    "weights, picture": ("weights sizes.csv --alpha 0.3 --picture p.png", ""),
    "study": ("study study.yaml --folder out", "--again"),
    "compare": ("compare run --folder out", ""),
    "export": ("export run --format onnx --out model.onnx", ""),
    "reproduce": ("reproduce toy-paper all --package toy_papers --seeds 1 --folder papers", "--again"),
}
OTHERS = {  # which write no file
    "verify", "replay", "evaluate", "choose", "check", "doctor", "schema check", "schema verify", "flower roster",
    "demo", "leaderboard",  # runs like "run", and pages: see below
    "flower up", "flower node", "flower executor",  # which start processes: see test_durability.py
}  # fmt: skip


def call(words):
    assert main(shlex.split(words)) == 0, words


@pytest.fixture(scope="module")
def received(tmp_path_factory):
    """A folder with what the commands read."""
    folder = tmp_path_factory.mktemp("disk") / "given"
    folder.mkdir()
    with contextlib.chdir(folder):
        rows = [f"{k % 7},{k % 5},{'no' if k % 3 else 'yes'}" for k in range(120)]
        Path("table.csv").write_text("a,b,y\n" + "\n".join(rows) + "\n")
        Path("new.csv").write_text("a,b\n" + "\n".join(f"{k % 7},{k % 5}" for k in range(40)) + "\n")
        Path("sizes.csv").write_text("client,size\n" + "\n".join(f"{k},{9 * k + 5}" for k in range(30)) + "\n")
        call(f"run --data CSV --data.path table.csv --data.label y {SMALL} --folder run")
        call("schema init table.csv --target y --out schema.json")
        call("schema statistics table.csv --schema schema.json --out site.json")
        study = {"name": "s", "base": {"clients": 3, "model": {"class_path": "MLP", "init_args": {"hidden": []}},
                 "until": {"steps": 2}}, "grid": {"algorithm.aggregate": ["Mean", "Median"]}, "seeds": 1}  # fmt: skip
        Path("study.yaml").write_text(yaml.safe_dump(study))
        call("flower coordinator --roster roster.yaml")
        call("flower key client.pem")
        key = yaml.safe_load(Path("roster.yaml").read_text())["coordinator"]
        call(f"flower request Site client.pem {key} --out site.request")
        shutil.copy("roster.yaml", "members.yaml")
        call("flower enrol site.request --roster members.yaml")
        call("flower key second.pem")
        call(f"flower request Site second.pem {key} --out second.request")
        call("flower certificates localhost --folder known")
        sites = [{"name": f"Site {k}"} for k in range(3)]
        Path("consortium.yaml").write_text(
            yaml.safe_dump({"host": "127.0.0.1", "sites": sites, "schema": "schema.json"})
        )
        Path("key.txt").write_text(key)
    return folder


@contextlib.contextmanager
def no_file_beyond(size):
    """Let no file of this process grow beyond a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def no_room_beyond(size):
    """Fill the disk of the current folder, but for a number of bytes."""
    with open("../ballast", "wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        file.truncate(max(0, file.tell() - size))
        yield
    Path("../ballast").unlink()


def held():
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file() and path.suffix != ".lock"}


def refused(words, capsys):
    """That a command says for which file there is no room, and how to go on."""
    capsys.readouterr()
    assert main(words) == 2, words
    said = capsys.readouterr().err
    assert "is full, or your quota of it. Free some space; then " in said, said
    assert (" has no room: its disk is full" in said) or "The disk of " in said, said
    assert "Traceback" not in said
    assert "What this command writes" not in said, "it names the file"


def tried(name, words, again, received, tmp_path, monkeypatch, capsys, full):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "experiments" / "reproduce")
    words = shlex.split(words.format(key=(received / "key.txt").read_text()))

    def place(name):
        shutil.copytree(received, tmp_path / name)
        monkeypatch.chdir(tmp_path / name)

    place("room")
    before = held()
    assert main(words) in (0, 1), "the claim of a paper may fail"
    done = held()
    largest = max(len(content) for path, content in done.items() if before.get(path) != content)
    if again is not None:
        with full(largest // 2):
            refused([*words, *again.split()], capsys)
        whole = held()
        assert whole.keys() == done.keys()
        cut = [path for path, content in whole.items() if len(content) == largest // 2 or len(content) % 4096 == 0]
        assert not [path for path in cut if whole[path] != done[path]], "half a file in the place of a whole one"
    place("none")
    least = 0 if name not in ("study", "reproduce") else 100  # processes share memory by files
    for size in (least, largest - max(1, largest // 50)):  # what is written at another time has some bytes more or less
        with full(size):
            refused(words, capsys)
        now = held()
        assert {path: now.get(path) for path in before} == before, "what was there is there"
        assert not [path for path in now if path.endswith(".partial")]
    assert main(words) in (0, 1), "once there is room"
    assert held().keys() == done.keys()


def test_each_command_that_writes_is_among_them():
    known = {*COMMANDS, *(f"{group} {name}" for group, (_, of) in GROUPS.items() for name in of)}
    assert {name.partition(",")[0] for name in (*QUICK, *SLOW)} | OTHERS == known


@pytest.mark.parametrize("name", QUICK)
def test_a_file_has_no_room(name, received, tmp_path, monkeypatch, capsys):
    tried(name, *QUICK[name], received, tmp_path, monkeypatch, capsys, no_file_beyond)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_file_of_a_command_that_takes_long_has_no_room(name, received, tmp_path, monkeypatch, capsys):
    tried(name, *SLOW[name], received, tmp_path, monkeypatch, capsys, no_file_beyond)


def test_the_pages_of_a_leaderboard_have_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr(board, "page", lambda boards: "page" * 99)
    files = [tmp_path / "page.md", tmp_path / "records" / "digits.csv"]
    empty = board.Board(TIERS["digits"], (), LineStore(tmp_path / "none.jsonl"))
    for content in ("a whole table", "another table" * 99):
        monkeypatch.setattr(board, "table", lambda _, content=content: content)
        with no_file_beyond(1000), contextlib.suppress(OSError):
            board.write([empty], files[0], tmp_path / "records")
    assert [path.read_text() for path in files] == ["page" * 99, "a whole table"]
    assert len([*tmp_path.rglob("*.*")]) == 2


def test_compiled_loops_that_have_no_room_are_compiled_again(tmp_path, monkeypatch, caplog):
    text = "from phalanx.numerics.compilation import compiling\n@compiling()\ndef more(x):\n    return x + 1\n"
    (tmp_path / "a_loop.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    compilation._warn.cache_clear()
    with no_file_beyond(0):
        assert importlib.import_module("a_loop").more(1) == 2
    assert compilation.NOT_KEPT in caplog.text


@pytest.fixture
def tiny(tmp_path):
    """A disk of 12 MB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)]
    if sys.platform != "linux" or os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, "run"])
def test_a_disk_that_is_really_full(name, received, tiny, monkeypatch, capsys):
    tried(name, *(QUICK | SLOW)[name], received, tiny, monkeypatch, capsys, no_room_beyond)
