"""Numbers and given texts in messages."""

import re
from decimal import ROUND_CEILING, Context
from typing import Any


def plural(count: int, noun: str) -> str:
    """Return the count with its noun: "1 client", "2 clients"."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def percent(share: Any) -> str:
    """Return a share in percent, such as "12.5 %", or a dash for None."""
    return "-" if share is None else f"{100 * share:.1f} %"


def at_most(bound: float) -> str:
    """Return an upper bound with three digits, rounded up: "0.235" for 0.2341; a rounding error of 1e-9 is none."""
    return f"{Context(prec=3, rounding=ROUND_CEILING).create_decimal(f'{bound:.9g}'):g}"


def visible(text: str, *, lines: bool = False) -> str:
    """Return text from outside with escapes such as `\\x1b` for what a terminal does not print.

    These are control characters, which can move the cursor or forge a line of a log, and invisible ones such as those
    that change the direction of the text that follows.

    Args:
        text: the text.
        lines: whether line breaks stay as they are.
    """
    if lines:
        return "\n".join(map(visible, text.split("\n")))
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


LONGEST_LINE = 4_000  # characters of a line of a message, which may quote a file of any text


# Characters that no font shows: control characters but for line breaks, and those that change the direction of text.
HIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")


def readable(page: str) -> str:
    """Return a page with escapes in place of characters that are not seen, but change what is; lines stay."""
    return HIDDEN.sub(lambda found: visible(found[0]), page)


def shown(text: str, most: int = 60) -> str:
    """Return text of unknown origin as a message can hold it: on one line, without control characters, not too long."""
    plain = visible(text[: most + 1])
    return plain if len(plain) <= most else plain[: most - 1] + "…"


def is_path(text: str) -> bool:
    """Return whether a text can name a file: it is not empty, and a terminal and a file of UTF-8 can hold it."""
    return bool(text) and "\0" not in text and text.isprintable()
