"""`phalanx study` as a process of its own that is killed, and goes on; a grid that grows; `phalanx compare`."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from phalanx.cli.main import main
from phalanx.experiments.trace import Trace

STUDY = """
base: {clients: 4, byzantine: 1, until: {steps: %d}, model: {hidden: [8]}, attack: SignFlip}
grid: {algorithm.aggregate: [%s]}
seeds: 2
"""


def command(folder, *options):
    code = "import sys; from phalanx.cli.main import main; sys.exit(main())"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *options], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def records(folder):
    return sorted((folder / "studies" / "mine" / "records").glob("*.json"))


@pytest.mark.slow
def test_a_killed_study_goes_on_without_loss_also_when_it_has_grown(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.yaml").write_text(STUDY % (40, "Mean, Median"))
    process = command(tmp_path, "study", "mine.yaml", "--jobs", "1")
    end = time.monotonic() + 120
    while not records(tmp_path):
        assert time.monotonic() < end, "no record appeared"
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    kept = {path: path.stat().st_mtime_ns for path in records(tmp_path)}
    assert 1 <= len(kept) < 4

    (tmp_path / "mine.yaml").write_text(STUDY % (40, "Mean, Median, TrimmedMean(beta=0.3)"))
    process = command(tmp_path, "study", "mine.yaml", "--jobs", "2")
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert f"mine: 6 runs, {len(kept)} done; the others take about" in out
    assert len(records(tmp_path)) == 6
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert all(Trace.load(path).steps == 40 for path in records(tmp_path))
    lines = (tmp_path / "studies" / "mine" / "runs.csv").read_text().splitlines()
    assert len(lines) == 7

    monkeypatch.chdir(tmp_path)
    assert main(["compare", "studies/mine", "--folder", "again"]) == 0
    assert "TrimmedMean(beta=0.3)" in capsys.readouterr().out
    assert len((tmp_path / "again" / "runs.csv").read_text().splitlines()) == 7
    assert json.loads(records(tmp_path)[0].read_text())["uploads"] == 160
