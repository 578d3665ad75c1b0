"""Clients whose updates the result of a run lacks, and rounds without a result."""

from collections.abc import Iterable, Iterator, Mapping

from phalanx.core import ROUND_LOST
from phalanx.runs.schema import ClientRecord, StepRecord
from phalanx.wording import plural

LISTED = 12  # clients that a sentence names, at most
SUSPENDED = "; suspended"  # ends the reason of the invalid or missing answer after which a client is suspended


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


def never(missing: Mapping[int, str]) -> str:
    """Return who of a deployment's roster never enrolled, in words; "" if nobody."""
    who = [f"{i}{f' ({missing[i]})' if missing[i] else ''}" for i in sorted(missing)]
    more = f", and {len(who) - LISTED} more" if len(who) > LISTED else ""
    return f"Never enrolled: client {', '.join(who[:LISTED])}{more}." if who else ""


def suspended(history: Iterable[StepRecord], clients: Mapping[int, ClientRecord]) -> str:
    """Return who of a deployment was suspended, in words; "" if nobody."""
    found = [
        f"client {i}{f' ({clients[i].name})' if i in clients and clients[i].name else ''} in step {step.step}, after: "
        f"{why.removesuffix(SUSPENDED)}"
        for step in history
        for i, why in sorted((*step.invalid.items(), *step.lost.items()))
        if why.endswith(SUSPENDED)
    ]
    more = f"; and {len(found) - LISTED} times more" if len(found) > LISTED else ""
    return f"Suspended: {'; '.join(found[:LISTED])}{more}." if found else ""


def counts(history: Iterable[StepRecord], clients: Iterable[int]) -> dict[int, int]:
    """Return by client in how many steps an update of it was accepted."""
    out = dict.fromkeys(clients, 0)
    for step in history:
        for client, verdict in step.verdicts.items():
            if client in out:
                out[client] += verdict.accepted
    return out


def lost_rounds(history: Iterable[StepRecord]) -> str:
    """Return the number of rounds that were lost and the reason of the first, "" if none was."""
    first = (next((why for why in _reasons(step) if why.startswith(ROUND_LOST)), "") for step in history)
    lost = [why.removeprefix(ROUND_LOST) for why in first if why]
    return f"{plural(len(lost), 'round')} lost, the first one because {lost[0]}" if lost else ""


def _reasons(step: StepRecord) -> Iterator[str]:
    """Yield the reasons of verdicts and of lost updates."""
    yield from (verdict.reason for verdict in step.verdicts.values())
    yield from step.lost.values()
