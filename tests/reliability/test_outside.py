"""Each function that reads a file is tried with hostile ones, or says why nobody else's file reaches it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from reliability import outside
from reliability.outside import CASES, OWN, SECONDS, readers

SMALL = {  # of which a file is at most as large as it may be, and what a test of its own reads
    "cli/configuration.py:from_file": "tests/cli/test_configuration.py",
    "cli/schema.py:scale_command": "tests/cli/test_schema_command.py",
    "cli/weights_files.py:_data": "tests/cli/test_weights.py",
    "flower/identity.py:EnrolmentRequest.load": "tests/flower/test_identity.py",
    "flower/identity.py:Roster.load": "tests/flower/test_identity.py",
    "flower/kit.py:Consortium.load": "tests/flower/test_kit.py",
}


def test_every_reader_has_a_hostile_file():
    found, tried = readers(), {name for _, of, _ in CASES.values() for name in of}
    assert len(found) > 80
    assert found == tried | {*OWN, *SMALL}
    assert not tried & {*OWN, *SMALL}
    assert all((Path(__file__).parents[2] / test).is_file() for test in SMALL.values())


RAW = {  # which open files by themselves: why none of them waits for a pipe, or reads a device
    "cli/deployment_folder.py:examples_in": "`files_in` yields files only",
    "data/images.py:ImageSource._read": "the sources list files only",
    "data/published_files.py:_idx": "`found` looks for files only",
    "data/published_files.py:_records": "`found` looks for files only",
    "data/published_files.py:text_file": "`found` looks for files only",
    "data/table_ceilings.py:_characters": "`files_of` returns files only",
    "data/table_ceilings.py:check_parquet": "`files_of` returns files only",
    "data/table_ceilings.py:check_text": "`files_of` returns files only",
    "data/table_files.py:CSV.read": "`files_of` returns files only",
    "data/table_files.py:Parquet.read": "`files_of` returns files only",
    "runs/updates.py:read_kept": "it was opened before, by `opened`",
}


def test_whoever_reads_what_was_received_opens_files_only(monkeypatch):
    """A new reader goes through `phalanx.reading`, or is listed with its reason."""
    monkeypatch.setattr(outside, "READING", outside.READING - {"opened", "contents", "lines_of", "unzipped"})
    assert readers() - {*OWN} == {*RAW}


@pytest.mark.slow
def test_what_is_hostile_is_refused_before_it_costs_much():
    pytest.importorskip("pyarrow")
    command = [sys.executable, Path(__file__).with_name("outside.py")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    costs = {name: cost for line in done.stdout.splitlines() for name, cost in json.loads(line).items()}
    assert costs.keys() == CASES.keys()
    for name, cost in costs.items():
        assert all(re.search(CASES[name][0], line) for line in cost["said"]), cost
        assert not any(line.startswith(("NOT", "FELL", "ENDED")) for line in cost["said"]), cost
        assert cost["seconds"] < SECONDS
