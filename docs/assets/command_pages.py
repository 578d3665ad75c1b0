"""The pages of commands: what each does, its options, and an example with its output when the site was built.

Options come from the parsers, examples from `command_examples.txt`.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from api_examples import ROOT, kept

EXAMPLES = Path(__file__).with_name("command_examples.txt")
FILES = ("examples/study.yaml", "examples/sizes.csv", "docs/tutorials/heart/cleveland.csv")
MOST = 30  # lines of an output that are shown
WIDTH = 88
HEAD = """# Commands

`phalanx COMMAND --help` lists what the pages of commands list. Options of classes, such as `--attack.std`, are the
fields on the class's page of the API. Outputs are those of the machine that built this page.

| exit status | |
| --- | --- |
| 0 | the command did what it should |
| 1 | a run failed, or what was checked does not hold |
| 2 | it could not begin: a mistake in the command, or something that it needs is missing |
| 130 | it was stopped, as by Ctrl-C |

| environment | |
| --- | --- |
| `PHALANX_DATA` | the folder of data sets, which then are not downloaded |
| `PHALANX_DEBUG=1` | an error shows where in the program it comes from |

"""


def examples() -> dict[str, list[str]]:
    """Return the lines of the example of each command."""
    parts = EXAMPLES.read_text().split("\n# ")[1:]
    return {name: lines.splitlines() for name, _, lines in (part.strip().partition("\n") for part in parts)}


def parsers() -> Iterator[tuple[str, str, Any]]:
    """Yield name, description and parser of each command; a group of commands has no parser."""
    from phalanx.cli.flower_options import flower
    from phalanx.cli.main import COMMANDS, GROUPS
    from phalanx.cli.options import partition_form, run_form

    forms = {"run": run_form, "partition": partition_form}
    for name, command in COMMANDS.items():
        yield name, command.description, forms.get(name, command.parser)()
    for group, (description, commands) in GROUPS.items():
        yield group, description, None
        for name, command in commands.items():
            parser = flower(name) if group == "flower" else command.parser()
            yield f"{group} {name}", command.description, parser


def pages() -> dict[str, str]:
    """Return the pages of commands in Markdown: an overview, and one for each command or group of commands."""
    outputs = kept("commands", performed, Path(__file__), EXAMPLES, *(ROOT / file for file in FILES))
    found = {"commands/README.md": HEAD}
    for name, description, parser in parsers():
        group, _, inner = name.partition(" ")
        place = f"commands/{group}.md"
        if not inner:
            found["commands/README.md"] += f"- [phalanx {name}]({group}.md): {description}\n"
            found[place] = f"# phalanx {name}\n\n{description}\n"
        else:
            found[place] += f"\n## phalanx {name}\n\n{description}\n"
        if shown := outputs.get(name):
            found[place] += f"\n```text\n{shown}\n```\n" if shown[0] == "$" else f"\n[An example]({shown})\n"
        if parser is not None:
            found[place] += "\n".join(["", "Options:", "", *_options(parser), ""])
    return found


def _options(parser: Any) -> Iterator[str]:
    """Yield the options of a parser as lists, by group."""
    page, title = parser.page, ""
    for entry in sorted(page["entries"], key=lambda entry: entry["group"] != ""):
        if entry["group"] != title:
            title = entry["group"]
            yield f"\n{title.rstrip('.')}:\n"
        value = entry["metavar"] or entry["names"][-1].lstrip("-").upper()
        given = "" if entry["nargs"] in (0, "?") or not entry["names"][0].startswith("-") else f" {value}"
        text = str(entry["help"])
        with contextlib.suppress(KeyError, TypeError, ValueError):
            action = next((a for a in parser._actions if entry["names"][0] in (*a.option_strings, a.dest)), None)
            text = text % {"default": getattr(action, "default", None), "prog": parser.prog}
        yield f"- `{', '.join(entry['names'])}{given}`: {plain(text)}"
    if page["epilog"]:
        yield f"\n```text\n{page['epilog'].strip()}\n```"


def plain(text: str) -> str:
    """Return help in which Markdown changes nothing, but for what stands in backticks."""
    parts = text.split("`")
    return "`".join(re.sub(r"([<>*_|\[\]])", r"\\\1", part) if k % 2 == 0 else part for k, part in enumerate(parts))


def performed() -> dict[str, str]:
    """Return what a terminal shows of each example; raise if one ends with a mistake in its command."""
    found, keys = dict[str, str](), dict[str, str]()
    environment = os.environ | {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "federation"
        folder.mkdir()
        for file in FILES:
            shutil.copy(ROOT / file, folder)
        for command, lines in examples().items():
            shown = [line.removeprefix("see ") for line in lines if line.startswith("see ")]
            for line in lines[len(shown) :]:
                whole = re.sub(r"\{(\w+)\}", lambda key: keys[key[1]], line)  # noqa: B023  (called at once)
                words = [sys.executable, "-P", "-m", *shlex.split(whole)]
                done = subprocess.run(words, cwd=folder, env=environment, check=False, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
                said = done.stdout.replace(str(folder), "/srv/federation").replace(str(ROOT), "/srv/phalanx")
                if done.returncode not in (0, 1):
                    raise RuntimeError(f"{whole}: {said}")
                keys |= {command.rpartition(" ")[2]: key for key in re.findall(r"ed25519:\S+", said)[:1]}
                rows = [row.rstrip() for row in said.strip("\n").splitlines()]
                if len(rows) > MOST + 1:
                    rows = [*rows[:MOST], f"... and {len(rows) - MOST} more lines"]
                shown += [f"$ {whole}", *rows, ""]
            found[command] = "\n".join(shown).rstrip()
    return found
