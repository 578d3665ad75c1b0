"""Tables of comparisons as text and as CSV."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from phalanx.experiments.papers.comparison import ComparedCell, Table
from phalanx.experiments.shown.text import Flat
from phalanx.wording import plural

NUMERIC = ("ours", "best", "published", "difference")  # headings of right-aligned columns


def flat(table: Table) -> Flat:
    """Return the table as text: a single column of comparisons as several, more of them each as one."""
    compared = _compared(table)
    if len(compared) == 1:
        columns, rows, right = _expanded(table, compared[0])
        return Flat(table.title, columns, rows, [*table.notes, *_legend(table)], right)
    rows = [[_brief(cell) for cell in row] for row in table.rows]
    notes = [*table.notes, *_remarks(table), *_legend(table)]
    return Flat(table.title, list(table.columns), rows, notes, [c in compared for c in range(len(table.columns))])


def _compared(table: Table) -> list[int]:
    """Return the columns that hold comparisons."""
    return [c for c in range(len(table.columns)) if any(isinstance(row[c], ComparedCell) for row in table.rows)]


def _expanded(table: Table, c: int) -> tuple[list[str], list[list[str]], list[bool]]:
    """Return headings and rows with the comparisons of column c in parts, without parts that no row has."""
    parts = [_parts(row[c]) for row in table.rows]
    names = [name for name in PARTS if name == "ours" or any(part[name] for part in parts)]
    shown = {"ours": f"{table.columns[c]}: ours"}
    before, after = list(table.columns[:c]), list(table.columns[c + 1 :])
    columns = [*before, *(shown.get(name, name) for name in names), *after]
    rows = [
        [*map(str, row[:c]), *(part[name] for name in names), *map(str, row[c + 1 :])]
        for row, part in zip(table.rows, parts, strict=True)
    ]
    return columns, rows, [*(False for _ in before), *(name in NUMERIC for name in names), *(False for _ in after)]


PARTS = ("ours", "best", "published", "difference", "remark")


def _parts(cell: str | ComparedCell) -> dict[str, str]:
    """Return the parts of a comparison as text; a cell of text is the first part."""
    if isinstance(cell, str):
        return dict.fromkeys(PARTS, "") | {"ours": cell}
    best = cell.best.text(cell.decimals) if cell.best is not None and cell.best.n else ""
    published = cell.published.text if cell.published else ""
    return dict(zip(PARTS, (cell.text, best, published, _difference(cell), cell.remark), strict=True))


def _difference(cell: ComparedCell) -> str:
    """Return the difference, such as `-4.2 lower`."""
    if cell.difference is None:
        return ""
    return " ".join(filter(None, (f"{cell.difference:+.{cell.decimals}f}", cell.verdict)))


def _brief(cell: str | ComparedCell) -> str:
    """Return the comparison in one cell, such as `84.1 ± 0.3 (88.3, -4.2 lower)`."""
    if isinstance(cell, str):
        return cell
    inner = ", ".join(filter(None, (cell.published.text if cell.published else "", _difference(cell))))
    return f"{cell.text} ({inner})" if inner else cell.text


def _remarks(table: Table) -> list[str]:
    """Return the remarks of comparisons, each with the labels of its row and its column."""
    out = []
    for row in table.rows:
        labels = [cell for cell in row if isinstance(cell, str) and cell]
        for heading, cell in zip(table.columns, row, strict=True):
            if isinstance(cell, ComparedCell) and cell.remark:
                out.append(f"{', '.join([*labels, heading])}: {cell.remark}")
    return out


def _legend(table: Table) -> list[str]:
    """Return the meaning of the numbers, and the sources of the published ones."""
    cells = [cell for row in table.rows for cell in row if isinstance(cell, ComparedCell)]
    counts = sorted({cell.ours.n for cell in cells if cell.ours.n})
    if not counts:
        return []
    many = counts[-1] > 1
    seeds = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else plural(counts[0], "seed")
    ours = f"Ours: {'mean ± half of its 95 % interval' if many else 'the value'} over {seeds}"
    best = any(cell.best is not None and cell.best.n for cell in cells) and len(_compared(table)) == 1
    out = [ours + (", at the end of training; best: at each run's best evaluation." if best else ".")]
    if len(_compared(table)) > 1 and any(cell.published for cell in cells):
        out.append("In brackets: the published number, and ours minus that.")
    if any(cell.difference is not None for cell in cells):
        out.append('"higher" and "lower": our 95 % interval excludes the published number. One seed has none.')
    published = [cell.published for cell in cells if cell.published is not None]
    return out + [f"Published: {source}" for source in dict.fromkeys(of.source for of in published if of.where)]


# CSV

NUMBERS = ("mean", "sd", "half", "n", "failed", "best", "best sd", "published", "published sd", "difference", "verdict")
TEXTS = ("remark", "source")


def csv_text(tables: Sequence[Table]) -> str:
    """Return all tables, one line per row, with the title of its table first and each number in a column of its own.

    A single column of comparisons gives columns "mean", "sd", ...; several give "HEADING: mean", ... each.  Cells that
    a table does not have are empty.
    """
    lines = [line for table in tables for line in _lines(table)]
    columns = list(dict.fromkeys(name for line in lines for name in line))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _lines(table: Table) -> Iterable[dict[str, Any]]:
    compared = _compared(table)
    for row in table.rows:
        line: dict[str, Any] = {"table": table.title}
        for c, (heading, cell) in enumerate(zip(table.columns, row, strict=True)):
            if c not in compared:
                line[heading] = cell
                continue
            if len(compared) == 1:
                line["what"] = heading
            before = "" if len(compared) == 1 else f"{heading}: "
            line |= {before + name: value for name, value in _values(cell).items()}
        yield line


def _values(cell: str | ComparedCell) -> Mapping[str, Any]:
    """Return all numbers of a comparison, None if it has none; a text is a remark."""
    if isinstance(cell, str):
        return dict.fromkeys((*NUMBERS, *TEXTS)) | {"remark": cell}
    published, best = cell.published, cell.best
    ours = (cell.ours.mean, cell.ours.deviation, cell.ours.half, cell.ours.n, cell.failed)
    at_best = (best.mean, best.deviation) if best else (None, None)
    theirs = (published.value, published.deviation) if published else (None, None)
    texts = (cell.remark, published.source if published else "")
    values = (*ours, *at_best, *theirs, cell.difference, cell.verdict, *texts)
    return dict(zip((*NUMBERS, *TEXTS), values, strict=True))
