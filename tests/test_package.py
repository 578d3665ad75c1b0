"""The wheel and the source distribution: what they hold, and that the wheel works without a checkout."""

import os
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import phalanx
from phalanx.cli.main import COMMANDS

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
    assert built[0].stat().st_size < 2_000_000


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


def test_the_wheel_says_how_the_papers_are_reached(installed):
    done = installed("reproduce")
    assert done.returncode == 2
    assert "Get them with `git clone" in done.stderr
