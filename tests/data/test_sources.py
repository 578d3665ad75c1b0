import gzip
import hashlib
import http.server
import io
import os
import re
import struct
import sys
import tarfile
import threading
import time
import tracemalloc
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch

from commandline import chosen
from phalanx.data import (
    CIFAR10,
    MNIST,
    MR,
    SST,
    AGNews,
    Dataset,
    Digits,
    FashionMNIST,
    HuggingFace,
    InMemory,
    Source,
    published_files,
)
from phalanx.data.sources import _digits
from phalanx.installation import installation

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


# --- tiny files in the publishers' formats


def idx(array, *, magic=None, dims=None):
    dims = array.shape if dims is None else dims
    magic = bytes((0, 0, 8, len(dims))) if magic is None else magic
    return magic + struct.pack(f">{len(dims)}I", *dims) + array.astype(np.uint8).tobytes()


def images(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 28, 28), dtype=np.uint8)


def write_idx(folder, *, n=12, tests=4, zipped=False, replaced=None):
    """The four files; `replaced` gives other bytes for some."""
    folder.mkdir(parents=True)
    train, test = images(n, 0), images(tests, 1)
    contents = dict(zip(IDX, map(idx, (train, np.arange(n) % 10, test, np.arange(tests) % 10)), strict=True))
    for name, content in (contents | (replaced or {})).items():
        (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(content) if zipped else content)
    return train, test


def records(n, seed):
    table = np.random.default_rng(seed).integers(0, 256, (n, 3073), dtype=np.uint8)
    table[:, 0] %= 10
    return table


def write_cifar(folder, n=3):
    folder.mkdir(parents=True)
    tables = [records(n, seed) for seed in range(6)]
    for name, table in zip(CIFAR, tables, strict=True):
        (folder / name).write_bytes(table.tobytes())
    return tables


# --- Digits


def test_digits():
    train, test = Digits().load()
    assert (len(train), len(test), train.classes, test.classes) == (1438, 359, 10, 10)
    assert train.x.shape[1:] == (1, 8, 8)
    assert train.x.dtype == torch.float32
    assert (float(train.x.min()), float(train.x.max())) == (0.0, 1.0)
    whole = train.label_counts() + test.label_counts()
    assert whole.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert ((test.label_counts() / whole - 0.2).abs() < 0.003).all()
    assert [part.fingerprint() for part in Digits().load()] == [train.fingerprint(), test.fingerprint()]


@pytest.mark.parametrize("known", [True, False])
def test_digits_are_those_of_scikit_learn_wherever_its_file_lies(known, monkeypatch):
    from sklearn.datasets import load_digits

    if not known:
        monkeypatch.setattr("phalanx.data.sources.find_spec", lambda name: None)
    for ours, theirs in zip(_digits(), load_digits(return_X_y=True), strict=True):
        assert np.array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype


def test_digits_of_the_test_part_come_last_in_the_file():
    from sklearn.datasets import load_digits

    file, labels = load_digits(return_X_y=True)
    train, test = Digits(test_share=0.5).load()
    for c in range(10):
        members = torch.tensor(file[labels == c] / 16, dtype=torch.float32)
        parts = torch.cat([train.x[train.y == c], test.x[test.y == c]]).flatten(1)
        assert torch.equal(parts, members)


@pytest.mark.parametrize("share", [1e-9, 1 - 1e-9])
def test_digits_keep_every_class_in_both_parts(share):
    assert all(part.label_counts().min() >= 1 for part in Digits(share).load())


@pytest.mark.parametrize("share", [0.0, 1.0, -0.2, float("nan")])
def test_digits_share_out_of_range(share):
    with pytest.raises(ValueError, match="test_share must lie in \\(0, 1\\)"):
        Digits(share)


# --- MNIST, Fashion-MNIST


@pytest.mark.parametrize(
    ("source", "folder"),
    [(MNIST, "mnist"), (MNIST, "MNIST/raw"), (FashionMNIST, "fashion_mnist"), (FashionMNIST, "FashionMNIST/raw")],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files(tmp_path, source, folder, zipped):
    pixels, others = write_idx(tmp_path / folder, zipped=zipped)
    train, test = source().load(tmp_path)
    assert train.x.dtype == torch.float32
    np.testing.assert_array_equal(train.x.numpy(), pixels[:, None].astype(np.float32) / np.float32(255))
    np.testing.assert_array_equal(test.x.numpy(), others[:, None].astype(np.float32) / np.float32(255))
    assert train.y.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert test.y.tolist() == [0, 1, 2, 3]
    assert train.classes == test.classes == 10


def test_limit_takes_the_first(tmp_path):
    write_idx(tmp_path / "mnist")
    whole, test = MNIST().load(tmp_path)
    train, same = MNIST(limit=3).load(tmp_path)
    assert torch.equal(train.x, whole.x[:3])
    assert same.fingerprint() == test.fingerprint()
    assert len(MNIST(limit=1000).load(tmp_path)[0]) == 12


@pytest.mark.parametrize("source", [MNIST, FashionMNIST, CIFAR10])
def test_limit_out_of_range(source):
    with pytest.raises(ValueError, match=r"limit must be at least 1, got 0"):
        source(limit=0)


def test_standardize_uses_the_whole_train_part(tmp_path):
    pixels, others = write_idx(tmp_path / "mnist")
    exact = pixels.astype(np.float64) / 255
    train, test = MNIST(standardize=True, limit=2).load(tmp_path)
    np.testing.assert_allclose(train.x[:, 0], (exact[:2] - exact.mean()) / exact.std(), atol=1e-5)
    np.testing.assert_allclose(test.x[:, 0], (others / 255 - exact.mean()) / exact.std(), atol=1e-5)


def test_padding_is_black_and_counts_for_the_moments(tmp_path):
    pixels, _ = write_idx(tmp_path / "mnist")
    wide = np.pad(pixels.astype(np.float64), ((0, 0), (2, 2), (2, 2))) / 255
    plain, test = MNIST(padding=2).load(tmp_path)
    np.testing.assert_allclose(plain.x[:, 0], wide, atol=1e-7)
    assert test.x.shape[1:] == (1, 32, 32)
    scaled, _ = MNIST(standardize=True, padding=2).load(tmp_path)
    np.testing.assert_allclose(scaled.x[:, 0], (wide - wide.mean()) / wide.std(), atol=1e-5)
    assert scaled.x[0, 0, 0, 0] == scaled.x.min() < 0  # the border is as black as the ground


@pytest.mark.parametrize("padding", [-1, 15])
def test_padding_out_of_range(padding):
    with pytest.raises(ValueError, match=f"padding must lie in \\[0, 14\\], got {padding}"):
        MNIST(padding=padding)


def test_standardize_of_constant_pixels_is_zero(tmp_path):
    write_idx(tmp_path / "mnist", replaced={IDX[0]: idx(np.full((12, 28, 28), 7))})
    assert MNIST(standardize=True).load(tmp_path)[0].x.abs().max() < 1e-6


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (IDX[0], b"", "must start with 00 00 08 03"),
        (IDX[0], b"GIF89a" + bytes(20), "must start with 00 00 08 03 .*, got '47 49 46 38'"),
        (IDX[1], idx(np.zeros(12), magic=bytes((0, 0, 8, 3))), "must start with 00 00 08 01"),
        (IDX[0], idx(images(12))[:10], "ends within its header, after 10 bytes"),
        (IDX[0], idx(images(12))[:-1], "declares 9408 bytes of data and .*truncated"),
        (IDX[0], idx(images(12)) + b"x", "declares 9408 bytes of data and holds more"),
        (IDX[2], idx(np.zeros((4, 28, 27))), r"must declare dimensions \(n, 28, 28\) .* got \(4, 28, 27\)"),
        (IDX[0], idx(np.zeros((0, 28, 28))), r"with n > 0, got \(0, 28, 28\)"),
        (IDX[1], idx(np.zeros(11)), "has 12 images, .* has 11 labels"),
        (IDX[3], idx(np.full(4, 10)), r"has the label 10, allowed are 0\.\.9"),
    ],
)
def test_corrupted_idx_files_are_named(tmp_path, zipped, name, content, message):
    write_idx(tmp_path / "mnist", zipped=zipped, replaced={name: content})
    with pytest.raises(ValueError, match=message) as caught:
        MNIST().load(tmp_path)
    assert str(tmp_path / "mnist" / name) in str(caught.value)


@pytest.mark.parametrize("zipped", [False, True])
def test_huge_declared_dimensions_take_no_memory(tmp_path, zipped):
    write_idx(tmp_path / "mnist", zipped=zipped, replaced={IDX[0]: idx(images(12), dims=(2**32 - 1, 28, 28))})
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="declares 3367254359280 bytes of data and cannot hold more than"):
            MNIST().load(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-9], lambda b: b[:40], lambda b: b[:-8] + bytes(8), lambda b: b[:60] + b"\xff" * 60]
)
def test_damaged_gzip_files(tmp_path, damage):
    write_idx(tmp_path / "mnist", zipped=True)
    path = tmp_path / "mnist" / f"{IDX[0]}.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz is not a whole gzip file"):
        MNIST().load(tmp_path)


def test_missing_files_are_not_downloaded_silently(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)  # an import would fail
    write_idx(tmp_path / "mnist")
    (tmp_path / "mnist" / IDX[3]).unlink()
    with pytest.raises(FileNotFoundError) as caught:
        MNIST().load(tmp_path)
    message = str(caught.value)
    assert f"{tmp_path / 'mnist'} lacks t10k-labels-idx1-ubyte;" in message
    assert f"{tmp_path / 'MNIST/raw'} lacks train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k" in message
    assert "each also with .gz" in message
    assert "Put them there, or leave data_dir away to download them." in message


# --- CIFAR-10


def test_cifar(tmp_path):
    tables = write_cifar(tmp_path / "cifar-10-batches-bin")
    train, test = CIFAR10().load(tmp_path)
    whole = np.concatenate(tables[:5])
    assert train.x.shape == (15, 3, 32, 32)
    assert test.x.shape == (3, 3, 32, 32)
    assert train.y.tolist() == whole[:, 0].tolist()
    assert test.y.tolist() == tables[5][:, 0].tolist()
    # a record is a label, then 1,024 bytes of red, of green, of blue, each row by row
    assert float(train.x[4, 2, 1, 5]) == pytest.approx(whole[4, 1 + 2 * 1024 + 32 + 5] / 255)
    np.testing.assert_array_equal(train.x.flatten(1).numpy(), whole[:, 1:].astype(np.float32) / np.float32(255))


def test_cifar_standardized_by_colour(tmp_path):
    tables = write_cifar(tmp_path / "cifar-10-batches-bin")
    train, _ = CIFAR10(standardize=True, limit=4).load(tmp_path)
    exact = np.concatenate(tables[:5])[:, 1:].reshape(-1, 3, 32, 32) / 255
    mean, std = (f(exact, axis=(0, 2, 3), keepdims=True) for f in (np.mean, np.std))
    np.testing.assert_allclose(train.x, ((exact - mean) / std)[:4], atol=1e-5)


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (lambda b: b[:-1], "equally long, got these lengths in bytes: data_batch_1.bin 9219, .*data_batch_3.bin 9218"),
        (lambda b: b[:-3073], "data_batch_3.bin 6146"),  # a whole record less
        (lambda b: bytes([10]) + b[1:], r"data_batch_3\.bin has the label 10"),
    ],
)
def test_corrupted_cifar_files(tmp_path, cut, message):
    folder = tmp_path / "cifar-10-batches-bin"
    write_cifar(folder)
    path = folder / "data_batch_3.bin"
    path.write_bytes(cut(path.read_bytes()))
    with pytest.raises(ValueError, match=message):
        CIFAR10().load(tmp_path)


@pytest.mark.parametrize("size", [0, 3072])
def test_cifar_files_hold_whole_records(tmp_path, size):
    folder = tmp_path / "cifar-10-batches-bin"
    write_cifar(folder)
    for name in CIFAR:
        (folder / name).write_bytes(bytes(size))
    with pytest.raises(ValueError, match=f"data_batch_1.bin must hold whole records of 3073 bytes, got {size}"):
        CIFAR10().load(tmp_path)


def test_missing_cifar_files(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"CIFAR10 needs 6 files in one folder: .*cifar-10-batches-bin lacks data_batch_1"
    ):
        CIFAR10().load(tmp_path)


# --- downloads


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.asked.append(self.path)
        super().do_GET()


@pytest.fixture
def web(tmp_path, monkeypatch):
    """A folder that is served on 127.0.0.1, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("pooch.os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    root = tmp_path / "web"
    root.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    server.asked = []
    server.root = root
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    for key in published_files.URLS:
        monkeypatch.setitem(published_files.URLS, key, f"http://127.0.0.1:{server.server_port}/{key}/")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(("source", "key"), [(MNIST, "mnist"), (FashionMNIST, "fashion_mnist")])
def test_download_of_idx_files_happens_once(web, monkeypatch, source, key):
    pixels, _ = write_idx(web.root / key, zipped=True)
    monkeypatch.setitem(
        published_files.HASHES, key, {f"{name}.gz": sha256(web.root / key / f"{name}.gz") for name in IDX}
    )
    train, test = source().load()
    np.testing.assert_array_equal(train.x[:, 0].numpy(), pixels.astype(np.float32) / np.float32(255))
    assert web.asked == [f"/{key}/{name}.gz" for name in IDX]
    again = source().load()
    assert len(web.asked) == 4
    assert [part.fingerprint() for part in again] == [train.fingerprint(), test.fingerprint()]


def test_a_damaged_file_in_the_cache_is_fetched_again(web, monkeypatch, tmp_path):
    write_idx(web.root / "mnist", zipped=True)
    monkeypatch.setitem(
        published_files.HASHES, "mnist", {f"{name}.gz": sha256(web.root / "mnist" / f"{name}.gz") for name in IDX}
    )
    train, _ = MNIST().load()
    cached = tmp_path / "cache/phalanx/mnist" / f"{IDX[0]}.gz"
    cached.write_bytes(cached.read_bytes()[:-5])
    assert MNIST().load()[0].fingerprint() == train.fingerprint()
    assert web.asked[4:] == [f"/mnist/{IDX[0]}.gz"]


def test_a_download_with_an_other_hash_is_refused(web, tmp_path):
    write_idx(web.root / "mnist", zipped=True)  # the true hashes stand
    with pytest.raises(
        ValueError, match=r"mnist/train-images-idx3-ubyte\.gz is refused: SHA256 hash .* give that as data_dir"
    ):
        MNIST().load()
    assert not any(path.is_file() for path in (tmp_path / "cache").rglob("*"))


def write_archive(path, tables):
    """CIFAR-10's archive, with things in it that are not to be extracted."""
    path.parent.mkdir()
    folder = "cifar-10-batches-bin"
    contents = {f"{folder}/{name}": table.tobytes() for name, table in zip(CIFAR, tables, strict=True)}
    contents |= {f"{folder}/batches.meta.txt": b"airplane\n", f"{folder}/readme.html": b"<p>", "../escaped": b"!"}
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def test_download_of_cifar_extracts_six_files(web, monkeypatch, tmp_path):
    tables = [records(2, seed) for seed in range(6)]
    write_archive(web.root / "cifar10/cifar-10-binary.tar.gz", tables)
    monkeypatch.setitem(
        published_files.HASHES,
        "cifar10",
        {"cifar-10-binary.tar.gz": sha256(web.root / "cifar10/cifar-10-binary.tar.gz")},
    )
    train, test = CIFAR10().load()
    np.testing.assert_array_equal(train.y.numpy(), np.concatenate(tables[:5])[:, 0])
    np.testing.assert_array_equal(test.y.numpy(), tables[5][:, 0])
    cache = tmp_path / "cache/phalanx"
    assert sorted(path.name for path in (cache / "cifar-10-batches-bin").iterdir()) == sorted(CIFAR)
    assert not list(tmp_path.rglob("escaped"))
    CIFAR10().load()
    assert len(web.asked) == 1
    (cache / "cifar-10-batches-bin/test_batch.bin").unlink()
    assert CIFAR10().load()[1].fingerprint() == test.fingerprint()  # extracted again
    assert len(web.asked) == 1


@pytest.mark.parametrize("source", [MNIST(), FashionMNIST(), CIFAR10()])
def test_without_a_network_the_error_says_what_to_do(web, monkeypatch, source):
    web.shutdown()
    web.server_close()  # nobody listens there any more
    with pytest.raises(
        OSError, match=r"could not be downloaded to .*Without network access: Fetch .*gz.* give that as data_dir"
    ):
        source.load()


def test_a_missing_page_is_a_failed_download(web):
    with pytest.raises(OSError, match=r"train-images-idx3-ubyte\.gz could not be downloaded .*404"):
        MNIST().load()


TEXTS = {  # what is served, and where it lies once it is downloaded
    AGNews: {f"ag_news/{name}.csv": "\n".join(f'"{k}","a","b c"' for k in (1, 2, 3, 4)) for name in ("train", "test")},
    MR: {f"rt-polaritydata/rt-polarity.{name}": "\n".join(["a b"] * 10) for name in ("neg", "pos")},
    SST: {f"sst/stsa.fine.{name}": "0 a b" for name in ("train", "test")},
}
SMALL = {AGNews: AGNews(corpora=4), MR: MR(), SST: SST()}


def serve_texts(web, monkeypatch, source):
    """Serves the files, MR's in an archive, and gives what is to be asked for."""
    key = {AGNews: "ag_news", MR: "mr", SST: "sst"}[source]
    (web.root / key).mkdir()
    if source is MR:
        with tarfile.open(web.root / "mr/rt-polaritydata.tar.gz", "w:gz") as archive:
            for name, text in (TEXTS[MR] | {"rt-polaritydata.README.1.0.txt": "read me"}).items():
                info = tarfile.TarInfo(name)
                info.size = len(text)
                archive.addfile(info, io.BytesIO(text.encode()))
    else:
        for name, text in TEXTS[source].items():
            (web.root / key / Path(name).name).write_text(text)
    monkeypatch.setitem(
        published_files.HASHES, key, {name: sha256(web.root / key / name) for name in published_files.HASHES[key]}
    )
    return [f"/{key}/{name}" for name in published_files.HASHES[key]]


@pytest.mark.parametrize("source", TEXTS, ids=lambda source: source.__name__)
def test_download_of_texts_happens_once(web, monkeypatch, tmp_path, source):
    expected = serve_texts(web, monkeypatch, source)
    first = SMALL[source].load()
    assert web.asked == expected
    again = SMALL[source].load()
    assert web.asked == expected
    assert [part.fingerprint() for part in again] == [part.fingerprint() for part in first]
    laid_out = {str(path.relative_to(tmp_path / "cache/phalanx")) for path in (tmp_path / "cache").rglob("*.*")}
    assert TEXTS[source].keys() <= laid_out, "the cache is laid out like a data folder"
    assert not any("README" in name for name in laid_out)


@pytest.mark.parametrize("source", TEXTS, ids=lambda source: source.__name__)
def test_texts_with_an_other_hash_are_refused(web, monkeypatch, source):
    true = {key: dict(hashes) for key, hashes in published_files.HASHES.items()}
    serve_texts(web, monkeypatch, source)
    monkeypatch.setattr(published_files, "HASHES", true)
    with pytest.raises(ValueError, match=r"is refused: SHA256 hash .* give that as data_dir"):
        SMALL[source].load()


def test_every_download_has_a_hash():
    assert published_files.URLS.keys() == published_files.HASHES.keys()
    assert all(len(bytes.fromhex(digest)) == 32 for one in published_files.HASHES.values() for digest in one.values())


# --- Hugging Face


def saved(folder, *, named=True, splits=("train", "test")):
    """A data set of two splits on disk; the last class has no test example."""
    target = datasets.ClassLabel(names=["a", "b", "c", "d"]) if named else datasets.Value("int64")
    features = datasets.Features({"image": datasets.List(datasets.Value("float32")), "label": target})
    rows = {splits[0]: {"image": [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], "label": [0, 2, 1]}}
    rows[splits[1]] = {"image": [[6.0, 7.0]], "label": [1]}
    split = {name: datasets.Dataset.from_dict(columns, features=features) for name, columns in rows.items()}
    datasets.DatasetDict(split).save_to_disk(str(folder))


@pytest.mark.parametrize(("named", "classes"), [(True, 4), (False, 3)])
def test_huggingface_from_disk(tmp_path, named, classes):
    saved(tmp_path / "set", named=named)
    train, test = HuggingFace(str(tmp_path / "set")).load()
    assert train.x.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert (train.y.tolist(), test.y.tolist()) == ([0, 2, 1], [1])
    assert train.classes == test.classes == classes
    assert HuggingFace("set").load(tmp_path)[0].fingerprint() == train.fingerprint()


def test_huggingface_splits_and_columns(tmp_path):
    saved(tmp_path, splits=("fit", "dev"))
    assert len(HuggingFace(str(tmp_path), train="fit", test="dev").load()[0]) == 3
    with pytest.raises(ValueError, match=r"must hold the splits 'train' and 'test', got \['fit', 'dev'\]"):
        HuggingFace(str(tmp_path)).load()
    with pytest.raises(ValueError, match=r"no column 'pixels'; the columns are \['image', 'label'\]"):
        HuggingFace(str(tmp_path), train="fit", test="dev", inputs="pixels").load()


def test_huggingface_wants_two_splits_on_disk(tmp_path):
    datasets.Dataset.from_dict({"image": [[1.0]], "label": [0]}).save_to_disk(str(tmp_path))
    with pytest.raises(ValueError, match="got a single one"):
        HuggingFace(str(tmp_path)).load()


def test_huggingface_from_the_hub(monkeypatch):
    calls = []
    rows = datasets.Dataset.from_dict({"image": [[1.0]], "label": [0]})
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: calls.append((args, kwargs)) or [rows, rows])
    HuggingFace("owner/set", name="small", train="train[:10]").load()
    assert calls == [(("owner/set", "small"), {"split": ["train[:10]", "test"]})]


def test_huggingface_without_a_network(monkeypatch):
    def offline(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(
        OSError, match=r"'owner/set' could not be loaded: no route\. Without network access: .*save_to_disk"
    ):
        HuggingFace("owner/set").load()


def test_huggingface_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ModuleNotFoundError, match=re.escape(installation("huggingface"))):
        HuggingFace("owner/set").load()


# --- memory


def pair(shift=0.0):
    return [Dataset(torch.arange(float(n))[:, None] + shift, torch.zeros(n, dtype=torch.int64), 2) for n in (4, 2)]


def test_in_memory_is_a_value():
    source = InMemory(*pair())
    assert source.load() == (source.train, source.test)
    assert source == InMemory(*pair())
    assert hash(source) == hash(InMemory(*pair()))
    assert source != InMemory(*pair(shift=1.0))
    assert source != InMemory(*pair(), name="other")
    assert source != MNIST()
    assert source.canonical == {
        "name": "in-memory",
        "train": source.train.fingerprint(),
        "test": source.test.fingerprint(),
    }
    assert repr(source) == "InMemory('in-memory', 4 train and 2 test examples)"


@pytest.mark.parametrize(
    "other",
    [
        Dataset(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64), 2),
        Dataset(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64), 3),
        Dataset(torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), 2),
    ],
)
def test_in_memory_parts_must_agree(other):
    with pytest.raises(ValueError, match="Train and test must agree"):
        InMemory(pair()[0], other)


# --- configuration


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--data=Digits", "--data.test_share=0.3"], Digits(0.3)),
        (["--data=MNIST", "--data.limit=100"], MNIST(limit=100)),
        (["--data=CIFAR10", "--data.standardize=true"], CIFAR10(standardize=True)),
        (["--data=HuggingFace", "--data.path=owner/set"], HuggingFace("owner/set")),
    ],
)
def test_sources_are_built_from_a_configuration(arguments, expected):
    assert chosen("data", Source, arguments) == expected


# --- the true files


@pytest.fixture(scope="module")
def published():
    if not (folder := os.environ.get("PHALANX_DATA")):
        pytest.skip("PHALANX_DATA does not name a folder with the published files")
    return Path(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "train_labels", "mean", "std"),
    [
        (MNIST, [5, 0, 4, 1, 9, 2, 1, 3, 1, 4], [0.1307], [0.3081]),
        (FashionMNIST, [9, 0, 0, 3, 0, 2, 7, 2, 5, 5], [0.2860], [0.3530]),
        (CIFAR10, [6, 9, 9, 4, 1, 1, 2, 7, 8, 3], [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    ],
)
def test_published_files(published, source, train_labels, mean, std):
    start = time.perf_counter()
    train, test = source().load(published)
    assert time.perf_counter() - start < 30
    assert train.y[:10].tolist() == train_labels
    assert (len(train), len(test)) == (50_000 if source is CIFAR10 else 60_000, 10_000)
    assert train.x.double().mean((0, 2, 3)).tolist() == pytest.approx(mean, abs=6e-5)
    assert train.x.double().std((0, 2, 3)).tolist() == pytest.approx(std, abs=6e-5)
    scaled, _ = source(standardize=True).load(published)
    assert scaled.x.mean((0, 2, 3)).abs().max() < 1e-4
    assert (scaled.x.std((0, 2, 3)) - 1).abs().max() < 1e-4


def test_published_test_labels(published):
    assert MNIST(limit=1).load(published)[1].y[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert CIFAR10(limit=1).load(published)[1].y[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]


def test_published_idx_files_have_the_hashes_that_downloads_must_have(published):
    for key in ("mnist", "fashion_mnist"):
        for name, digest in published_files.HASHES[key].items():
            if (path := published / key / name).is_file():
                assert sha256(path) == digest
