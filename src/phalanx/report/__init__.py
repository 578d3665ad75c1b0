"""One self-contained HTML page from run records: `write(records, Path("report.html"), "Digits under attack")`."""

from phalanx.report.page import render, write

__all__ = ["render", "write"]
