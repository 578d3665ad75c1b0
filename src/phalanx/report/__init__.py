"""Run records in, one self-contained HTML page out: `write(records, Path("report.html"), "Digits under attack")`."""

from phalanx.report.page import render, write

__all__ = ["render", "write"]
