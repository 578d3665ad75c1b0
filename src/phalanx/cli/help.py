"""How `--help` reads: the names that can be chosen, and the default, as one would write them."""

import re
from argparse import Action
from typing import Any

from jsonargparse import DefaultHelpFormatter

from phalanx.cli.advice import imported
from phalanx.runs.canonical import configurable

CLASSES = re.compile(
    r"\(type: (?P<type>.+?), default: (?P<default>.+), known subclasses: (?P<names>[^()]+)\)$", re.DOTALL
)
PLAIN = re.compile(r"\(type: (?P<type>.+?), default: (?P<default>.+)\)$", re.DOTALL)


class Help(DefaultHelpFormatter):
    """Names classes by their names, and shows defaults as calls."""

    def _expand_help(self, action: Action) -> str:
        text: str = super()._expand_help(action)
        if found := CLASSES.search(text):
            base = re.findall(r"\w+", found["type"])
            paths = [path.strip() for path in found["names"].split(",")]
            names = (path.rsplit(".", 1)[-1] for path in paths if (kind := imported(path)) and configurable(kind))
            known = ", ".join(dict.fromkeys(name for name in names if name not in base))
            number = "a number, or " if "float" in found["type"] else ""
            choice = f"{number}one of {known}, or the import path of your own"
            return f"{text[: found.start()]}({choice}; default: {_as_call(action, found['default'])})"
        if found := PLAIN.search(text):
            named = re.sub(r"<class '(\w+)'>", r"\1", found["type"])
            return f"{text[: found.start()]}({named}; default: {found['default']})"
        text = re.sub(r"\(required, type: .+\)$", "(required)", text)
        return re.sub(r"Show the help for the given subclass of \w+", "List the options of one of these", text)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" not in text:
            return super()._fill_text(text, width, indent)
        return "".join(indent + line for line in text.splitlines(keepends=True))


def _as_call(action: Action, shown: str) -> str:
    default = action.default
    return call(default) if isinstance(default, dict) and "class_path" in default else shown


def call(value: Any) -> str:
    """A configured class as one would write it in Python: `FedAvg(aggregate=Mean(), server_lr=1.0)`."""
    if not (isinstance(value, dict) and "class_path" in value):
        return repr(value)
    arguments = ", ".join(f"{name}={call(argument)}" for name, argument in value.get("init_args", {}).items())
    return f"{value['class_path'].rsplit('.', 1)[-1]}({arguments})"
