"""The result of a run in sentences: its accuracy, the exclusions with their reasons, and their cost."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from phalanx.report.client_ledger import BYZANTINE, HONEST, UNKNOWN, ClientLedger, attacked
from phalanx.report.words import NONE, duration, ids, percent
from phalanx.runs.found_clusters import found_clusters
from phalanx.runs.missing import lost_rounds, never, subset, suspended
from phalanx.runs.reports import fallen, reported, spread
from phalanx.wording import plural

if TYPE_CHECKING:
    from phalanx.runs.record import Record


@dataclass(frozen=True)
class ExclusionRow:
    """Clients that were excluded in one step for one reason."""

    step: int
    seconds: str
    clients: tuple[int, ...]
    truth: str
    reason: str
    weight: str  # their share of all weight up to that step
    before: str
    after: str


def sentence(ledger: ClientLedger) -> str:
    """Return the result of a run: "95.0 % at the end; 6 of 6 Byzantine clients excluded, no honest one"."""
    record, excluded = ledger.record, set(ledger.excluded)
    steps, how = plural(record.summary.steps, "step"), record.summary.status
    if how == "failed":
        return f"failed after {steps}: {error(record).splitlines()[0]}"
    reached = _reached(record)
    start = f"{reached} at the end" if reached else _by_clients(record)
    if how == "stopped":
        start = f"stopped after {steps}, " + (f"at {reached}" if reached else _by_clients(record))
        start += f" ({record.summary.error})" if record.summary.error else ""
    if set(ledger.truth.values()) <= {UNKNOWN}:
        doubted = f", {len(ledger.suspicious)} suspicious" if ledger.suspicious else ""
        return f"{start}; {plural(len(excluded), 'client')} excluded{doubted}"
    bad = set(ledger.of(BYZANTINE))
    honest = len(excluded - bad)
    if not bad:
        return f"{start}; every client is honest, {honest or 'none'} excluded"
    caught = f"{len(excluded & bad)} of {plural(len(bad), 'Byzantine client')} excluded"
    caught += f", and {plural(honest, 'honest one')}" if honest else ", no honest one"
    return f"{start}; {caught}" + (f"; {unused}" if not excluded and (unused := not_used(record)) else "")


def _by_clients(record: "Record") -> str:
    """Return that the coordinator measured no accuracy, and what clients reported last, if they did."""
    found = spread({client: each.last for client, each in reported(record.history).items()})
    low, middle, high = found.in_words
    last = f", but clients report {found.metric} {low} to {high}, median {middle}" if found.values else ""
    return f"no accuracy was measured{last}"


def _reached(record: "Record") -> str:
    """Return the last accuracy, or the last loss of a task without accuracy; empty if neither was measured."""
    final = record.summary.final
    if final.accuracy is not None:
        return percent(final.accuracy)
    return "" if final.loss is None else f"loss {final.loss:.3g}"


def not_used(record: "Record") -> str:
    """Return the shares of updates that were not used; empty if all were, or if this is unknown."""
    bad, honest = record.summary.filtered.byzantine, record.summary.filtered.honest
    if not (bad or honest):
        return ""
    if bad is None:
        return f"{percent(honest)} of the updates of honest clients filtered or invalid"
    of_bad = f"{percent(bad)} of the updates of Byzantine clients"
    if not honest:
        return f"{of_bad} filtered or invalid, none of honest ones"
    return f"{of_bad} and {percent(honest)} of those of honest ones filtered or invalid"


def error(record: "Record") -> str:
    """Return why the run failed, or that no reason was recorded."""
    return (record.summary.error or "").strip() or "no reason recorded"


def exclusions(ledger: ClientLedger) -> tuple[ExclusionRow, ...]:
    """Return the excluded clients, those of one step and reason together, by step."""
    history = ledger.record.history
    seconds = {step.step: step.seconds for step in reversed(history)}
    measured = [(step.step, step.accuracy) for step in history if step.accuracy is not None]
    cases: dict[tuple[int, str, str], list[int]] = defaultdict(list)
    for client, exclusion in ledger.excluded.items():
        cases[exclusion.step, ledger.truth[client], exclusion.reason].append(client)
    out = []
    for (step, truth, reason), clients in sorted(cases.items(), key=lambda case: (case[0][0], case[1])):
        shares = [ledger.shares[step, c] for c in clients if (step, c) in ledger.shares]
        out.append(
            ExclusionRow(
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


def costs(ledger: ClientLedger, records: "Sequence[Record]") -> tuple[str, ...]:
    """Return sentences on the cost of attack and defence.

    Args:
        ledger: of the run.
        records: all runs of the report, for comparison.
    """
    return (
        *_promised(ledger),
        *_beside_twin(ledger.record, records),
        *_given_up(ledger),
        *_carried(ledger),
        *_unused(ledger),
    )


def _promised(ledger: ClientLedger) -> Iterator[str]:
    """Yield what the run promised, what it warned of at its start, and the rounds that it lost."""
    summary = ledger.record.summary
    if summary.promise is not None:
        yield from summary.promise.text
        yield summary.promise.audit
    for finding in summary.findings:
        yield f"Before the first step: {finding}"
    for remark in summary.remarks:
        yield f"Warning: {remark}"
    if lost := lost_rounds(ledger.record.history):
        yield lost


def _beside_twin(record: "Record", records: "Sequence[Record]") -> Iterator[str]:
    twin, reached = _twin(record, records), record.summary.final.accuracy
    clean = twin.summary.final.accuracy if twin else None
    if twin and reached is not None and clean is not None:
        points = 100 * (clean - reached)
        side = "below" if points > 0 else "above"
        words = f"{abs(points):.1f} points {side}" if abs(points) >= 0.05 else "the same as"
        yield f"Final accuracy is {words} that of the same run without the attack ({twin.name}, {percent(clean)})."


def _twin(record: "Record", records: "Sequence[Record]") -> "Record | None":
    """Return the same run without the attack, if the report has it and it ended."""

    def rest(config: Mapping[str, Any]) -> str:
        kept = {k: v for k, v in config.items() if k not in {"attack", "byzantine", "additional_byzantine", "name"}}
        return json.dumps(kept, sort_keys=True, default=str)

    if not attacked(record):
        return None
    clean = (r for r in records if not attacked(r) and rest(r.config) == rest(record.config))
    return next((r for r in clean if r.summary.status == "finished"), None)


def _given_up(ledger: ClientLedger) -> Iterator[str]:
    examples = {c: ledger.clients[c].size or 0 for c in ledger.of(HONEST)}
    wronged = [c for c in examples if c in ledger.excluded]
    if not wronged:
        if ledger.excluded and examples:
            yield "No honest data was given up."
        return
    gone, total = sum(examples[c] for c in wronged), sum(examples.values())
    share = f" ({percent(gone / total)} of all honest ones)" if total else ""
    who = f"{plural(len(wronged), 'honest client')} ({ids(wronged, ledger.names)})"
    yield f"Excluding {who} gave up {gone:,.0f} examples{share}."
    held = {c: {k for k, n in enumerate(ledger.clients[c].classes) if n} for c in examples}
    lost = set[int]().union(*(held[c] for c in wronged))
    if missing := lost.difference(*(held[c] for c in examples if c not in ledger.excluded)):
        noun = "class" if len(missing) == 1 else "classes"
        data = ledger.record.summary.data
        named = dict(enumerate(map(str, data.classes))) if data is not None else {}
        yield f"No honest client is left that holds examples of {noun} {ids(sorted(missing), named)}."


def _carried(ledger: ClientLedger) -> Iterator[str]:
    bad, share = ledger.of(BYZANTINE), ledger.byzantine_share
    if bad and share is not None:
        stayed = len([c for c in bad if c not in ledger.excluded])
        tail = f"; {'all' if stayed == len(bad) else stayed} of them stayed to the end" if stayed else ""
        portion = percent(len(bad) / len(ledger.clients))
        yield f"Byzantine clients are {portion} of all clients and carried {percent(share)} of all weight{tail}."


def _unused(ledger: ClientLedger) -> Iterator[str]:
    if clusters := found_clusters(ledger.record.history, ledger.clients):
        yield clusters
    if unused := not_used(ledger.record):
        yield f"Over the whole run, {unused}."
    if refused := [c for c, client in ledger.clients.items() if client.not_enrolled]:
        yield f"{plural(len(refused), 'client')} ({ids(refused, ledger.names)}) never took part: not enrolled."
    yield from fallen(ledger.record.history, ledger.names)
    if absent := never(ledger.record.summary.missing):
        yield absent
    if barred := suspended(ledger.record.history, ledger.clients):
        yield barred
    if without := subset(ledger.record.history, ledger.clients):
        yield without
