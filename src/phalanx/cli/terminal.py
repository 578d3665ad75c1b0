"""The display of runs in a terminal: tables of results.

A client is excluded if it takes no part any more; an update is filtered if the algorithm did not use it, and invalid if
it failed the checks of the guard.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.table import Table

from phalanx.cli.consoles import escape, titled_table
from phalanx.report.troubles import troubles
from phalanx.runs.found_clusters import found_clusters
from phalanx.runs.missing import lost_rounds, never, subset, suspended
from phalanx.runs.record import Record
from phalanx.runs.reports import fallen, reported, spread
from phalanx.runs.schema import ClientRecord, DetectionCounts
from phalanx.wording import percent, plural

TRUTH = {None: "unknown", True: "Byzantine", False: "[yellow]honest[/]"}
GROUPS = {None: "unknown", False: "honest", True: "Byzantine"}
STATUS = {"failed": " [red]failed[/]", "stopped": " [yellow]stopped[/]"}


def say_unsealed(records: Mapping[Path, Record], console: Console) -> None:
    """Print which folders were changed since their run ended, or have no seal that could show it."""
    for folder, record in records.items():
        if record.seal is not None and record.seal.sentence:
            console.print(f"[yellow]{escape(f'{folder}: {record.seal.sentence}')}[/]", soft_wrap=True)


def results(records: Sequence[Record]) -> Table:
    """Return a table with one line per run: accuracy or loss, exclusions, and their agreement with the truth."""
    attacked = any(record.summary.final.attack_success is not None for record in records)
    texts = any(record.summary.final.perplexity is not None for record in records)
    extra = dict.fromkeys(name for record in records for name in record.summary.final.extra)
    table = titled_table("Results")
    table.add_column("run", min_width=20)
    losses = any(_has_loss_only(record) for record in records)
    more = [*(["loss"] if losses else []), *(["perplexity"] if texts else []), *(["attack"] if attacked else [])]
    for heading in ("final", "best", "excluded", "precision", "recall", *more, *map(escape, extra), "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for record in records:
        s = record.summary
        d = s.detection or DetectionCounts(true_positives=0, false_positives=0, false_negatives=0)
        byzantine, wrong = d.true_positives + d.false_negatives, d.false_positives
        honest = f", {wrong} honest" if wrong else ""
        table.add_row(
            escape(record.name) + STATUS.get(s.status, ""),
            percent(s.final.accuracy),
            "-" if _has_loss_only(record) else f"{percent(s.best.accuracy)} @{s.best.step}",
            f"{d.true_positives} of {byzantine}{honest}" if byzantine else str(wrong),
            percent(d.precision),
            percent(d.recall),
            *([_three(s.final.loss)] if losses else []),
            *([_three(s.final.perplexity)] if texts else []),
            *([percent(s.final.attack_success)] if attacked else []),
            *(_three(s.final.extra.get(name)) for name in extra),
            f"{s.wall_seconds:.1f} s",
        )
    return table


def _has_loss_only(record: Record) -> bool:
    """Return whether a run measured a loss and no accuracy, as those of a regression."""
    final = record.summary.final
    return final.accuracy is None and final.loss is not None


def _three(value: float | None) -> str:
    """Return three digits, or a dash."""
    return "-" if value is None else f"{value:.3g}"


def exclusions(records: Sequence[Record]) -> Table | None:
    """Return a table of exclusions, one line per step and reason; None if there are none."""
    table = titled_table("Excluded clients")
    for heading in ("run", "step", "clients", "truth", "reason"):
        table.add_column(heading, justify="right" if heading == "step" else "left")
    for record in records:
        fates = [
            (e.step, TRUTH[client.byzantine], e.reason, i)
            for i, client in record.summary.clients.items()
            if (e := client.excluded)
        ]
        for (step, truth, reason), group in groupby(sorted(fates), key=lambda fate: fate[:3]):
            clients = escape(listed(sorted(f[3] for f in group), record.summary.clients))
            table.add_row(escape(record.name), str(step), clients, truth, escape(reason))
    return table if table.row_count else None


def unused(records: Sequence[Record]) -> Table | None:
    """Return a table of the shares of filtered or invalid updates, of runs with any; None if there are no such runs."""
    table = titled_table("Updates that were filtered or invalid")
    table.add_column("run", min_width=20)
    for heading in ("of Byzantine clients", "of honest clients"):
        table.add_column(heading, justify="right")
    for record in records:
        shares = (record.summary.filtered.byzantine, record.summary.filtered.honest)
        if any(shares):
            table.add_row(escape(record.name), *map(percent, shares))
    return table if table.row_count else None


def reports(records: Sequence[Record]) -> Table | None:
    """Return a table of the last reports of clients, a line per run and truth; None if there are none."""
    found = [(record, reported(record.history)) for record in records]
    metrics = {spread({i: r.last for i, r in each.items()}).metric for _, each in found if each}
    table = titled_table(f"Reported {' or '.join(sorted(metrics))}, the last of each client (in brackets: whose)")
    table.add_column("run")
    table.add_column("truth", no_wrap=True)
    for heading in ("clients", "excluded", "lowest", "median", "highest"):
        table.add_column(heading, justify="right", no_wrap=True)
    for record, each in found:
        clients = record.summary.clients
        for truth, words in GROUPS.items():
            last = {i: one.last for i, one in each.items() if (clients[i].byzantine if i in clients else None) is truth}
            if last:
                excluded = sum(i in clients and clients[i].excluded is not None for i in last)
                table.add_row(escape(record.name), words, str(len(last)), str(excluded), *spread(last).in_words)
    return table if table.row_count else None


def complaints(record: Record) -> list[str]:
    """Return lines on clusters, clients not enrolled, and invalid or lost updates.

    Reasons that are equal but for numbers are one line.
    """
    clients = record.summary.clients.items()
    absent = [
        f"client {listed([i], dict(clients))} never took part: {c.not_enrolled}" for i, c in clients if c.not_enrolled
    ]
    of_roster, lost = never(record.summary.missing), lost_rounds(record.history)
    known = record.history, record.summary.clients
    found = filter(None, (found_clusters(*known), of_roster, lost, suspended(*known), subset(*known)))
    fell = fallen(record.history, {i: client.name for i, client in clients})
    return [*absent, *found, *fell] + [
        f"{t.kind} {plural(t.count, 'time')} (clients {listed(t.clients, record.summary.clients)}): {t.reason}"
        + (f" (and {plural(t.others, 'more such reason')})" if t.others else "")
        for t in troubles(record.history)
    ]


def listed(clients: Sequence[int], known: Mapping[int, ClientRecord], limit: int = 12) -> str:
    """Return some of the clients, by id and name, and the number of the others."""
    more = f" and {len(clients) - limit} more" if len(clients) > limit else ""
    named = (f"{i} {name}" if i in known and (name := known[i].name) else str(i) for i in clients[:limit])
    return ", ".join(named) + more
