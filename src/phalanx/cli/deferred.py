"""The parsers of commands whose options are classes, with help from a file: importing the classes takes seconds."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from typing_extensions import override

from phalanx.cli.parser import Options, Parser

STORED = Path(__file__).with_name("help.json")  # written by `python -m phalanx.cli.help_pages`


class Deferred(Parser):
    """The parser of a command with stored help; the parser of its options is made when options are read.

    Args:
        command: name of the command.
        form: makes the parser of its options.
    """

    def __init__(self, command: str, form: Callable[[], Parser]) -> None:
        super().__init__(f"phalanx {command}", "")
        self.command, self.form = command, form

    @override
    def options(self, arguments: Sequence[str]) -> Options:
        """Return the options that the arguments give; exit if they ask for help, or if there is a mistake in them."""
        asked = re.fullmatch(r"--([\w.]+)\.help(?:[ =](\w+))?", " ".join(arguments))
        if asked or {"-h", "--help"}.intersection(arguments):
            pages = json.loads(STORED.read_text(encoding="utf-8"))
            key = " ".join(filter(None, asked.groups())) if asked else ""
            if not asked:
                Parser.of(pages[f"phalanx {self.command}"]).parse_known_args(self.words(arguments))
            elif key in pages:
                print(Parser.of(pages[key]).format_help(), end="")
                self.exit()
        return self.form().options(arguments)
