"""A folder of Hugging Face's `save_to_disk`, looked at before it is loaded: it may be somebody else's."""

import io
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from phalanx.data.table_ceilings import MOST_CELLS
from phalanx.errors import InfeasibleError
from phalanx.reading import LARGEST_PART, contents, from_json, opened
from phalanx.wording import shown

AGAIN = "Save the data set again."
MOST_PIXELS = 1_000_000_000  # of all images of a split
RECORD_BATCH, DICTIONARY = 3, 2  # kinds of messages in an Arrow stream
COMPRESSION, DATA = 3, 1  # fields of these messages: how its bytes are compressed; the batch of a dictionary


def check_folder(folder: Path) -> None:
    """Raise `ValueError` if a folder of a data set names files elsewhere, or holds bytes that stand for more of them.

    `save_to_disk` compresses nothing, and a file that is not compressed is mapped into memory as it is.
    """
    for about in folder.rglob("*.json"):
        try:
            found: dict[str, Any] = from_json(contents(about, LARGEST_PART), dict)
        except ValueError as error:
            raise ValueError(f"{about} does not describe a data set: {error}. {AGAIN}") from error
        for name in _named(found):
            if not (about.parent / name).resolve().is_relative_to(folder.resolve()):
                raise ValueError(f"{about} names {shown(name)}, which leads out of its folder. {AGAIN}")
    for file in folder.rglob("*.arrow"):
        _check_arrow(file)


def _named(about: Mapping[str, Any]) -> Iterator[str]:
    """Yield the files and folders that a description of a data set names."""
    for key in ("_data_files", "_indices_data_files"):  # of a split
        yield from (str(each.get("filename")) for each in about.get(key) or () if isinstance(each, Mapping))
    if isinstance(splits := about.get("splits"), list):  # of several
        yield from map(str, splits)


def _check_arrow(path: Path) -> None:
    import pyarrow  # noqa: PLC0415  (optional)

    with opened(path), pyarrow.memory_map(str(path)) as file:
        try:
            reader = pyarrow.ipc.MessageReader.open_stream(file)
            while True:
                about = reader.read_next_message().metadata.to_pybytes()
                if _is_compressed(about):
                    raise ValueError(f"{path} is compressed, as save_to_disk never does. {AGAIN}")
        except (StopIteration, EOFError):
            return
        except (pyarrow.ArrowException, struct.error) as error:
            raise ValueError(f"{path} is no Arrow stream: {error}. {AGAIN}") from error


def _is_compressed(message: bytes) -> bool:
    """Return whether a message of an Arrow stream holds compressed bytes, by its description, a FlatBuffer."""
    root = struct.unpack_from("<I", message)[0]
    kind_at, header_at = _field(message, root, 1), _field(message, root, 2)
    if not kind_at or not header_at or message[kind_at] not in (RECORD_BATCH, DICTIONARY):
        return False
    header = header_at + struct.unpack_from("<I", message, header_at)[0]
    if message[kind_at] == DICTIONARY:
        if not (data_at := _field(message, header, DATA)):
            return False
        header = data_at + struct.unpack_from("<I", message, data_at)[0]
    return _field(message, header, COMPRESSION) != 0


def _field(message: bytes, table: int, number: int) -> int:
    """Return where a field of a table begins; 0 if it is not there."""
    about = table - struct.unpack_from("<i", message, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", message, about)[0]:
        return 0
    offset: int = struct.unpack_from("<H", message, about + 4 + 2 * number)[0]
    return table + offset if offset else 0


def check_split(split: Any, inputs: str, label: str) -> None:
    """Raise `ValueError` if a split is too large, or its images are names of files, or of too many pixels."""
    features: Mapping[str, Any] = split.features
    if len(split) > MOST_CELLS:
        raise InfeasibleError(f"The data set has {len(split):,} examples, and at most {MOST_CELLS:,} are read.")
    if label in features and inputs in features and type(features[inputs]).__name__ == "Image":
        _check_images(split, inputs)


def _check_images(split: Any, name: str) -> None:
    from PIL import Image  # noqa: PLC0415  (optional)

    left = MOST_PIXELS
    for batch in split.with_format("arrow").select_columns([name]).iter(1000):
        for item in batch.column(name).to_pylist():
            if item is None or item.get("bytes") is None:
                raise ValueError(f"Column {name!r} names images and does not hold them. {AGAIN}")
            try:
                with Image.open(io.BytesIO(item["bytes"])) as image:
                    left -= image.width * image.height
            except (OSError, ValueError, Image.DecompressionBombError) as error:
                raise ValueError(f"An image of column {name!r} cannot be read: {error}.") from error
            if left < 0:
                raise InfeasibleError(f"The images have more than {MOST_PIXELS:,} pixels. Save them smaller.")
