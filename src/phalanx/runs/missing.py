"""Clients whose updates the result of a run lacks."""

from collections.abc import Iterable, Mapping

from phalanx.runs.schema import ClientRecord, StepRecord

LISTED = 12  # clients that a sentence names, at most


def gone(history: Iterable[StepRecord]) -> dict[int, int]:
    """Return the clients of whom the last that came was no update: by client, the first step without one.

    A client that is excluded gets a verdict that says so, and is none of them.
    """
    out = dict[int, int]()
    for step in history:
        for client in (*step.invalid, *step.lost):
            out.setdefault(client, step.step)
        for client in step.verdicts:
            out.pop(client, None)
    return out


def subset(history: Iterable[StepRecord], clients: Mapping[int, ClientRecord]) -> str:
    """Return whose updates a result lacks, in words; empty if it has those of all that took part, or excluded them."""
    missing = {i: step for i, step in gone(history).items() if i in clients and not clients[i].excluded}
    who = [
        f"{i}{f' ({clients[i].name})' if clients[i].name else ''} from step {missing[i]} on" for i in sorted(missing)
    ]
    more = f", and {len(who) - LISTED} more" if len(who) > LISTED else ""
    return f"The result is that of a subset: without client {', '.join(who[:LISTED])}{more}." if who else ""
