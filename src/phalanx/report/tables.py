"""The numbers of the page: the comparison of runs, the tiles of a run, and the table of its clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phalanx.report.ledger import BYZANTINE, HONEST, Ledger, attacked
from phalanx.report.words import NONE, clock, describe, duration, finite, percent
from phalanx.wording import plural

COLUMNS = {
    "accuracy": "Final accuracy",
    "best": "Best (at step)",
    "worst": "Worst client",
    "loss": "Loss",
    "perplexity": "Perplexity",
    "attack": "Attack success",
    "removed": "Byzantine removed",
    "honest": "Honest removed",
    "precision": "Precision",
    "recall": "Recall",
    "byzantine_rejected": "Byzantine rejected",
    "honest_rejected": "Honest rejected",
    "weight": "Byzantine weight",
    "seconds": "Virtual time",
    "wall": "Wall time",
}


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    Args:
        text: as it is shown.
        value: as it is sorted.
        tone: "good", "bad" or nothing.
    """

    text: str
    value: float = -1.0
    tone: str = ""


@dataclass(frozen=True)
class Client:
    """A row of the table of clients."""

    id: int
    truth: str
    attack: str
    declared: Cell
    size: Cell
    share: Cell
    accuracy: Cell
    accepted: int
    rejected: int
    refused: int
    lost: int
    removed: int | None
    reason: str
    not_enrolled: str  # why the client never took part; empty if it did


def columns(rows: Sequence[Mapping[str, Cell]], clock: str) -> dict[str, str]:
    """The columns of the comparison, without rejections, perplexity and attack success where there are none.

    Args:
        rows: of the comparison.
        clock: what the runs' seconds are; see `phalanx.report.words.clock`.
    """
    rejections = ("byzantine_rejected", "honest_rejected")
    told = {key for key in COLUMNS if key not in (*rejections, "perplexity", "attack")}
    if any(row[key].value > 0 for row in rows for key in rejections):
        told.update(rejections)
    told.update(key for key in ("perplexity", "attack") if any(row[key].text != NONE for row in rows))
    labels = COLUMNS | {"seconds": clock.capitalize()}
    return {key: label for key, label in labels.items() if key in told}


def comparison(ledger: Ledger) -> dict[str, Cell]:
    """The run's row in the comparison, by the keys of COLUMNS."""
    summary = ledger.record.summary
    parts = ("final", "best", "detection", "rejected")
    final, best, detection, rejected = (summary.get(part) or {} for part in parts)
    caught, missed, wrong = (finite(detection.get(k)) for k in ("true_positives", "false_negatives", "false_positives"))
    at = finite(best.get("accuracy"))
    removed = Cell(NONE)
    if caught is not None and missed is not None and caught + missed > 0:
        share = caught / (caught + missed)
        removed = Cell(f"{caught:.0f} of {caught + missed:.0f}", share, "good" if missed == 0 else "bad")
    return {
        "accuracy": _share(final.get("accuracy")),
        "best": Cell(NONE) if at is None else Cell(f"{percent(at)} ({best.get('step', '?')})", at),
        "worst": _share(final.get("worst_client_accuracy")),
        "loss": _cell(final.get("loss")),
        "perplexity": _cell(final.get("perplexity"), "{:.3g}"),
        "attack": _share(final.get("attack_success")),
        "removed": removed,
        "honest": _cell(wrong, "{:.0f}", "bad" if wrong else ""),
        "precision": _cell(detection.get("precision"), "{:.0%}"),
        "recall": _cell(detection.get("recall"), "{:.0%}"),
        "byzantine_rejected": _share(rejected.get("byzantine")),
        "honest_rejected": _share(rejected.get("honest")),
        "weight": _share(ledger.byzantine_share) if attacked(ledger.record) else Cell(NONE),
        "seconds": Cell(duration(summary.get("seconds")), finite(summary.get("seconds")) or 0.0),
        "wall": Cell(duration(summary.get("wall_seconds")), finite(summary.get("wall_seconds")) or 0.0),
    }


def tiles(ledger: Ledger) -> tuple[tuple[str, Cell, str], ...]:
    """The run's main numbers: what each is, the number, and a word about it."""
    row, summary = comparison(ledger), ledger.record.summary
    best = summary.get("best") or {}
    note = "" if best.get("step") is None else f"best {percent(best.get('accuracy'))}, step {best['step']}"
    attackers, honest = ledger.of(BYZANTINE), ledger.of(HONEST)
    out = [("final accuracy", row["accuracy"], note), ("worst client", row["worst"], "on its own mix of classes")]
    if attackers:
        out.append(("Byzantine removed", row["removed"], "clients that attack"))
    if honest:
        wronged = len([c for c in honest if c in ledger.removed])
        cell = Cell(f"{wronged} of {len(honest)}", tone="bad" if wronged else "good")
        out.append(("honest removed", cell, "wrongly removed"))
    if row["byzantine_rejected"].value > 0 or row["honest_rejected"].value > 0:
        whose, other = ("Byzantine", "honest") if attackers else ("honest", "")
        note = f"of their updates; {row['honest_rejected'].text} of {other} ones" if other else "of their updates"
        out.append((f"{whose} rejected", row[f"{whose.lower()}_rejected"], note))
    if attackers:
        out.append(("Byzantine weight", row["weight"], "of all weight in the run"))
    steps = plural(int(summary.get("steps") or 0), "step")
    beside = "" if "engine" in ledger.record.config else f", {row['wall'].text} of computing"
    out.append((clock([ledger.record.config]), row["seconds"], f"{steps}{beside}"))
    return tuple(out)


def clients(ledger: Ledger) -> tuple[Client, ...]:
    """The table of clients."""
    total = ledger.total
    return tuple(_client(ledger, client, total) for client in ledger.clients)


def _client(ledger: Ledger, client: int, total: float) -> Client:
    declared, size = ledger.number(client, "declared"), ledger.number(client, "size")
    lied = declared is not None and size is not None and declared != size
    attack, truth = ledger.record.config.get("attack"), ledger.truth[client]
    removed = ledger.removed.get(client)
    return Client(
        id=client,
        truth=truth,
        attack=describe(attack) if truth == BYZANTINE and attack is not None else "",
        declared=_cell(declared, "{:,.0f}", "bad" if lied else ""),
        size=_cell(size, "{:,.0f}"),
        share=_share(ledger.weight[client] / total if total > 0 else None),
        accuracy=_share(ledger.accuracy.get(client)),
        accepted=ledger.times["accepted", client],
        rejected=ledger.times["rejected", client],
        refused=ledger.times["refused", client],
        lost=ledger.times["lost", client],
        removed=int(removed["step"]) if removed else None,
        reason=str(removed.get("reason") or "") if removed else "",
        not_enrolled=str(ledger.clients[client].get("not_enrolled") or ""),
    )


def _cell(value: object, form: str = "{:.3g}", tone: str = "") -> Cell:
    number = finite(value)
    return Cell(NONE) if number is None else Cell(form.format(number).replace("%", " %"), number, tone)


def _share(value: object) -> Cell:
    number = finite(value)
    return Cell(NONE) if number is None else Cell(percent(number), number)
