"""The summary of a run with real clients, in the form of a simulated one: `phalanx report` shows both alike.

Nobody knows of real clients what they hold, or who of them attacks, and an accuracy there is only where the coordinator
measures one (`Coordinator.measure`).  What is not known is left out of the summary, and the report shows a dash.
"""

from collections.abc import Mapping, Sequence

import msgspec

from phalanx.engine.guard import Guard
from phalanx.flower.identity import Roster
from phalanx.runs.schema import ClientRecord, StepRecord
from phalanx.runs.summary import Population, exclusions, invalid_updates, not_enrolled

ENGINE = "flower"  # in run.json: by this a run with real clients is told from a simulated one


def unknown(history: Sequence[StepRecord]) -> Population:
    """Return what is known of real clients apart from what they report and do: nothing."""
    return Population()


def population(
    history: Sequence[StepRecord],
    reported: Mapping[int, object],
    roster: Roster,
    guard: Guard,
    known: Population,
    *,
    tasks: Mapping[int, int],
) -> Population:
    """Return who took part, who was excluded, and whose updates were invalid.

    Args:
        history: of the run.
        reported: numbers of examples, unchecked, of all clients that ever enrolled.
        roster: who might take part.
        guard: of the run, which decides which of the reported numbers are used.
        known: what else is known: of a `Run` that everybody knows, the population of its simulation.
        tasks: number of tasks that each client was given.
    """
    excluded, invalid, absent = exclusions(history), invalid_updates(history), not_enrolled(history)
    sizes, _ = guard.enroll(reported)
    names = {member.id: member.name for member in roster.members}
    clients = {
        i: msgspec.structs.replace(
            known.clients.get(i, ClientRecord()),
            name=names.get(i, ""),
            reported=sizes.get(i),
            tasks=tasks.get(i, 0),
            excluded=excluded.get(i),
            invalid=invalid.get(i),
            not_enrolled=absent.get(i),
        )
        for i in sorted(reported)
    }
    missing = {i: member.name for i, member in roster.active.items() if i not in reported}
    return known._replace(clients=clients, missing=missing)
