"""A command imports what it needs, and no more: help, version and mistakes come at once."""

import os
import resource
import subprocess
import sys

import pytest

SLOW = {"torch", "numpy", "numba", "scipy", "sklearn", "matplotlib", "rich", "yaml", "jinja2", "flwr", "ray"}
TRIED = """
import sys
from phalanx.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print("", *sys.modules)
"""
LIGHT = [
    "--help",
    "--version",
    "",
    "runn",
    "report",
    "report --help",
    "reproduce --help",
    "weights --help",
    "weights --alpha x",
    "doctor --help",
    "flower",
    "flower --help",
    "flower up --help",
    "flower enrol --help",
    "run --help",
    "run --attack Gaussian --attack.std 2 -h",
    "run --clients --help",
    "run --attack.help",
    "run --attack.help Gaussian",
    "run --algorithm.aggregate.help=Krum",
    "run --training.help",
    "partition --help",
]


def modules(command):
    done = subprocess.run([sys.executable, "-c", TRIED, *command.split()], capture_output=True, text=True, check=False)
    assert "phalanx.cli.main" in done.stdout, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("command", LIGHT)
def test_what_needs_no_numbers_imports_nothing_slow(command):
    assert not SLOW & modules(command)


def test_the_help_of_the_demonstration_imports_no_torch():
    assert not (SLOW - {"yaml"}) & modules("demo --help")


def test_weights_are_computed_without_torch(tmp_path):
    (tmp_path / "sizes.csv").write_text("client,size\n" + "".join(f"c{k},{k + 1}\n" for k in range(20)))
    others = f"{tmp_path}/sizes.csv --alpha 0.1"
    for command in (others, f"{others} --weights {tmp_path}/w.json", f"{others} --certify 9", f"{tmp_path}/none.csv"):
        assert not {"torch", "scipy", "matplotlib", "numba"} & modules(f"weights {command}")


@pytest.mark.slow
def test_a_small_run_imports_no_scikit_learn(tmp_path):
    run = f"run --until.steps 1 --folder {tmp_path}/r"
    assert not {"sklearn", "pandas", "scipy.stats", "pyarrow", "torchmetrics", "cryptography"} & modules(run)


@pytest.mark.skipif(not hasattr(resource, "RUSAGE_CHILDREN"), reason="CPU time of children is not known here")
@pytest.mark.parametrize("command", ["--help", "--version", "run --help", "partition --help"])
def test_takes_little_time(command):
    """A third of a second on a machine of today; the bound leaves room for a slow one."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = "import sys; from phalanx.cli.main import main; main(sys.argv[1:])"
    subprocess.run([sys.executable, "-c", code, *command.split()], capture_output=True, check=True, env={**os.environ})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


def test_the_package_is_the_command():
    done = subprocess.run([sys.executable, "-m", "phalanx", "runn"], capture_output=True, text=True, check=False)
    assert (done.returncode, "There is no command runn. Did you mean run?" in done.stderr) == (2, True)
