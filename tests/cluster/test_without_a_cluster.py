"""What is told where there is no Ray, or no cluster; and options that do not go together."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from phalanx.cli.main import main
from phalanx.installation import installation

RUN = ["run", "--clients", "4", "--until.steps", "1"]
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
def test_without_a_cluster_it_is_told_how_to_start_one(command, capsys, monkeypatch, tmp_path):
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # where a cluster of somebody else leaves its address
    ray.shutdown()
    if subprocess.run(["pgrep", "-f", "gcs_server"], check=False, capture_output=True).returncode == 0:
        pytest.skip("a Ray cluster runs on this machine, which `auto` would find")
    assert main([*command, "--ray", "auto"]) == 2
    err = capsys.readouterr().err
    assert "There is no Ray cluster at auto: " in err
    assert "Start one by `ray start --head`, or give `local`, which uses the CPUs of this machine." in err


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no.such.host.invalid:6379"])
def test_where_nobody_listens_is_said_at_once(address, capsys):
    pytest.importorskip("ray")
    begun = time.monotonic()
    assert main([*RUN, "--ray", address]) == 2
    assert time.monotonic() - begun < 60
    assert f"There is no Ray cluster at {address}: " in capsys.readouterr().err
