"""The numbers that papers publish, each with its source.

They are in `published.yaml` of a package of experiments, a section for each paper, an entry for each table or figure.
An entry has the source of its numbers, their `kind` ("printed" in the paper, or "figure": read off a curve, with an
error of at most `within`), whose runs they come from, the measured quantity, and the meaning of the levels of `values`
(`keys`).  It may have a `note` on all numbers, and `remarks` on some.  A list in place of the last level has the labels
1, 2, ...; a pair of numbers is a mean and a standard deviation; null is a cell of the paper without a number.  A figure
of which no number is known has a `claim`.
"""

import difflib
import importlib.resources
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import yaml

from phalanx.core import InfeasibleError

FILE = "published.yaml"
KINDS = {"printed": "printed", "figure": "read off the figure"}
ENTRY = {"where", "kind", "within", "whose", "what", "keys", "values", "remarks", "claim", "setting", "note"}
NEEDED = {"values": ("where", "kind", "whose", "what", "keys"), "claim": ("where",)}


@dataclass(frozen=True)
class Published:
    """A published number.

    Args:
        value: None if the paper has a cell for it, and no number in it.
        deviation: standard deviation, if the paper gives one.
        where: paper, and table or figure.
        kind: "printed", or "read off the figure".
        within: largest error of reading, in its own unit; 0 for a printed one.
        whose: whose runs it comes from.
        note: on all numbers of the table; "" if there is none.
        remark: on this number; "" if there is none.
    """

    value: float | None
    deviation: float | None = None
    where: str = ""
    kind: str = "printed"
    within: float = 0.0
    whose: str = ""
    note: str = ""
    remark: str = ""

    @property
    def text(self) -> str:
        """The published number as text; "/" if there is none."""
        if self.value is None:
            return "/"
        return f"{self.value:g}" + ("" if self.deviation is None else f" ± {self.deviation:g}")

    @property
    def source(self) -> str:
        """The source of the number, and its accuracy, in words."""
        accuracy = f", within {self.within:g}" if self.within else ""
        return f"{self.where}, {self.kind}{accuracy}; runs of {self.whose}." + (f" {self.note}" if self.note else "")


@dataclass(frozen=True)
class PublishedTable:
    """The numbers that a paper publishes in one table or figure.

    Args:
        name: of the entry, such as "figure5".
        where: "Figure 5".
        what: the measured quantity, and its unit.
        keys: the meaning of the labels of a number, from the first to the last.
        numbers: by labels.
        claim: the paper's statement, instead of numbers or in addition to them.
        setting: hyper-parameters and the like.
    """

    name: str
    where: str
    what: str
    keys: tuple[str, ...]
    numbers: Mapping[tuple[str, ...], Published]
    claim: str = ""
    setting: str = ""

    def of(self, *labels: str) -> Published:
        """Return the number with these labels, one for each of `keys`.

        Raises:
            KeyError: there is none; the message lists the known labels, the most similar first.
        """
        if labels in self.numbers:
            return self.numbers[labels]
        sought = ", ".join(labels)
        known = sorted(map(", ".join, self.numbers), key=lambda k: -difflib.SequenceMatcher(None, sought, k).ratio())
        raise KeyError(f"{self.name} has no number for {sought!r} ({', '.join(self.keys)}). There are: {known[:5]}.")


@dataclass(frozen=True)
class PublishedPaper:
    """The numbers that a paper publishes.

    Args:
        name: of the paper, such as "client-weighting".
        citation: of the paper.
        tables: by the name of the entry.
        setting: of all experiments of the paper.
    """

    name: str
    citation: str
    tables: Mapping[str, PublishedTable]
    setting: str = ""

    def of(self, table: str, *labels: str) -> Published:
        """Return the number of a table or figure with these labels; raise KeyError if there is none."""
        if table not in self.tables:
            raise KeyError(f"{FILE} has no {table!r} of {self.name}. There are: {', '.join(self.tables)}.")
        return self.tables[table].of(*labels)


@cache
def published(package: str) -> Mapping[str, PublishedPaper]:
    """Return the published numbers of a package, by paper; none if it has no `published.yaml`.

    Raises:
        InfeasibleError: an entry is invalid.
    """
    file = importlib.resources.files(package) / FILE
    if not file.is_file():
        return {}
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {name: _paper(name, section) for name, section in content.items()}


def _paper(name: str, section: Mapping[str, Any]) -> PublishedPaper:
    citation, short = section["citation"], section["short"]
    tables = {key: _table(f"{name} {key}", short, entry) for key, entry in section["tables"].items()}
    return PublishedPaper(name, citation, tables, section.get("setting", ""))


def _table(name: str, short: str, entry: Mapping[str, Any]) -> PublishedTable:
    _check(name, entry)
    kind = KINDS[entry.get("kind", "printed")]
    source = Published(
        value=None,
        where=f"{short}, {entry['where']}",
        kind=kind,
        within=float(entry.get("within", 0)),
        whose=entry.get("whose", ""),
        note=entry.get("note", ""),
    )
    keys = tuple(entry.get("keys", ()))
    numbers = dict(_numbers(entry["values"], len(keys), source, name)) if "values" in entry else {}
    for labels, remark in _remarks(entry.get("remarks", {}), len(keys)):
        if not (meant := [k for k in numbers if all(a in ("*", b) for a, b in zip(labels, k, strict=True))]):
            raise InfeasibleError(f"{FILE}: {name} has a remark on {', '.join(labels)}, and no such number.")
        for k in meant:
            numbers[k] = replace(numbers[k], remark=" ".join(filter(None, (numbers[k].remark, remark))))
    return PublishedTable(
        name, entry["where"], entry.get("what", ""), keys, numbers, entry.get("claim", ""), entry.get("setting", "")
    )


def _check(name: str, entry: Mapping[str, Any]) -> None:
    """Raise InfeasibleError if an entry holds something unknown, or lacks something."""
    if unknown := sorted(entry.keys() - ENTRY):
        raise InfeasibleError(f"{FILE}: {name} holds {', '.join(unknown)}. Known are: {', '.join(sorted(ENTRY))}.")
    held = [part for part in NEEDED if part in entry]
    if not held:
        raise InfeasibleError(f"{FILE}: {name} must hold values, or a claim.")
    if missing := sorted({field for part in held for field in NEEDED[part] if field not in entry}):
        raise InfeasibleError(f"{FILE}: {name} lacks {', '.join(missing)}.")
    if entry.get("kind", "printed") not in KINDS:
        raise InfeasibleError(f"{FILE}: {name} must be of kind {' or '.join(KINDS)}, got {entry['kind']}.")
    if (entry.get("kind") == "figure") != ("within" in entry):
        raise InfeasibleError(f"{FILE}: {name} must say within which distance it was read off, if and only if it was.")


def _numbers(
    values: Any, depth: int, source: Published, name: str, labels: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Published]]:
    """Yield the numbers below a node of `values`, with their labels."""
    if len(labels) < depth:
        if len(labels) == depth - 1 and isinstance(values, list):
            values = dict(enumerate(values, 1))
        if not isinstance(values, Mapping):
            raise InfeasibleError(f"{FILE}: {name}, {', '.join(labels)} must have {depth} levels of labels.")
        for label, below in values.items():
            yield from _numbers(below, depth, source, name, (*labels, str(label)))
        return
    pair = values if isinstance(values, Sequence) and not isinstance(values, str) else [values]
    if not all(v is None or isinstance(v, (int, float)) for v in pair) or len(pair) not in (1, 2):
        place = ", ".join(labels)
        raise InfeasibleError(f"{FILE}: {name}, {place} must be a number, or [mean, deviation], got {values!r}.")
    mean, deviation = (*(None if v is None else float(v) for v in pair), None)[:2]
    yield labels, replace(source, value=mean, deviation=deviation)


def _remarks(values: Any, depth: int, labels: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the remarks below a node, with their labels; "*" is any label."""
    if not isinstance(values, Mapping):
        yield (*labels, *("*",) * (depth - len(labels))), str(values)
        return
    for label, below in values.items():
        yield from _remarks(below, depth, (*labels, str(label)))
