"""What is told where there is no Ray, or no cluster; and options that do not go together."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phalanx.cli.main import main
from phalanx.installation import installation

RUN = ["run", "--clients", "4", "--until.steps", "1"]
ALONE = """
import sys
from ray._private import services
from phalanx.cli.main import main
assert services.find_gcs_addresses  # among the processes of this machine
services.find_gcs_addresses = set
sys.exit(main(sys.argv[1:]))
"""
TOY = ["reproduce", "toy-paper", "figure1", "--package", "toy_papers"]


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path, str(Path(__file__).parents[1] / "experiments" / "reproduce")])


@pytest.fixture
def _without_ray(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("phalanx.ray")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ([*RUN, "--ray", "auto", "--threads", "2"], "With --ray, clients train on CPUs, in one thread each. "
         "Leave out --threads 2."),
        (["demo", "--ray", "auto", "--threads", "2"], "Leave out --threads 2."),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together_are_told(command, why, capsys):
    assert main(command) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("command", [RUN, TOY], ids=["run", "reproduce"])
@pytest.mark.usefixtures("_without_ray")
def test_without_ray_it_is_told_how_to_install_it(command, capsys):
    assert main([*command, "--ray", "auto"]) == 2
    assert f"Several machines need Ray: {installation('ray')}." in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("command", [RUN, TOY], ids=["run", "reproduce"])
def test_without_a_cluster_it_is_told_how_to_start_one(command, tmp_path):
    """In a process of its own, which does not see the cluster of other tests; this one may hold it."""
    pytest.importorskip("ray")
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {
        "RAY_TMPDIR": str(tmp_path),  # where a cluster leaves its address
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    ran = subprocess.run(
        [sys.executable, "-c", ALONE, *command, "--ray", "auto"],
        env=environment, check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 2, ran.stderr
    assert "There is no Ray cluster at auto: " in ran.stderr
    assert "Start one by `ray start --head`, or give `local`, which uses the CPUs of this machine." in ran.stderr


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no.such.host.invalid:6379"])
def test_where_nobody_listens_is_said_at_once(address, capsys):
    pytest.importorskip("ray")
    begun = time.monotonic()
    assert main([*RUN, "--ray", address]) == 2
    assert time.monotonic() - begun < 60
    assert f"There is no Ray cluster at {address}: " in capsys.readouterr().err
