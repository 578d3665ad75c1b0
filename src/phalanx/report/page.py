"""One HTML page from run records, without other files: no network, no fonts, and readable without scripts.

All text that a client could have written (reasons, names) reaches the page through Jinja's escaping, and a content
security policy in the page forbids any script but its own.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.report import lateness
from phalanx.report.client_ledger import ClientLedger, attacked
from phalanx.report.figures import accuracy
from phalanx.report.figures.drawing import MARKERS, Style
from phalanx.report.names import distinct
from phalanx.report.page_tables import Cell, columns
from phalanx.report.run import section
from phalanx.report.speed import speed
from phalanx.report.words import NONE, clock, ids
from phalanx.runs.files import write as write_file
from phalanx.runs.files import write_inside
from phalanx.runs.record import REPORT
from phalanx.wording import plural, readable

if TYPE_CHECKING:
    import jinja2

    from phalanx.runs.record import Record

OPEN = 2  # reports of up to this number of runs show every run unfolded

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


def write(records: "Sequence[Record]", path: Path, title: str) -> Path:
    """Write the report of some runs, whole or not at all.

    Args:
        records: the runs, at least one, in the order of the report.
        path: the file to make or replace, whose missing folders are made; or the folder of a run, in which it is
            `report.html`.
        title: of the page.

    Returns:
        The file.

    Raises:
        ValueError: there are no records, or a link leads out of the folder.
        OSError: the file cannot be written.
    """
    text = render(records, title)
    if not path.is_dir():
        return put(text, path)
    write_inside(path, REPORT, text.encode())
    return path / REPORT


def put(text: str, path: Path) -> Path:
    """Write the text of a page, whole or not at all, and return its path; missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, text.encode())
    return path


def render(records: "Sequence[Record]", title: str) -> str:
    """Return the report of some runs as the text of one HTML file.  The same records give the same text.

    Args:
        records: the runs, at least one, in the order of the report.
        title: of the page.

    Raises:
        ValueError: there are no records.
    """
    if not records:
        raise ValueError("A report needs at least one run record, got none.")
    records = distinct(records)
    looks, ledgers = styles(records), [ClientLedger(record) for record in records]
    runs = [
        section(ledger, look, records, f"run-{number}")
        for number, (ledger, look) in enumerate(zip(ledgers, looks, strict=True), 1)
    ]
    return filled(
        files("phalanx.report").joinpath("template.html").read_text(encoding="utf-8"),
        title=title,
        facts=_facts(ledgers),
        runs=runs,
        pictures=accuracy.pictures(records, looks),
        speed=speed(records),
        late_columns=lateness.COLUMNS,
        absent=Cell(NONE),
        columns=columns([run.row for run in runs], clock(record.config for record in records)),
        unfolded=len(runs) <= OPEN,
        version=records[0].summary.provenance.phalanx or "",
    )


def filled(template: str, **values: object) -> str:
    """Return a template of Jinja with these values, and those that all pages have: style, script, policy, dash."""
    from markupsafe import Markup  # noqa: PLC0415

    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    page = _compiled(template).render(
        dash=NONE,
        style=Markup(files("phalanx.report").joinpath("style.css").read_text(encoding="utf-8")),
        script=Markup(SCRIPT),  # a constant of this file
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'",
        **values,
    )
    return readable(page)


@cache
def _compiled(template: str) -> "jinja2.Template":
    import jinja2  # noqa: PLC0415
    from markupsafe import Markup  # noqa: PLC0415

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["ids"] = ids
    environment.filters["svg"] = Markup
    return environment.from_string(template)


def styles(records: "Sequence[Record]") -> list[Style]:
    """Return a colour for each algorithm and a dash for each attack; or one style per run if these are ambiguous."""
    algorithms = [json.dumps(record.config.get("algorithm"), sort_keys=True, default=str) for record in records]
    pairs = [(algorithm, attacked(record)) for algorithm, record in zip(algorithms, records, strict=True)]
    order = list(dict.fromkeys(algorithms))
    distinct = len(set(pairs)) == len(pairs)
    return [Style((order.index(a) if distinct else i) % len(MARKERS), dashed) for i, (a, dashed) in enumerate(pairs)]


def _facts(ledgers: Sequence[ClientLedger]) -> tuple[str, ...]:
    """Return the common facts of all runs, for the head of the page."""
    records = [ledger.record for ledger in ledgers]
    facts = [plural(len(records), "run")]
    data = {(d.name, d.train, d.test) for record in records if (d := record.summary.data)}
    if len(data) == 1:
        name, train, test = data.pop()
        facts.append(f"{name}: {train:,} training and {test:,} test examples")
    counted = {len(ledger.clients) for ledger in ledgers}
    if len(counted) == 1:
        facts.append(plural(counted.pop(), "client"))
    dimensions = {record.summary.dimension for record in records}
    if len(dimensions) == 1:
        facts.append(f"{dimensions.pop():,} parameters")
    return tuple(facts)
