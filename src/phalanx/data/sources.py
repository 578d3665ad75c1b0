"""Sources of data sets: publications, which are downloaded or given as files, Hugging Face, or memory."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from phalanx.data.dataset import Dataset
from phalanx.data.published_files import TEN, Bytes, read_cifar10, read_idx
from phalanx.data.saved_folders import check_folder, check_split
from phalanx.fields import CheckedFields, PositiveInt
from phalanx.installation import optional


class Source(CheckedFields, ABC):
    """The source of a data set.  A printable value; nothing is read before `load`."""

    @abstractmethod
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Return the train part and the test part.

        Args:
            data_dir: folder with the files; if not given, files are downloaded once, to the user's cache folder.

        Raises:
            FileNotFoundError: if `data_dir` lacks the files, or is not given and the files cannot be downloaded.
            OSError: if the download fails.
            ValueError: if a file is damaged or not the original.
        """


# --- scikit-learn's digits --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Digits(Source):
    """The 1,797 handwritten digits, 8 x 8 pixels, of scikit-learn: no file, no download.

    The test part is the last `test_share` of each class in the order of the file, without randomness.  The file seems
    to be ordered by writer, fourteen times through a form of about 130 digits, so most test digits are by writers that
    are not in the train part.  A shuffled split would have every writer in both parts and overestimate accuracies.

    Args:
        test_share: share of each class in the test part, between 0 and 1; each part has an example of each class.
    """

    test_share: Annotated[float, Meta(gt=0, lt=1)] = 0.2

    @override
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Return the train and test part; x is float32 in [0, 1] of shape (n, 1, 8, 8).  `data_dir` is not needed."""
        images, labels = _digits()
        data = Dataset(
            torch.tensor(images, dtype=torch.float32).div_(16).reshape(-1, 1, 8, 8), torch.tensor(labels), TEN
        )
        test = torch.zeros(len(data), dtype=torch.bool)
        for c in range(TEN):
            members = torch.nonzero(data.y == c).flatten()
            n = min(max(round(self.test_share * len(members)), 1), len(members) - 1)
            test[members[len(members) - n :]] = True
        return data.of(~test), data.of(test)


@cache
def _digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the images, (n, 64), and the labels of scikit-learn's `load_digits`, read once in a process."""
    # Its file is read without scikit-learn, whose import takes a third of a small run, where it lies as expected.
    package = find_spec("sklearn")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz" if package and package.origin else None
    if file is None or not file.is_file():
        from sklearn.datasets import load_digits  # noqa: PLC0415  (slow to import)

        images, labels = load_digits(return_X_y=True)
        return images, labels
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)


# --- MNIST, Fashion-MNIST, CIFAR-10 -----------------------------------------------------------------------------------

WIDEST_PADDING = 14  # as wide as half of an image


@dataclass(frozen=True)
class MNIST(Source):
    """Handwritten digits, 28 x 28 pixels, 60,000 for training and 10,000 for tests (LeCun et al. 1998).

    The four IDX files, gzipped or not, are expected in `mnist/` and `MNIST/raw/` of the data folder.

    Args:
        standardize: whether to subtract the mean and divide by the standard deviation of all published train pixels,
            those of `padding` included.
        limit: largest number of train examples, at least 1; the first ones are taken. All if not given.
        padding: rows and columns of black pixels on each side, 0 to 14; 2 makes images of 32 x 32.
    """

    standardize: bool = False
    limit: PositiveInt | None = None
    padding: Annotated[int, Meta(ge=0, le=WIDEST_PADDING)] = 0

    @override
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Return the train and test part.

        x is float32, in [0, 1] unless standardized, of shape (n, 1, 28 + 2 padding, 28 + 2 padding).
        """
        parts = read_idx("MNIST", ("mnist", "MNIST/raw"), data_dir)
        if self.padding:
            parts = (_padded(parts[0], self.padding), _padded(parts[1], self.padding))
        return _datasets(*parts, self.standardize, self.limit)


@dataclass(frozen=True)
class FashionMNIST(Source):
    """Pictures of clothes, 28 x 28 pixels, 60,000 for training and 10,000 for tests (Xiao et al. 2017).

    The four IDX files, gzipped or not, are expected in `fashion_mnist/` and `FashionMNIST/raw/` of the data folder.

    Args:
        standardize: whether to subtract the mean and divide by the standard deviation of all published train pixels.
        limit: largest number of train examples, at least 1; the first ones are taken. All if not given.
    """

    standardize: bool = False
    limit: PositiveInt | None = None

    @override
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Return the train and test part; x is float32, in [0, 1] unless standardized, of shape (n, 1, 28, 28)."""
        parts = read_idx("FashionMNIST", ("fashion_mnist", "FashionMNIST/raw"), data_dir)
        return _datasets(*parts, self.standardize, self.limit)


@dataclass(frozen=True)
class CIFAR10(Source):
    """Colour photographs, 32 x 32 pixels, 50,000 for training and 10,000 for tests (Krizhevsky 2009).

    The six files of the binary version are expected in `cifar-10-batches-bin/` of the data folder.

    Args:
        standardize: whether to subtract the mean and divide by the standard deviation, for each colour, of all
            published train pixels.
        limit: largest number of train examples, at least 1; the first ones are taken. All if not given.
    """

    standardize: bool = False
    limit: PositiveInt | None = None

    @override
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Return the train and test part; x is float32, in [0, 1] unless standardized, of shape (n, 3, 32, 32)."""
        return _datasets(*read_cifar10(data_dir), self.standardize, self.limit)


def _padded(part: Bytes, padding: int) -> Bytes:
    """Return the images with black rows and columns on each side."""
    return Bytes(torch.nn.functional.pad(part.pixels, (padding,) * 4), part.labels)


def _datasets(train: Bytes, test: Bytes, standardize: bool, limit: int | None) -> tuple[Dataset, Dataset]:
    moments = _moments(train.pixels) if standardize else None
    # Mean and deviation are of the whole train part, so that `limit` does not change the pixels.
    kept = Bytes(train.pixels[:limit], train.labels[:limit])
    parts = [Dataset(_scaled(part.pixels, moments), part.labels.to(torch.int64), TEN) for part in (kept, test)]
    return parts[0], parts[1]


def _scaled(pixels: Tensor, moments: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return uint8 pixels as float32 in [0, 1] or standardized, with one allocation."""
    x = pixels.to(torch.float32).div_(255)
    return x if moments is None else x.sub_(moments[0]).div_(moments[1])


def _moments(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each channel of uint8 pixels / 255, broadcastable, float32.

    They come from the counts of the 256 values, which are exact, where sums over millions of pixels would round.
    """
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in pixels.unbind(1)]).double()
    share, value = counts / counts.sum(1, keepdim=True), torch.arange(256, dtype=torch.float64) / 255
    mean = share @ value
    std = (share * (value - mean[:, None]) ** 2).sum(1).sqrt()
    std[std == 0] = 1  # constant pixels become 0
    return mean.float()[:, None, None], std.float()[:, None, None]


# --- Hugging Face, memory ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HuggingFace(Source):
    """Two splits of a Hugging Face data set.  Needs the package `datasets`: the extra `huggingface`.

    Args:
        path: name on the Hugging Face hub, or a folder written by `DatasetDict.save_to_disk`, in the current or in the
            data folder.
        name: configuration of the data set, if it has several.
        train: split for training.
        test: split for tests.
        inputs: column of the inputs: images, numbers, or lists of numbers of one shape.
        label: column of the labels: integers.
    """

    path: str
    name: str | None = None
    train: str = "train"
    test: str = "test"
    inputs: str = "image"
    label: str = "label"

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path.strip("/ "):
            raise ValueError(f"path must name a data set or a folder, got {self.path!r}.")

    @override
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Return the train and test part; see `Dataset.from_huggingface`.

        Raises:
            ModuleNotFoundError: if the package `datasets` is not installed.
            ValueError: if there is no such split or column, or it does not hold numbers or images.
            OSError: if the hub cannot be reached.
        """
        splits = [Dataset.from_huggingface(split, self.inputs, self.label) for split in self._splits(data_dir)]
        classes = max(split.classes for split in splits)  # the largest label may be missing from one of them
        return replace(splits[0], classes=classes), replace(splits[1], classes=classes)

    def saved(self, data_dir: Path | None) -> Path | None:
        """Return the folder to which the data set was saved, in the current or the data folder; None: on the hub."""
        folders = [Path(self.path), *([Path(data_dir) / self.path] if data_dir else [])]
        marks = ("dataset_dict.json", "state.json")
        return next((folder for folder in folders if any((folder / mark).is_file() for mark in marks)), None)

    def _splits(self, data_dir: Path | None) -> list[Any]:
        datasets = optional("datasets", "HuggingFace", "huggingface")
        if (folder := self.saved(data_dir)) is not None:
            check_folder(folder)
            splits = self._chosen(datasets.load_from_disk(str(folder)))
            for split in splits:
                check_split(split, self.inputs, self.label)
            return splits
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
    """Two data sets in memory.  Sources are equal if they have the same examples and the same name.

    Args:
        train: the train part.
        test: the test part: inputs and labels of the same shape, and as many classes.
        name: name of the data.
    """

    train: Dataset
    test: Dataset
    name: str = "in-memory"

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        ours, theirs = map(_kind, (self.train, self.test))
        if ours != theirs:
            raise ValueError(
                "Train and test must agree in shape and type of inputs, number of classes and shape of labels, "
                f"got {ours} and {theirs}."
            )

    @override
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Return the train and test part, as they were given.  `data_dir` is not needed."""
        return self.train, self.test

    @cached_property
    def _prints(self) -> tuple[str, str]:
        return self.train.fingerprint(), self.test.fingerprint()

    @property
    def canonical(self) -> dict[str, str]:
        """The identity of this source: its name and the fingerprints of its parts."""
        return {"name": self.name, "train": self._prints[0], "test": self._prints[1]}

    @override
    def __eq__(self, other: object) -> bool:
        return self.canonical == other.canonical if isinstance(other, InMemory) else NotImplemented

    @override
    def __hash__(self) -> int:
        return hash(tuple(self.canonical.values()))

    @override
    def __repr__(self) -> str:
        return f"InMemory({self.name!r}, {len(self.train)} train and {len(self.test)} test examples)"


def _kind(data: Dataset) -> tuple[Any, ...]:
    """Return the shapes and types of a data set."""
    inputs = [(*([name] if name else []), tuple(x.shape[1:]), x.dtype) for name, x in data.inputs.items()]
    return (*(inputs[0] if isinstance(data.x, torch.Tensor) else inputs), data.classes, tuple(data.y.shape[1:]))
