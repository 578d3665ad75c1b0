"""The console of commands."""

from rich.console import Console


def plain_console(*, stderr: bool = False) -> Console:
    """Return a console that shows text as it is: no colours for numbers, no pictures for words between colons."""
    return Console(stderr=stderr, highlight=False, emoji=False, force_jupyter=False)
