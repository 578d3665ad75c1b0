"""Files of a received folder that are too large, or nested too deeply, are refused before they take memory."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from phalanx import InfeasibleError, Run, Until, simulate
from phalanx.experiments.line_store import LineStore
from phalanx.experiments.store import PACKED, Store
from phalanx.experiments.trace import Trace
from phalanx.models import MLP
from phalanx.reading import (
    DEEPEST,
    HOLLOW,
    LARGEST_LINES,
    LARGEST_PART,
    MOST,
    _Loader,
    contents,
    from_json,
    lines_of,
    load,
    unzipped,
)
from phalanx.runs.checkpoint import MAGIC, peek
from phalanx.runs.export import as_onnx
from phalanx.runs.models import LARGEST_MODEL
from phalanx.runs.record import Record
from phalanx.runs.seal import SEAL
from phalanx.runs.updates import LARGEST_STEP, read_kept
from phalanx.runs.verification import verify
from phalanx.simulation.traces import read_trace

GIBI = 1 << 30
SIZES = {
    "run.json": LARGEST_PART,
    "summary.json": LARGEST_PART,
    "model.json": LARGEST_PART,
    "history.jsonl": LARGEST_LINES,
    "model.safetensors": LARGEST_MODEL,
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ceilings") / "run"
    simulate(Run(clients=3, model=MLP(()), until=Until(steps=1)), folder=folder, keep_updates=True)
    (folder / SEAL).unlink()
    return folder


@pytest.fixture(autouse=True)
def hollow_files_are_read(monkeypatch):
    """Most files here are holes, and each has a ceiling all the same."""
    monkeypatch.setattr("phalanx.reading.HOLLOW", 1 << 62)


@pytest.fixture
def folder(done, tmp_path):
    shutil.copytree(done, tmp_path / "run")
    return tmp_path / "run"


def grown(path, size):
    """A file of so many bytes, most of which take no room on the disk."""
    path.touch()
    os.truncate(path, size)


def read(folder):
    """What reading the whole record says, in a process that has 4 GiB of addresses."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "import phalanx.reading; phalanx.reading.HOLLOW = 1 << 62\n"
        "from phalanx.runs.record import Record\n"
        "try: Record.load(sys.argv[1]).kept().state()\n"
        "except ValueError as error: print(error)"
    )
    return subprocess.run([sys.executable, "-c", code, folder], check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_a_part_of_a_record_that_is_too_large_is_refused(name, folder):
    grown(folder / name, SIZES[name] + 1)
    said = read(folder)
    assert f"{name} is larger than {SIZES[name]:,} bytes" in said


def test_verifying_reads_nothing_that_is_too_large(folder, done):
    simulate(Run(clients=3, model=MLP(()), until=Until(steps=1)), folder=folder)
    grown(folder / "history.jsonl", LARGEST_LINES + 1)
    (finding,) = verify(folder).findings
    assert finding.text.startswith("history.jsonl is larger than 4,294,967,296 bytes")
    (folder / SEAL).unlink()
    assert any("larger than" in finding.text for finding in verify(folder).findings)


def test_updates_that_are_too_large_are_refused(folder):
    path = folder / "updates" / "00000001.safetensors"
    original = path.read_bytes()
    grown(path, LARGEST_STEP + 1)
    with pytest.raises(ValueError, match="is larger than the updates of any step"):
        read_kept(folder, 1)
    path.write_bytes((200_000_000).to_bytes(8, "little") + original[8:])
    with pytest.raises(ValueError, match="is larger than the updates of any step"):
        read_kept(folder, 1)


def test_the_header_of_a_checkpoint_is_as_long_as_it_may_be(tmp_path):
    path = tmp_path / "checkpoint"
    path.write_bytes(MAGIC + (LARGEST_PART + 1).to_bytes(8, "little"))
    grown(path, 2 * LARGEST_PART)
    with pytest.raises(ValueError, match="its header cannot be read"):
        peek(tmp_path)


def test_packed_records_that_become_too_large_are_refused(tmp_path):
    member = gzip.compress(bytes(1 << 20))
    (tmp_path / PACKED).write_bytes(member * 3)
    with pytest.raises(ValueError, match="holds more than 2,097,152 bytes"):
        unzipped(tmp_path / PACKED, 2 << 20)
    assert len(unzipped(tmp_path / PACKED, 3 << 20)) == 3 << 20
    (tmp_path / PACKED).write_bytes(member[:-9])
    with pytest.raises(ValueError, match="does not hold records"):
        [*Store(tmp_path).traces()]


@pytest.mark.parametrize(("kind", "size"), [("trace", LARGEST_PART), ("lines", LARGEST_LINES)])
def test_records_of_a_study_that_are_too_large_are_refused(kind, size, tmp_path):
    grown(tmp_path / "record.json", size + 1)
    with pytest.raises(ValueError, match="is larger than"):
        Trace.load(tmp_path / "record.json") if kind == "trace" else LineStore(tmp_path / "record.json")


def test_a_large_file_that_is_a_hole_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("phalanx.reading.HOLLOW", HOLLOW)
    grown(tmp_path / "part", HOLLOW)
    with pytest.raises(ValueError, match="has almost nothing in it but a hole"):
        contents(tmp_path / "part", LARGEST_PART)
    (tmp_path / "part").write_bytes(bytes(HOLLOW))
    assert len(contents(tmp_path / "part", LARGEST_PART)) == HOLLOW


def test_what_a_record_names_and_has_no_end_is_not_hashed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    code = "import sys, pathlib; from phalanx.reading import file_digest; print(file_digest(pathlib.Path(sys.argv[1])))"
    for path in (tmp_path / "pipe", "/dev/zero"):
        command = [sys.executable, "-c", code, path]
        assert subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout == "None\n"


def test_a_ceiling_is_a_ceiling_also_of_a_file_that_says_no_size():
    with pytest.raises(ValueError, match="larger than 10 bytes"):
        contents(Path("/proc/self/status"), 10)


@pytest.mark.parametrize("name", ["run.json", "summary.json", "history.jsonl", "model.json"])
@pytest.mark.parametrize("text", [b"[" * 10_000, b'{"a":' * 900 + b"1" + b"}" * 900])
def test_a_part_that_is_nested_too_deeply_is_refused(name, text, folder):
    (folder / name).write_bytes(text)
    with pytest.raises(ValueError, match=r"nested too deeply: more than 50"):
        Record.load(folder)


def test_depth_is_that_of_lists_and_mappings_and_not_of_text():
    deep = b"[" * DEEPEST + b"]" * DEEPEST
    from_json(deep, list)
    with pytest.raises(ValueError, match="nested too deeply"):
        from_json(b"[" + deep + b"]", list)
    assert from_json(b'["' + b"[" * 1000 + b'"]', list) == ["[" * 1000]
    hidden = b'["]",' * (DEEPEST + 1) + b"1" + b"]" * (DEEPEST + 1)
    with pytest.raises(ValueError, match="nested too deeply"):
        from_json(hidden, list)
    escaped = b'["\\"]",' * (DEEPEST + 1) + b"1" + b"]" * (DEEPEST + 1)
    with pytest.raises(ValueError, match="nested too deeply"):
        from_json(escaped, list)
    assert len(from_json(b"[" + b"[]," * 1000 + b"[]]", list)) == 1001


@pytest.mark.slow
def test_reading_yaml_takes_time_in_proportion_to_its_keys():
    """Comparing each key with each other one took 45 s for as many as a file may hold."""
    text = "".join(f"a{k}: 1\n" for k in range(MOST // 2 - 10))
    compared = []

    class Key(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            compared.append(other)
            return super().__eq__(other)

    loader = _Loader(text[: text.index("a1000:")], MOST)
    node = loader.get_single_node()
    for key, _ in node.value:
        key.value = Key(key.value)
    assert len(loader.construct_mapping(node)) == 1000
    assert len(compared) < 10_000
    assert len(load(text)) == MOST // 2 - 10


def test_lines_and_lists_are_counted(tmp_path, monkeypatch):
    """As where they are millions, which `outside.py` tries."""
    monkeypatch.setattr("phalanx.reading.MOST_LINES", 3)
    (tmp_path / "lines").write_bytes(b"\n" * 4)
    with pytest.raises(ValueError, match="holds more than 3 lines"):
        lines_of(tmp_path / "lines")
    (tmp_path / "packed").write_bytes(gzip.compress(b"\n" * 4))
    with pytest.raises(ValueError, match="holds more than 3 lines"):
        unzipped(tmp_path / "packed", 100)
    (tmp_path / "lines").write_bytes(b"\n" * 3)
    assert lines_of(tmp_path / "lines") == b"\n" * 3
    monkeypatch.setattr("phalanx.reading.MOST_LISTS", DEEPEST)
    assert len(from_json(b"[" + b"[]," * (DEEPEST - 2) + b"[]]", list)) == DEEPEST - 1
    with pytest.raises(ValueError, match=f"holds more than {DEEPEST} lists or mappings"):
        from_json(b"[" + b"[]," * DEEPEST + b"[]]", list)


def test_lines_of_a_sealed_folder_are_counted(folder, monkeypatch):
    simulate(Run(clients=3, model=MLP(()), until=Until(steps=1)), folder=folder)
    monkeypatch.setattr("phalanx.runs.seal.MOST_LINES", 3)
    (folder / "history.jsonl").write_bytes(b"\n" * 4)
    assert [one.text for one in verify(folder).findings] == [
        "history.jsonl has more than 3 lines, which no file of its kind has"
    ]


def test_what_a_model_says_about_its_tensors_has_a_ceiling(folder, monkeypatch):
    monkeypatch.setattr("phalanx.runs.models.LARGEST_HEADER", 10)
    with pytest.raises(ValueError, match="it says more than 10 bytes about its tensors"):
        Record.load(folder).model()
    monkeypatch.setattr("phalanx.runs.models.LARGEST_MODEL", 10)
    with pytest.raises(ValueError, match=r"model\.safetensors is larger than 10 bytes"):
        Record.load(folder).model()


LARGE = {
    "shape": {"inputs": {"shape": [10**9]}},
    "shape of too many bits": {"inputs": {"shape": [2**63]}},
    "outputs": {"inputs": {"outputs": 10**9}},
    "outputs of too many bits": {"inputs": {"outputs": 2**62}},
    "wide": {"architecture": {"class_path": "phalanx.models.MLP", "init_args": {"hidden": [10**6, 10**6]}}},
    "deep": {"architecture": {"class_path": "phalanx.models.MLP", "init_args": {"hidden": [1] * 50_000}}},
}


@pytest.mark.parametrize("what", LARGE)
def test_a_network_of_any_size_takes_no_memory_before_it_fits_its_values(what, folder, monkeypatch):
    index, build, made = json.loads((folder / "model.json").read_text()), MLP.build, []

    def noted(*arguments):
        made.append(str(torch.empty(0).device))
        return build(*arguments)

    monkeypatch.setattr(MLP, "build", noted)
    index = {name: {**index[name], **LARGE[what].get(name, {})} for name in ("inputs", "architecture")}
    (folder / "model.json").write_text(json.dumps(json.loads((folder / "model.json").read_text()) | index))
    with pytest.raises(ValueError, match="does not fit the models"):
        Record.load(folder).model()
    assert made == ["meta"]


@pytest.mark.parametrize("name", ["load", "float128", "nn", "", "Tensor"])
def test_the_type_of_inputs_is_a_type(name, done):
    pytest.importorskip("onnxscript")
    record = Record.load(done)
    inputs = msgspec.structs.replace(record.kept().index.inputs, dtype=name)
    with pytest.raises(InfeasibleError, match="no type of torch"):
        as_onnx(record.model(), inputs)


def test_rows_of_a_trace_are_counted(tmp_path, monkeypatch):
    (tmp_path / "trace.csv").write_text("client,seconds\n" + "0,1\n" * 4)
    monkeypatch.setattr("phalanx.simulation.traces.MOST_ROWS", 4)
    assert len(read_trace(str(tmp_path / "trace.csv"), ["client", "seconds"]).rows) == 4
    monkeypatch.setattr("phalanx.simulation.traces.MOST_ROWS", 3)
    with pytest.raises(ValueError, match="has more than 3 rows"):
        read_trace(str(tmp_path / "trace.csv"), ["client", "seconds"])


def test_keys_and_certificates_have_a_ceiling(tmp_path, monkeypatch):
    pytest.importorskip("cryptography")
    from phalanx.flower.certificates import _authority_of, authorities_of, make_certificates
    from phalanx.flower.identity import load_key, new_key

    make_certificates(tmp_path, ["127.0.0.1"])
    new_key(tmp_path / "client.pem")
    monkeypatch.setattr("phalanx.flower.identity.LARGEST_KEY", 100)
    monkeypatch.setattr("phalanx.flower.certificates.LARGEST_KEY", 100)
    for name, read in (
        ("client.pem", lambda: load_key(tmp_path / "client.pem")),
        ("ca.crt", lambda: authorities_of(tmp_path)),
        ("ca.key", lambda: _authority_of(tmp_path, None)),
    ):
        with pytest.raises(ValueError, match=f"{name} is larger than 100 bytes"):
            read()


def test_a_history_that_is_watched_is_a_file(tmp_path):
    live = pytest.importorskip("phalanx.flower.live")
    os.mkfifo(tmp_path / "history.jsonl")
    for look in (live.Tail(tmp_path / "history.jsonl").look, lambda: live.lines(tmp_path)):
        with pytest.raises(ValueError, match="is no file"):
            look()
