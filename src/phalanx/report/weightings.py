"""The weights of a record's clients before any training, by reported sizes: as they are, truncated, or ignored."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from typing_extensions import override

from phalanx import algorithms
from phalanx.core import InfeasibleError
from phalanx.report.client_ledger import BYZANTINE, ClientLedger
from phalanx.report.words import describe
from phalanx.runs.canonical import import_path
from phalanx.runs.summary import not_enrolled
from phalanx.weighting import AsReported, Ignore, Truncate, truncation_bound

REPORTED, TRUNCATED, UNIFORM = NAMES = ("reported", "truncated", "uniform")
MAKES = {import_path(AsReported): REPORTED, import_path(Truncate): TRUNCATED, import_path(Ignore): UNIFORM}


class Part(NamedTuple):
    """An object in a record's configuration: the path of its class, "" if there is none, and its arguments."""

    path: str
    arguments: Mapping[str, Any]

    @classmethod
    def of(cls, form: object) -> "Part":
        """Return the object that a part of the configuration describes."""
        if not isinstance(form, Mapping) or "class_path" not in form:
            return cls("", {})
        return cls(str(form["class_path"]), form.get("init_args") or {})

    @override
    def __str__(self) -> str:
        return describe({"class_path": self.path, "init_args": self.arguments})

    @property
    def name(self) -> str:
        """The name of the class without its module."""
        return self.path.rpartition(".")[2]

    def part(self, name: str) -> "Part":
        """Return the object of an argument."""
        return Part.of(self.arguments.get(name))


@dataclass(frozen=True)
class Weightings:
    """The clients that took part, and their shares under three weightings of their reported sizes.

    Args:
        sizes: number of examples that each of them reports, at least 1; by id.
        byzantine: those of them that are known to be Byzantine.
        algorithm: that of the run.
        truncate: the truncation of sizes: that of the run if it has one, else the default.
        names: of the clients that have one, by id.
    """

    sizes: Mapping[int, int]
    byzantine: frozenset[int]
    algorithm: Part
    truncate: Truncate
    names: Mapping[int, str] = field(default_factory=dict)

    @property
    def count(self) -> str:
        """The number of clients in words: "1,000 clients"."""
        return f"{len(self.sizes):,} client" + ("" if len(self.sizes) == 1 else "s")

    @property
    def preprocess(self) -> Part:
        """The run's preprocessing of sizes; an empty path if its algorithm has none."""
        return self.algorithm.part("preprocess")

    @property
    def used(self) -> str:
        """The weighting in use: one of NAMES, or "" for another or none."""
        return MAKES.get(self.preprocess.path, "")

    @property
    def per_cohort(self) -> bool:
        """Whether the run made weights in each step, for the clients that took part in it."""
        return bool(self.preprocess.arguments) and self.preprocess.arguments.get("scope", "population") != "population"

    @cached_property
    def bound(self) -> int | InfeasibleError:
        """The bound U* for all clients together, or why there is none."""
        try:
            return truncation_bound(self.sizes, self.truncate.alpha, self.truncate.alpha_star)
        except InfeasibleError as error:
            return error

    @cached_property
    def shares(self) -> dict[str, dict[int, float]]:
        """The share of the weight by weighting and client; without "truncated" if that is infeasible."""
        weights: dict[str, Mapping[int, int]] = {REPORTED: self.sizes}
        if not isinstance(U := self.bound, InfeasibleError):
            weights[TRUNCATED] = {c: min(size, U) for c, size in self.sizes.items()}
        weights[UNIFORM] = dict.fromkeys(self.sizes, 1)
        total = {name: sum(of.values()) for name, of in weights.items()}
        return {name: {c: weight / total[name] for c, weight in of.items()} for name, of in weights.items()}


def weightings(ledger: ClientLedger) -> Weightings | None:
    """Return the weightings of a run; None if no client took part, or a reported size is unknown.

    Raises:
        ValueError: the configuration truncates by shares that are out of range.
    """
    absent = {c for c, client in ledger.clients.items() if client.not_enrolled} | not_enrolled(
        ledger.record.history
    ).keys()
    enrolled = {c: client.reported for c, client in ledger.clients.items() if c not in absent}
    sizes = {c: size for c, size in enrolled.items() if size is not None and size >= 1}
    if not sizes or len(sizes) < len(enrolled):
        return None
    algorithm = Part.of(ledger.record.config.get("algorithm"))
    preprocess = algorithm.part("preprocess")
    truncates = MAKES.get(preprocess.path) == TRUNCATED
    own = {k: v for k, v in preprocess.arguments.items() if truncates and k in {"alpha", "alpha_star"}}
    return Weightings(
        sizes, frozenset(ledger.of(BYZANTINE)).intersection(sizes), algorithm, Truncate(**own), ledger.names
    )


def sizeless(algorithm: Part) -> bool:
    """Return whether it is an algorithm of this library that never uses sizes."""
    kind = getattr(algorithms, algorithm.name, None)
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind) or import_path(kind) != algorithm.path:
        return False
    return "preprocess" not in {field.name for field in dataclasses.fields(kind)}
