"""Values as configuration, and configuration as identity.

A frozen dataclass has a canonical form: what a configuration file would say of it.  A class that stands where several
could (an algorithm, an attack) is named by its import path.  Two runs with one canonical form are the same run.
"""

import dataclasses
import hashlib
import importlib
import json
import typing
from collections.abc import Mapping
from typing import Any


def canonical(value: Any, declared: Any = None) -> Any:
    """The value as JSON: numbers, text, lists and mappings.

    Args:
        value: a dataclass, a container, or plain.
        declared: the type that stands where the value stands. A dataclass of exactly this type needs no name.

    Raises:
        TypeError: something in it has no canonical form, so that it could not be told from something else.
    """
    own = getattr(value, "canonical", None)
    if own is not None and not isinstance(value, type):
        return {"class_path": import_path(type(value)), "init_args": own}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        types = typing.get_type_hints(type(value))
        fields = {f.name: canonical(getattr(value, f.name), types[f.name]) for f in dataclasses.fields(value) if f.init}
        return fields if type(value) is declared else {"class_path": import_path(type(value)), "init_args": fields}
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return _number(value, typing.get_args(declared) or (declared,))
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [canonical(item) for item in value]
        return sorted(items) if isinstance(value, (set, frozenset)) else items
    if isinstance(value, Mapping):
        return {str(key): canonical(item) for key, item in value.items()}
    raise TypeError(
        f"{value!r} has no canonical form, so a run that contains it has no identity. "
        "Make its class a frozen dataclass of plain values, or give it a property `canonical`."
    )


def _number(value: int | float, declared: tuple[Any, ...]) -> int | float:
    """One form for numbers that are equal: what is declared as a float is one, and 3.0 is 3 where both are allowed."""
    if float in declared and int not in declared:
        return float(value)
    return int(value) if float(value).is_integer() and int in declared else value


def identity(value: Any) -> str:
    """The SHA-256 of the canonical form, in hexadecimal."""
    text = json.dumps(canonical(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def import_path(kind: type) -> str:
    """The shortest path from which the class can be imported: `phalanx.algorithms.FedAvg`, wherever its file is."""
    parts = kind.__module__.split(".")
    for length in range(1, len(parts) + 1):
        module = importlib.import_module(".".join(parts[:length]))
        if getattr(module, kind.__qualname__, None) is kind:
            return f"{module.__name__}.{kind.__qualname__}"
    return f"{kind.__module__}.{kind.__qualname__}"
