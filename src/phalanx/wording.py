"""Numbers in messages."""

from typing import Any


def plural(count: int, noun: str) -> str:
    """Return the count with its noun: "1 client", "2 clients"."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def percent(share: Any) -> str:
    """Return a share in percent, such as "12.5 %", or a dash for None."""
    return "-" if share is None else f"{100 * share:.1f} %"
