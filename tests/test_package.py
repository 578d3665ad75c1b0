"""The wheel and the source distribution: what they hold, and that the wheel works without a checkout."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path
from types import SimpleNamespace

import pytest

import phalanx
from phalanx.cli.main import COMMANDS
from phalanx.installation import installation
from phalanx.version import URL

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]


def tracked(*folders):
    """The files of folders that belong to the project."""
    try:
        listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no checkout")
    return set(listed.stdout.split("\n")[:-1])


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("built")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """Runs `phalanx` from the wheel, in a folder with nothing in it."""
    place, here = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("empty")
    with zipfile.ZipFile(built[0]) as wheel:
        wheel.extractall(place)

    def run(*command):
        environment = {**os.environ, "PYTHONPATH": str(place)}
        words = [sys.executable, "-P", "-m", "phalanx", *command]
        return subprocess.run(words, check=False, cwd=here, env=environment, capture_output=True, text=True)

    run.place, run.here = place, here
    return run


def test_the_wheel_holds_the_library_and_nothing_else(built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
        about = message_from_bytes(wheel.read(next(n for n in names if n.endswith("/METADATA"))))
    assert {name for name in names if ".dist-info/" not in name} == {
        name.removeprefix("src/") for name in tracked("src/phalanx")
    }
    assert about["Version"] == phalanx.__version__
    links = re.findall(r"\]\(([^)]*)\)", about.get_payload())
    assert len(links) > 20
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert f"]({URL}/blob/main/docs/threat-model.md)" in about.get_payload()
    assert built[0].stat().st_size < 2_000_000


def test_what_the_image_is_built_of_makes_the_same_wheel(built, tmp_path):
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line.startswith("!"):
            path = ROOT / line[1:]
            copy = shutil.copytree if path.is_dir() else shutil.copy
            copy(path, tmp_path / path.name)
    (tmp_path / "dist").mkdir()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "dist"]
    subprocess.run(command, cwd=tmp_path, check=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(built[0]) as other:
        ours = {name for name in one.namelist() if "__pycache__" not in name}
        assert ours == {*other.namelist()}


def test_the_source_distribution_holds_what_its_tests_and_pages_need(built):
    with tarfile.open(built[1]) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    folders = ("src", "papers", "tests", "docs", "examples", "benchmarks", "checks", "mkdocs.yml", "Makefile")
    assert tracked(*folders) - names == set()


def test_the_wheel_trains_and_reports(installed):
    done = installed("run", "--clients", "3", "--model.hidden", "[]", "--until.steps", "1", "--folder", "a")
    assert done.returncode == 0, done.stderr
    page = installed("report", "a")
    assert page.returncode == 0, page.stderr
    assert (installed.here / "a" / "report.html").stat().st_size > 10_000
    found = subprocess.run(
        [sys.executable, "-P", "-c", "import phalanx; print(phalanx.__file__)"],
        env={**os.environ, "PYTHONPATH": str(installed.place)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.startswith(str(installed.place)), "not the checkout's"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_wheel_has_help(installed, command):
    done = installed(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def pip(built, tmp_path_factory):
    """Runs `pip install` as a page or a message has it, with an index that holds the wheel and nothing else."""
    index = tmp_path_factory.mktemp("index")
    (index / "phalanx-fl").mkdir()
    (index / "phalanx-fl" / built[0].name).symlink_to(built[0])
    (index / "phalanx-fl" / "index.html").write_text(f'<a href="{built[0].name}">{built[0].name}</a>')
    settings = {"INDEX_URL": index.as_uri(), "CONFIG_FILE": os.devnull, "NO_DEPS": "1",
                "DISABLE_PIP_VERSION_CHECK": "1", "IGNORE_INSTALLED": "1", "CONSTRAINT": ""}  # fmt: skip
    environment = os.environ | {f"PIP_{name}": value for name, value in settings.items()}

    def run(words):
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-build-isolation", *words]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


def written():
    """The lines of pages, notebooks and examples that install Phalanx, without their comments."""
    files = [path for path in tracked("README.md", "docs", "examples") if path.endswith((".md", ".ipynb", ".py"))]
    text = "\n".join((ROOT / path).read_text() for path in files)
    return sorted({*re.findall(r"pip\s+install ((?:-e )?(?:\.(?=[\s`])|'\.\[[^']*\]'|'?phalanx-fl[^\s`]*))", text)})


@pytest.fixture(scope="module")
def extras(built):
    """The extras of the wheel."""
    with zipfile.ZipFile(built[0]) as wheel:
        about = message_from_bytes(wheel.read(next(n for n in wheel.namelist() if n.endswith("/METADATA"))))
    return {*about.get_all("Provides-Extra")}


def test_lines_that_install_are_run(pip, extras):
    lines = written()
    assert {".", "'.[flower]'", "'.[flower,tables]'", "'.[nvflare]'"} <= {*lines}
    for line in lines:
        assert {*filter(None, line.partition("[")[2].partition("]")[0].split(","))} <= extras, line
    status, said = pip(shlex.split(" ".join(lines)))  # all at once, since each takes seconds
    assert status == 0, (lines, said)
    assert f"Would install phalanx-fl-{phalanx.__version__}" in said.replace("phalanx_fl", "phalanx-fl")


def test_messages_install_from_an_index_what_they_name(pip, extras, monkeypatch):
    sources = "\n".join((ROOT / path).read_text() for path in tracked("src/phalanx") if path.endswith(".py"))
    named = {*re.findall(r"installation(?:\(|, )[\"'](\w+)[\"']\)", sources)}
    assert {"flower", "nvflare", "tables", "tasks", "dp"} <= named <= extras
    monkeypatch.setattr("phalanx.installation.distribution", lambda _: SimpleNamespace(read_text=lambda _: None))
    commands = [shlex.split(installation(extra)) for extra in sorted(named)]
    assert {tuple(command[:2]) for command in commands} == {("pip", "install")}
    status, said = pip([word for command in commands for word in command[2:]])
    assert status == 0, said
    assert pip(["phalanx"])[0] == 1, "the index holds nothing else"


def test_the_wheel_says_how_the_papers_are_reached(installed):
    done = installed("reproduce")
    assert done.returncode == 2
    assert "Get them with `git clone" in done.stderr
