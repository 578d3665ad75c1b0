"""Distinct names for the runs of one page."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from phalanx.report.words import describe

if TYPE_CHECKING:
    from phalanx.runs.record import Record

MOST = 3  # differences that a name may list


def distinct(records: "Sequence[Record]") -> "list[Record]":
    """Return the runs with distinct names: equal ones get what differs in their settings, "FedAvg(Mean), seed=1".

    If these are too many or none, the beginning of the run's identity is used instead, and then a number.
    """
    common = Counter(record.name for record in records)
    groups = {name: [r for r in records if r.name == name] for name, n in common.items() if n > 1}
    labels = {name: iter(_labels(group)) for name, group in groups.items()}
    return [_named(r, f"{r.name}, {next(labels[r.name])}") if r.name in labels else r for r in records]


def _named(record: "Record", name: str) -> "Record":
    return dataclasses.replace(record, summary=msgspec.structs.replace(record.summary, name=name))


def _labels(records: "Sequence[Record]") -> list[str]:
    """Return a label that distinguishes each of some runs from the others."""
    configs = [dict(_flat(record.config)) for record in records]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    differ = [key for key in keys if len({config.get(key) for config in configs}) > 1]
    if 0 < len(differ) <= MOST:
        labels = [", ".join(f"{key}={config[key]}" for key in differ if key in config) for config in configs]
    else:
        labels = [record.summary.identity[:10] for record in records]
    total, seen = Counter(labels), Counter[str]()
    for number, label in enumerate(labels):
        seen[label] += 1
        labels[number] = f"{label} no. {seen[label]}" if total[label] > 1 else label
    return labels


def _flat(config: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the parameters of a configuration by their options: ("training.lr", "0.1"), ("algorithm", "FedAvg")."""
    if isinstance(config, Mapping) and "class_path" in config:
        yield path, str(config["class_path"]).rpartition(".")[2]
        yield from _flat(config.get("init_args") or {}, path)
    elif isinstance(config, Mapping):
        for key, value in config.items():
            yield from _flat(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, describe(config)
