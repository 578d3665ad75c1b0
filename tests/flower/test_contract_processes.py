"""The hospital example between a real SuperLink and real SuperNodes, each a process; one table does not fit."""

import shutil
import time
from pathlib import Path

import pytest

from phalanx.cli.main import main
from phalanx.data import Schema
from phalanx.flower.audit import read
from phalanx.flower.demo import deal
from phalanx.flower.gate import MISFIT
from phalanx.flower.local_federation import LocalFederation, marked
from phalanx.runs.files import AUDIT
from phalanx.runs.record import Record

pytestmark = pytest.mark.slow

APP = Path(__file__).parents[2] / "examples" / "flower"
CLIENTS, PATIENT, ROUNDS = 4, 600.0, 2  # seconds, on a machine that others use as well


def test_a_hospital_with_a_renamed_column_is_refused_and_the_others_train(tmp_path):
    configs = deal(tmp_path / "data", CLIENTS)
    table, app = Path(configs[3]["table"]), tmp_path / "app"
    table.write_text(table.read_text().replace("pixel 7,", "Pixel 7,", 1))
    shutil.copytree(APP, app)
    server = app / "hospitals" / "server.py"
    waits = "Timeouts(answer=300.0, enrolment=90.0, least=3)"
    server.write_text(server.read_text().replace("Timeouts(answer=120.0)", waits))
    schema = tmp_path / "data" / "schema.json"
    told = {"roster": str(tmp_path / "roster.yaml"), "folder": str(tmp_path / "run"), "schema": str(schema)}
    with LocalFederation(tmp_path, CLIENTS, configs) as federation:
        run = federation.run(app, told | {"rounds": ROUNDS})
        deadline = time.monotonic() + PATIENT
        while run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.5)
        logs = {path.stem: path.read_text(errors="replace") for path in (tmp_path / "logs").glob("*.log")}
        assert run.poll() == 0, logs["run"][-3000:]
    assert marked(federation.mark) == []
    record = Record.load(tmp_path / "run")
    assert [*record.summary.clients] == [0, 1, 2]
    assert record.config["schema"] == Schema.load(schema).digest
    away = {one.why.partition(": ")[2] for one in read(tmp_path / "run" / AUDIT) if one.event == "turned away"}
    assert away == {f"its app failed: {MISFIT}: column 'pixel 7' (column)"}
    assert "Column 'pixel 7' is missing. Is it 'Pixel 7'? Add it, or rename one." in logs["node-3"]
    assert "Pixel 7" not in logs["run"]
    out = tmp_path / "out.csv"
    assert main(["predict", str(tmp_path / "run"), "--data", configs[0]["table"], "-o", str(out)]) == 0
    assert len(out.read_text().splitlines()) == len(Path(configs[0]["table"]).read_text().splitlines())
