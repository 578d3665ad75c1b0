"""What is kept of a run with real clients, in the form of a simulated one: `phalanx report` shows both alike.

Nobody knows of real clients what they hold, or who of them attacks, and an accuracy there is only where the coordinator
measures one (`Coordinator.measure`).  What is not known is left out of the summary, and the report shows a dash.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from phalanx.engine.guard import Guard
from phalanx.flower.identity import Roster
from phalanx.runs.history import Line, not_enrolled, plain, refusals, removals

ENGINE = "flower"  # in run.json: by this a run with real clients is told from a simulated one


def unknown(history: Sequence[Line]) -> Mapping[str, Any]:
    """What is known of clients beside what they declare and do: nothing."""
    return {}


def population(
    history: Sequence[Line],
    declared: Mapping[int, object],
    roster: Roster,
    guard: Guard,
    known: Mapping[str, Any],
    *,
    asked: Mapping[int, int],
) -> dict[str, Any]:
    """Who took part, who was removed, whose answers were refused.

    Args:
        history: of the run.
        declared: numbers of examples, unchecked, of all who ever enrolled.
        roster: who might take part.
        guard: the run's, which says what of the declared numbers counts.
        known: parts of a summary that are known beside: of a `Run` that everybody knows, those of a simulation.
        asked: how often each client was given a task.

    Returns:
        The parts `clients`, `detection` and `rejected` of a summary, and what else is known. Where it is not known who
        attacks, the last two are empty. `missing` names those of the roster that never enrolled.
    """
    removed, refused, absent = removals(history), refusals(history), not_enrolled(history)
    sizes, _ = guard.enroll(declared)
    names = {member.id: member.name for member in roster.members}
    told = {str(client): about for client, about in known.get("clients", {}).items()}
    clients = {
        i: {
            **told.get(str(i), {}),
            "name": names.get(i, ""),
            "declared": sizes.get(i),
            "asked": asked.get(i, 0),
            "removed": asdict(removed[i]) if i in removed else None,
            "refused": asdict(refused[i]) if i in refused else None,
            "not_enrolled": absent.get(i),
        }
        for i in sorted(declared)
    }
    missing = {i: member.name for i, member in roster.active.items() if i not in declared}
    facts: dict[str, Any] = plain({"detection": {}, "rejected": {}, **known, "clients": clients, "missing": missing})
    return facts
