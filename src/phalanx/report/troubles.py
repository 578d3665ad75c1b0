"""What was rejected, refused or lost, and why: reasons that differ in nothing but numbers count as one."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from phalanx.runs.history import Line

NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")
COUNTED = re.compile(r"(# (?:\w+ )?\w+?)s\b")  # "# updates", "# server updates": one of them is the same reason


class Trouble(NamedTuple):
    """Updates that met the same fate for the same reason, numbers aside.

    Args:
        kind: "rejected" by the algorithm, "refused" by the guard, "lost", or "remark" on an accepted one.
        reason: the first that was seen, "" if none was recorded.
        others: how many more reasons there are that differ in numbers only.
        clients: whose updates, by id.
        count: how many updates.
        first: step of the first.
        last: step of the last.
    """

    kind: str
    reason: str
    others: int
    clients: tuple[int, ...]
    count: int  # type: ignore[assignment]  # hides tuple.count
    first: int
    last: int


def troubles(history: "Iterable[Line]", kinds: Sequence[str] = ("refused", "lost")) -> list[Trouble]:
    """The troubles of a run: by kind, the most frequent first.

    Args:
        history: the lines of a record.
        kinds: which kinds, in the order of the result.
    """
    noted: dict[tuple[str, str], list[tuple[str, int, int]]] = defaultdict(list)
    for line in history:
        for kind, client, reason in _told(line):
            if kind in kinds:
                noted[kind, COUNTED.sub(r"\1", NUMBER.sub("#", reason))].append((reason, client, int(line["step"])))
    out = []
    for (kind, _), notes in noted.items():
        reasons, clients, steps = zip(*notes, strict=True)
        others = len(set(reasons)) - 1
        out.append(Trouble(kind, reasons[0], others, tuple(sorted(set(clients))), len(notes), min(steps), max(steps)))
    return sorted(out, key=lambda t: (kinds.index(t.kind), -t.count, t.first, t.reason))


def _told(line: "Line") -> Iterator[tuple[str, int, str]]:
    """Kind, client and reason of each trouble in a line."""
    for client, verdict in (line.get("verdicts") or {}).items():
        if verdict.get("waits"):
            continue  # a later verdict decides
        reason = str(verdict.get("reason") or "")
        if not verdict["accepted"]:
            yield "rejected", int(client), reason
        elif reason:
            yield "remark", int(client), reason
    for kind in ("refused", "lost"):
        for client, reason in (line.get(kind) or {}).items():
            yield kind, int(client), str(reason)
