"""The generator of the stored help.

    python -m phalanx.cli.help_pages        # writes help.json

A test compares the file with what the classes give.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

from phalanx.cli import advice, options
from phalanx.cli.configuration import ChosenClass, Draft, Text, by_default, has_class, is_group, only_class, parameters
from phalanx.cli.deferred import STORED
from phalanx.cli.help import class_help
from phalanx.cli.parser import Parser
from phalanx.runs.plan import Run


def parsers() -> Iterator[tuple[str, Parser]]:
    """Yield each page's name, and a parser with its help: of a command, an option, or an option and a class."""
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
        value = now if isinstance(now, ChosenClass) else by_default(only) if (only := only_class(kind)) else None
        waiting += [f"{path}.{name}" for name in parameters(value.kind)] if value else []


def generated() -> dict[str, Any]:
    """Return all pages, by name."""
    return {name: parser.page for name, parser in sorted(parsers(), key=lambda pair: pair[0])}


if __name__ == "__main__":
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(page)}" for name, page in generated().items())
    STORED.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    sys.stdout.write(f"{STORED} is written.\n")
