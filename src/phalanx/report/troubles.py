"""The updates that were filtered, invalid or lost, by reason; reasons that differ only in numbers count as one."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from phalanx.runs.schema import StepRecord

NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")
COUNTED = re.compile(r"(# (?:\w+ )?\w+?)s\b")  # "# updates", "# server updates": the singular is the same reason


class Trouble(NamedTuple):
    """Updates of the same kind with the same reason, apart from numbers.

    Args:
        kind: "filtered" by the algorithm, "invalid" by the guard, "lost", or "remark" on an accepted one.
        reason: the first one, "" if none was recorded.
        others: number of further reasons that differ in numbers only.
        clients: ids of their clients.
        count: number of updates.
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


def troubles(history: "Iterable[StepRecord]", kinds: Sequence[str] = ("invalid", "lost")) -> list[Trouble]:
    """Return the troubles of a run: by kind, the most frequent first.

    Args:
        history: of a record.
        kinds: in the order of the result.
    """
    noted: dict[tuple[str, str], list[tuple[str, int, int]]] = defaultdict(list)
    for step in history:
        for kind, client, reason in _in_step(step):
            if kind in kinds:
                noted[kind, COUNTED.sub(r"\1", NUMBER.sub("#", reason))].append((reason, client, step.step))
    out = []
    for (kind, _), notes in noted.items():
        reasons, clients, steps = zip(*notes, strict=True)
        others = len(set(reasons)) - 1
        out.append(Trouble(kind, reasons[0], others, tuple(sorted(set(clients))), len(notes), min(steps), max(steps)))
    return sorted(out, key=lambda t: (kinds.index(t.kind), -t.count, t.first, t.reason))


def _in_step(step: "StepRecord") -> Iterator[tuple[str, int, str]]:
    """Yield kind, client and reason of each trouble in a step."""
    for client, verdict in step.decided.items():
        if not verdict.accepted:
            yield "filtered", client, verdict.reason
        elif verdict.reason:
            yield "remark", client, verdict.reason
    for kind, reasons in (("invalid", step.invalid), ("lost", step.lost)):
        for client, reason in reasons.items():
            yield kind, client, reason
