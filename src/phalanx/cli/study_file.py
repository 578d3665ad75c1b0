"""A study in a YAML file: what `phalanx.experiments.Study` is in Python.

Values are read as those of `phalanx run --config`; a class with options can also be written as `Krum(f=6)`.
"""

import ast
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from phalanx.cli import advice
from phalanx.cli.configuration import CLASS, FIELDS, LARGEST, ConfigurationError, Draft, from_file, made
from phalanx.experiments.grid import FIELDS as FIELDS_OF_RUN
from phalanx.experiments.study import Study
from phalanx.experiments.tuning import EVERY, Tuning
from phalanx.experiments.worst import WorstOf
from phalanx.runs.plan import Run
from phalanx.wording import shown

KEYS = ("name", "base", "grid", "seeds", "exclude", "target", "tuning", "leave_out")
OF_TUNING = ("axis", "options", "settings", "seeds", "held_out")
EXAMPLES = {
    "base": "clients: 20",
    "grid": "attack: [SignFlip, ALIE]",
    "tuning": "axis: attack, settings: 2, options: {all: {training.lr: [0.1, 0.05]}}",
    "options": "all: {training.lr: [0.1, 0.05]}",
}
TRIES = 1000  # combinations of values with which the base is tried


def read_study(path: Path) -> Study:
    """Return the study of a file.

    Raises:
        ConfigurationError: the file cannot be read, or says what a study does not know.
        InfeasibleError: the study is not feasible.
    """
    given = from_file(path)
    if not given:
        raise ConfigurationError(f"{shown(str(path))} is empty. Give it a base and a grid.")
    if unknown := [str(key) for key in given if key not in KEYS]:
        raise ConfigurationError(advice.unknown_field(unknown[0], "", "A study", KEYS))
    grid, base = _mapping(given, "grid"), _mapping(given, "base")
    worst = dict(grid["attack"]) if isinstance(grid.get("attack"), dict) and "worst_of" in grid["attack"] else None
    if worst is not None:
        grid["attack"] = worst.pop("worst_of")
    reader = Reader(base, {str(name): _axis(str(name), values) for name, values in grid.items()})
    return Study(
        base=reader.run(),
        grid=_grid(reader, worst),
        seeds=_seeds(given.get("seeds", 3)),
        exclude=_exclusions(given.get("exclude") or []),
        name=_study_name(given.get("name", path.stem)),
        target=_target(given.get("target")),
        tuning=_tuning(_mapping(given, "tuning"), reader),
        leave_out=_leave_out(given.get("leave_out", False)),
    )


def _grid(reader: "Reader", worst: Mapping[Any, Any] | None) -> dict[str, Any]:
    """Return the grid of objects; the attacks at their worst if the file says so, with the options of that."""
    grid: dict[str, Any] = {name: reader.values(name) for name in reader.axes}
    if worst is None:
        return grid
    known = {f.name: type(f.default) for f in fields(WorstOf) if f.name != "attacks"}
    if unknown := [str(key) for key in worst if key not in known]:
        raise ConfigurationError(advice.unknown_field(unknown[0], "grid.attack", "worst_of", list(known)))
    for key, value in worst.items():
        numbers = isinstance(value, list) and all(type(item) in (int, float) for item in value)
        if not (numbers if known[key] is tuple else type(value) is int):
            wanted = "a list of numbers" if known[key] is tuple else "an integer"
            raise ConfigurationError(f"grid.attack.{key} must be {wanted}, got {_text(value)}.")
    given: dict[str, Any] = {
        str(key): tuple(value) if isinstance(value, list) else value for key, value in worst.items()
    }
    return {**grid, "attack": WorstOf(grid["attack"], **given)}


def _mapping(given: Mapping[Any, Any], key: str) -> dict[Any, Any]:
    found = given.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigurationError(f"{key} must be a mapping, as `{key}: {{{EXAMPLES[key]}}}`, got {_text(found)}.")
    return found


def _text(given: Any) -> str:
    return "nothing" if given is None else shown(str(given))


def _leave_out(given: Any) -> bool:
    if isinstance(given, bool):
        return given
    raise ConfigurationError(f"leave_out must be true or false, got {_text(given)}.")


def _study_name(given: Any) -> str:
    if isinstance(given, (str, int, float)):
        return str(given)
    raise ConfigurationError(f"name must be text, got {_text(given)}.")


def _seeds(given: Any) -> Any:
    listed = given if isinstance(given, list) else [given]
    if all(type(seed) is int and seed < LARGEST for seed in listed):
        return given
    raise ConfigurationError(
        f"seeds must be how many, as 5, or integers of at most 18 digits, as [0, 1, 2], got {_text(given)}."
    )


def _target(given: Any) -> Any:
    if given is None or (isinstance(given, (int, float)) and not isinstance(given, bool)):
        return given
    raise ConfigurationError(f"target must be an accuracy from 0 to 1, such as 0.8, got {_text(given)}.")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _exclusions(given: Any) -> list[dict[str, Any]]:
    names = {None: "none"}
    plain = isinstance(given, list) and all(isinstance(rule, dict) for rule in given)
    values = [v for rule in given for value in rule.values() for v in _listed(value)] if plain else []
    if not plain or any(isinstance(value, (dict, list)) for value in values):
        raise ConfigurationError(
            "exclude must be a list of mappings of axes to names of values, as [{attack: none, rule: Krum(f=6)}], "
            f"got {_text(given)}."
        )
    return [
        {str(axis): [names.get(v, v) for v in value] if isinstance(value, list) else str(names.get(value, value))
         for axis, value in rule.items()} for rule in given
    ]  # fmt: skip


def _tuning(given: Mapping[Any, Any], reader: "Reader") -> Tuning | None:
    """Return the tuning of a file; None if it says nothing of one."""
    if not given:
        return None
    if unknown := [str(key) for key in given if key not in OF_TUNING]:
        raise ConfigurationError(advice.unknown_field(unknown[0], "tuning", "The tuning of a study", OF_TUNING))
    if lacking := [key for key in OF_TUNING[:3] if key not in given]:
        raise ConfigurationError(f"tuning lacks {lacking[0]}. It needs {', '.join(OF_TUNING[:3])}.")
    if type(given["settings"]) is not int or not isinstance(given.get("held_out", 0.2), float):
        raise ConfigurationError("tuning.settings must be an integer, and tuning.held_out a share, such as 0.2.")
    axis, options = str(given["axis"]), _mapping(given, "options")
    if not all(
        isinstance(f, dict) and all(isinstance(values, list) for values in f.values()) for f in options.values()
    ):
        raise ConfigurationError(
            "tuning.options must have, for each method, fields with lists: {all: {training.lr: [0.1, 0.05]}}."
        )
    found = {
        str(method): {str(f): reader.choices(axis, str(method), str(f), values) for f, values in fields.items()}
        for method, fields in options.items()
    }
    seeds = _seeds(given.get("seeds", [1000]))
    if isinstance(seeds, int):
        raise ConfigurationError(f"tuning.seeds must be a list of integers, as [1000, 1001], got {seeds}.")
    return Tuning(axis, found, given["settings"], seeds, given.get("held_out", 0.2))


# Values


def _axis(name: str, values: Any) -> dict[str, dict[str, Any]]:
    """Return what each value of an axis sets, as the file says it: by its name, values by field."""
    if not isinstance(values, (dict, list)) or not values:
        raise ConfigurationError(
            f"grid.{name} must be a list of values, or a mapping of names to them, got {_text(values)}."
        )
    field = name.partition(".")[0] in FIELDS_OF_RUN
    named = values.items() if isinstance(values, dict) else ((_name(value), value) for value in values)
    pairs: dict[str, Any] = {
        "none" if key is None else str(key): None if value == "none" else value for key, value in named
    }
    if len(pairs) < len(values):
        raise ConfigurationError(f"grid.{name} has two values named alike. Give each a name, as `{{a: ..., b: ...}}`.")
    out = dict[str, dict[str, Any]]()
    for key, value in pairs.items():
        if not field and not isinstance(value, dict):
            known = ", ".join(FIELDS_OF_RUN)
            raise ConfigurationError(
                f"{name} is no field of a run, so each of its values must be a mapping of fields to values, as "
                f"`{key}: {{attack: SignFlip, byzantine: 6}}`, got {_text(value)}."
                f"{advice.meant(name, FIELDS_OF_RUN)} Fields of a run: {known}."
            )
        out[key] = {name: value} if field else {str(path): inner for path, inner in value.items()}
    return out


def _name(value: Any) -> str:
    """Return the name of a value without one: as it is written, or the name of its class."""
    if isinstance(value, dict):
        if CLASS not in value:
            raise ConfigurationError(f"A value that is a mapping needs a name, as `name: {_text(value)}`.")
        options = value.get(FIELDS) or {}
        if not isinstance(options, dict):
            raise ConfigurationError(f"{FIELDS} must be a mapping of options to values, got {_text(options)}.")
        inner = ", ".join(f"{key}={item}" for key, item in options.items())
        return str(value[CLASS]).rpartition(".")[2] + (f"({inner})" if inner else "")
    return "none" if value is None else str(value)


class Reader:
    """Makes the run and the values of a file.

    `byzantine: 6`, say, is no run before an attack is chosen, and `algorithm.k` no field before an algorithm is that
    has one.  So what cannot be made alone is made together with values of the grid, of the fields that each cell sets.

    Args:
        base: what the file says of the base.
        axes: what it says of the grid, as `_axis` returns it.
    """

    def __init__(self, base: Mapping[Any, Any], axes: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        self.base, self.axes = {str(path): value for path, value in base.items()}, axes

    def run(self) -> Run:
        """Return the base.

        Raises:
            ValueError: neither alone nor with values of the grid it is a run.
        """
        run: Run = self._first({}, lambda draft: draft.make(Run))
        return run

    def values(self, axis: str) -> dict[str, Any]:
        """Return the values of an axis as objects; raise `ConfigurationError` if one cannot be made."""
        out = dict[str, Any]()
        for key, settings in self.axes[axis].items():
            try:
                found = self._first(settings, partial(_objects, settings))
            except ValueError as error:
                raise ConfigurationError(f"grid.{axis}, {shown(key)}: {error}") from error
            out[key] = found[axis] if axis.partition(".")[0] in FIELDS_OF_RUN else found
        return out

    def choices(self, axis: str, method: str, field: str, values: Sequence[Any]) -> list[Any]:
        """Return values of a field to choose from, as objects, where the axis has the value of that name."""
        methods = self.axes.get(axis, {})
        chosen = methods.get(method, next(iter(methods.values()), {}) if method == EVERY else {})
        out = []
        for value in values:
            try:
                out.append(self._first({**chosen, field: value}, partial(_objects, [field]))[field])
            except ValueError as error:
                raise ConfigurationError(f"tuning.options.{method}.{field}: {error}") from error
        return out

    def _first(self, fields: Mapping[str, Any], make: Callable[[Draft], Any]) -> Any:
        """Return what is made of the first draft of base, values of the grid and `fields` of which it can be made."""
        first: ValueError | None = None
        for extra in itertools.islice(self._extras(), TRIES):
            draft = Draft(Run)
            try:
                for path, value in (*self.base.items(), *extra, *sorted(fields.items(), key=_depth)):
                    draft.set(path, called(value))
                draft.check()
                return make(draft)
            except ValueError as error:
                first = first or error
        assert first is not None
        raise first

    def _extras(self) -> Iterator[list[tuple[str, Any]]]:
        """Yield nothing, and then for each cell its values in the fields that every cell sets, shorter paths first."""
        yield []
        for chosen in itertools.product(*(values.values() for values in self.axes.values())):
            pairs = list[tuple[str, Any]]()
            for settings, values in zip(chosen, self.axes.values(), strict=True):
                common = set.intersection(*(set(other) for other in values.values()))
                pairs += [(path, value) for path, value in settings.items() if path in common]
            yield sorted(pairs, key=_depth)


def _objects(paths: Iterable[str], draft: Draft) -> dict[str, Any]:
    return {path: made(draft.at(path)[1]) for path in paths}


def _depth(pair: tuple[str, Any]) -> int:
    return pair[0].count(".")


# Classes written as calls


def called(value: Any) -> Any:
    """Return a value with `Krum(f=6)` as a configuration file says it: class_path and init_args, at any depth."""
    if isinstance(value, list):
        return [called(item) for item in value]
    if isinstance(value, dict):
        return {key: called(item) for key, item in value.items()}
    if isinstance(value, str) and re.match(r"[\w.]+\(", value) and not value.endswith(")"):
        raise ConfigurationError(
            f"{_text(value)} lacks a bracket: in [] and {{}}, YAML divides at commas. Quote the call."
        )
    if not isinstance(value, str) or not re.fullmatch(r"[\w.]+\(.*\)", value):
        return value
    try:
        tree = ast.parse(value, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return value
    return _said(tree, value) if isinstance(tree, ast.Call) else value


def _said(tree: ast.expr, whole: str) -> Any:
    """Return what an expression says: a call as a class, a name as text, a literal as its value."""
    if isinstance(tree, ast.Call):
        if tree.args or None in (names := [keyword.arg for keyword in tree.keywords]):
            raise ConfigurationError(f"{shown(whole)}: give each option of a class by its name, as `Krum(f=6)`.")
        if len(set(names)) < len(names):
            raise ConfigurationError(f"{shown(whole)} gives an option twice. Leave it in once.")
        inner = [_said(keyword.value, whole) for keyword in tree.keywords]
        return {CLASS: ast.unparse(tree.func), FIELDS: dict(zip(names, inner, strict=True))}
    if isinstance(tree, (ast.Name, ast.Attribute)):
        return {"none": None, "null": None, "true": True, "false": False}.get(name := ast.unparse(tree), name)
    if isinstance(tree, (ast.List, ast.Tuple)):
        return [_said(item, whole) for item in tree.elts]
    try:
        return ast.literal_eval(tree)
    except ValueError:
        raise ConfigurationError(
            f"{shown(whole)}: the value {shown(ast.unparse(tree))} is not read. Write it as YAML, by {CLASS} and "
            f"{FIELDS}."
        ) from None
