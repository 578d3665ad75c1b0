"""Clients whose updates the result of a run lacks."""

from collections.abc import Iterable, Mapping

from phalanx.runs.schema import ClientRecord, StepRecord

LISTED = 12  # clients that a sentence names, at most


def gone(history: Iterable[StepRecord]) -> dict[int, int]:
    """Return the clients without a valid update to the end, though they were to send some; by client, since which step.

    A verdict on a client in a later step shows that its update came.
    """
    out = dict[int, int]()
    for step in history:
        for client in (*step.invalid, *step.lost):
            out.setdefault(client, step.step)
        for client in step.verdicts:
            out.pop(client, None)
    return out


def subset(history: Iterable[StepRecord], clients: Mapping[int, ClientRecord]) -> str:
    """Return whose updates a result lacks at the end, in words; "" if none, but for excluded and known attackers'."""
    about = {i: clients[i] for i in clients if not clients[i].excluded and not clients[i].byzantine}
    missing = {i: step for i, step in gone(history).items() if i in about}
    who = [
        f"{i}{f' ({clients[i].name})' if clients[i].name else ''} from step {missing[i]} on" for i in sorted(missing)
    ]
    more = f", and {len(who) - LISTED} more" if len(who) > LISTED else ""
    return f"The result is that of a subset: without client {', '.join(who[:LISTED])}{more}." if who else ""
