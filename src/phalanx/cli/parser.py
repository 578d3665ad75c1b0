"""The parser of one command: `argparse` with sentences for errors."""

import re
from argparse import SUPPRESS, Action, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from typing_extensions import override

from phalanx.cli import advice
from phalanx.wording import is_path, shown

KINDS = {"int": "an integer", "float": "a number", "path": "a path"}  # argparse's names of types, and readable ones


class Options(Namespace):
    """The values of a command's options, as attributes and as items."""

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of an option, or `default` if the command has no such option."""
        return getattr(self, name, default)


class Parser(ArgumentParser):
    """Ends with one sentence and exit status 2 where `argparse` prints the whole usage.

    Args:
        prog: the command, as in `phalanx report`.
        description: what the command does.
        missing: what to say if a value that is needed is not given; made from its name if this is empty.
        options: further arguments of `argparse.ArgumentParser`.
    """

    def __init__(self, prog: str, description: str, missing: str = "", **options: Any) -> None:
        self.shown: list[str] = []  # the options that an error message may suggest
        self.entries: list[dict[str, Any]] = []  # what the help lists
        self.missing = missing
        super().__init__(
            prog, description=description, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False, **options
        )

    @override
    def add_argument(self, *names: Any, **options: Any) -> Action:
        """Add an option as `argparse` does."""
        return self._noted(super().add_argument(*names, **options))

    def add_to_group(self, group: Any, *names: str, **options: Any) -> Action:
        """Add an option to a group of this parser."""
        return self._noted(group.add_argument(*names, **options), group.title)

    def _noted(self, action: Action, group: str = "") -> Action:
        if action.help != SUPPRESS:
            self.shown += [name for name in action.option_strings if name.startswith("--")]
            names = action.option_strings or [action.dest]
            self.entries.append(
                {"group": group, "names": names, "nargs": action.nargs, "metavar": action.metavar, "help": action.help}
            )
        return action

    def flag(self, name: str, help_: str) -> None:
        """Add an option without a value, which is false if it is not given."""
        self.add_argument(name, action="store_true", help=help_)

    @property
    def page(self) -> dict[str, Any]:
        """Its help, in JSON."""
        entries = [entry for entry in self.entries if "--help" not in entry["names"]]
        head = {"prog": self.prog, "description": self.description, "usage": self.usage, "epilog": self.epilog}
        return {**head, "add_help": self.add_help, "entries": entries}

    @staticmethod
    def of(page: Mapping[str, Any]) -> "Parser":
        """Return a parser with the same help; it takes the same options, as text."""
        usage = SUPPRESS if page["usage"] == SUPPRESS else page["usage"]  # argparse compares by `is`
        head = {name: page[name] for name in ("prog", "description", "epilog", "add_help")}
        parser, groups = Parser(**head, usage=usage), dict[str, Any]()
        for entry in page["entries"]:
            title = entry["group"]
            if title and title not in groups:
                groups[title] = parser.add_argument_group(title)
            options: dict[str, Any] = {"help": entry["help"]}
            options |= {"action": "store_true"} if entry["nargs"] == 0 else {n: entry[n] for n in ("nargs", "metavar")}
            add: Callable[..., Action] = partial(parser.add_to_group, groups[title]) if title else parser.add_argument
            add(*entry["names"], **options)
        return parser

    def options(self, arguments: Sequence[str]) -> Options:
        """Return the options that the arguments give; exit if there is a mistake in them."""
        options, rest = self.parse_known_args(self.words(arguments), Options())
        if rest:
            given = next((word for word in rest if word.startswith("-")), rest[0])
            self.error(advice.unknown_option(given.split("=")[0], self.shown))
        return options

    def words(self, arguments: Sequence[str]) -> list[str]:
        """Return the arguments as argparse understands them; exit where it would not, at `--option=--`."""
        if empty := [word for word in arguments if word.startswith("--") and word.endswith("=--")]:
            self.error(f"{shown(empty[0].removesuffix('=--'))} needs a value.")
        return joined(arguments)

    @override
    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where the help is, and exit with status 2."""
        self.exit(2, f"{self.prog}: {self._rephrased(message)}\nSee: {self.prog} --help\n")

    def _rephrased(self, message: str) -> str:
        """Return a message of argparse in the words of this library; any other message as it is."""
        if found := re.fullmatch(
            r"argument (?:--)?([\w.]+)\S*: invalid (\w+) value: (['\"])(.*)\3", message, re.DOTALL
        ):
            return f"{found[1]} must be {KINDS[found[2]]}, got {shown(found[4]) or 'nothing'}."
        if found := re.fullmatch(r"argument (\S+): ignored explicit argument (['\"])(.*)\2", message, re.DOTALL):
            return f"{found[1].split('/')[0]} takes no value, got {shown(found[3]) or 'nothing'}."
        if found := re.fullmatch(r"argument (\S+): expected (?:at least )?one argument", message):
            return f"{found[1].split('/')[0]} needs a value."
        if found := re.fullmatch(r"the following arguments are required: (.*)", message):
            words = " ".join(name if name.startswith("-") else name.upper() for name in found[1].split(", "))
            needed = (action for action in self._actions if action.required or not action.option_strings)
            whole = " ".join(map(_with_value, sorted(needed, key=lambda action: bool(action.option_strings))))
            return self.missing or f"Give {words} as well, as in `{self.prog} {whole or words}`."
        return message


def _with_value(action: Action) -> str:
    """Return an argument as it is typed, with a word for its value."""
    value = str(action.metavar or action.dest).upper()
    return " ".join([*action.option_strings[:1], value])


def path(text: str) -> Path:
    """Return the path that an option gives; raise `ValueError` if it is empty, or no text that a terminal shows."""
    if not is_path(text):
        raise ValueError
    return Path(text)


def joined(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `--option -1e-3` as `--option=-1e-3`: argparse takes such a number for an option."""
    out = list[str]()
    for argument in arguments:
        if out and re.fullmatch(r"--[^=\s]+", out[-1]) and argument.startswith("-") and is_float(argument):
            out[-1] += f"={argument}"
        else:
            out.append(argument)
    return out


def is_float(text: str) -> bool:
    """Return whether a text is a number as Python reads it."""
    try:
        float(text)
    except ValueError:
        return False
    return True
