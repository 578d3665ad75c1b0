"""Readable numbers, client ids and configurations."""

import math
from collections.abc import Iterable, Mapping, Sequence

from phalanx.wording import visible

NAMED = 12  # clients that are named, at most
NONE = "–"  # if there is no number


def percent(value: object) -> str:
    """Return a share in 0 .. 1 in words: 0.95 is "95.0 %"."""
    number = finite(value)
    return NONE if number is None else f"{100 * number:.1f} %"


def portion(value: object) -> str:
    """Return a share as in `percent`, with enough digits to differ from 0 and from 1: 0.99986 is "99.99 %"."""
    number = finite(value)
    if number is None:
        return NONE
    rest = min(number, 1 - number)  # below 1e-12 it is rounding
    digits = 1 if rest >= 5e-4 or rest < 1e-12 else -math.floor(math.log10(rest)) - 2
    return f"{100 * number:.{digits}f} %"


def duration(value: object) -> str:
    """Return seconds in words, to about three digits."""
    seconds = finite(value)
    if seconds is None:
        return NONE
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def clock(configs: Iterable[Mapping[str, object]]) -> str:
    """Return the kind of time of some runs, by their settings: virtual in a simulation, real with real clients."""
    kinds = {"wall-clock time" if "engine" in config else "virtual time" for config in configs}
    return kinds.pop() if len(kinds) == 1 else "time on the run's clock"


def finite(value: object) -> float | None:
    """Return the number that `value` is, or None if it is none, or not finite."""
    number = float(value) if isinstance(value, int | float) else math.nan
    return number if math.isfinite(number) else None


def ids(clients: Sequence[int], names: Mapping[int, str] | None = None) -> str:
    """Return client ids, with three and more consecutive ones as a range: "0–4, 7, 9"; or the names of all of them.

    Args:
        clients: the ids.
        names: by id; ids are shown unless all of these clients have one.
    """
    if names and clients and all(names.get(client) for client in clients):
        more = f" and {len(clients) - NAMED} more" if len(clients) > NAMED else ""
        return ", ".join(visible(names[client]) for client in clients[:NAMED]) + more
    parts: list[str] = []
    start = 0
    for end in range(1, len(clients) + 1):
        if end < len(clients) and clients[end] == clients[end - 1] + 1:
            continue
        run = clients[start:end]
        parts += [f"{run[0]}–{run[-1]}"] if len(run) > 2 else [str(client) for client in run]
        start = end
    return ", ".join(parts)


def describe(value: object) -> str:
    """Return a value of the configuration in one line: a class as its call, a mapping as its items."""
    if isinstance(value, Mapping):
        if "class_path" in value:
            arguments = ", ".join(f"{k}={describe(v)}" for k, v in (value.get("init_args") or {}).items())
            return f"{str(value['class_path']).rpartition('.')[2]}({arguments})"
        return ", ".join(f"{k} {describe(v)}" for k, v in value.items() if v is not None)
    if isinstance(value, list | tuple):
        return ", ".join(describe(v) for v in value)
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)
