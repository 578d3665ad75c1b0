"""The help of commands whose options are classes, stored in `help.json`: to import the classes takes seconds.

    python -m phalanx.cli.help_pages        # writes help.json

A test compares the file with what the classes give.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from phalanx.cli.parser import Options, Parser

STORED = Path(__file__).with_name("help.json")
HELP = ".help"


class Deferred(Parser):
    """The parser of a command with stored help; the parser of its options is made when options are read.

    Args:
        command: name of the command.
        form: makes the parser of its options.
    """

    def __init__(self, command: str, form: Callable[[], Parser]) -> None:
        super().__init__(f"phalanx {command}", "")
        self.command, self.form = command, form

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


def parsers() -> Iterator[tuple[str, Parser]]:
    """Yield each page's name, and a parser with its help: of a command, an option, or an option and a class."""
    from phalanx.cli import advice, options  # noqa: PLC0415  (slow to import)
    from phalanx.cli.configuration import Chosen, Draft, Text, by_default, has_class, is_group, parameters, sole  # noqa: PLC0415
    from phalanx.cli.help import class_help  # noqa: PLC0415
    from phalanx.runs.plan import Run  # noqa: PLC0415

    yield "phalanx run", options.run_form()
    yield "phalanx partition", options.partition_form()
    waiting = list(parameters(Run))
    while waiting:
        path = waiting.pop(0)
        kind, now = Draft(Run).at(path)
        if not has_class(kind):
            continue
        yield path, class_help(path, kind, now if is_group(kind) else None)
        for name in advice.choices(kind):
            draft = Draft(Run)
            draft.set(path, Text(name))
            yield f"{path} {name}", class_help(path, *draft.at(path))
        value = now if isinstance(now, Chosen) else by_default(only) if (only := sole(kind)) else None
        waiting += [f"{path}.{name}" for name in parameters(value.kind)] if value else []


def generated() -> dict[str, Any]:
    """Return all pages, by name."""
    return {name: parser.page for name, parser in sorted(parsers(), key=lambda pair: pair[0])}


if __name__ == "__main__":
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(page)}" for name, page in generated().items())
    STORED.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    sys.stdout.write(f"{STORED} is written.\n")
