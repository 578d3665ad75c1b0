"""The short record of a run for tables and figures: a value of some ten kilobytes.

A record (`phalanx.runs.record.Record`) holds every client in every step.  A trace keeps the curves, the outcome and the
excluded clients, so that hundreds of runs fit in one folder and can be drawn without training.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from phalanx.reading import LARGEST_PART, contents
from phalanx.runs.canonical import identity_of, source
from phalanx.runs.files import replacing
from phalanx.runs.found_clusters import groups_of, last_clusters
from phalanx.runs.plan import Run
from phalanx.runs.provenance import Provenance, provenance
from phalanx.runs.record import Record
from phalanx.runs.schema import plain
from phalanx.runs.summary import ending

MEASURED = ("accuracy", "loss", "attack_success", "worst_client_accuracy")
BY_GROUP = ("group_accuracy", "group_loss", "class_accuracy", "extra")
MOST = 1e300  # beyond every figure; means of such numbers are finite
DIGITS = 16  # of the digest of a field
Measures = Mapping[str, Callable[[Record], Any]]  # figures of the user's own, by name
SMALL = 12  # largest number of values of an observed figure of the algorithm that is kept


@dataclass(frozen=True)
class Excluded:
    """An excluded client, with the step and the reason."""

    client: int
    step: int
    reason: str


@dataclass(frozen=True)
class InvalidClient:
    """A client with invalid updates: their number, and the reason of the last one."""

    client: int
    times: int
    reason: str


@dataclass(frozen=True)
class Trace:
    """The short record of a run that ended.

    Args:
        name: a readable name.
        identity: of the run: the SHA-256 of its settings.
        source: of the classes from outside the library that it uses; see `phalanx.runs.canonical.source`.
        settings: the settings of the run other than defaults: its canonical form, of which `identity` is the digest.
        seed: of the run.
        clients: number of clients, additional attackers included.
        status: "finished" or "failed".
        error: why it failed; None if it did not.
        provenance: the software and hardware that computed it.
        wall_seconds: its duration.
        data: name, numbers of examples and fingerprints of the data set.
        dimension: number of parameters of the model.
        steps: server steps taken.
        curves: columns of equal length, one entry for each evaluation: "step", "seconds" on the run's clock, and those
            of MEASURED that were measured: shares from 0 to 1, loss in nats; of those of BY_GROUP one for each group,
            class, or further metric of the task, such as "group_accuracy 0" or "extra AUROC"; and
            "best_client_accuracy", that of the best of the honest clients' models. None where a number was not finite.
        state: columns of equal length, one entry for each step: "step", and the small ones of the figures that the
            algorithm observes.
        left_out: observed figures that are too large to keep.
        excluded: clients that were excluded.
        invalid: clients that sent invalid updates.
        not_enrolled: clients that never took part, with the reason.
        detection: how well the excluded agree with the Byzantine clients; see `phalanx.runs.summary.detection`.
        filtered: share of the updates that were not used, of "byzantine" and of "honest" clients.
        byzantine: ids of the Byzantine clients.
        reported: number of examples that each client reported.
        held: number of examples that each client holds.
        received_accuracy: at the last evaluation, the accuracy of each honest client's model; empty in older records.
        client_accuracy: the same on the client's own examples; see `phalanx.training.evaluation.Metrics`.
        clusters: the clients of each cluster at the end, if the algorithm forms clusters.
        groups: number of the group of each client that is of one.
        uploads: number of updates that reached the server, invalid ones included; None in older records.
        measured: the figures of `Study.measures`, as JSON holds them.
        sealed: whether its file holds digests of all other fields; older ones do not.
    """

    name: str
    identity: str
    source: str | None
    settings: Mapping[str, Any]
    seed: int
    clients: int
    status: str
    error: str | None
    provenance: Provenance
    wall_seconds: float
    data: Mapping[str, Any] = field(default_factory=dict)
    dimension: int = 0
    steps: int = 0
    curves: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    state: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    excluded: tuple[Excluded, ...] = ()
    invalid: tuple[InvalidClient, ...] = ()
    not_enrolled: Mapping[int, str] = field(default_factory=dict)
    detection: Mapping[str, float | None] = field(default_factory=dict)
    filtered: Mapping[str, float | None] = field(default_factory=dict)
    byzantine: tuple[int, ...] = ()
    reported: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    received_accuracy: Mapping[int, float] = field(default_factory=dict)
    client_accuracy: Mapping[int, float] = field(default_factory=dict)
    clusters: tuple[tuple[int, ...], ...] = ()
    groups: Mapping[int, int] = field(default_factory=dict)
    uploads: int | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)
    sealed: bool = field(default=True, compare=False)

    @property
    def honest_excluded(self) -> int:
        """The number of honest clients that were excluded."""
        if (counted := self.curves.get("honest_excluded")) is not None:  # in a store of lines, which keeps no names
            return int(counted[-1] or 0)
        return sum(one.client not in self.byzantine for one in self.excluded)

    @property
    def failed(self) -> bool:
        """Whether the run failed before its end."""
        return self.status == "failed"

    def final(self, figure: str = "accuracy") -> float | None:
        """Return the last measured value of a curve; None if it was not finite, or never measured."""
        return self.curves[figure][-1] if self.curves.get(figure) else None

    def best(self, figure: str = "accuracy", *, lowest: bool = False) -> float | None:
        """Return the largest value of a curve, or the smallest; None if there is no finite one."""
        known = [value for value in self.curves.get(figure, ()) if value is not None]
        return (min if lowest else max)(known, default=None)

    @classmethod
    def of(cls, plan: Run, record: Record, measures: Measures = MappingProxyType({})) -> "Trace":
        """Return the short form of the record of a run, with figures of the user's own."""
        measured = plain({name: measure(record) for name, measure in measures.items()})
        trace = cls.of_record(record, plan.settings, plan.seed, plan.population)
        return replace(trace, measured=json.loads(json.dumps(measured)))  # here, not later, is said what cannot be kept

    @classmethod
    def of_record(cls, record: Record, settings: Mapping[str, Any], seed: int, population: int) -> "Trace":
        """Return the short form of a record, with what is known of its run."""
        summary, clients = record.summary, record.summary.clients
        state, left_out = _state(record)
        return cls(
            name=record.name,
            settings=settings,
            seed=seed,
            clients=population,
            **{name: getattr(summary, name) for name in SUMMARY},
            data={} if summary.data is None else msgspec.to_builtins(summary.data),
            curves=_curves(record),
            state=state,
            left_out=left_out,
            excluded=tuple(Excluded(i, e.step, e.reason) for i, c in clients.items() if (e := c.excluded)),
            invalid=tuple(InvalidClient(i, u.times, u.reason) for i, c in clients.items() if (u := c.invalid)),
            not_enrolled={i: c.not_enrolled for i, c in clients.items() if c.not_enrolled},
            detection={} if summary.detection is None else msgspec.structs.asdict(summary.detection),
            filtered=msgspec.structs.asdict(summary.filtered),
            byzantine=tuple(i for i, c in clients.items() if c.byzantine),
            reported=tuple(c.reported or 0 for c in clients.values()),
            held=tuple(c.size or 0 for c in clients.values()),
            received_accuracy=_last(record, "received_accuracy"),
            client_accuracy=_last(record, "client_accuracy"),
            clusters=last_clusters(record.history),
            groups=groups_of(clients),
            uploads=sum(len({*step.decided, *step.invalid}) for step in record.history),
        )

    @classmethod
    def of_failure(cls, plan: Run, error: BaseException | str, seconds: float = 0.0) -> "Trace":
        """Return the trace of a run that failed without any result: it could not begin, or its process died."""
        status, why = ("failed", error) if isinstance(error, str) else ending(error)
        return cls(
            name=plan.title,
            identity=plan.identity,
            source=source(plan),
            settings=plan.settings,
            seed=plan.seed,
            clients=plan.population,
            status=status,
            error=why,
            provenance=provenance("cpu"),
            wall_seconds=seconds,
            byzantine=plan.drawn_attackers,
        )

    def save(self, path: Path) -> None:
        """Write the trace, so that a kill leaves either all of it or nothing; equal traces give equal bytes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in self.form.items())
        with replacing(path) as file:
            file.write(("{" + ",\n ".join(lines) + "}\n").encode())

    @property
    def form(self) -> dict[str, Any]:
        """The trace as JSON holds it, with its seal."""
        form = {name: _form(getattr(self, name)) for name in _fields() if name != "measured" or self.measured}
        return {**form, "seal": _seal(form)} if self.sealed else form

    @classmethod
    def load(cls, path: Path) -> "Trace":
        """Read a trace that `save` has written.

        Raises:
            ValueError: the file is invalid, or the record of another run than its name says.
        """
        try:
            text = contents(path, LARGEST_PART).decode()
        except UnicodeDecodeError as error:
            raise _unusable(path, "its text is not UTF-8") from error
        return cls.read(text, path, path.stem)

    @classmethod
    def read(cls, text: str, path: Path, identity: str) -> "Trace":
        """Return the trace of that identity from its text in JSON; the path is that of the file that holds it.

        Raises:
            ValueError: the text is invalid, or the record of another run.
        """
        try:
            form = json.loads(text, parse_constant=_no_json)
        except ValueError as error:
            raise _unusable(path, str(error)) from error
        except RecursionError as error:
            raise _unusable(path, "it is nested too deeply") from error
        if not isinstance(form, dict):
            raise _unusable(path, "it is no mapping")
        if lacking := [name for name, kind in KINDS.items() if not isinstance(form.get(name), kind)]:
            raise _unusable(path, f"{', '.join(lacking)} missing or of a wrong type")
        if (seal := form.pop("seal", None)) is not None:
            _check(path, form, seal)
        if not identity_of(form["settings"]) == form["identity"] == identity:
            raise _unusable(path, "its name, its identity and its settings do not agree")
        try:
            known = {name: READ[name](form[name]) if name in READ else form[name] for name in _fields() if name in form}
            trace = cls(**known, sealed=seal is not None)
        except ValueError as error:
            raise _unusable(path, str(error)) from error
        except (TypeError, KeyError, AttributeError) as error:
            raise _unusable(path, "a value is of a wrong type") from error
        figures = trace.received_accuracy, trace.client_accuracy, trace.detection, trace.filtered
        columns = *trace.curves.values(), trace.byzantine, trace.reported, trace.held, *(f.values() for f in figures)
        columns += ((trace.uploads, trace.wall_seconds),)
        numbers = [value for column in (*trace.clusters, trace.groups.values()) for value in column]
        shares = [*trace.received_accuracy.values(), *trace.client_accuracy.values()]
        if (
            not all(_is_figure(value) for column in columns for value in column)
            or not all(type(value) is int for value in numbers)
            or None in shares
        ):
            raise _unusable(path, "it holds something else where a number must be")
        if any(len({len(column) for column in columns.values()}) > 1 for columns in (trace.curves, trace.state)):
            raise _unusable(path, "its columns are of different lengths")
        return trace


def _unusable(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} is not the record of a run: {why}. Delete the file, and give the same command again.")


def _fields() -> list[str]:
    """Return the names of the fields that a file holds."""
    return [f.name for f in fields(Trace) if f.name != "sealed"]


def _seal(form: Mapping[str, Any]) -> dict[str, str]:
    """Return the beginning of the SHA-256 of each field of a trace as JSON holds it."""
    texts = {name: json.dumps(value, sort_keys=True, separators=(",", ":")) for name, value in form.items()}
    return {name: sha256(text.encode()).hexdigest()[:DIGITS] for name, text in texts.items()}


def _check(path: Path, form: Mapping[str, Any], seal: Any) -> None:
    """Raise `ValueError` if a trace is not as it was written."""
    now, known = _seal({name: form[name] for name in _fields() if name in form}), seal if isinstance(seal, dict) else {}
    if changed := [name for name in _fields() if now.get(name) != known.get(name)]:
        raise _unusable(path, f"{', '.join(changed)} changed since it was written")


def _form(value: Any) -> Any:
    """Return the value of a field in the types of JSON."""
    if isinstance(value, Provenance):
        return value.form
    if isinstance(value, (Excluded, InvalidClient)):
        return vars(value)
    if isinstance(value, Mapping):
        return {str(key): _form(item) for key, item in value.items()}
    return [_form(item) for item in value] if isinstance(value, tuple) else value


def _no_json(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _is_figure(value: object) -> bool:
    return value is None or (type(value) in (int, float) and -MOST < value < MOST)  # type: ignore[operator]


Value = TypeVar("Value")


def _by_client(form: Mapping[str, Value]) -> dict[int, Value]:
    if not all(client.isdecimal() for client in form):
        raise ValueError("clients must be named by their numbers")
    return {int(client): value for client, value in form.items()}


KINDS: dict[str, type | tuple[type, ...]] = {  # of the fields, in JSON
    **dict.fromkeys(("name", "identity", "status"), str),
    **dict.fromkeys(("source", "error"), (str, type(None))),
    **dict.fromkeys(("settings", "provenance", "data", "curves", "state"), dict),
    **dict.fromkeys(("not_enrolled", "detection", "filtered", "received_accuracy"), dict),
    **dict.fromkeys(("left_out", "excluded", "invalid", "byzantine", "reported", "held"), list),
    **dict.fromkeys(("dimension", "steps", "seed", "clients"), int),
    "wall_seconds": (int, float),
}
READ: dict[str, Callable[[Any], Any]] = {  # fields that JSON holds in another form
    **dict.fromkeys(("left_out", "byzantine", "reported", "held"), tuple),
    "clusters": lambda form: tuple(map(tuple, form)),
    **dict.fromkeys(("curves", "state"), lambda form: {name: tuple(column) for name, column in form.items()}),
    "measured": dict,
    **dict.fromkeys(("not_enrolled", "received_accuracy", "client_accuracy", "groups"), _by_client),
    "provenance": Provenance.read,
    "excluded": lambda form: tuple(Excluded(**item) for item in form),
    "invalid": lambda form: tuple(InvalidClient(**item) for item in form),
}
SUMMARY = ("identity", "source", "status", "error", "provenance", "wall_seconds", "dimension", "steps")


def _curves(record: Record) -> dict[str, tuple[float | None, ...]]:
    """Return the evaluated lines of the history, column by column."""
    measured = [(step, step.metrics) for step in record.history if step.metrics is not None]
    columns: dict[str, tuple[float | None, ...]] = {
        "step": tuple(step.step for step, _ in measured),
        "seconds": tuple(step.seconds for step, _ in measured),
    }
    for name in MEASURED:
        column = tuple(getattr(metrics, name) for _, metrics in measured)
        columns |= {name: column} if any(value is not None for value in column) else {}
    for name in BY_GROUP:
        tables = [getattr(metrics, name) for _, metrics in measured]
        groups = dict.fromkeys(group for table in tables for group in table)
        columns |= {f"{name} {group}": tuple(table.get(group) for table in tables) for group in groups}
    if any(metrics.received_accuracy for _, metrics in measured):
        known = [[a for a in metrics.received_accuracy.values() if a is not None] for _, metrics in measured]
        columns["best_client_accuracy"] = tuple(max(values, default=None) for values in known)
    return columns


def _last(record: Record, figure: str) -> dict[int, float]:
    """Return a figure of each honest client in its last evaluation."""
    known = [found for step in record.history if step.metrics and (found := getattr(step.metrics, figure))]
    return {i: accuracy for i, accuracy in (known[-1] if known else {}).items() if accuracy is not None}


def _state(record: Record) -> tuple[dict[str, tuple[Any, ...]], tuple[str, ...]]:
    """Return the observed figures of the algorithm, step by step, and the names of those that are too large."""
    steps = [step for step in record.history if step.state]
    names = list(dict.fromkeys(name for step in steps for name in step.state))
    small = [name for name in names if all(_count(step.state.get(name)) <= SMALL for step in steps)]
    columns = {name: tuple(plain(step.state.get(name)) for step in steps) for name in small}
    kept = {"step": tuple(step.step for step in steps), **columns} if columns else {}
    return kept, tuple(name for name in names if name not in small)


def _count(value: Any) -> int:
    """Return the number of numbers in a value in the types of JSON."""
    if isinstance(value, Mapping):
        return sum(map(_count, value.values()))
    return sum(map(_count, value)) if isinstance(value, list) else 1
