"""From run records to one HTML page that needs nothing else: no network, no fonts, no script to be read.

Everything that a client could have written (reasons, names) reaches the page through Jinja's escaping, and a content
security policy in the page forbids any script but its own.
"""

import base64
import hashlib
import json
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phalanx.report import figures
from phalanx.report.figures import (
    GONE,
    LOST,
    NOTHING,
    REFUSED,
    REJECTED,
    Group,
    Holdings,
    Mosaic,
    Removals,
    Series,
    Style,
)

if TYPE_CHECKING:
    from phalanx.history import Record

BINS = 140  # columns of a heat map, at most
KINDS = 40  # rows of the table of what was turned away, at most
NONE = "–"  # where there is no number
OPEN = 2  # reports of up to so many runs show every run unfolded

# Sorts a table by a click on a header, and unfolds everything before printing.  The page reads the same without it.
SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("thead th").forEach((th, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...th.childNodes);
    th.append(button);
    button.addEventListener("click", () => {
      const up = th.getAttribute("aria-sort") !== "ascending";
      for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
      th.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = row => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
      const rows = [...table.tBodies[0].rows].sort((a, b) => value(a).localeCompare(value(b), "en", {numeric: true}));
      table.tBodies[0].append(...(up ? rows : rows.reverse()));
    });
  });
}
addEventListener("beforeprint", () => { for (const d of document.querySelectorAll("details")) d.open = true; });
"""


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
class Picture:
    """A figure of the page.

    Args:
        svg: trusted markup.
        title: what it shows, in few words.
        caption: how to read it, and what there is to see.
        keys: its legend, "" or the name of one that the template knows.
        full: takes a row for itself.
    """

    svg: str
    title: str
    caption: str
    keys: str = ""
    full: bool = False


@dataclass(frozen=True)
class Exclusion:
    """Clients that were removed in one step for one reason."""

    step: int
    seconds: str
    clients: tuple[int, ...]
    truth: str
    reason: str
    weight: str  # their share of all weight up to that step
    before: str
    after: str


@dataclass(frozen=True)
class Client:
    """A row of the table of clients."""

    id: int
    truth: str
    attack: str
    declared: Cell
    size: Cell
    share: Cell
    accepted: int
    rejected: int
    refused: int
    lost: int
    removed: int | None
    reason: str


@dataclass(frozen=True)
class Trouble:
    """Updates that were turned away, or never came, for reasons that differ in nothing but numbers."""

    kind: str
    reason: str
    more: int  # other wordings
    times: int
    clients: tuple[int, ...]
    first: int
    last: int


@dataclass(frozen=True)
class Run:
    """What the template shows of one record."""

    anchor: str
    name: str
    style: Style
    failed: bool
    error: str
    sentence: str
    row: Mapping[str, Cell]
    tiles: tuple[tuple[str, Cell, str], ...]
    costs: tuple[str, ...]
    exclusions: tuple[Exclusion, ...]
    pictures: tuple[Picture, ...]
    troubles: tuple[Trouble, ...]
    hidden: int  # kinds of trouble that the table leaves out
    clients: tuple[Client, ...]
    setup: tuple[tuple[str, str], ...]
    yaml: str
    environment: tuple[tuple[str, str], ...]


@dataclass
class Ledger:
    """Who did what, client by client, from one pass over a history."""

    weight: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    accepted: Counter[int] = field(default_factory=Counter)
    rejected: Counter[int] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    lost: Counter[int] = field(default_factory=Counter)
    shares: dict[tuple[int, int], float] = field(default_factory=dict)  # (step, removed client) -> weight share so far
    kinds: dict[tuple[str, str], list[tuple[str, int, int]]] = field(default_factory=lambda: defaultdict(list))

    def note(self, kind: str, reason: str, client: int, step: int) -> None:
        """Files one trouble under its reason, numbers aside."""
        self.kinds[kind, re.sub(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?", "#", reason)].append((reason, client, step))


def write(records: "Sequence[Record]", path: Path, title: str) -> Path:
    """Writes the report of some runs, whole or not at all.

    Args:
        records: the runs, at least one, in the order of the report.
        path: the file to make or replace; missing folders are made.
        title: of the page.

    Returns:
        `path`.

    Raises:
        ValueError: there are no records.
        OSError: the file cannot be written.
    """
    text = render(records, title)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def render(records: "Sequence[Record]", title: str) -> str:
    """The report of some runs as the text of one HTML file.  The same records give the same text.

    Args:
        records: the runs, at least one, in the order of the report.
        title: of the page.

    Raises:
        ValueError: there are no records.
    """
    if not records:
        raise ValueError("A report needs at least one run record, got none.")
    import jinja2  # noqa: PLC0415
    from markupsafe import Markup  # noqa: PLC0415

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["ids"] = ids
    environment.filters["svg"] = Markup
    template = environment.from_string(files("phalanx.report").joinpath("template.html").read_text(encoding="utf-8"))
    looks = styles(records)
    runs = [
        _run(record, look, records, f"run-{number}")
        for number, (record, look) in enumerate(zip(records, looks, strict=True), 1)
    ]
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    return template.render(
        title=title,
        facts=_facts(records),
        runs=runs,
        pictures=_comparison(records, looks),
        columns=COLUMNS,
        unfolded=len(runs) <= OPEN,
        dash=NONE,
        script=Markup(SCRIPT),  # a constant of this file
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'",
        version=(records[0].summary.get("environment") or {}).get("phalanx", ""),
    )


def styles(records: "Sequence[Record]") -> list[Style]:
    """A colour for each algorithm and a dash for each attack; or one for each run where those would not do."""
    algorithms = [json.dumps(record.config.get("algorithm"), sort_keys=True, default=str) for record in records]
    attacked = [_attacked(record) for record in records]
    order = list(dict.fromkeys(algorithms))
    pairs = list(zip(algorithms, attacked, strict=True))
    distinct = len(set(pairs)) == len(pairs)
    return [
        Style((order.index(a) if distinct else i) % len(figures.MARKERS), dashed) for i, (a, dashed) in enumerate(pairs)
    ]


# Words and numbers
def percent(value: object) -> str:
    """A share in 0 .. 1 in words: 0.95 is "95.0 %"."""
    number = finite(value)
    return NONE if number is None else f"{100 * number:.1f} %"


def duration(value: object) -> str:
    """Seconds in words, to three digits or so."""
    seconds = finite(value)
    if seconds is None:
        return NONE
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def finite(value: object) -> float | None:
    """The number that `value` is, or None if it is none, or not finite."""
    number = float(value) if isinstance(value, int | float) else math.nan
    return number if math.isfinite(number) else None


def ids(clients: Sequence[int]) -> str:
    """Client ids, runs of three and more drawn together: "0–4, 7, 9"."""
    parts: list[str] = []
    start = 0
    for end in range(1, len(clients) + 1):
        if end < len(clients) and clients[end] == clients[end - 1] + 1:
            continue
        run = clients[start:end]
        parts += [f"{run[0]}–{run[-1]}"] if len(run) > 2 else [str(client) for client in run]
        start = end
    return ", ".join(parts)


def plural(count: int, noun: str) -> str:
    """The count with its noun: "1 client", "2 clients"."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def describe(value: object) -> str:
    """A value of the configuration in one line: a class as its call, a mapping as its items."""
    if isinstance(value, Mapping):
        if "class_path" in value:
            arguments = ", ".join(f"{k}={describe(v)}" for k, v in (value.get("init_args") or {}).items())
            return f"{str(value['class_path']).rpartition('.')[2]}({arguments})"
        return ", ".join(f"{k} {describe(v)}" for k, v in value.items() if v is not None)
    if isinstance(value, list | tuple):
        return ", ".join(describe(v) for v in value)
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)


# One run
def _run(record: "Record", style: Style, records: "Sequence[Record]", anchor: str) -> Run:
    clients = _clients(record)
    ledger = _ledger(record, clients)
    groups = _groups(clients)
    rows = _client_rows(record, clients, ledger)
    total = sum(ledger.weight.values())
    evil = (
        sum(ledger.weight[c] for c, about in clients.items() if about.get("byzantine")) / total if total > 0 else None
    )
    troubles = _troubles(ledger)
    return Run(
        anchor=anchor,
        name=record.name,
        style=style,
        failed=record.summary.get("status") != "finished",
        error=_error(record),
        sentence=sentence(record),
        row=_row(record, evil),
        tiles=_tiles(record, clients, evil),
        costs=_costs(record, clients, evil, records),
        exclusions=_exclusions(record, clients, ledger),
        pictures=tuple(_pictures(record, clients, groups, ledger, anchor)),
        troubles=tuple(troubles[:KINDS]),
        hidden=max(0, len(troubles) - KINDS),
        clients=rows,
        setup=tuple((label, describe(record.config[key])) for key, label in SETUP.items() if key in record.config),
        yaml=_yaml(record.config),
        environment=tuple(
            (str(k), describe(v))
            for part in ("environment", "data")
            for k, v in (record.summary.get(part) or {}).items()
        ),
    )


SETUP = {
    "algorithm": "Algorithm",
    "attack": "Attack",
    "byzantine": "Byzantine clients",
    "clients": "Clients",
    "data": "Data",
    "partition": "Partition",
    "model": "Model",
    "training": "Training",
    "participation": "Participation",
    "latency": "Latency",
    "guard": "Guard",
    "until": "Runs until",
    "evaluation": "Evaluation",
    "seed": "Seed",
}

COLUMNS = {
    "accuracy": "Final accuracy",
    "best": "Best (at step)",
    "worst": "Worst client",
    "loss": "Loss",
    "attack": "Attack success",
    "removed": "Byzantine removed",
    "honest": "Honest removed",
    "precision": "Precision",
    "recall": "Recall",
    "weight": "Byzantine weight",
    "seconds": "Virtual time",
    "wall": "Wall time",
}


def sentence(record: "Record") -> str:
    """The result of a run, its name aside: "95.0 % at the end; 6 of 6 Byzantine clients removed, no honest one"."""
    if record.summary.get("status") != "finished":
        return f"failed after {plural(int(record.summary.get('steps') or 0), 'step')}: {_error(record).splitlines()[0]}"
    reached = finite((record.summary.get("final") or {}).get("accuracy"))
    start = "no accuracy was measured" if reached is None else f"{percent(reached)} at the end"
    clients = _clients(record)
    removed = {c for c, about in clients.items() if about.get("removed")}
    if not clients or all(about.get("byzantine") is None for about in clients.values()):
        return f"{start}; {plural(len(removed), 'client')} removed"
    bad = {c for c, about in clients.items() if about.get("byzantine")}
    honest = len(removed - bad)
    if not bad:
        return f"{start}; every client is honest, {honest or 'none'} removed"
    caught = f"{len(removed & bad)} of {plural(len(bad), 'Byzantine client')} removed"
    return f"{start}; {caught}, " + (f"and {plural(honest, 'honest one')}" if honest else "no honest one")


def _error(record: "Record") -> str:
    return str(record.summary.get("error") or "").strip() or "no reason recorded"


def _clients(record: "Record") -> dict[int, Mapping[str, Any]]:
    """What the summary says of each client, and nothing of those that only the history names; by id."""
    told = record.summary.get("clients") or {}
    seen = {c for line in record.history for part in ("verdicts", "refused", "lost") for c in line.get(part) or {}}
    return {int(c): told.get(c) or {} for c in sorted({*told, *seen}, key=int)}


def _groups(clients: Mapping[int, Mapping[str, Any]]) -> tuple[Group, ...]:
    members = {
        word: tuple(c for c, about in clients.items() if _truth(about) == word)
        for word in ("unknown", "honest", "Byzantine")
    }
    return tuple(Group("clients" if word == "unknown" else word, which) for word, which in members.items() if which)


def _truth(about: Mapping[str, Any]) -> str:
    byzantine = about.get("byzantine")
    return "unknown" if byzantine is None else "Byzantine" if byzantine else "honest"


def _attacked(record: "Record") -> bool:
    return record.config.get("attack") is not None and record.config.get("byzantine") != 0


def _ledger(record: "Record", clients: Mapping[int, Mapping[str, Any]]) -> Ledger:
    ledger = Ledger()
    leaving: dict[int, list[int]] = defaultdict(list)
    for client, about in clients.items():
        if removed := about.get("removed"):
            leaving[int(removed["step"])].append(client)
    for line in record.history:
        step = int(line["step"])
        for name, verdict in (line.get("verdicts") or {}).items():
            client, reason = int(name), str(verdict.get("reason") or "")
            ledger.weight[client] += finite(verdict.get("weight")) or 0.0
            (ledger.accepted if verdict["accepted"] else ledger.rejected)[client] += 1
            if reason or not verdict["accepted"]:
                ledger.note("remark" if verdict["accepted"] else "rejected", reason, client, step)
        for kind, counter in (("refused", ledger.refused), ("lost", ledger.lost)):
            for name, reason in (line.get(kind) or {}).items():
                counter[int(name)] += 1
                ledger.note(kind, str(reason), int(name), step)
        if step in leaving:
            total = sum(ledger.weight.values())
            ledger.shares.update({(step, c): ledger.weight[c] / total for c in leaving[step]} if total > 0 else {})
    return ledger


def _troubles(ledger: Ledger) -> list[Trouble]:
    order = {"rejected": 0, "refused": 1, "lost": 2, "remark": 3}
    out = []
    for (kind, _), notes in ledger.kinds.items():
        steps = [step for _, _, step in notes]
        wordings = {reason for reason, _, _ in notes}
        out.append(
            Trouble(
                kind,
                notes[0][0],
                len(wordings) - 1,
                len(notes),
                tuple(sorted({c for _, c, _ in notes})),
                min(steps),
                max(steps),
            )
        )
    return sorted(out, key=lambda t: (order[t.kind], -t.times, t.first, t.reason))


def _client_rows(record: "Record", clients: Mapping[int, Mapping[str, Any]], ledger: Ledger) -> tuple[Client, ...]:
    attack = record.config.get("attack")
    total = sum(ledger.weight.values())
    out = []
    for client, about in clients.items():
        declared, size = finite(about.get("declared")), finite(about.get("size"))
        removed = about.get("removed") or {}
        share = ledger.weight[client] / total if total > 0 else None
        lied = declared is not None and size is not None and declared != size
        truth = _truth(about)
        out.append(
            Client(
                id=client,
                truth=truth,
                attack=describe(attack) if truth == "Byzantine" and attack is not None else "",
                declared=_cell(declared, "{:,.0f}", "bad" if lied else ""),
                size=_cell(size, "{:,.0f}"),
                share=Cell(percent(share), -1.0 if share is None else share),
                accepted=ledger.accepted[client],
                rejected=ledger.rejected[client],
                refused=ledger.refused[client],
                lost=ledger.lost[client],
                removed=int(removed["step"]) if removed else None,
                reason=str(removed.get("reason") or ""),
            )
        )
    return tuple(out)


def _cell(value: object, form: str = "{:.3g}", tone: str = "") -> Cell:
    number = finite(value)
    return Cell(NONE) if number is None else Cell(form.format(number).replace("%", " %"), number, tone)


def _share(value: object, tone: str = "") -> Cell:
    number = finite(value)
    return Cell(NONE) if number is None else Cell(percent(number), number, tone)


def _row(record: "Record", evil: float | None) -> dict[str, Cell]:
    summary = record.summary
    final, best, detection = (summary.get(part) or {} for part in ("final", "best", "detection"))
    caught, missed, wrong = (finite(detection.get(k)) for k in ("true_positives", "false_negatives", "false_positives"))
    at = finite(best.get("accuracy"))
    removed = Cell(NONE)
    if caught is not None and missed is not None and caught + missed > 0:
        removed = Cell(
            f"{caught:.0f} of {caught + missed:.0f}", caught / (caught + missed), "good" if missed == 0 else "bad"
        )
    return {
        "accuracy": _share(final.get("accuracy")),
        "best": Cell(NONE) if at is None else Cell(f"{percent(at)} ({best.get('step', '?')})", at),
        "worst": _share(final.get("worst_client_accuracy")),
        "loss": _cell(final.get("loss")),
        "attack": _share(final.get("attack_success")),
        "removed": removed,
        "honest": _cell(wrong, "{:.0f}", "bad" if wrong else ""),
        "precision": _cell(detection.get("precision"), "{:.0%}"),
        "recall": _cell(detection.get("recall"), "{:.0%}"),
        "weight": _share(evil) if _attacked(record) else Cell(NONE),
        "seconds": Cell(duration(summary.get("seconds")), finite(summary.get("seconds")) or 0.0),
        "wall": Cell(duration(summary.get("wall_seconds")), finite(summary.get("wall_seconds")) or 0.0),
    }


def _tiles(
    record: "Record", clients: Mapping[int, Mapping[str, Any]], evil: float | None
) -> tuple[tuple[str, Cell, str], ...]:
    row = _row(record, evil)
    bad = [c for c, about in clients.items() if about.get("byzantine")]
    honest = [c for c, about in clients.items() if about.get("byzantine") is False]
    lost_honest = [c for c in honest if clients[c].get("removed")]
    best = (record.summary.get("best") or {}).get("step")
    tiles = [
        (
            "final accuracy",
            row["accuracy"],
            "" if best is None else f"best {percent(record.summary['best'].get('accuracy'))}, step {best}",
        ),
        ("worst client", row["worst"], "on its own mix of classes"),
    ]
    if bad:
        tiles.append(("Byzantine removed", row["removed"], "clients that attack"))
    if honest:
        tiles.append(
            (
                "honest removed",
                Cell(f"{len(lost_honest)} of {len(honest)}", tone="bad" if lost_honest else "good"),
                "wrongly excluded",
            )
        )
    if bad:
        tiles.append(("Byzantine weight", row["weight"], "of all weight in the run"))
    tiles.append(
        (
            "virtual time",
            row["seconds"],
            f"{plural(int(record.summary.get('steps') or 0), 'step')}, {row['wall'].text} of computing",
        )
    )
    return tuple(tiles)


def _twin(record: "Record", records: "Sequence[Record]") -> "Record | None":
    """The same run without the attack, if the report has it and both ended."""

    def rest(config: Mapping[str, Any]) -> str:
        return json.dumps(
            {k: v for k, v in config.items() if k not in {"attack", "byzantine", "name"}}, sort_keys=True, default=str
        )

    if not _attacked(record):
        return None
    clean = (r for r in records if not _attacked(r) and rest(r.config) == rest(record.config))
    return next((r for r in clean if r.summary.get("status") == "finished"), None)


def _costs(
    record: "Record", clients: Mapping[int, Mapping[str, Any]], evil: float | None, records: "Sequence[Record]"
) -> tuple[str, ...]:
    """What attack and defence cost, in sentences."""
    out = []
    reached = finite((record.summary.get("final") or {}).get("accuracy"))
    twin = _twin(record, records)
    clean = finite((twin.summary.get("final") or {}).get("accuracy")) if twin else None
    if twin and reached is not None and clean is not None:
        points = 100 * (clean - reached)
        words = (
            f"{abs(points):.1f} points {'below' if points > 0 else 'above'}" if abs(points) >= 0.05 else "the same as"
        )
        out.append(
            f"Final accuracy is {words} that of the same run without the attack ({twin.name}, {percent(clean)})."
        )
    removed = {c for c, about in clients.items() if about.get("removed")}
    wronged = sorted(c for c in removed if clients[c].get("byzantine") is False)
    examples = {c: finite(about.get("size")) or 0.0 for c, about in clients.items() if about.get("byzantine") is False}
    if wronged:
        gone, total = sum(examples[c] for c in wronged), sum(examples.values())
        share = f" ({percent(gone / total)} of all honest ones)" if total else ""
        out.append(
            f"Removing {plural(len(wronged), 'honest client')} ({ids(wronged)}) gave up {gone:,.0f} examples{share}."
        )
        held = {c: {k for k, count in enumerate(about.get("classes") or ()) if count} for c, about in clients.items()}
        missing = (
            set[int]().union(*(held[c] for c in wronged)).difference(*(held[c] for c in examples if c not in removed))
        )
        if missing:
            noun = "class" if len(missing) == 1 else "classes"
            out.append(f"No honest client is left that holds examples of {noun} {ids(sorted(missing))}.")
    elif removed and examples:
        out.append("No honest data was given up.")
    bad = {c for c, about in clients.items() if about.get("byzantine")}
    if bad and evil is not None:
        stayed = sorted(bad - removed)
        tail = f"; {'all' if len(stayed) == len(bad) else len(stayed)} of them stayed to the end" if stayed else ""
        out.append(
            f"Byzantine clients are {percent(len(bad) / len(clients))} of all clients"
            f" and carried {percent(evil)} of all weight{tail}."
        )
    return tuple(out)


def _exclusions(record: "Record", clients: Mapping[int, Mapping[str, Any]], ledger: Ledger) -> tuple[Exclusion, ...]:
    seconds = {int(line["step"]): line.get("seconds") for line in reversed(record.history)}
    measured = [
        (int(line["step"]), value) for line in record.history if (value := finite(line.get("accuracy"))) is not None
    ]
    cases: dict[tuple[int, str, str], list[int]] = defaultdict(list)
    for client, about in clients.items():
        if removed := about.get("removed"):
            truth = _truth(about)
            cases[int(removed["step"]), truth, str(removed.get("reason") or "")].append(client)
    out = []
    for (step, truth, reason), who in sorted(cases.items(), key=lambda case: (case[0][0], case[1])):
        known = [ledger.shares[step, c] for c in who if (step, c) in ledger.shares]
        before = [value for at, value in measured if at < step]
        after = [value for at, value in measured if at >= step]
        out.append(
            Exclusion(
                step=step,
                seconds=duration(seconds.get(step)),
                clients=tuple(who),
                truth=truth,
                reason=reason or "no reason recorded",
                weight=percent(sum(known)) if known else NONE,
                before=percent(before[-1] if before else None),
                after=percent(after[0] if after else None),
            )
        )
    return tuple(out)


def _removals(clients: Mapping[int, Mapping[str, Any]]) -> list[Removals]:
    steps: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for about in clients.values():
        if removed := about.get("removed"):
            steps[int(removed["step"])][0 if about.get("byzantine") else 1] += 1
    return [Removals(step, *counts) for step, counts in sorted(steps.items())]


def _yaml(config: Mapping[str, Any]) -> str:
    import yaml  # noqa: PLC0415

    plain = json.loads(json.dumps(config, default=str))
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)).rstrip()


# Pictures
def _line(record: "Record", field_: str, x: str, style: Style) -> Series:
    """The lines in which `field_` was measured; NaN where the measurement is not finite."""
    lines = [line for line in record.history if field_ in line]
    numbers = [finite(line[field_]) for line in lines]
    return Series(style, [float(line[x]) for line in lines], [math.nan if n is None else n for n in numbers])


def _comparison(records: "Sequence[Record]", looks: Sequence[Style]) -> tuple[Picture, ...]:
    over_steps = [_line(r, "accuracy", "step", s) for r, s in zip(records, looks, strict=True)]
    over_time = [_line(r, "accuracy", "seconds", s) for r, s in zip(records, looks, strict=True)]
    if not any(np.isfinite(s.y).any() for s in over_steps):
        return ()
    longest = max((max(s.x, default=0.0) for s in over_time), default=0.0)
    name, length = next(
        ((n, size) for n, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)) if longest >= 3 * size),
        ("seconds", 1.0),
    )
    ends = ", ".join(
        f"{r.name} {percent(next((y for y in reversed(s.y) if math.isfinite(y)), None))}"
        for r, s in zip(records, over_steps, strict=True)
    )
    lasts = [s.x[-1] for s in over_steps if s.x and s.x[-1] > 0]
    uneven = bool(lasts) and max(lasts) > 8 * min(lasts)  # rounds beside single arrivals
    dashes = " Dashed lines with hollow markers are runs under attack." if any(s.dashed for s in looks) else ""
    gaps = any(not np.isfinite(s.y).all() for s in over_steps)
    slow = " A line that breaks off had no finite accuracy there." if gaps else ""
    stretch = " The axis is logarithmic: runs differ widely in their numbers of steps." if uneven else ""
    spoken = f"Accuracy over steps. Last values: {ends}."
    return (
        Picture(
            figures.accuracy(over_steps, "step", key="f-steps", label=spoken, logarithmic=uneven),
            "Accuracy over steps",
            "Share of the test set that the model classifies correctly, mean over honest clients, at each evaluated"
            f" step of the server.{dashes}{slow}{stretch}",
        ),
        Picture(
            figures.accuracy(
                over_time,
                f"virtual time in {name}",
                key="f-time",
                label=f"Accuracy over virtual time in {name}. Last values: {ends}.",
                unit=length,
            ),
            "Accuracy over virtual time",
            "The same over the clock of the run: a method that waits for the slowest client of each round pays for it.",
        ),
    )


def _pictures(
    record: "Record", clients: Mapping[int, Mapping[str, Any]], groups: tuple[Group, ...], ledger: Ledger, anchor: str
) -> "Iterable[Picture]":
    removals = _removals(clients)
    state = [
        (int(line["step"]), line["state"]) for line in record.history if "alpha_cross" in (line.get("state") or {})
    ]
    named = {"accuracy": "accuracy", "worst client": "worst_client_accuracy", "attack success": "attack_success"}
    lines = {name: _line(record, key, "step", Style(0, False)) for name, key in named.items()}
    lines = {name: s for name, s in lines.items() if np.isfinite(s.y).any()}
    words = ", ".join(f"step {r.step}: {r.byzantine} Byzantine and {r.others} other" for r in removals) or "none"
    if lines:
        width = figures.HALF if state else figures.FULL
        yield Picture(
            figures.progress(
                lines,
                removals,
                key=f"{anchor}-progress",
                label=f"Accuracy of {record.name} over steps. Removals: {words}.",
                width=width,
            ),
            "Progress",
            "The global model over the run: on the whole test set, for the client that it serves worst"
            + (", and the share of attempts in which the attack reaches its goal" if "attack success" in lines else "")
            + (". Dotted verticals: steps in which clients were removed." if removals else "."),
            full=not state,
        )
    if state:
        numbers = [(step, finite(s.get("alpha_cross")), finite(s.get("threshold"))) for step, s in state]
        alpha = [math.nan if a is None else a for _, a, _ in numbers]
        threshold = [math.nan if t is None else t for _, _, t in numbers]
        yield Picture(
            figures.alpha_cross(
                [step for step, _, _ in numbers],
                alpha,
                threshold,
                removals,
                key=f"{anchor}-alpha",
                label=f"Cross-cluster similarity over steps. Removals: {words}.",
            ),
            "Similarity across the two clusters",
            "The largest cosine similarity between an update of one cluster and an update of the other (alpha_cross)."
            " In a step where it is below the threshold, the smaller cluster is excluded"
            + ("; the numbers count those clients." if removals else ". That never happened in this run."),
            keys="removals" if removals else "",
            full=not lines,
        )
    if groups and record.history:
        mosaic, size = _mosaic(record, clients, groups, ledger)
        binned = (
            f" One column stands for {size} steps; a cell split in two holds both accepted updates and others."
            if size > 1
            else ""
        )
        yield Picture(
            figures.contributions(
                mosaic,
                key=f"{anchor}-weights",
                label=f"Who contributed when: {plural(len(clients), 'client')} by steps. Removals: {words}.",
            ),
            "Who contributed when",
            f"Each row is a client, each column a step; the darker the blue, the more its update weighed.{binned}"
            " The bars on the right sum up each client's share of all weight.",
            keys="mosaic",
            full=True,
        )
    table = _holdings(clients, groups)
    if table is not None:
        yield Picture(
            figures.holdings(
                table,
                key=f"{anchor}-data",
                label=f"Classes and examples held by each of {plural(len(clients), 'client')}.",
            ),
            "Who holds what",
            "Above: how many examples each client truly holds; a tick marks a declared number that differs, an arrow"
            " one far beyond, with the factor where there is room. Below: how many of them are of which class; darker"
            " is more.",
            full=True,
        )


def _mosaic(
    record: "Record", clients: Mapping[int, Mapping[str, Any]], groups: tuple[Group, ...], ledger: Ledger
) -> tuple[Mosaic, int]:
    """The heat map of a run, and how many steps are in one of its columns."""
    order = [client for group in groups for client in group.clients]
    row = {client: index for index, client in enumerate(order)}
    lines = [line for line in record.history if int(line["step"]) > 0] or record.history
    first, last = int(lines[0]["step"]), int(lines[-1]["step"])
    size = max(1, -(-(last - first + 1) // BINS))
    columns = -(-(last - first + 1) // size)
    weight = np.full((len(order), columns), np.nan)
    event = np.full((len(order), columns), NOTHING, np.int8)
    for line in lines:
        column = (int(line["step"]) - first) // size
        for name, verdict in (line.get("verdicts") or {}).items():
            at = row[int(name)], column
            if verdict["accepted"]:
                weight[at] = np.nan_to_num(weight[at]) + (finite(verdict.get("weight")) or 0.0) / size
            else:
                event[at] = max(event[at], REJECTED)
        for kind, code in (("refused", REFUSED), ("lost", LOST)):
            for name in line.get(kind) or {}:
                at = row[int(name)], column
                event[at] = max(event[at], code)
    for client, about in clients.items():
        if removed := about.get("removed"):
            later = np.arange(columns) > (int(removed["step"]) - first) // size
            idle = later & (event[row[client]] == NOTHING) & np.isnan(weight[row[client]])
            event[row[client], idle] = GONE
    edges = [*range(first, last + 1, size), last + 1]
    total = sum(ledger.weight.values()) or 1.0
    share = np.array([ledger.weight[client] / total for client in order])
    return Mosaic(edges, weight, event, share, groups), size


def _holdings(clients: Mapping[int, Mapping[str, Any]], groups: tuple[Group, ...]) -> Holdings | None:
    """The table of who holds what; None if nobody's classes are known."""
    rows = [list(clients[c].get("classes") or ()) for group in groups for c in group.clients]
    length = max(map(len, rows), default=0)
    if not length:
        return None
    return Holdings(
        counts=np.array([row + [0] * (length - len(row)) for row in rows], dtype=np.int64),
        size={c: finite(about.get("size")) for c, about in clients.items()},
        declared={c: finite(about.get("declared")) for c, about in clients.items()},
        groups=groups,
    )


def _facts(records: "Sequence[Record]") -> tuple[str, ...]:
    """What all runs share, for the head of the page."""
    facts = [plural(len(records), "run")]
    data = {
        json.dumps({k: d.get(k) for k in ("name", "train", "test")}) for r in records if (d := r.summary.get("data"))
    }
    if len(data) == 1:
        d = json.loads(data.pop())
        counts = [f"{d[k]:,} {word}" for k, word in (("train", "training"), ("test", "test")) if isinstance(d[k], int)]
        facts.append(f"{d['name']}" + (f": {' and '.join(counts)} examples" if counts else ""))
    counted = {len(_clients(r)) for r in records}
    if len(counted) == 1:
        facts.append(plural(counted.pop(), "client"))
    dimension = {r.summary.get("dimension") for r in records}
    if len(dimension) == 1 and isinstance(d := dimension.pop(), int):
        facts.append(f"{d:,} parameters")
    return tuple(facts)
