"""What a run looks like in a terminal: a bar while it goes, tables when it is done.

A client is removed if it is not asked again; an update is rejected if the algorithm did not use it, and refused if the
guard did not let it in.
"""

from collections.abc import Sequence
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from phalanx.report.troubles import troubles
from phalanx.runs.history import Record
from phalanx.wording import percent, plural

STATUS = {"failed": " [red]failed[/]", "stopped": " [yellow]stopped[/]"}


def results(records: Sequence[Record]) -> Table:
    """One line per run: what the model is worth, who was removed, how right that was."""
    wanted = any("attack_success" in record.summary["final"] for record in records)
    texts = any("perplexity" in record.summary["final"] for record in records)
    table = _table("Results")
    table.add_column("run", min_width=20)
    more = [*(["perplexity"] if texts else []), *(["attack"] if wanted else [])]
    for heading in ("final", "best", "removed", "precision", "recall", *more, "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for record in records:
        s, d = record.summary, record.summary["detection"]
        hits, wrong = d.get("true_positives", 0), d.get("false_positives", 0)
        byzantine = hits + d.get("false_negatives", 0)
        table.add_row(
            escape(record.name) + STATUS.get(s["status"], ""),
            percent(s["final"].get("accuracy")),
            f"{percent(s['best']['accuracy'])} @{s['best']['step']}",
            (f"{hits} of {byzantine}" + (f", {wrong} honest" if wrong else "")) if byzantine else str(wrong),
            percent(d.get("precision")),
            percent(d.get("recall")),
            *([_three(s["final"].get("perplexity"))] if texts else []),
            *([percent(s["final"].get("attack_success"))] if wanted else []),
            f"{s['wall_seconds']:.1f} s",
        )
    return table


def _three(value: float | None) -> str:
    """Three digits, or a dash."""
    return "-" if value is None else f"{value:.3g}"


def removals(records: Sequence[Record]) -> Table | None:
    """Who was removed when and why, clients of one fate on one line; None if nobody was."""
    table = _table("Removed clients")
    for heading in ("run", "step", "clients", "truth", "reason"):
        table.add_column(heading, justify="right" if heading == "step" else "left")
    for record in records:
        fates = [(c["removed"]["step"], c.get("byzantine"), c["removed"]["reason"], int(i))
                 for i, c in record.summary["clients"].items() if c["removed"]]  # fmt: skip
        for (step, byzantine, reason), group in groupby(sorted(fates), key=lambda fate: fate[:3]):
            truth = "unknown" if byzantine is None else "Byzantine" if byzantine else "[yellow]honest[/]"
            clients = listed(sorted(f[3] for f in group))
            table.add_row(escape(record.name), str(step), clients, truth, escape(reason))
    return table if table.row_count else None


def rejections(records: Sequence[Record]) -> Table | None:
    """Which shares of the updates were rejected or refused, in runs where any were; None if there are no such runs."""
    table = _table("Updates that were rejected or refused")
    table.add_column("run", min_width=20)
    for heading in ("of Byzantine clients", "of honest clients"):
        table.add_column(heading, justify="right")
    for record in records:
        shares = [record.summary["rejected"].get(whose) for whose in ("byzantine", "honest")]
        if any(shares):
            table.add_row(escape(record.name), *map(percent, shares))
    return table if table.row_count else None


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))


def complaints(record: Record) -> list[str]:
    """Who never took part, and what was refused or lost; one line for what differs in nothing but numbers."""
    absent = [f"client {i} never took part: {c['not_enrolled']}"
              for i, c in record.summary["clients"].items() if c["not_enrolled"]]  # fmt: skip
    return absent + [
        f"{t.kind} {plural(t.count, 'time')} (clients {listed(t.clients)}): {t.reason}"
        + (f" (and {plural(t.others, 'more such reason')})" if t.others else "")
        for t in troubles(record.history[1:])
    ]


def listed(clients: Sequence[int], limit: int = 12) -> str:
    """Some of the ids, and how many there are beyond."""
    more = f" and {len(clients) - limit} more" if len(clients) > limit else ""
    return ", ".join(map(str, clients[:limit])) + more
