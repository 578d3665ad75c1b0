"""The grid of a study: axes of named values, and the run of each cell."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

from phalanx.core import InfeasibleError
from phalanx.report.words import describe
from phalanx.runs.canonical import compact
from phalanx.runs.plan import Run

Settings = Mapping[str, Any]  # values of fields of a run, by dotted path
Labels = Mapping[str, str]  # the name of a value, by axis
ATTACKERS = {"byzantine": 0, "additional_byzantine": 0, "byzantine_per_round": None}  # where there is no attack
NOBODY = {"attack": None, "byzantine_per_round": None}  # where there are no attackers
FIELDS = tuple(f.name for f in fields(Run))


class Fields(dict[str, Any]):
    """Values of several fields that are one value of an axis, also of an axis that is named as a field."""


@dataclass(frozen=True)
class Derived:
    """A value of an axis that depends on the rest of the run, such as a rule for the number of attackers.

        Derived(lambda run: {"algorithm": FedAvg(TrimmedMean(run["byzantine"] / run["clients"]))})

    Args:
        fields: returns fields of the run and their values, given all its other fields by name, the seed included.
        name: of the value, where it is given without one.
    """

    fields: Callable[[Mapping[str, Any]], Mapping[str, Any]] = field(repr=False)
    name: str = "derived"


class GridCell(NamedTuple):
    """A combination of values, one of each axis."""

    labels: Labels
    settings: Settings


@dataclass(frozen=True)
class Planned:
    """A run of a study.

    Args:
        labels: the name of its value, by axis.
        plan: the run, with its seed.
    """

    labels: Labels
    plan: Run

    @property
    def name(self) -> str:
        """Return a readable name, such as `Krum(f=6), SignFlip (seed 0)`."""
        return f"{', '.join(self.labels.values()) or 'run'} (seed {self.plan.seed})"


def name_of(value: Any) -> str:
    """Return the name of a value that was given without one, such as `Krum(f=6)`."""
    if isinstance(value, Derived):
        return value.name
    form = compact(value)
    return "none" if value is None else describe(form).removesuffix("()")


def axis_values(name: str, given: Mapping[str, Any] | Sequence[Any]) -> dict[str, Settings]:
    """Return the settings of each value of an axis, by its name.

    Args:
        name: of the axis: a field of a run, by its dotted path; any other name sets several fields.
        given: the values, by name, or in a list.

    Raises:
        InfeasibleError: there is no value, a name occurs twice, or a value of several fields is no mapping.
    """
    pairs = (
        [(str(key), value) for key, value in given.items()]
        if isinstance(given, Mapping)
        else [(name_of(value), value) for value in given]
    )
    values = dict(pairs)
    if not values:
        raise InfeasibleError(f"The axis {name} has no values. Give at least one, or leave the axis out.")
    if len(values) < len(pairs):
        raise InfeasibleError(f"The axis {name} has two values named alike. Give each a name of its own.")
    first = name.partition(".")[0]
    if first == "seed":
        raise InfeasibleError("seed is no axis: a study repeats each cell for its seeds. Give seeds instead.")
    if first in FIELDS:
        return {key: value if isinstance(value, Fields) else {name: value} for key, value in values.items()}
    values = {key: {name: value} if isinstance(value, Derived) else value for key, value in values.items()}
    for key, value in values.items():
        if not isinstance(value, Mapping):
            raise InfeasibleError(
                f"{name} is no field of a run, so each value of this axis must be a mapping of fields to values, such "
                f"as {{attack: SignFlip, byzantine: 6}}; {key} is {name_of(value)}. Fields of a run: "
                f"{', '.join(FIELDS)}."
            )
    return values


def cells(axes: Mapping[str, Mapping[str, Settings]], exclude: Sequence[Mapping[str, Any]]) -> Iterator[GridCell]:
    """Yield the cells of a grid that are not excluded, the last axis fastest.

    Raises:
        InfeasibleError: two axes set one field, or an exclusion names what there is not.
    """
    rules = [_exclusion(axes, rule) for rule in exclude]
    for names in itertools.product(*axes.values()):
        labels = dict(zip(axes, names, strict=True))
        if any(all(labels[axis] in among for axis, among in rule.items()) for rule in rules):
            continue
        settings = dict[str, Any]()
        for axis, value in labels.items():
            if twice := settings.keys() & axes[axis][value].keys():
                raise InfeasibleError(f"{twice.pop()} is set by two axes, {axis} is one of them. Leave it in one.")
            settings |= axes[axis][value]
        yield GridCell(labels, settings)


def _exclusion(axes: Mapping[str, Mapping[str, Settings]], rule: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the names of values that an exclusion lists, by axis."""
    out = {}
    for axis, given in rule.items():
        if axis not in axes:
            raise InfeasibleError(f"exclude names the axis {axis}, which there is not. There are: {', '.join(axes)}.")
        among = {str(name) for name in ([given] if isinstance(given, str) or given is None else given)}
        if unknown := among - axes[axis].keys():
            raise InfeasibleError(
                f"exclude names {sorted(unknown)[0]}, which {axis} does not have. It has: {', '.join(axes[axis])}."
            )
        out[axis] = among
    return out


def applied(base: Run, settings: Settings) -> Run:
    """Return a run with other values of some fields.

    An attack of None leaves no Byzantine clients, and 0 Byzantine clients leave no attack.

    Args:
        base: the run.
        settings: the values, by dotted path. A path sets what is inside of a shorter one. Derived values come last.

    Raises:
        InfeasibleError: there is no such field, or the values do not fit together.
    """
    derived = [value for value in settings.values() if isinstance(value, Derived)]
    settings = {path: value for path, value in settings.items() if not isinstance(value, Derived)}
    if settings.get("attack", base) is None:
        settings |= ATTACKERS
    elif settings.get("byzantine", 1) == 0 and not settings.get("additional_byzantine", base.additional_byzantine):
        settings |= NOBODY
    changed = dict[str, Any]()
    for path in sorted(settings, key=lambda path: path.count(".")):
        first, *rest = path.split(".")
        if first not in FIELDS:
            raise InfeasibleError(f"A run has no field {first}. It has: {', '.join(FIELDS)}.")
        before = changed.get(first, getattr(base, first))
        changed[first] = _replaced(before, rest, settings[path], first)
    try:
        for value in derived:
            changed |= value.fields({name: getattr(base, name) for name in FIELDS} | changed)
        return dataclasses.replace(base, **changed)
    except (ValueError, TypeError) as error:
        raise InfeasibleError(str(error)) from error


def _replaced(value: Any, steps: Sequence[str], new: Any, path: str) -> Any:
    """Return a value with another one further in."""
    if not steps:
        return new
    first, *rest = steps
    known = [f.name for f in fields(value)] if is_dataclass(value) else []
    if first not in known:
        has = f"It has: {', '.join(known)}." if known else "It has no fields."
        raise InfeasibleError(f"{path} is {name_of(value)}, which has no field {first}. {has}")
    inner = _replaced(getattr(value, first), rest, new, f"{path}.{first}")
    try:
        return dataclasses.replace(value, **{first: inner})
    except (ValueError, TypeError) as error:
        raise InfeasibleError(str(error)) from error
