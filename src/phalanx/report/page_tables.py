"""The numbers of the page: the comparison of runs, the tiles of a run, and the table of its clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from phalanx.report.client_ledger import BYZANTINE, HONEST, ClientLedger, attacked
from phalanx.report.words import NONE, clock, describe, duration, percent
from phalanx.runs.observed import observed
from phalanx.runs.reports import Metric, Reported, metric_of
from phalanx.runs.schema import DetectionCounts, StepRecord
from phalanx.wording import plural, visible

COLUMNS = {
    "accuracy": "Final accuracy",
    "best": "Best (at step)",
    "worst": "Worst client",
    "loss": "Loss",
    "perplexity": "Perplexity",
    "attack": "Attack success",
    "excluded": "Byzantine excluded",
    "honest": "Honest excluded",
    "precision": "Precision",
    "recall": "Recall",
    "byzantine_filtered": "Byzantine filtered",
    "honest_filtered": "Honest filtered",
    "weight": "Byzantine weight",
    "seconds": "Virtual time",
    "wall": "Wall time",
}

EXTRA = "extra: "  # before the name of a further metric of a task


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    Args:
        text: that is shown.
        value: by which rows are sorted.
        tone: "good", "bad" or nothing.
    """

    text: str
    value: float = -1.0
    tone: str = ""


@dataclass(frozen=True)
class Client:
    """A row of the table of clients."""

    id: int
    name: str  # in the roster of a deployment; empty if there is none
    truth: str
    attack: str
    reported: Cell
    size: Cell
    share: Cell
    accuracy: Cell
    paid: Cell | None  # the quota that the client has at the end; None where a run has no quotas
    accepted: int
    filtered: int
    invalid: int
    lost: int
    excluded: int | None
    reason: str
    suspicious: str  # the step and the reason; empty if it is not
    not_enrolled: str  # why the client never took part; empty if it did


@dataclass(frozen=True)
class Reports:
    """The table of what clients reported.

    Args:
        metric: of the columns first to highest: "accuracy", or "loss" where most clients report no accuracy.
        rows: by client: truth, examples of the last report, metric at first, at last, lowest, highest, last loss,
            number of reports, step of the last, and the step of the client's exclusion, None if there was none.
    """

    metric: Metric
    rows: Mapping[int, tuple[str, tuple[Cell, ...], int | None]]


def columns(rows: Sequence[Mapping[str, Cell]], clock: str) -> dict[str, str]:
    """Return the columns of the comparison; filtered updates, perplexity and attack success only if there are any.

    Args:
        rows: of the comparison.
        clock: name of the runs' clock; see `phalanx.report.words.clock`.
    """
    filtered = ("byzantine_filtered", "honest_filtered")
    shown = {key for key in COLUMNS if key not in (*filtered, "perplexity", "attack")}
    if any(row[key].value > 0 for row in rows for key in filtered):
        shown.update(filtered)
    shown.update(key for key in ("perplexity", "attack") if any(row[key].text != NONE for row in rows))
    labels = COLUMNS | {"seconds": clock.capitalize()}
    further = dict.fromkeys(key for row in rows for key in row if key not in COLUMNS)
    out = dict[str, str]()
    for key, label in labels.items():
        if key in shown:
            out[key] = label
        if key == "perplexity":
            out |= {key: key.removeprefix(EXTRA) for key in further}
    return out


def comparison(ledger: ClientLedger) -> dict[str, Cell]:
    """Return the run's row in the comparison, by the keys of COLUMNS, and of the further metrics of its task."""
    summary, final, best = ledger.record.summary, ledger.record.summary.final, ledger.record.summary.best
    found, filtered = summary.detection, summary.filtered
    wrong = None if found is None else found.false_positives
    return {
        "accuracy": _share(final.accuracy),
        "best": Cell(NONE) if best.accuracy is None else Cell(f"{percent(best.accuracy)} ({best.step})", best.accuracy),
        "worst": _share(final.worst_client_accuracy),
        "loss": _cell(final.loss),
        "perplexity": _cell(final.perplexity, "{:.3g}"),
        "attack": _share(final.attack_success),
        "excluded": _caught(found),
        "honest": _cell(wrong, "{:.0f}", "bad" if wrong else ""),
        "precision": _cell(None if found is None else found.precision, "{:.0%}"),
        "recall": _cell(None if found is None else found.recall, "{:.0%}"),
        "byzantine_filtered": _share(filtered.byzantine),
        "honest_filtered": _share(filtered.honest),
        "weight": _share(ledger.byzantine_share) if attacked(ledger.record) else Cell(NONE),
        "seconds": Cell(duration(summary.seconds), summary.seconds),
        "wall": Cell(duration(summary.wall_seconds), summary.wall_seconds),
        **{f"{EXTRA}{visible(name)}": _cell(value, "{:.3g}") for name, value in final.extra.items()},
    }


def _caught(found: DetectionCounts | None) -> Cell:
    """Return the cell on the number of excluded Byzantine clients."""
    if found is None or not (byzantine := found.true_positives + found.false_negatives):
        return Cell(NONE)
    share, tone = found.true_positives / byzantine, "bad" if found.false_negatives else "good"
    return Cell(f"{found.true_positives} of {byzantine}", share, tone)


def tiles(ledger: ClientLedger) -> tuple[tuple[str, Cell, str], ...]:
    """Return the run's main numbers: the name of each, the number, and a note."""
    row, summary = comparison(ledger), ledger.record.summary
    best = summary.best
    note = "" if best.accuracy is None else f"best {percent(best.accuracy)}, step {best.step}"
    attackers, honest = ledger.of(BYZANTINE), ledger.of(HONEST)
    own = summary.data is not None and summary.data.client_tests == "own"
    basis = "on its own test examples" if own else "label-reweighted"
    out = [("final accuracy", row["accuracy"], note), ("worst client", row["worst"], basis)]
    if summary.final.accuracy is None and summary.final.loss is not None:
        out = [("final loss", row["loss"], "mean over honest clients")]
    out += [(f"final {key.removeprefix(EXTRA)}", cell, "") for key, cell in row.items() if key not in COLUMNS]
    if attackers:
        out.append(("Byzantine excluded", row["excluded"], "clients that attack"))
    if honest:
        wronged = len([c for c in honest if c in ledger.excluded])
        cell = Cell(f"{wronged} of {len(honest)}", tone="bad" if wronged else "good")
        out.append(("honest excluded", cell, "wrongly excluded"))
    if row["byzantine_filtered"].value > 0 or row["honest_filtered"].value > 0:
        whose, other = ("Byzantine", "honest") if attackers else ("honest", "")
        note = f"of their updates; {row['honest_filtered'].text} of {other} ones" if other else "of their updates"
        out.append((f"{whose} filtered", row[f"{whose.lower()}_filtered"], note))
    if attackers:
        out.append(("Byzantine weight", row["weight"], "of all weight in the run"))
    steps = plural(summary.steps, "step")
    computing = "" if "engine" in ledger.record.config else f", {row['wall'].text} of computing"
    out.append((clock([ledger.record.config]), row["seconds"], f"{steps}{computing}"))
    return tuple(out)


def clients(ledger: ClientLedger) -> tuple[Client, ...]:
    """Return the table of clients."""
    total, paid = ledger.total, _paid(ledger.record.history)
    return tuple(_client(ledger, client, total, paid) for client in ledger.clients)


def _paid(history: Sequence[StepRecord]) -> dict[int, Cell]:
    """Return the quotas of the last step that has any; empty where there are none."""
    for step in reversed(history):
        if quotas := observed(step, "quota"):
            proven = observed(step, "proven") or {}
            return {c: _quota(quota, proven.get(c)) for c, quota in quotas.items()}
    return {}


def _quota(quota: float | None, proven: float | None) -> Cell:
    cell = _share(quota)
    if proven is None or proven >= 1:
        return cell
    return replace(cell, text=f"{cell.text}, {'not' if proven <= 0 else 'partly'} proven", tone="bad")


def _client(ledger: ClientLedger, client: int, total: float, paid: Mapping[int, Cell]) -> Client:
    about = ledger.clients[client]
    lied = about.reported is not None and about.size is not None and about.reported != about.size
    attack, truth = ledger.record.config.get("attack"), ledger.truth[client]
    return Client(
        id=client,
        name=visible(about.name),
        truth=truth,
        attack=describe(attack) if truth == BYZANTINE and attack is not None else "",
        reported=_cell(about.reported, "{:,.0f}", "bad" if lied else ""),
        size=_cell(about.size, "{:,.0f}"),
        share=_share(ledger.weight[client] / total if total > 0 else None),
        accuracy=_share(ledger.accuracy.get(client)),
        paid=paid.get(client, _share(None)) if paid else None,
        accepted=ledger.times["accepted", client],
        filtered=ledger.times["filtered", client],
        invalid=ledger.times["invalid", client],
        lost=ledger.times["lost", client],
        excluded=about.excluded.step if about.excluded else None,
        reason=about.excluded.reason if about.excluded else "",
        suspicious=f"step {about.suspicious.step}: {about.suspicious.reason}" if about.suspicious else "",
        not_enrolled=about.not_enrolled or "",
    )


def reports(ledger: ClientLedger) -> Reports | None:
    """Return the table of what clients reported; None if they reported nothing."""
    if not ledger.reported:
        return None
    metric = metric_of(each.last for each in ledger.reported.values())
    return Reports(
        metric,
        {
            client: (ledger.truth[client], _reported(each, metric), excluded.step if excluded else None)
            for client, each in ledger.reported.items()
            for excluded in (ledger.excluded.get(client),)
        },
    )


def _reported(each: Reported, metric: Metric) -> tuple[Cell, ...]:
    values, show = each.values(metric), _share if metric == "accuracy" else _cell
    chosen = (values[0], values[-1], min(values), max(values)) if values else (None,) * 4
    return (
        Cell(f"{each.last.examples:,}", each.last.examples),
        *map(show, chosen),
        *([_cell(each.last.loss)] if metric == "accuracy" else []),
        Cell(f"{len(each.reports):,}", len(each.reports)),
        Cell(f"{each.step:,}", each.step),
    )


def _cell(value: float | None, form: str = "{:.3g}", tone: str = "") -> Cell:
    return Cell(NONE) if value is None else Cell(form.format(value).replace("%", " %"), value, tone)


def _share(value: float | None) -> Cell:
    return Cell(NONE) if value is None else Cell(percent(value), value)
