"""Where data sets come from: files in their publishers' formats, checked downloads, Hugging Face, or memory.

Nothing here unpickles anything.  What a file declares about itself is compared with its length before memory is taken.
"""

import gzip
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from phalanx.data.dataset import Dataset

# Where files are downloaded from, if they are not given.
URLS = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "fashion_mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "cifar10": "https://www.cs.toronto.edu/~kriz/",
}

# SHA-256 of each download.
HASHES = {
    "mnist": {
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    "fashion_mnist": {
        "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
    "cifar10": {
        "cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    },
}

IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR_FOLDER = "cifar-10-batches-bin"
CIFAR_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
CIFAR_SHAPE = (3, 32, 32)
TEN = 10  # classes of each of these publications
GZIP_MAGIC, GZIP_MOST = b"\x1f\x8b", 1032  # DEFLATE makes no more than 1,032 bytes of one
FETCH_AGAIN = "Delete it and fetch it again."


class Source(ABC):
    """Where a data set comes from.  A printable value; nothing is read before `load`."""

    @abstractmethod
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """The train part and the test part.

        Args:
            data_dir: folder that holds the files; if not given, files are downloaded once, to the user's cache folder.

        Raises:
            FileNotFoundError: `data_dir` was given and does not hold the files.
            OSError: the download failed.
            ValueError: a file is not what it should be.
        """


# --- scikit-learn's digits --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Digits(Source):
    """The 1,797 handwritten digits, 8 x 8 pixels, that come with scikit-learn: no file, no download.

    The test part is the last `test_share` of each class in the file's order, with no randomness.  The file goes
    fourteen times through a form of about 130 digits, by all appearances writer by writer, so that most test digits
    are by writers that are not in the train part.  A shuffled split would put every writer in both and flatter every
    model.

    Args:
        test_share: share of each class for the test part, between 0 and 1; each part has an example of each class.
    """

    test_share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.test_share < 1:
            raise ValueError(f"test_share must be between 0 and 1, both excluded, got {self.test_share}.")

    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Train and test part; x is float32 in [0, 1] of shape (n, 1, 8, 8).  `data_dir` is not needed."""
        from sklearn.datasets import load_digits  # noqa: PLC0415  (slow to import, and needed here only)

        images, labels = load_digits(return_X_y=True)
        data = Dataset(
            torch.tensor(images, dtype=torch.float32).div_(16).reshape(-1, 1, 8, 8), torch.tensor(labels), TEN
        )
        test = torch.zeros(len(data), dtype=torch.bool)
        for c in range(TEN):
            members = torch.nonzero(data.y == c).flatten()
            n = min(max(round(self.test_share * len(members)), 1), len(members) - 1)
            test[members[len(members) - n :]] = True
        return data.of(~test), data.of(test)


# --- MNIST, Fashion-MNIST, CIFAR-10 -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class MNIST(Source):
    """Handwritten digits, 28 x 28 pixels, 60,000 for training and 10,000 for tests (LeCun et al. 1998).

    The four IDX files, gzipped or not, are looked for in `mnist/` and `MNIST/raw/` of the data folder.

    Args:
        standardize: whether to subtract the mean and divide by the standard deviation of all train pixels as published.
        limit: take only the first so many train examples, at least 1; all if not given.
    """

    standardize: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        _check_limit(self.limit)

    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Train and test part; x is float32, in [0, 1] unless standardized, of shape (n, 1, 28, 28)."""
        return _load_idx("mnist", ("mnist", "MNIST/raw"), data_dir, self.standardize, self.limit)


@dataclass(frozen=True)
class FashionMNIST(Source):
    """Pictures of clothes, 28 x 28 pixels, 60,000 for training and 10,000 for tests (Xiao et al. 2017).

    The four IDX files, gzipped or not, are looked for in `fashion_mnist/` and `FashionMNIST/raw/` of the data folder.

    Args:
        standardize: whether to subtract the mean and divide by the standard deviation of all train pixels as published.
        limit: take only the first so many train examples, at least 1; all if not given.
    """

    standardize: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        _check_limit(self.limit)

    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Train and test part; x is float32, in [0, 1] unless standardized, of shape (n, 1, 28, 28)."""
        return _load_idx("fashion_mnist", ("fashion_mnist", "FashionMNIST/raw"), data_dir, self.standardize, self.limit)


@dataclass(frozen=True)
class CIFAR10(Source):
    """Colour photographs, 32 x 32 pixels, 50,000 for training and 10,000 for tests (Krizhevsky 2009).

    The six files of the binary version are looked for in `cifar-10-batches-bin/` of the data folder.

    Args:
        standardize: whether to subtract the mean and divide by the standard deviation, of each colour, of all train
            pixels as published.
        limit: take only the first so many train examples, at least 1; all if not given.
    """

    standardize: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        _check_limit(self.limit)

    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Train and test part; x is float32, in [0, 1] unless standardized, of shape (n, 3, 32, 32)."""
        root = data_dir
        if root is None:
            members = [f"{CIFAR_FOLDER}/{name}" for name in CIFAR_FILES]
            root = _download("cifar10", "", members)
        paths = _found("CIFAR10", root, (CIFAR_FOLDER,), CIFAR_FILES, ("",))
        if len({path.stat().st_size for path in paths}) != 1:
            listed = ", ".join(f"{path.name} {path.stat().st_size}" for path in paths)
            raise ValueError(
                f"The six files in {paths[0].parent} must be equally long, got these lengths in bytes: {listed}. "
                "At least one is truncated or not the original; fetch them again."
            )
        *train, test = (_records(path) for path in paths)
        whole = _Bytes(torch.cat([part.pixels for part in train]), torch.cat([part.labels for part in train]))
        return _parts(whole, test, self.standardize, self.limit)


class _Bytes(NamedTuple):
    """One part of a publication as it is stored, checked."""

    pixels: Tensor  # (n, channels, height, width), uint8
    labels: Tensor  # (n,), uint8


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, or None for all train examples, got {limit}.")


def _parts(train: _Bytes, test: _Bytes, standardize: bool, limit: int | None) -> tuple[Dataset, Dataset]:
    moments = _moments(train.pixels) if standardize else None
    kept = _Bytes(train.pixels[:limit], train.labels[:limit])
    parts = [Dataset(_scaled(part.pixels, moments), part.labels.to(torch.int64), TEN) for part in (kept, test)]
    return parts[0], parts[1]


def _scaled(pixels: Tensor, moments: tuple[Tensor, Tensor] | None) -> Tensor:
    """float32 of uint8; one allocation."""
    x = pixels.to(torch.float32).div_(255)
    return x if moments is None else x.sub_(moments[0]).div_(moments[1])


def _moments(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel of uint8 pixels / 255, from exact counts; broadcastable, float32."""
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in pixels.unbind(1)]).double()
    share, value = counts / counts.sum(1, keepdim=True), torch.arange(256, dtype=torch.float64) / 255
    mean = share @ value
    std = (share * (value - mean[:, None]) ** 2).sum(1).sqrt()
    std[std == 0] = 1  # pixels that are all the same become 0
    return mean.float()[:, None, None], std.float()[:, None, None]


def _found(what: str, root: Path, folders: Sequence[str], names: Sequence[str], endings: Sequence[str]) -> list[Path]:
    """The files, each with one of the endings, from the first of the folders that holds them all."""
    lacking = []
    for folder in (Path(root) / folder for folder in folders):
        paths = [next((p for end in endings if (p := folder / (name + end)).is_file()), None) for name in names]
        if all(paths):
            return [path for path in paths if path]
        lacking.append(f"{folder} lacks {', '.join(name for name, path in zip(names, paths, strict=True) if not path)}")
    also = f", each also with {endings[-1]}" if len(endings) > 1 else ""
    raise FileNotFoundError(
        f"{what} needs {len(names)} files in one folder{also}: {'; '.join(lacking)}. "
        "Put them there, or leave data_dir away to download them."
    )


def _download(key: str, folder: str, members: Sequence[str] = ()) -> Path:
    """Downloads what is not yet in the cache, checks it, and gives the cache's folder, laid out like a data_dir.

    Args:
        key: of `URLS` and `HASHES`.
        folder: within the cache, for the files.
        members: what to extract, if the files are tar archives.
    """
    import pooch  # noqa: PLC0415  (needed here only)

    cache = Path(pooch.os_cache("phalanx"))
    remedy = f"Fetch {' and '.join(HASHES[key])} in another way, lay them out in a folder and give that as data_dir."
    for name, sha256 in HASHES[key].items():
        url = URLS[key] + name
        extract = pooch.Untar(members=list(members), extract_dir=".") if members else None
        try:
            pooch.retrieve(url, f"sha256:{sha256}", fname=name, path=cache / folder, processor=extract)
        except ValueError as error:
            raise ValueError(f"{url} is refused: {error} {remedy}") from error
        except OSError as error:
            raise OSError(
                f"{url} could not be downloaded to {cache / folder}: {error}. Without network access: {remedy}"
            ) from error
    return cache


def _load_idx(
    key: str, folders: tuple[str, ...], data_dir: Path | None, standardize: bool, limit: int | None
) -> tuple[Dataset, Dataset]:
    root = _download(key, folders[0]) if data_dir is None else data_dir
    paths = _found({"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}[key], root, folders, IDX_FILES, ("", ".gz"))
    train, test = (_idx_pair(images, labels) for images, labels in (paths[:2], paths[2:]))
    return _parts(train, test, standardize, limit)


def _idx_pair(images: Path, labels: Path) -> _Bytes:
    pixels, numbers = _idx(images, 28, 28), _idx(labels)
    if len(pixels) != len(numbers):
        raise ValueError(
            f"{images} has {len(pixels)} images, {labels} has {len(numbers)} labels. One of them is not the original."
        )
    _check_labels(labels, numbers)
    return _Bytes(pixels[:, None], numbers)


def _check_labels(path: Path, labels: Tensor) -> None:
    if int(labels.max()) >= TEN:
        raise ValueError(f"{path} has the label {int(labels.max())}, allowed are 0..{TEN - 1}. {FETCH_AGAIN}")


def _idx(path: Path, *shape: int) -> Tensor:
    """The bytes (n, *shape) of an IDX file, gzipped or not."""
    with path.open("rb") as start:
        zipped = start.read(2) == GZIP_MAGIC
    try:
        with gzip.open(path) if zipped else path.open("rb") as file:
            n = _idx_count(path, file.read(8 + 4 * len(shape)), shape)
            size = n * int(np.prod(shape, dtype=np.int64))
            room = path.stat().st_size * (GZIP_MOST if zipped else 1)
            if size > room:
                raise ValueError(
                    f"{path} declares {size} bytes of data and cannot hold more than {room}; it is truncated. "
                    f"{FETCH_AGAIN}"
                )
            data = bytearray(file.read(size + 1))  # one more than there may be; this also makes gzip check its sum
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}. {FETCH_AGAIN}") from error
    if len(data) != size:
        found = "more" if len(data) > size else f"{len(data)}; it is truncated"
        raise ValueError(f"{path} declares {size} bytes of data and holds {found}. {FETCH_AGAIN}")
    return torch.frombuffer(data, dtype=torch.uint8).reshape(n, *shape)


def _idx_count(path: Path, header: bytes, shape: tuple[int, ...]) -> int:
    """How many examples the header of an IDX file declares."""
    magic = bytes((0, 0, 8, 1 + len(shape)))
    if header[:4] != magic:
        raise ValueError(
            f"{path} must start with {magic.hex(' ')} (IDX, bytes, {magic[3]} dimensions), got {header[:4].hex(' ')!r}."
        )
    if len(header) != 4 + 4 * magic[3]:
        raise ValueError(f"{path} ends within its header, after {len(header)} bytes; it is truncated. {FETCH_AGAIN}")
    n, *rest = struct.unpack(f">{magic[3]}I", header[4:])
    if tuple(rest) != shape or n == 0:
        raise ValueError(
            f"{path} must declare dimensions (n{''.join(f', {s}' for s in shape)}) with n > 0, got {(n, *rest)}."
        )
    return int(n)


def _records(path: Path) -> _Bytes:
    """The records of a file of CIFAR-10's binary version: 1 byte of label, 3,072 of pixels."""
    record, size = 1 + int(np.prod(CIFAR_SHAPE)), path.stat().st_size
    if size == 0 or size % record:
        raise ValueError(
            f"{path} must hold whole records of {record} bytes, got {size} bytes; it is truncated. {FETCH_AGAIN}"
        )
    table = torch.from_numpy(np.fromfile(path, dtype=np.uint8)).reshape(-1, record)
    _check_labels(path, table[:, 0])
    return _Bytes(table[:, 1:].reshape(-1, *CIFAR_SHAPE), table[:, 0])


# --- Hugging Face, memory ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HuggingFace(Source):
    """Two splits of a Hugging Face data set.  Needs the package `datasets`: `pip install 'phalanx-fl[huggingface]'`.

    Args:
        path: name on the Hugging Face hub, or a folder written by `DatasetDict.save_to_disk`, looked for here and in
            the data folder.
        name: the data set's configuration, where it has several.
        train: the split to train on.
        test: the split to test on.
        inputs: the column of the inputs: images, numbers, or lists of numbers of one shape.
        label: the column of the labels: integers.
    """

    path: str
    name: str | None = None
    train: str = "train"
    test: str = "test"
    inputs: str = "image"
    label: str = "label"

    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Train and test part; see `Dataset.from_huggingface`.

        Raises:
            ModuleNotFoundError: the package `datasets` is not installed.
            ValueError: there is no such split or column, or it does not hold numbers or images.
            OSError: the hub could not be reached.
        """
        splits = [Dataset.from_huggingface(split, self.inputs, self.label) for split in self._splits(data_dir)]
        classes = max(split.classes for split in splits)  # the largest label may be missing from one of them
        return replace(splits[0], classes=classes), replace(splits[1], classes=classes)

    def _splits(self, data_dir: Path | None) -> list[Any]:
        try:
            import datasets  # noqa: PLC0415  (optional)
        except ImportError as error:
            message = "HuggingFace needs the package datasets. Install it: pip install 'phalanx-fl[huggingface]'."
            raise ModuleNotFoundError(message) from error
        for folder in [Path(self.path), *([Path(data_dir) / self.path] if data_dir else [])]:
            if any((folder / mark).is_file() for mark in ("dataset_dict.json", "state.json")):
                return self._chosen(datasets.load_from_disk(str(folder)))
        try:
            return list(datasets.load_dataset(self.path, self.name, split=[self.train, self.test]))
        except OSError as error:
            remedy = (
                "Without network access: write it with save_to_disk where there is some, and give that folder as path."
            )
            raise OSError(f"The Hugging Face data set {self.path!r} could not be loaded: {error}. {remedy}") from error

    def _chosen(self, saved: Any) -> list[Any]:
        found = list(saved) if isinstance(saved, dict) else []
        if self.train not in found or self.test not in found:
            remedy = "Name the splits to use in train and test, or save a DatasetDict that has both."
            raise ValueError(
                f"{self.path} must hold the splits {self.train!r} and {self.test!r}, "
                f"got {found or 'a single one'}. {remedy}"
            )
        return [saved[self.train], saved[self.test]]


@dataclass(frozen=True, eq=False, repr=False)
class InMemory(Source):
    """Two data sets that are there already.  Equal if they hold the same examples, under the same name.

    Args:
        train: the train part.
        test: the test part: inputs of the same shape, and as many classes.
        name: what to call them.
    """

    train: Dataset
    test: Dataset
    name: str = "in-memory"

    def __post_init__(self) -> None:
        ours, theirs = ((tuple(d.x.shape[1:]), d.x.dtype, d.classes) for d in (self.train, self.test))
        if ours != theirs:
            raise ValueError(
                f"Train and test must agree in shape, type and number of classes, got {ours} and {theirs}."
            )

    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Train and test part, as they were given.  `data_dir` is not needed."""
        return self.train, self.test

    @cached_property
    def _prints(self) -> tuple[str, str]:
        return self.train.fingerprint(), self.test.fingerprint()

    @property
    def canonical(self) -> dict[str, str]:
        """What identifies this source: its name and the fingerprints of its parts."""
        return {"name": self.name, "train": self._prints[0], "test": self._prints[1]}

    def __eq__(self, other: object) -> bool:
        return self.canonical == other.canonical if isinstance(other, InMemory) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self.canonical.values()))

    def __repr__(self) -> str:
        return f"InMemory({self.name!r}, {len(self.train)} train and {len(self.test)} test examples)"
