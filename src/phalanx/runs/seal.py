"""The seal of a run's folder: it shows what was changed since the run ended.

`seal.json` is written last, when a run ends or is stopped, and removed first when it goes on.  It holds the SHA-256 of
each file of the record.  Files of lines have a hash chain instead:

    link 0 = 32 zero bytes,  link k = SHA-256(link k - 1, SHA-256(line k))

The last link commits to all lines and to their order.  It is over the bytes of the lines and not over a canonical form:
what is hashed is what every reader reads, and no two texts that some reader takes for different ones have one hash.
The first 16 digits of the SHA-256 of each line locate a change.

A seal is no signature.  It shows accidents and careless changes; whoever writes a new seal as well is not found.
"""

import hashlib
import os
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from phalanx.reading import CHUNK, LARGEST_LINES, MOST_LINES, contents, from_json, lines_of, opened
from phalanx.runs.files import inside, write_inside
from phalanx.wording import shown

SEAL = "seal.json"
UNSEALED = "unsealed"  # an empty file while a run that has ended is still to be sealed
START = bytes(32)
DIGITS = 16  # of the hash of a line
LARGEST = 1 << 26  # bytes of a seal: that of some three million lines
COMPARED = 1 << 22  # pairs of lines at most that are looked at to tell moved lines from changed ones
ALIKE = 1 << 15  # pairs of equal lines at most
SAID = 3  # findings that an error message lists
FILES = re.compile(  # of a record; a checkpoint is none: it has a checksum, goes when its run ends, and may be deleted
    r"run\.json|summary\.json|history\.jsonl|audit(-[^/]+)?\.jsonl|asked\.jsonl|witnesses\.json"
    r"|(best/)?(model\.(json|md|safetensors)|schema\.json|models/[^/.][^/]*)|updates/[^/.][^/]*"
)
MODELS = re.compile(r"(best/)?(model\.(json|safetensors)|schema\.json|models/[^/]+)")
# Files that evidence speaks of step by step, or that speak of the audit trail themselves.
ON_THE_WAY = re.compile(r"history\.jsonl|audit\.jsonl|witnesses\.json|updates/.*")
# Files that a run that goes on writes again.
AGAIN = re.compile(r"run\.json|summary\.json|witnesses\.json|schema\.json|model\.\w+|models/.*")
FOLDERS = ("", "models", "best", "best/models", "updates")


class Mark(NamedTuple):
    """A place in a file of lines: the number of lines up to there, and the link of the last one."""

    lines: int
    link: str


class HashChain:
    """The hash chain over the lines of a file, as they are added."""

    def __init__(self) -> None:
        self._lines, self._link = 0, START

    def add(self, line: bytes) -> str:
        """Add a line, its end included, and return the SHA-256 of the line itself."""
        own = hashlib.sha256(line)
        self._link = hashlib.sha256(self._link + own.digest()).digest()
        self._lines += 1
        return own.hexdigest()

    @property
    def mark(self) -> Mark:
        """The place that it has come to."""
        return Mark(self._lines, self._link.hex())


Kind = Literal["changed", "moved", "added", "missing"]


class Alteration(NamedTuple):
    """A part of a folder that is not as its run left it.

    Args:
        file: its name in the folder.
        kind: what happened to it.
        what: the same in words.
        line: its number now; of one that is missing, its number when the run ended; None: the file itself.
        step: of the run, if the line names one.
        clients: that the line or the model is of.
    """

    file: str
    kind: Kind
    what: str
    line: int | None = None
    step: int | None = None
    clients: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The finding on one line."""
        of = [] if self.step is None else [f"step {self.step}"]
        if self.clients:
            named = ", ".join(map(str, self.clients[:10])) + (" ..." if len(self.clients) > 10 else "")
            of.append(f"{'client' if len(self.clients) == 1 else 'clients'} {named}")
        line = "" if self.line is None else f", line {self.line}"
        where = f" ({', '.join(of)})" if of else ""
        return f"{shown(self.file)}{line} {self.what}{where}"


class Examination(NamedTuple):
    """The comparison of a folder with its seal.

    Args:
        sealed: whether there is a seal.
        findings: what differs.
        files: number of files that were compared.
        lines: number of lines in them, of files of lines.
        known: the seal; None if there is none that can be read.
    """

    sealed: bool
    findings: tuple[Alteration, ...] = ()
    files: int = 0
    lines: int = 0
    known: "_Seal | None" = None

    def sure(self, name: str, data: bytes) -> bytes:
        """Return what was read of a file after the comparison; raise `SealError` if it is not what was compared.

        What differed then, and is read all the same, may be anything.
        """
        if self.known is None or any(finding.file == name for finding in self.findings):
            return data
        lines = self.known.lines.get(name)
        held = hashlib.sha256(data).hexdigest() if lines is None else chain_of(split(data)).mark.link
        if held != (self.known.files.get(name) if lines is None else lines.link):
            raise SealError(f"{shown(name)} was changed while it was read. Read it again when nobody writes there.")
        return data

    @property
    def sentence(self) -> str:
        """What a reader of the record must know; empty if it is intact."""
        if self.findings:
            return f"Changed since the run ended, and read all the same: {self.listed}."
        return "" if self.sealed else "Not sealed: whether it was changed since the run ended cannot be seen."

    @property
    def listed(self) -> str:
        """The first findings."""
        more = len(self.findings) - SAID
        listed = "; ".join(finding.text for finding in self.findings[:SAID])
        return f"{listed}; and {more} more" if more > 0 else listed


class SealError(ValueError):
    """A folder is not as its run left it."""


class _Lines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The lines of a file: the last link of their chain, and the beginning of the SHA-256 of each."""

    link: str
    marks: tuple[str, ...]


class _Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="seal", tag=1):
    """`seal.json`.

    Args:
        files: SHA-256 by name.
        lines: of files of lines, by name.
        digest: SHA-256 of the seal with this field empty.
    """

    files: dict[str, str]
    lines: dict[str, _Lines]
    digest: str = ""


class _Line(msgspec.Struct, frozen=True):
    """The parts of a line that say where it belongs."""

    step: int | None = None
    client: int | None = None
    before: str = ""


class _Index(msgspec.Struct, frozen=True):
    """The part of `model.json` that says which client is served which file."""

    clients: dict[int, dict[str, str]] = {}


def seal(folder: Path, known: Mapping[str, Mark]) -> None:
    """Write the seal of a folder whose run has ended or was stopped.

    Args:
        folder: of the run.
        known: by name of a file of lines, the place that the run itself has come to in it.

    Raises:
        ValueError: a file has other lines than the run wrote; no seal is written.
        OSError: it cannot be written.
    """
    files, lines = dict[str, str](), dict[str, _Lines]()
    for name in members(folder):
        path = inside(folder, name)
        if not name.endswith(".jsonl"):
            files[name] = file_hash(path)
            continue
        chain, marks = _marked(path)
        if known.get(name, chain.mark) != chain.mark:
            raise ValueError(f"{path} was changed while the run wrote it, so that {folder} is not sealed")
        lines[name] = _Lines(chain.mark.link, marks)
    made = _Seal(files, lines)
    text = _text(msgspec.structs.replace(made, digest=_own_digest(made)))
    if len(text) > LARGEST:
        raise ValueError(f"the seal would have {len(text):,} bytes, and may have {LARGEST:,}")
    write_inside(folder, SEAL, text)
    (folder / UNSEALED).unlink(missing_ok=True)


def is_to_be_sealed(folder: Path) -> bool:
    """Return whether the run of a folder has ended and could not be sealed: it was killed, or there was no room."""
    return os.path.lexists(folder / UNSEALED) and not os.path.lexists(folder / SEAL)


def to_be_sealed(folder: Path) -> None:
    """Note that the run of a folder ends and is to be sealed, if there is room for the note; no link is followed."""
    with suppress(OSError):
        (folder / UNSEALED).open("x").close()


def _marked(path: Path) -> tuple[HashChain, tuple[str, ...]]:
    """Return the chain over the lines of a file, and the beginning of the SHA-256 of each."""
    chain = HashChain()
    with opened(path) as file:  # line by line, as a history can be larger than the memory
        return chain, tuple(chain.add(line)[:DIGITS] for line in file)


def unseal(folder: Path) -> None:
    """Remove the seal of a folder in which a run goes on or begins."""
    (folder / SEAL).unlink(missing_ok=True)


def check(folder: Path, *, unsealed: bool = False) -> Examination:
    """Compare a folder with its seal, before it is read.

    Args:
        folder: of a run.
        unsealed: whether it may differ.

    Raises:
        SealError: it differs.
    """
    found = examine(folder)
    if found.findings and not unsealed:
        raise SealError(
            f"{folder} is not as its run left it: {found.listed}. Put the original back, or repeat the run with "
            f"--again. `phalanx verify {folder}` lists all changes. To read it all the same: "
            f"`phalanx report {folder} --unsealed`, or Record.load(folder, unsealed=True)."
        )
    return found


def check_resumed(folder: Path) -> None:
    """Compare what a stopped run goes on from with the seal of its folder, if there is one.

    Raises:
        SealError: it differs.
    """
    left = (*(finding for finding in examine(folder).findings if not AGAIN.fullmatch(finding.file)),)
    if left:
        what = Examination(True, left).listed
        raise SealError(
            f"{folder} is not as its run left it, and the run cannot go on from there: {what}. "
            "Put the original back, or start over: `phalanx run --again`, `phalanx flower up --again`, or "
            "Checkpoint(resume=False)."
        )


def members(folder: Path) -> list[str]:
    """Return the names of the files of a record that are in its folder."""
    names = []
    for below in FOLDERS:
        if (folder / below).is_dir():
            names += [f"{below}/{entry.name}".lstrip("/") for entry in os.scandir(folder / below)]
    return sorted(name for name in names if FILES.fullmatch(name))


def line_marks(lines: Iterable[bytes]) -> list[str]:
    """Return the first `DIGITS` digits of the SHA-256 of each line."""
    return [hashlib.sha256(line).hexdigest()[:DIGITS] for line in lines]


def files_of_end(folder: Path) -> list[str]:
    """Return the names of the files of a record that are as they stay when its audit trail ends."""
    return [name for name in members(folder) if not ON_THE_WAY.fullmatch(name)]


def files_of_models(folder: Path) -> list[str]:
    """Return the names of the files of a record that models consist of, but for their cards."""
    return [name for name in members(folder) if MODELS.fullmatch(name)]


def split(text: bytes) -> list[bytes]:
    """Return the lines of a text with their ends; the last may have none."""
    *whole, rest = text.split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])


# Comparison


def examine(folder: Path, hash_of: Callable[[str], str] | None = None) -> Examination:
    """Return how a folder compares with its seal.

    Args:
        folder: of a run.
        hash_of: the SHA-256 of a file in it by name; None: each is computed once more.

    Raises:
        OSError: a file cannot be read.
    """
    if not os.path.lexists(folder / SEAL):
        return Examination(sealed=False)
    try:
        known = _read(folder)
    except ValueError as error:
        why = f"{error}, so that it shows nothing about the other files"
        return Examination(True, (Alteration(SEAL, "changed", why),))
    findings, hash_of = list[Alteration](), hash_of or hashes(folder)
    for name in sorted({*known.files, *known.lines, *members(folder)}):
        findings += _compared(folder, name, known, hash_of)
    served = _served(folder) if any("model" in finding.file for finding in findings) else {}
    located = (f._replace(clients=served.get(f.file, ())) if f.line is None else f for f in findings)
    lines = sum(len(of.marks) for of in known.lines.values())
    return Examination(True, (*located,), len(known.files) + len(known.lines), lines, known)


def _compared(folder: Path, name: str, known: _Seal, hash_of: Callable[[str], str]) -> list[Alteration]:
    """Return what differs in a file."""
    try:
        path = inside(folder, name)
    except ValueError:
        return [Alteration(name, "changed", "leads out of its folder")]
    if not path.is_file():
        there = path.exists()
        return [Alteration(name, "changed", "is no file") if there else Alteration(name, "missing", "is missing")]
    if name not in known.lines and name not in known.files:
        return [Alteration(name, "added", "was added")]
    try:
        if name in known.lines:
            return _compared_lines(name, path, known.lines[name])
        same = hash_of(name) == known.files[name]
    except ValueError as error:  # what no file of its kind is
        return [Alteration(name, "changed", f"cannot be compared: {str(error).rstrip('.')}")]
    return [] if same else [Alteration(name, "changed", "was changed")]


def _compared_lines(name: str, path: Path, known: _Lines) -> list[Alteration]:
    """Return the lines of a file that are not those of the seal."""
    if path.stat().st_size > LARGEST_LINES:
        return [Alteration(name, "changed", f"is larger than {LARGEST_LINES:,} bytes, which no file of its kind is")]
    with opened(path) as file:
        if sum(part.count(b"\n") for part in iter(lambda: file.read(CHUNK), b"")) > MOST_LINES:
            return [Alteration(name, "changed", f"has more than {MOST_LINES:,} lines, which no file of its kind has")]
    chain, new = _marked(path)
    if chain.mark.link == known.link:
        return []
    findings = [*located(name, split(lines_of(path)), new, known.marks)]
    return findings or [Alteration(name, "changed", "was changed")]


def located(name: str, lines: Sequence[bytes], new: Sequence[str], old: Sequence[str]) -> Iterator[Alteration]:
    """Yield the lines that differ, in the order of the file.

    Args:
        name: of the file.
        lines: with their ends, as they are now.
        new: the first `DIGITS` digits of the SHA-256 of each of them.
        old: the same, of the lines that were written.
    """
    # Numbers count from 0 here, and from 1 in findings.
    blocks = [*_blocks(old, new)]
    left = {k for block in blocks for k in block.old}
    kept = {k for block in blocks for k in block.new if k in left and old[k] == new[k]}  # each at its own place
    gone = defaultdict[str, deque[int]](deque)  # by mark, the numbers of lines that are missing at their place
    for k in sorted(left - kept):
        gone[old[k]].append(k)
    first = {mark: k for k, mark in reversed([*enumerate(old)])}
    found, strange, moved = list[tuple[int, Alteration]](), list[list[int]](), set[int]()
    for block in blocks:
        strange.append([])
        for k in (k for k in block.new if k not in kept):
            if gone[new[k]]:
                moved.add(before := gone[new[k]].popleft())
                found.append((k, _finding(name, "moved", f"was line {before + 1} when the run ended", k, lines)))
            elif new[k] in first:
                found.append((k, _finding(name, "added", f"is line {first[new[k]] + 1} once more", k, lines)))
            else:
                strange[-1].append(k)
    for block, come in zip(blocks, strange, strict=True):
        missing = [k for k in block.old if k not in moved and k not in kept]
        for place, k in enumerate(come):
            kind: Kind = "changed" if place < len(missing) else "added"
            found.append((k, _finding(name, kind, f"was {kind}", k, lines)))
        around = {"after": block.new.start - 1, "before": block.new.stop}
        steps = {word: _about(lines, place).step for word, place in around.items()}
        words = [f"{word} step {step}" for word, step in steps.items() if step is not None]
        what = f"is missing ({', '.join(words)})" if words else "is missing"
        found += [(block.new.stop, Alteration(name, "missing", what, k + 1)) for k in missing[len(come) :]]
    yield from (finding for _, finding in sorted(found, key=lambda one: one[0]))


class _Block(NamedTuple):
    """A stretch of lines that differ: their numbers in the old sequence, and in the new one."""

    old: range
    new: range


def _blocks(old: Sequence[str], new: Sequence[str]) -> Iterator[_Block]:
    """Yield the stretches in which two sequences differ; a long one is not looked into."""
    start, most = 0, min(len(old), len(new))
    while start < most and old[start] == new[start]:
        start += 1
    end = 0
    while end < most - start and old[-1 - end] == new[-1 - end]:
        end += 1
    a, b = old[start : len(old) - end], new[start : len(new) - end]
    here, there = Counter(a), Counter(b)
    alike = sum(count * there[mark] for mark, count in here.items())  # what the time of the comparison depends on
    if len(a) * len(b) > COMPARED or alike > ALIKE:
        yield _Block(range(start, start + len(a)), range(start, start + len(b)))
        return
    for tag, i, i_end, j, j_end in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag != "equal":
            yield _Block(range(start + i, start + i_end), range(start + j, start + j_end))


def _finding(name: str, kind: Kind, what: str, number: int, lines: Sequence[bytes]) -> Alteration:
    about = _about(lines, number)
    return Alteration(name, kind, what, number + 1, about.step, () if about.client is None else (about.client,))


def _about(lines: Sequence[bytes], number: int) -> _Line:
    """Return the parts of a line that say where it belongs; nothing if it has none, or there is no such line."""
    try:
        return msgspec.json.decode(lines[number], type=_Line) if 0 <= number < len(lines) else _Line()
    except (msgspec.MsgspecError, RecursionError):
        return _Line()


def _served(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the clients that each file of models is for, as far as the indices can be read."""
    served = defaultdict[str, list[int]](list)
    for below in ("", "best/"):
        try:
            text = contents(inside(folder, f"{below}model.json"), LARGEST)
            for client, files in msgspec.json.decode(text, type=_Index).clients.items():
                for name in {*files.values()}:
                    served[below + name].append(client)
        except (OSError, ValueError, RecursionError):
            continue
    return {name: (*clients,) for name, clients in served.items()}


# Chains that hold their links themselves


def breaks(lines: Sequence[bytes]) -> Iterator[tuple[int, str]]:
    """Yield the lines that do not follow from those before them, with why.

    Each line names in its field `before` the link of the line before it.  Lines without that field are older, and can
    only come first.

    Args:
        lines: with their ends.
    """
    link, chained = START, False
    for number, line in enumerate(lines, 1):
        before = _about(lines, number - 1).before
        if before != link.hex() and (before or chained):
            why = f"does not follow line {number - 1}" if number > 1 else "is not the first line that was written"
            yield number, f"{why}: there or here, something was changed, removed or added"
            link = bytes.fromhex(before) if re.fullmatch("[0-9a-f]{64}", before) else link
        chained = chained or bool(before)
        link = hashlib.sha256(link + hashlib.sha256(line).digest()).digest()


def chain_of(lines: Iterable[bytes]) -> HashChain:
    """Return the chain over lines, their ends included."""
    chain = HashChain()
    for line in lines:
        chain.add(line)
    return chain


# The file


def _read(folder: Path) -> _Seal:
    """Return the seal of a folder; raise `ValueError` if it is not exactly as it was written."""
    try:
        if not (path := inside(folder, SEAL)).is_file():
            raise ValueError
        text = contents(path, LARGEST)
        known = from_json(text, _Seal)
    except ValueError as error:
        raise ValueError("is no seal") from error
    if known.digest != _own_digest(known) or text != _text(known):
        raise ValueError("was changed itself")
    if wrong := [name for name in (*known.files, *known.lines) if not FILES.fullmatch(name)]:
        raise ValueError(f"names {shown(wrong[0])}, which is no file of a record")
    return known


def _text(known: _Seal) -> bytes:
    return msgspec.json.format(msgspec.json.encode(known), indent=1) + b"\n"


def _own_digest(known: _Seal) -> str:
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(known, digest=""))).hexdigest()


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal; raise `ValueError` if it is a folder, a pipe or a device."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hashes(folder: Path) -> Callable[[str], str]:
    """Return what gives the SHA-256 of a file in a folder by name, and reads each file once; raises as `file_hash`."""
    return cache(lambda name: file_hash(inside(folder, name)))
