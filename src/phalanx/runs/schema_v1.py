"""Records of schema 1, which have no `schema`, converted to the current schema."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from phalanx.runs.schema import StepRecord, Summary
from phalanx.training.evaluation import Metrics

MEASURED = frozenset(Metrics.__struct_fields__)
CLIENT = {"declared": "reported", "removed": "excluded", "refused": "invalid", "asked": "tasks"}  # old -> new names
T = TypeVar("T")


def step_of(text: bytes) -> StepRecord | None:
    """Return the step that a line of schema 1 holds; None if it is none."""
    return _converted(text, StepRecord, _step)


def summary_of(text: bytes) -> Summary | None:
    """Return the summary that a text of schema 1 holds; None if it is none."""
    return _converted(text, Summary, _summary)


def _converted(text: bytes, kind: type[T], convert: Callable[[dict[str, Any]], dict[str, Any]]) -> T | None:
    try:
        old = msgspec.json.decode(text)
        if not isinstance(old, dict) or "schema" in old:
            return None
        return msgspec.convert(convert(old), kind, str_keys=True)
    except (msgspec.MsgspecError, KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _step(old: dict[str, Any]) -> dict[str, Any]:
    """Convert a line: metrics were fields of the line itself, and clients not enrolled were among the refused."""
    new = {name: value for name, value in old.items() if name not in MEASURED and name != "refused"}
    measured = {name: value for name, value in old.items() if name in MEASURED}
    refused = old.get("refused") or {}
    return new | {
        **({"metrics": measured} if measured else {}),
        **({"not_enrolled" if old["step"] == 0 else "invalid": refused} if refused else {}),
    }


def _summary(old: dict[str, Any]) -> dict[str, Any]:
    """Convert a summary to the current names."""
    new = {name: value for name, value in old.items() if name not in {"environment", "rejected"}}
    environment = dict(old["environment"])
    engine = environment.pop("engine", "").removeprefix("flwr ")
    return new | {
        "clients": {client: _client(about) for client, about in old["clients"].items()},
        "detection": old["detection"] or None,
        "filtered": old["rejected"],
        "provenance": environment | ({"flower": engine} if engine else {}),
    }


def _client(old: Mapping[str, Any]) -> dict[str, Any]:
    named = {CLIENT.get(name, name): value for name, value in old.items()}
    reported = named.get("reported")
    return named | {"classes": named.get("classes") or (), "reported": reported if type(reported) is int else None}
