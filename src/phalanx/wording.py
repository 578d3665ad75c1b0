"""Numbers in messages."""


def plural(count: int, noun: str) -> str:
    """Return the count with its noun: "1 client", "2 clients"."""
    return f"{count} {noun}" + ("" if count == 1 else "s")
