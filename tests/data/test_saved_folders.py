"""A folder of Hugging Face's `save_to_disk` that somebody else wrote."""

import json
import os

import pytest

datasets = pytest.importorskip("datasets")
pa = pytest.importorskip("pyarrow")

from phalanx.data import HuggingFace  # noqa: E402
from phalanx.data.saved_folders import _is_compressed  # noqa: E402
from phalanx.errors import InfeasibleError  # noqa: E402

DATA = HuggingFace("saved", inputs="x", label="y")


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = {"x": [[float(k), 1.0] for k in range(20)], "y": [0, 1] * 10}
    part = datasets.Dataset.from_dict(rows)
    datasets.DatasetDict({"train": part, "test": part}).save_to_disk("saved")
    return tmp_path / "saved"


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_compressed_file_is_refused_before_it_is_unfolded(saved, compression):
    assert len(DATA.load()[0]) == 20
    (path,) = (saved / "train").glob("*.arrow")
    with pa.memory_map(str(path)) as file:
        table = pa.ipc.open_stream(file).read_all()
    more = pa.table({"x": pa.array([[0.0] * 1000] * 1000), "y": [0] * 1000})
    with pa.ipc.new_stream(str(path), more.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(more)
    assert path.stat().st_size < more.nbytes / 20
    with pytest.raises(ValueError, match="is compressed, as save_to_disk never does"):
        DATA.load()
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)
    assert len(DATA.load()[0]) == 20


def test_a_compressed_dictionary_is_found():
    words = pa.table({"w": pa.array(["x" * 1000] * 100).dictionary_encode()})
    for compression in (None, "zstd"):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, words.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
            writer.write_table(words)
        reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
        found = [_is_compressed(reader.read_next_message().metadata.to_pybytes()) for _ in range(3)]
        assert found == [False, *[compression is not None] * 2]


@pytest.mark.parametrize(
    ("file", "key", "named"),
    [
        ("train/state.json", "_data_files", [{"filename": "../../other.arrow"}]),
        ("train/state.json", "_data_files", [{"filename": "/etc/hostname"}]),
        ("dataset_dict.json", "splits", ["train", "../test"]),
    ],
)
def test_no_name_leads_out_of_the_folder(saved, file, key, named):
    about = json.loads((saved / file).read_text())
    (saved / file).write_text(json.dumps(about | {key: named}))
    with pytest.raises(ValueError, match="leads out of its folder"):
        DATA.load()


def test_a_hole_and_many_rows_are_refused(saved, monkeypatch):
    monkeypatch.setattr("phalanx.data.saved_folders.MOST_CELLS", 19)
    with pytest.raises(InfeasibleError, match="has 20 examples, and at most 19 are read"):
        DATA.load()
    (path,) = (saved / "train").glob("*.arrow")
    os.truncate(path, 1 << 30)
    with pytest.raises(ValueError, match="has almost nothing in it but a hole"):
        DATA.load()


@pytest.mark.parametrize("what", ["of a file", "of many pixels"])
def test_images_are_held_and_of_few_pixels(tmp_path, monkeypatch, what):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    image.new("L", (100, 100)).save("a.png")
    held = {"path": "/etc/hostname"} if what == "of a file" else {"bytes": (tmp_path / "a.png").read_bytes()}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    part = datasets.Dataset.from_dict({"image": [held] * 4, "label": [0, 1] * 2}, features)
    saved = datasets.DatasetDict({"train": part, "test": part})
    saved.save_to_disk("saved") if what != "of a file" else _without_embedding(saved, tmp_path / "saved")
    monkeypatch.setattr("phalanx.data.saved_folders.MOST_PIXELS", 39_999)
    with pytest.raises(ValueError, match=r"names images and does not hold them|more than 39,999 pixels"):
        HuggingFace("saved").load()


def _without_embedding(saved, folder):
    """Write the folder as `save_to_disk` would if it did not put files into it."""
    rows = {"image": [{"bytes": b"", "path": None}] * 4, "label": [0, 1] * 2}
    part = datasets.Dataset.from_dict(rows, saved["train"].features)
    datasets.DatasetDict({"train": part, "test": part}).save_to_disk(folder)
    for name in ("train", "test"):
        (path,) = (folder / name).glob("*.arrow")
        with pa.memory_map(str(path)) as file:
            schema = pa.ipc.open_stream(file).schema
        table = saved[name].data.table.cast(schema)
        with pa.ipc.new_stream(str(path), schema) as writer:
            writer.write_table(table)
