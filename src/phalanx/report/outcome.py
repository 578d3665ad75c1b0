"""What came out of a run, in sentences: its result, who was removed when and why, and what that cost."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from phalanx.report.ledger import BYZANTINE, HONEST, UNKNOWN, Ledger, attacked
from phalanx.report.words import NONE, duration, finite, ids, percent
from phalanx.wording import plural

if TYPE_CHECKING:
    from phalanx.runs.history import Record


@dataclass(frozen=True)
class Removal:
    """Clients that were removed in one step for one reason."""

    step: int
    seconds: str
    clients: tuple[int, ...]
    truth: str
    reason: str
    weight: str  # their share of all weight up to that step
    before: str
    after: str


def sentence(ledger: Ledger) -> str:
    """The result of a run, its name aside: "95.0 % at the end; 6 of 6 Byzantine clients removed, no honest one"."""
    record, removed = ledger.record, set(ledger.removed)
    steps = plural(int(record.summary.get("steps") or 0), "step")
    if (how := status(record)) == "failed":
        return f"failed after {steps}: {error(record).splitlines()[0]}"
    reached = _final_accuracy(record)
    start = "no accuracy was measured" if reached is None else f"{percent(reached)} at the end"
    if how == "stopped":
        start = f"stopped after {steps}, " + (
            "no accuracy was measured" if reached is None else f"at {percent(reached)}"
        )
    if set(ledger.truth.values()) <= {UNKNOWN}:
        return f"{start}; {plural(len(removed), 'client')} removed"
    bad = set(ledger.of(BYZANTINE))
    honest = len(removed - bad)
    if not bad:
        return f"{start}; every client is honest, {honest or 'none'} removed"
    caught = f"{len(removed & bad)} of {plural(len(bad), 'Byzantine client')} removed"
    caught += f", and {plural(honest, 'honest one')}" if honest else ", no honest one"
    return f"{start}; {caught}" + (f"; {unused}" if not removed and (unused := rejections(record)) else "")


def status(record: "Record") -> str:
    """How the run ended: "finished", "stopped", or else "failed"."""
    told = record.summary.get("status")
    return told if told in {"finished", "stopped"} else "failed"


def rejections(record: "Record") -> str:
    """Which shares of the updates were not used; empty if all were, or it is not known."""
    told = record.summary.get("rejected") or {}
    bad, honest = finite(told.get("byzantine")), finite(told.get("honest"))
    if not (bad or honest):
        return ""
    if bad is None:
        return f"{percent(honest)} of the updates of honest clients rejected or refused"
    of_bad = f"{percent(bad)} of the updates of Byzantine clients"
    if not honest:
        return f"{of_bad} rejected or refused, none of honest ones"
    return f"{of_bad} and {percent(honest)} of those of honest ones rejected or refused"


def error(record: "Record") -> str:
    """Why the run failed, if it did."""
    return str(record.summary.get("error") or "").strip() or "no reason recorded"


def removals(ledger: Ledger) -> tuple[Removal, ...]:
    """The removed clients, those of one fate together, by step."""
    history = ledger.record.history
    seconds = {int(line["step"]): line.get("seconds") for line in reversed(history)}
    measured = [(int(line["step"]), value) for line in history if (value := finite(line.get("accuracy"))) is not None]
    cases: dict[tuple[int, str, str], list[int]] = defaultdict(list)
    for client, removed in ledger.removed.items():
        cases[int(removed["step"]), ledger.truth[client], str(removed.get("reason") or "")].append(client)
    out = []
    for (step, truth, reason), clients in sorted(cases.items(), key=lambda case: (case[0][0], case[1])):
        shares = [ledger.shares[step, c] for c in clients if (step, c) in ledger.shares]
        out.append(
            Removal(
                step=step,
                seconds=duration(seconds.get(step)),
                clients=tuple(clients),
                truth=truth,
                reason=reason or "no reason recorded",
                weight=percent(sum(shares)) if shares else NONE,
                before=percent(next((value for at, value in reversed(measured) if at < step), None)),
                after=percent(next((value for at, value in measured if at >= step), None)),
            )
        )
    return tuple(out)


def costs(ledger: Ledger, records: "Sequence[Record]") -> tuple[str, ...]:
    """What attack and defence cost, in sentences.

    Args:
        ledger: of the run.
        records: all runs of the report, for comparison.
    """
    return (*_beside_twin(ledger.record, records), *_given_up(ledger), *_carried(ledger), *_unused(ledger))


def _beside_twin(record: "Record", records: "Sequence[Record]") -> Iterator[str]:
    twin, reached = _twin(record, records), _final_accuracy(record)
    clean = _final_accuracy(twin) if twin else None
    if twin and reached is not None and clean is not None:
        points = 100 * (clean - reached)
        side = "below" if points > 0 else "above"
        words = f"{abs(points):.1f} points {side}" if abs(points) >= 0.05 else "the same as"
        yield f"Final accuracy is {words} that of the same run without the attack ({twin.name}, {percent(clean)})."


def _twin(record: "Record", records: "Sequence[Record]") -> "Record | None":
    """The same run without the attack, if the report has it and it ended."""

    def rest(config: Mapping[str, Any]) -> str:
        kept = {k: v for k, v in config.items() if k not in {"attack", "byzantine", "byzantine_beside", "name"}}
        return json.dumps(kept, sort_keys=True, default=str)

    if not attacked(record):
        return None
    clean = (r for r in records if not attacked(r) and rest(r.config) == rest(record.config))
    return next((r for r in clean if r.summary.get("status") == "finished"), None)


def _given_up(ledger: Ledger) -> Iterator[str]:
    examples = {c: ledger.number(c, "size") or 0.0 for c in ledger.of(HONEST)}
    wronged = [c for c in examples if c in ledger.removed]
    if not wronged:
        if ledger.removed and examples:
            yield "No honest data was given up."
        return
    gone, total = sum(examples[c] for c in wronged), sum(examples.values())
    share = f" ({percent(gone / total)} of all honest ones)" if total else ""
    yield f"Removing {plural(len(wronged), 'honest client')} ({ids(wronged)}) gave up {gone:,.0f} examples{share}."
    held = {c: {k for k, n in enumerate(ledger.clients[c].get("classes") or ()) if n} for c in examples}
    lost = set[int]().union(*(held[c] for c in wronged))
    if missing := lost.difference(*(held[c] for c in examples if c not in ledger.removed)):
        noun = "class" if len(missing) == 1 else "classes"
        yield f"No honest client is left that holds examples of {noun} {ids(sorted(missing))}."


def _carried(ledger: Ledger) -> Iterator[str]:
    bad, share = ledger.of(BYZANTINE), ledger.byzantine_share
    if bad and share is not None:
        stayed = len([c for c in bad if c not in ledger.removed])
        tail = f"; {'all' if stayed == len(bad) else stayed} of them stayed to the end" if stayed else ""
        portion = percent(len(bad) / len(ledger.clients))
        yield f"Byzantine clients are {portion} of all clients and carried {percent(share)} of all weight{tail}."


def _unused(ledger: Ledger) -> Iterator[str]:
    if unused := rejections(ledger.record):
        yield f"Over the whole run, {unused}."
    if absent := [c for c, about in ledger.clients.items() if about.get("not_enrolled")]:
        yield f"{plural(len(absent), 'client')} ({ids(absent)}) never took part: refused at enrolment."


def _final_accuracy(record: "Record") -> float | None:
    return finite((record.summary.get("final") or {}).get("accuracy"))
