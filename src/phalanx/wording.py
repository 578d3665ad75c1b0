"""Numbers in sentences."""


def plural(count: int, noun: str) -> str:
    """The count with its noun: "1 client", "2 clients"."""
    return f"{count} {noun}" + ("" if count == 1 else "s")
