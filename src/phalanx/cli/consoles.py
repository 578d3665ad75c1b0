"""The console of commands, and text in it."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table

from phalanx.wording import visible


def plain_console(*, stderr: bool = False) -> Console:
    """Return a console that shows text as it is: no colours for numbers, no pictures for words between colons."""
    return Console(stderr=stderr, highlight=False, emoji=False, force_jupyter=False)


def escape(text: str, *, lines: bool = False) -> str:
    """Return text for tables and lines of `rich`, in which neither markup nor control characters do anything.

    Args:
        text: the text, which may quote a name of somebody else's: a line break in it could forge a line.
        lines: whether line breaks stay as they are.
    """
    return escape_markup(visible(text, lines=lines))


def say(console: Console, *lines: str) -> None:
    """Print lines as they are, without markup, and not broken where the terminal ends."""
    for line in lines:
        console.print(escape(line), soft_wrap=True)


def titled_table(title: str) -> Table:
    """Return a table without columns."""
    return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
