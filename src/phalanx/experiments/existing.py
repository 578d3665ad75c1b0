"""Runs that exist, as the results of a study: its axes are the settings in which they differ."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from phalanx.core import InfeasibleError
from phalanx.experiments.results import Results, Row
from phalanx.experiments.trace import Trace
from phalanx.report.words import describe
from phalanx.runs.canonical import defaults
from phalanx.runs.plan import Run
from phalanx.trust import named
from phalanx.wording import visible

CLASS, FIELDS = "class_path", "init_args"


def compared(traces: Sequence[Trace], name: str, target: float | None = None) -> Results:
    """Return runs as results, with an axis for each setting in which they differ, but for the seed.

    A setting that follows from another one, as the number of attackers from whether there is an attack, is no axis.

    Args:
        traces: the records; one that occurs twice counts once.
        name: of the results.
        target: accuracy for the time to accuracy; None: 95 % of the best cell's.

    Raises:
        InfeasibleError: there are no runs.
    """
    once = list({trace.identity: trace for trace in traces}.values())
    if not once:
        raise InfeasibleError("There are no runs to compare. Name folders of runs, or of a study.")
    forms = [{**defaults(Run), **trace.settings} for trace in once]
    differing = {path: [_label(value) for value in values] for path, values in _differing(forms)}
    columns = _independent(differing) or {"run": [visible(trace.name) for trace in once]}
    rows = [Row({path: c[k] for path, c in columns.items()}, trace) for k, trace in enumerate(once)]
    axes = {path: tuple(dict.fromkeys(column)) for path, column in columns.items()}
    return Results(name, axes, rows, 0, target)


def _differing(forms: Sequence[Mapping[str, Any]], path: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield the paths at which forms differ, with the value in each: as deep as the classes around are the same."""
    for key in dict.fromkeys(key for form in forms for key in form if path or key != "seed"):
        values, here = [form.get(key) for form in forms], f"{path}.{key}" if path else key
        if len({json.dumps(value, sort_keys=True) for value in values}) == 1:
            continue
        inner = [_with_defaults(value) for value in values if isinstance(value, dict) and CLASS in value]
        if len(inner) == len(values) and len({value[CLASS] for value in values if value}) == 1:
            yield from _differing(inner, here)
        else:
            yield here, values


def _with_defaults(form: Mapping[str, Any]) -> dict[str, Any]:
    """Return the forms of the fields of a class, those at their default included if the class is here."""
    try:
        kind = named(str(form[CLASS]))
        return {**defaults(kind), **form[FIELDS]}
    except (ImportError, AttributeError, TypeError, ValueError):
        return dict(form[FIELDS])


def _label(value: Any) -> str:
    return "default" if value == {} else visible(describe(value).removesuffix("()"))


def _independent(columns: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return the columns without those that follow from another one that is kept, the one with more values first."""
    kept = dict[str, Sequence[str]]()
    for path in sorted(columns, key=lambda path: -len(set(columns[path]))):
        if not any(_follows(columns[path], other) for other in kept.values()):
            kept[path] = columns[path]
    return {path: column for path, column in columns.items() if path in kept}


def _follows(column: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether equal values in the other column always mean equal values in this one."""
    return len(set(zip(other, column, strict=True))) == len(set(other))
