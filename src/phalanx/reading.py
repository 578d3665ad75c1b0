"""Files as people write them, and YAML: read within limits, and refused with one sentence.

A key that occurs twice is an error, 1e-3 is a number, a date is text, and so is what YAML 1.1 reads in bases of 8 and
60 (010, 1:30).  Nesting and size are limited, aliases included: ten short lines can stand for a million values.
"""

import gzip
import hashlib
import os
import re
import stat
from collections import Counter
from functools import lru_cache
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from typing_extensions import override

from phalanx.wording import shown

DEEPEST = 50  # collections in one another
CHUNK = 1 << 20  # bytes
AT_ONCE = getattr(os, "O_NONBLOCK", 0)  # to open: a pipe is not waited for, and files are as always; not on Windows
LARGEST_PART = 1 << 28  # bytes of a file of a record that is read at once
LARGEST_LINES = 1 << 32  # bytes of a file of lines: a history, an audit trail, the records of a study
LARGEST_PACKED = 1 << 28  # bytes of records that were compressed
LARGEST_KEY = 1_000_000  # bytes of a file of a key, or of certificates
MOST_LINES = 5_000_000  # of a file of lines
MOST_LISTS = 2_000_000  # lists and mappings in a JSON text
HOLLOW = 1 << 26  # bytes of a file from which on at least a hundredth of it lies on the disk
MOST = 100_000  # values, each as often as its aliases repeat it
WORDS = {  # of msgspec's messages
    "^Object missing required field `(.*)`$": r"\1 is missing",
    "^Object contains unknown field `(.*)`$": r"\1 is unknown here",
    "^Input data was truncated$": "it ends early",
    "^JSON is malformed": "it is no JSON",
    "^Expected": "expected",
    "^Invalid( enum)? value": "no known value:",
}
KINDS = {
    "int": "an integer",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "a mapping",
    "array": "a list",
}
TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
T = TypeVar("T")


def table_reader(name: str) -> str:
    """Return the class of `phalanx.data` that reads a table in a file of this name; empty if none does."""
    lower = name.lower()
    plain = re.sub(r"\.(gz|bz2|xz|zip|zst)$", "", lower)
    return "CSV" if plain.endswith((".csv", ".tsv")) else "Parquet" if lower.endswith((".parquet", ".pq")) else ""


def opened(path: Path) -> BufferedReader:
    """Open a file to read, which may be somebody else's: a pipe in its place is not waited for.

    Raises:
        ValueError: it is a folder, a pipe or a device; or it is large, and almost all of it is a hole.
        OSError: it cannot be read.
    """

    def regular(name: str, flags: int) -> int:
        number = os.open(name, flags | AT_ONCE)
        if stat.S_ISREG(os.fstat(number).st_mode):
            if not _is_hollow(number):
                return number
            wrong = "has almost nothing in it but a hole, as no file of its kind has. Copy it again."
        else:
            wrong = "is no file. Put the file itself in its place."
        os.close(number)
        raise ValueError(f"{path} {wrong}")

    return open(path, "rb", opener=regular)


def _is_hollow(number: int) -> bool:
    """Return whether a large file takes almost no room on the disk: some bytes stand for any number of zeros."""
    about = os.fstat(number)
    if about.st_size < HOLLOW or 100 * 512 * getattr(about, "st_blocks", about.st_size) > about.st_size:
        return False
    try:
        return os.lseek(number, 0, os.SEEK_HOLE) < about.st_size  # some file systems do not count blocks
    finally:
        os.lseek(number, 0, os.SEEK_SET)


def contents(path: Path, most: int, *, own: bool = False) -> bytes:
    """Return what a file holds, which is at most so many bytes.

    Args:
        path: of the file.
        most: the largest number of bytes.
        own: whether the user has named it as a file of their own, which may be a pipe, as in `--config <(command)`.

    Raises:
        ValueError: it holds more, or is no file.
        OSError: it cannot be read.
    """
    with path.open("rb") if own else opened(path) as file:
        held = os.fstat(file.fileno()).st_size
        data = file.read(held) if held <= most else b""
        data += _up_to(file, most + 1 - len(data)) if held <= most else b""  # of what says no size, or grows
    if max(held, len(data)) > most:
        raise ValueError(f"{path} is larger than {most:,} bytes, which no file of its kind is.")
    return data


def lines_of(path: Path) -> bytes:
    """Return what a file of lines holds; raise as `contents`, also if there are too many of them."""
    return _counted(contents(path, LARGEST_LINES), path)


def _counted(data: bytes, path: Path) -> bytes:
    if data.count(b"\n") > MOST_LINES:
        raise ValueError(f"{path} holds more than {MOST_LINES:,} lines, which no file of its kind does.")
    return data


def unzipped(path: Path, most: int) -> bytes:
    """Return the lines that a gzip file holds, which is at most so many bytes.

    Raises:
        ValueError: it holds more, or too many lines.
        OSError: it cannot be read.
        EOFError: it ends early.
    """
    with opened(path) as packed, gzip.GzipFile(fileobj=packed, mode="rb") as file:
        data = _up_to(file, most + 1)
    if len(data) > most:
        raise ValueError(f"{path} holds more than {most:,} bytes, which no file of its kind does.")
    return _counted(data, path)


def _up_to(file: BufferedIOBase, most: int) -> bytes:
    """Return what is left in a file, but so many bytes at most; `read` would take room for all of them at once."""
    data = bytearray()
    while len(data) < most and (part := file.read(min(CHUNK, most - len(data)))):
        data += part
    return bytes(data)


def file_digest(path: Path) -> str | None:
    """Return the SHA-256 of a file, "sha256:..."; None if it cannot be.  An unchanged one is read once."""
    try:
        about = path.stat()
        return _digest(path.absolute(), about.st_size, about.st_mtime_ns)
    except (OSError, ValueError):  # a pipe or a device, which somebody else's record may name, has no end
        return None


@lru_cache(maxsize=256)
def _digest(path: Path, size: int, changed: int) -> str:
    with opened(path) as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def decoded(data: bytes, name: str) -> str:
    """Return the text of a file; raise `ValueError` with the line if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{name}, line {line}: the text is not UTF-8. Save the file in UTF-8.") from None


def from_json(text: bytes, kind: type[T]) -> T:
    """Return the value of a class that a JSON text holds.

    Raises:
        ValueError: it holds something else. The message says what, and where in the text.
    """
    if _depth(text) > DEEPEST:
        raise ValueError(f"it is nested too deeply: more than {DEEPEST} lists or mappings in one another")
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(in_words(str(error))) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _depth(text: bytes) -> int:
    """Return how many lists and mappings are in one another in a JSON text; at most so many if they are few.

    Raises:
        ValueError: there are too many of them.
    """
    if (count := text.count(b"[") + text.count(b"{")) <= DEEPEST:
        return count
    brackets = TEXTS.sub(b"", text).translate(None, NO_BRACKETS)
    if len(brackets) > 2 * MOST_LISTS:
        raise ValueError(f"it holds more than {MOST_LISTS:,} lists or mappings")
    import numpy as np  # noqa: PLC0415  (slow to import)

    marks = np.frombuffer(brackets, np.uint8)
    return int(np.where(np.isin(marks, (*b"[{",)), 1, -1).cumsum().max(initial=0))


def in_words(message: str) -> str:
    """Return a message of msgspec in plain words, the place in the text first."""
    what, _, place = message.partition(" - at ")
    for pattern, words in WORDS.items():
        what = re.sub(pattern, words, what)
    what = re.sub(
        r"`([\w |]+)`", lambda found: " or ".join(KINDS.get(name, name) for name in found[1].split(" | ")), what
    )
    place = place.replace("`key` in ", "a key of ").replace("$.", "").replace("`", "")
    return shown(f"{place}: {what}" if place else what, 300)


def load(text: str, most: int = MOST) -> Any:
    """Return what a YAML text holds; raise `ValueError`, with line and reason, if it is no YAML or beyond the limits.

    Args:
        text: the YAML.
        most: number of values that it may hold.
    """
    try:
        return _Loader(text, most).get_single_data()
    except yaml.MarkedYAMLError as error:
        lines = [mark.line + 1 for mark in (error.problem_mark, error.context_mark) if mark]
        begun = f" (begun in line {lines[1]})" if len(set(lines)) > 1 else ""
        raise ValueError(f"{f'line {lines[0]}: ' if lines else ''}{error.problem or error.context}{begun}") from error
    except yaml.reader.ReaderError as error:
        raise ValueError(f"it holds a character that text does not, #x{_number(error.character):02X}") from error
    except (ValueError, LookupError, AttributeError, TypeError, yaml.YAMLError) as error:  # for `!!int x` and the like
        raise ValueError("a value is not of the kind that its tag says") from error


def _number(character: int | str | bytes) -> int:
    return character if isinstance(character, int) else ord(character)


class _Loader(yaml.SafeLoader):
    """The reader of YAML, with its limits."""

    def __init__(self, stream: str, most: int) -> None:
        super().__init__(stream)
        self._depth, self._most = 0, most
        self._sizes = dict[int, int]()  # of a node with all in it, by its identity

    @override
    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return the next node, or the one of an alias."""
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if self._depth >= DEEPEST:
            raise _refused(f"more than {DEEPEST} lists or mappings in one another", event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(event, yaml.AliasEvent) and id(node) not in self._sizes:
            raise _refused(f"{event.anchor} contains itself", event)
        self._sizes[id(node)] = size = 1 + sum(self._sizes[id(inner)] for inner in _inner(node))
        if size > self._most:
            raise _refused(f"more than {self._most:,} values", event)
        return node

    @override
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a node."""
        keys = Counter(key.value for key, _ in node.value if isinstance(key.value, str))
        if twice := sorted(key for key, count in keys.items() if count > 1):
            raise yaml.constructor.ConstructorError(None, None, f"{shown(twice[0])} occurs twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _unknown(_: _Loader, node: yaml.Node) -> Any:
    raise yaml.constructor.ConstructorError(
        None, None, f"the tag {shown(node.tag)} has no meaning here", node.start_mark
    )


_Loader.add_constructor(None, _unknown)


def _refused(why: str, event: yaml.Event) -> yaml.YAMLError:
    return yaml.composer.ComposerError(None, None, why, event.start_mark)  # type: ignore[arg-type]


def _inner(node: yaml.Node | None) -> list[yaml.Node]:
    """Return the nodes directly in a node."""
    if isinstance(node, yaml.MappingNode):
        return [inner for pair in node.value for inner in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


NUMBERS = {  # in place of those of YAML 1.1
    "int": re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"),
    "float": re.compile(r"[-+]?(([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9_]+)[eE][-+]?[0-9]+|([0-9][0-9_]*\.[0-9_]*|\.[0-9_]+))$"
                        r"|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"),
}  # fmt: skip
_Loader.yaml_implicit_resolvers = {
    letter: [(tag, p) for tag, p in resolvers if tag.rpartition(":")[2] not in (*NUMBERS, "timestamp")]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _name, _pattern in NUMBERS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", _pattern, list("-+.0123456789"))
