"""Tables of text, in the terminal and as Markdown."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table as TerminalTable


class Flat(NamedTuple):
    """A table of text only."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]
    right: list[bool]  # for each column, whether it is right-aligned


# In the terminal


def terminal_table(table: Flat) -> TerminalTable:
    """Return the table for `rich`, without its notes."""
    out = TerminalTable(title=escape(table.title), title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for heading, right in zip(table.columns, table.right, strict=True):
        out.add_column(escape(heading), justify="right" if right else "left", overflow="fold")
    for row in table.rows:
        out.add_row(*map(escape, row))
    return out


# Markdown


def markdown_table(table: Flat) -> str:
    """Return the table with its title and notes."""
    rule = ["---:" if right else "---" for right in table.right]
    lines = [_line(table.columns), "| " + " | ".join(rule) + " |", *map(_line, table.rows)]
    notes = [f"* {note}" for note in table.notes]
    return "\n".join([f"**{table.title}**", "", *lines, *([""] if notes else []), *notes])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
