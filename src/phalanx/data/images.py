"""Images in files as sources of examples: in a folder for each class, or named in a table.  Pillow reads them.

Files may come from elsewhere.  So their number and bytes are counted before one is opened, pixels before they are
decoded, and no name leads out of the folder.
"""

import csv
import io
import math
import os
import stat
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from glob import glob
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Meta
from torch import Tensor
from typing_extensions import override

from phalanx.data.dataset import Dataset
from phalanx.data.findings import Finding
from phalanx.data.held_out import drawn
from phalanx.data.image_form import COLOUR, GRAY, SIDE, WORD, Images, Refused
from phalanx.data.sources import Source
from phalanx.data.table_files import TableFile, check_separator, files_of, is_pattern, matched_parts, owners_of_files
from phalanx.data.tables import Name, TableReading
from phalanx.errors import InfeasibleError
from phalanx.fields import PositiveInt
from phalanx.installation import DATA_DIR, optional
from phalanx.reading import contents, decoded, file_digest
from phalanx.wording import plural, shown

FORMATS = {".bmp": "BMP", ".gif": "GIF", ".jpeg": "JPEG", ".jpg": "JPEG", ".png": "PNG", ".tif": "TIFF",
           ".tiff": "TIFF", ".webp": "WEBP"}  # fmt: skip
WIDE = ("I;16", "I;16L", "I;16B", "I;16N")  # Pillow's modes of 16 bits of gray
MOST_NUMBERS = 1_000_000_000  # of all images in memory: 4 GB
MOST_DECODED = 5_000_000_000  # pixels of all images, and PER_BYTE more for each byte of their files
PER_BYTE = 100
AT_ONCE = 100_000_000  # numbers of which moments are computed
MOST_TABLE = 100_000_000  # bytes of a table that names images


class ImageFile(NamedTuple):
    """An image in a file.

    Args:
        file: where it lies.
        name: for messages: its path within the source.
        label: its class.
        owner: whose it is; empty if that is not known.
    """

    file: Path
    name: str
    label: str
    owner: str = ""


@dataclass(frozen=True)
class ImageSource(Source):
    """The base class of images in files.

    All become float32 in [0, 1] of shape (channels, height, width).  Photographs are turned upright, as their file
    says. An image with transparent pixels, with several frames, or of 32 bits a pixel is refused.

    Args:
        path: where the images are; see the class.
        test: the same for the test part; if not given, `test_share` of the images are drawn at random.
        test_share: share of each class, or of each owner's images if there are owners, in the test part, between 0 and
            1.
        size: height and width in pixels to which images are stretched; if not given, they must have one size.
        channels: "RGB", or "L" for gray.
        class_names: the classes in the order of their numbers; those that there are, sorted, if not given.
        standardize: whether to subtract the mean and divide by the standard deviation of the train part, for each
            channel.
        split_seed: determines which images are drawn for the test part.
        schema: the file of a schema of the federation, by which the images are read. It says what they are: size,
            channels, class_names and standardize do not go with it.
        most_images: the largest number of images.
        most_pixels: the largest number of pixels of an image, counted before it is decoded.
        most_bytes: the largest number of bytes of a file.
    """

    path: str
    test: str | None = None
    test_share: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    size: Annotated[int, Meta(ge=1, le=SIDE)] | None = None
    channels: Literal["RGB", "L"] = "RGB"
    class_names: tuple[str, ...] | None = None
    standardize: bool = False
    split_seed: int = 0
    most_images: PositiveInt = 100_000
    most_pixels: PositiveInt = 50_000_000
    most_bytes: PositiveInt = 50_000_000
    schema: str | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        own = {"size": None, "channels": "RGB", "class_names": None, "standardize": False}
        if self.schema is not None and (given := [name for name, value in own.items() if getattr(self, name) != value]):
            raise ValueError(f"schema says what the images are, and so does {given[0]}. Leave out one of them.")

    @abstractmethod
    def listed(self, path: str, data_dir: Path | None) -> tuple[list[ImageFile], list[Finding]]:
        """Return the images at a path, in the order of their names, and what was left out.

        Raises:
            FileNotFoundError: there is nothing at that path.
            ValueError: there is no image, or a name leads elsewhere.
            InfeasibleError: there are more or larger images than the ceilings.
        """

    def _counted(self, images: Iterable[ImageFile], path: str) -> list[ImageFile]:
        """Return the images at a path; raise `InfeasibleError` at the first that is too large, or one too many."""
        counted = list[ImageFile]()
        for image in images:
            if len(counted) == self.most_images:
                raise InfeasibleError(
                    f"{path} has more than {self.most_images:,} images, the most that are read. Raise most_images."
                )
            if (size := image.file.stat().st_size) > self.most_bytes:
                raise InfeasibleError(
                    f"{image.name} has {size:,} bytes, and at most {self.most_bytes:,} are read. Raise most_bytes."
                )
            counted.append(image)
        return counted

    @property
    def file_digests(self) -> Mapping[str, str]:
        """By field, the SHA-256 of names, classes, owners and contents of its images, which identifies the data.

        They are looked for in the current folder, and in that of the environment variable `PHALANX_DATA`.
        """
        folder, found = os.environ.get(DATA_DIR), dict[str, str]()
        place = Path(folder) if folder else None
        if self.schema is not None and (files := files_of(self.schema, place)) and (digest := file_digest(files[0])):
            found["schema"] = digest
        for field, path in (("path", self.path), ("test", self.test)):
            if path is not None:
                try:
                    images, _ = self.listed(path, place)
                    found[field] = _digest(tuple((i.file, i.name, i.label, i.owner, _changed(i.file)) for i in images))
                except (OSError, ValueError):
                    continue
        return found

    @override
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Return the train and test part; x is float32 of shape (n, channels, height, width).

        Raises:
            ModuleNotFoundError: if Pillow is not installed.
            FileNotFoundError: if there is nothing at the path.
            ValueError: if a file is no such image.
            InfeasibleError: if there are more or larger images than the ceilings.
        """
        if self.schema is not None:
            if not (found := files_of(self.schema, data_dir)):
                raise FileNotFoundError(f"There is no schema {shown(self.schema, 300)}. Correct the path.")
            parts: tuple[Dataset, Dataset] = TableFile.schema_in(found[0]).parts(self, data_dir)
            return parts
        images, findings, last = self.gathered(data_dir)
        known = self._classes(images)
        number = {label: k for k, label in enumerate(known)}
        y = torch.tensor([number[image.label] for image in images])
        tested = self.tested(images, y, last)
        x = self.pixels(images)
        if self.standardize:
            std, mean = moments(x, torch.nonzero(~tested).flatten())
            x.sub_(mean.float()[:, None, None]).div_(torch.where(std > 0, std, 1).float()[:, None, None])
        reading = TableReading((), known, label="class")
        return self.split(images, Dataset(x, y, len(known), None, reading, tuple(findings)), tested)

    def gathered(self, data_dir: Path | None) -> tuple[list[ImageFile], list[Finding], int]:
        """Return the images, what was left out, and how many of them, the last ones, are of a part for tests."""
        optional("PIL.Image", type(self).__name__, "images")  # before a file is looked for
        paths = [self.path] if self.test is None else [self.path, self.test]
        found = [self.listed(path, data_dir) for path in paths]
        images = [image for part, _ in found for image in part]
        if len(images) > self.most_images:
            raise InfeasibleError(
                f"There are {len(images):,} images, and at most {self.most_images:,} are read. Raise most_images."
            )
        last = 0 if self.test is None else len(found[1][0])
        return images, [finding for _, part in found for finding in part], last

    def tested(self, images: Sequence[ImageFile], y: Tensor, last: int) -> Tensor:
        """Return which of these images are for tests, (n,): the last ones, or those that are drawn."""
        if self.test is not None:
            tested = torch.arange(len(images)) >= len(images) - last
        else:
            _, held = _owners(images)
            tested = drawn(y if held is None else held, self.test_share, self.split_seed)
        if not tested.any():
            raise ValueError(f"{self.path}: a test part of {plural(len(images), 'image')} is empty. Raise test_share.")
        return tested

    @staticmethod
    def split(images: Sequence[ImageFile], data: Dataset, tested: Tensor) -> tuple[Dataset, Dataset]:
        """Return the examples of training, and those for tests, with their owners."""
        owners, held = _owners(images)
        assert data.reading is not None
        data = replace(
            data,
            owners=None if held is None else held.clamp(min=0),
            reading=replace(data.reading, owners=owners),
            findings=(*data.findings, *_twice(images, tested)),
        )
        train, test = (
            data.of(part) if held is None or (held[part] >= 0).all() else replace(data.of(part), owners=None)
            for part in (~tested, tested)
        )
        return train, test

    def _classes(self, images: Sequence[ImageFile]) -> tuple[str, ...]:
        """Return the classes, in the order of their numbers."""
        labels = {image.label for image in images}
        if self.class_names is None:
            return tuple(sorted(labels))
        if unknown := sorted(labels - {*self.class_names}):
            raise ValueError(
                f"class_names lacks {', '.join(map(repr, unknown[:5]))}, of which there are images. Add them, or leave "
                "these images out."
            )
        return self.class_names

    def pixels(
        self, images: Sequence[ImageFile], form: Images | None = None, refused: list[Refused] | None = None
    ) -> Tensor:
        """Return all images, (n, channels, height, width).

        Args:
            images: the files.
            form: what they must be.
            refused: receives those that do not fit, in place of an exception.
        """
        x: Tensor | None = None if form is None else self._room(images, form.shape)
        first, left = dict[Path, int](), MOST_DECODED
        for i, image in enumerate(images):
            if x is not None and image.file in first:
                x[i] = x[first[image.file]]
                continue
            first[image.file] = i
            left += PER_BYTE * image.file.stat().st_size
            try:
                value, pixels = self._read(image, left, form)
            except RefusedImageError as error:
                if refused is None:
                    raise
                refused.append(Refused(error.code, i, str(error)))
                continue
            left -= pixels
            x = self._room(images, value.shape) if x is None else x
            if value.shape != x.shape[1:]:
                raise ValueError(
                    f"{image.name} has {value.shape[1]} x {value.shape[2]} pixels, and {images[0].name} "
                    f"{x.shape[2]} x {x.shape[3]}. Set size, to which all are stretched."
                )
            x[i] = torch.from_numpy(value)
        assert x is not None
        return x

    @staticmethod
    def _room(images: Sequence[ImageFile], shape: tuple[int, ...]) -> Tensor:
        """Return a tensor for images of a shape."""
        if len(images) * math.prod(shape) > MOST_NUMBERS:
            raise InfeasibleError(
                f"{plural(len(images), 'image')} of shape {shape} have more than {MOST_NUMBERS:,} numbers. Set size to "
                "a smaller one, or take fewer."
            )
        return torch.empty((len(images), *shape))

    def _read(self, image: ImageFile, left: int, form: Images | None) -> tuple[npt.NDArray[np.float32], int]:
        """Return an image, (channels, height, width), in [0, 1], and its pixels in the file, at most so many."""
        pillow, bombs = optional("PIL.Image", type(self).__name__, "images"), warnings.catch_warnings()
        try:
            with bombs:
                warnings.simplefilter("ignore")  # of large images, which are counted here
                with pillow.open(image.file, formats=[*{*FORMATS.values()}]) as opened:
                    width, height = opened.size
                    if width * height <= min(self.most_pixels, left):
                        return self._arranged(opened, image, form), width * height
        except (OSError, SyntaxError, ValueError, EOFError, pillow.DecompressionBombError) as error:
            if isinstance(error, RefusedImageError):
                raise
            said = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".").replace(str(image.file), "it")
            what = f"{image.name} cannot be read as an image: {said}. Repair it, or leave it out."
            raise RefusedImageError(what) from error
        if width * height > self.most_pixels:
            raise InfeasibleError(
                f"{image.name} has {width:,} x {height:,} pixels, and at most {self.most_pixels:,} are decoded. Raise "
                "most_pixels."
            )
        raise InfeasibleError(
            f"Up to {image.name}, images have more than {MOST_DECODED:,} pixels, and {PER_BYTE} more for each byte of "
            "their files. Save them smaller."
        )

    def _arranged(self, opened: Any, image: ImageFile, form: Images | None) -> npt.NDArray[np.float32]:
        """Return an opened image of Pillow as it is trained on."""
        name = image.name
        if getattr(opened, "is_animated", False):
            raise RefusedImageError(f"{name} has several frames. Save the one that is meant.")
        if opened.mode in ("I", "F"):
            raise RefusedImageError(f"{name} has 32 bits a pixel, whose range is not known. Save it with 8 or 16 bits.")
        upright = optional("PIL.ImageOps", type(self).__name__, "images").exif_transpose(opened)
        clear = opened.mode in ("RGBA", "LA", "PA") or "transparency" in opened.info
        if clear and upright.convert("RGBA").getextrema()[3][0] < 255:
            raise RefusedImageError(f"{name} has transparent pixels. Save it without transparency.")
        if form is not None:
            _check(opened.mode, upright, name, form)
        sides = None if self.size is None else (self.size, self.size)
        sides, channels = (sides, self.channels) if form is None else (form.size[::-1], form.channels)
        array = self._numbered(opened.mode in WIDE, upright, sides, channels)
        if form is None or form.values == (0, form.most):
            return array
        low, high = form.values
        scaled: npt.NDArray[np.float32] = (array * np.float32(form.most) - low) / np.float32(high - low)
        return scaled

    @staticmethod
    def _numbered(wide: bool, upright: Any, sides: tuple[int, int] | None, channels: str) -> npt.NDArray[np.float32]:
        """Return the pixels of an image of Pillow, (channels, height, width), in [0, 1]."""
        pillow = optional("PIL.Image", "images", "images")
        if wide:  # which Pillow would cut off at 255
            gray = pillow.fromarray(np.asarray(upright).astype(np.float32) / 65535)
            gray = gray if sides is None else gray.resize(sides, pillow.Resampling.BILINEAR)
            plane: npt.NDArray[np.float32] = np.asarray(gray, dtype=np.float32)[None].clip(0, 1)
            return plane.repeat(3, axis=0) if channels == "RGB" else plane
        plain = upright.convert(channels)
        plain = plain if sides is None else plain.resize(sides, pillow.Resampling.BILINEAR)
        array: npt.NDArray[np.float32] = np.asarray(plain, dtype=np.float32) / np.float32(255)
        return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _check(mode: str, upright: Any, name: str, form: Images) -> None:
    """Raise `RefusedImageError` if an image of Pillow is another one than a schema says."""
    width, height = upright.size
    if not form.stretch and (height, width) != form.size:
        what = f"{name} has {height} x {width} pixels, and the schema {form.size[0]} x {form.size[1]}"
        raise RefusedImageError(f"{what}. Save it so.", "size")
    kind = "L" if mode in (*GRAY, *WIDE) else "RGB" if mode in COLOUR else mode
    if kind != form.channels:
        raise RefusedImageError(
            f"{name} has the channels {kind}, and the schema {form.channels}. Save it so.", "channels"
        )
    wide, low, high = mode in WIDE, *form.values
    bits = 16 if wide else 8
    if wide != (form.most == WORD):
        what = f"{name} has {bits} bits, and the schema values {low} to {high}"
        raise RefusedImageError(f"{what}. Save it with {24 - bits} bits.", "range")
    if (low, high) != (0, form.most):
        array = np.asarray(upright if wide else upright.convert(form.channels))
        if array.min() < low or array.max() > high:
            what = f"{name} holds {array.min()} to {array.max()}, and the schema {low} to {high}"
            raise RefusedImageError(f"{what}. Correct it, or leave it out.", "range")


def _owners(images: Sequence[ImageFile]) -> tuple[tuple[Name, ...], Tensor | None]:
    """Return the owners, sorted, and the number of each image's, (n,): -1 in a part without owners."""
    owners: tuple[Name, ...] = tuple(sorted({image.owner for image in images} - {""}))
    place = {owner: k for k, owner in enumerate(owners)}
    return owners, torch.tensor([place.get(image.owner, -1) for image in images]) if owners else None


class RefusedImageError(ValueError):
    """An image of a kind that is not trained on."""

    def __init__(self, sentence: str, code: str = "image") -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(frozen=True)
class ImageFolder(ImageSource):
    """Images in a folder for each class: FOLDER/CLASS/IMAGE.png.  Needs Pillow: the extra `images`.

    `path` is the folder of the classes. A pattern such as `sites/*` or `sites/*/train` names such a folder for each
    owner, who is called like the parts that the wildcards matched. An owner may lack a class. Links, and files of other
    endings than those of images, are left out, with a remark.
    """

    @override
    def listed(self, path: str, data_dir: Path | None) -> tuple[list[ImageFile], list[Finding]]:
        roots = _folders(path, data_dir)
        if not roots:
            raise FileNotFoundError(f"{type(self).__name__} finds no folder {path}. Correct the path.")
        others = list[str]()
        images = self._counted((image for root in roots for image in _images_in(*root, others)), path)
        if not images:
            raise ValueError(
                f"{path} has no images in a folder for each class, as in {path}/cat/1.png, and no link is followed. "
                "Correct path."
            )
        return images, [*_left_out(others, path)]


@dataclass(frozen=True)
class ImageTable(ImageSource):
    """Images that a CSV file names: a row for each, with its path and its class.  Needs Pillow: the extra `images`.

    `path` is the CSV file. A pattern such as `sites/*.csv` or `sites/*/train.csv` names a file for each owner, who is
    called like the parts that the wildcards matched, without the file's ending. The paths of images begin in the folder
    of their file, and do not lead out of it, also by links. An image has one class, however often it is named.

    Args:
        image: column of the paths.
        label: column of the classes, as texts.
        owner: column of the owner of each image, for the partition `Natural`.
        separator: what separates columns.
    """

    image: str = "image"
    label: str = "label"
    owner: str | None = None
    separator: str = ","

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_separator(self.separator)

    @override
    def listed(self, path: str, data_dir: Path | None) -> tuple[list[ImageFile], list[Finding]]:
        files = files_of(path, data_dir)
        if not files:
            raise FileNotFoundError(f"{type(self).__name__} finds no file {path}. Correct the path.")
        owners = owners_of_files(files, path) if is_pattern(path) else [""]
        known = dict[Path, tuple[str, str]]()
        named = (image for of in zip(files, owners, strict=True) for image in self._rows(*of, known))
        images = self._counted(named, path)
        if not images:
            raise ValueError(f"{path} names no image. Name one in each row.")
        return images, []

    def _rows(self, file: Path, owner: str, known: dict[Path, tuple[str, str]]) -> Iterator[ImageFile]:
        """Yield the images that a file names, and note the class of each with the line that says it."""
        lines = _lines(file, self.separator)
        _, header = next(lines, ("", []))
        wanted = [self.image, self.label, *([self.owner] if self.owner is not None else [])]
        if missing := [name for name in wanted if header.count(name) != 1]:
            raise ValueError(
                f"{file.name} has no single column {missing[0]!r}; the columns are {shown(str(header), 200)}. Name one."
            )
        root = file.parent.resolve()
        for where, cells in lines:
            if len(cells) != len(header):
                raise ValueError(f"{where} has {len(cells)} cells, and the first line {len(header)}. Correct it.")
            row = dict(zip(header, cells, strict=True))
            if not all(row[name].strip() for name in wanted):
                raise ValueError(f"{where} has an empty cell. Fill it, or leave out the line.")
            try:
                place = (root / row[self.image]).resolve()
                there = place.suffix.lower() in FORMATS and place.is_file()
            except (OSError, RuntimeError):  # a name that is too long, links in a circle
                place, there = root, False
            if not place.is_relative_to(root):
                raise ValueError(f"{where} names an image outside the folder of {file.name}. Put it there.")
            if not there:
                raise ValueError(
                    f"{where} names no image that is there: {shown(row[self.image])}. Endings are {' '.join(FORMATS)}."
                )
            name, label = place.relative_to(root).as_posix(), row[self.label].strip()
            before, line = known.setdefault(place, (label, where))
            if before != label:
                raise ValueError(
                    f"{where} says that {shown(name)} is {shown(label)!r}, and {line} that it is {shown(before)!r}. "
                    "Correct one of them."
                )
            yield ImageFile(place, name, label, row[self.owner].strip() if self.owner is not None else owner)


def _lines(file: Path, separator: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the cells of each line that is not empty, after its file and number."""
    text = decoded(contents(file, MOST_TABLE), str(file))
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    while True:
        where = f"{file.name}, line {lines.line_num + 1}"
        try:
            cells = next(lines)
        except StopIteration:
            return
        except csv.Error as error:
            most = f"{csv.field_size_limit():,}"
            raise ValueError(
                f"{where} has a cell of more than {most} characters. Close its quotation mark, or shorten it."
            ) from error
        if any("\0" in cell for cell in cells):
            raise ValueError(f"{where} holds a NUL character. Save the file as UTF-8 text without it.")
        if cells:
            yield where, cells


def _folders(path: str, data_dir: Path | None) -> list[tuple[Path, str, str]]:
    """Return the folder of a path, or those of a pattern, with a name and an owner each; nothing if there are none."""
    pattern = Path(path).expanduser()
    for base in (Path(), *([data_dir] if data_dir is not None else [])):
        if (place := base / pattern).is_dir():
            return [(place, place.name, "")]
        found = sorted(base / each for each in glob(str(pattern), root_dir=base)) if is_pattern(path) else []
        if found := [each for each in found if each.is_dir()]:
            wild = next(i for i, part in enumerate(pattern.parts) if is_pattern(part)) - len(pattern.parts)
            return [(each, "/".join(each.parts[wild:]), "/".join(matched_parts(each, path))) for each in found]
    return []


def _images_in(root: Path, name: str, owner: str, others: list[str]) -> Iterator[ImageFile]:
    """Yield the images in the folders of a folder, and note what else there is."""
    for place, inner, files in os.walk(root):  # which follows no link to a folder
        inner[:] = sorted(each for each in inner if not each.startswith("."))
        within = Path(place).relative_to(root).parts
        others += ["/".join((name, *within, each)) for each in inner if Path(place, each).is_symlink()]
        for each in sorted(each for each in files if not each.startswith(".")):
            file, called = Path(place, each), "/".join((name, *within, each))
            if within and file.suffix.lower() in FORMATS and stat.S_ISREG(file.lstat().st_mode):
                yield ImageFile(file, called, within[0], owner)
            else:
                others.append(called)


def _left_out(others: Sequence[str], path: str) -> Iterator[Finding]:
    if others:
        yield Finding(
            "files",
            path,
            f"{plural(len(others), 'item')} in {path} {'is' if len(others) == 1 else 'are'} left out (the first: "
            f"{shown(others[0])}): only images in a folder of a class are read, and no link is followed.",
            error=False,
        )


def _twice(images: Sequence[ImageFile], tested: Tensor) -> Iterator[Finding]:
    """Yield a remark if images of the test part are also trained on."""
    prints = [file_digest(image.file) for image in images]
    trained = {each for each, test in zip(prints, tested.tolist(), strict=True) if not test}
    again = [i for i, test in enumerate(tested.tolist()) if test and prints[i] in trained]
    if again:
        yield Finding(
            "twice",
            "test",
            f"{plural(len(again), 'image')} of the test part are in training as well (the first: "
            f"{images[again[0]].name}). Leave out one of each pair.",
            error=False,
        )


def moments(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the deviation and the mean of each channel of some images, float64; not all are widened at once."""
    parts = torch.split(rows, max(1, AT_ONCE // x[0].numel()))
    found = [torch.std_mean(x[part].double(), dim=(0, 2, 3), correction=0) for part in parts]
    if len(parts) == 1:
        return found[0]
    std, mean = (torch.stack(of) for of in zip(*found, strict=True))
    share = torch.tensor([len(part) for part in parts], dtype=torch.float64)[:, None] / len(rows)
    whole = (share * mean).sum(0)
    return (share * (std.square() + (mean - whole).square())).sum(0).sqrt(), whole


def _changed(file: Path) -> tuple[int, int]:
    about = file.stat()
    return about.st_size, about.st_mtime_ns


@lru_cache(maxsize=16)  # while the files do not change
def _digest(images: tuple[tuple[Path, str, str, str, tuple[int, int]], ...]) -> str:
    """Return the SHA-256 of the names, classes, owners and contents of images."""
    whole = sha256()
    for file, name, label, owner, _ in images:
        if (content := file_digest(file)) is None:
            raise OSError(f"{name} cannot be read.")
        whole.update("\0".join((name, label, owner, content.removeprefix("sha256:"), "")).encode())
    return f"sha256:{whole.hexdigest()}"
