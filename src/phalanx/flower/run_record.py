"""The summary of a run with real clients, in the form of a simulated one: `phalanx report` shows both.

The data of real clients, and which of them attack, are unknown, and there is an accuracy only if the coordinator
measures one (`Coordinator.measure`).  Unknown fields are left out of the summary, and the report shows a dash.
"""

from collections.abc import Mapping, Sequence

import msgspec

from phalanx.engine.guard import Guard
from phalanx.flower.identity import Roster
from phalanx.runs.schema import ClientRecord, StepRecord
from phalanx.runs.summary import Population, exclusions, invalid_updates, not_enrolled, suspicions

ENGINE = "flower"  # in run.json: distinguishes a run with real clients from a simulated one


def unknown(history: Sequence[StepRecord]) -> Population:
    """Return an empty population: nothing is known of real clients apart from their reports and answers."""
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
    """Return the clients, the exclusions, and the invalid updates.

    Args:
        history: of the run.
        reported: numbers of examples, unchecked, of all clients that ever enrolled.
        roster: who might take part.
        guard: of the run, which decides which of the reported numbers are used.
        known: what else is known of the clients: of a simulated `Run`, the population of its simulation.
        tasks: number of tasks that each client was given.
    """
    excluded, invalid, absent = exclusions(history), invalid_updates(history), not_enrolled(history)
    suspicious, (sizes, _) = suspicions(history), guard.enroll(reported)
    names = {member.id: member.name for member in roster.members}
    clients = {
        i: msgspec.structs.replace(
            known.clients.get(i, ClientRecord()),
            name=names.get(i, ""),
            reported=sizes.get(i),
            tasks=tasks.get(i, 0),
            epsilon=None,  # the server does not know how clients draw their noise
            excluded=excluded.get(i),
            invalid=invalid.get(i),
            suspicious=suspicious.get(i),
            not_enrolled=absent.get(i),
        )
        for i in sorted(reported)
    }
    missing = {i: member.name for i, member in roster.active.items() if i not in reported}
    return known._replace(clients=clients, missing=missing)
