"""The parser of a command whose options are the fields of dataclasses, and of the classes that can be chosen for them.

Only what the defaults have is known beforehand.  Options of a class that is chosen, such as `--attack.std`, are added
when the arguments name them, and looked at when the class is known.
"""

from argparse import SUPPRESS, Action, ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from typing_extensions import override

from phalanx.cli import advice
from phalanx.cli.configuration import (
    ChosenClass,
    ConfigurationError,
    Draft,
    Parameter,
    Text,
    has_class,
    is_group,
    parameters,
)
from phalanx.cli.help import class_help, documentation, option_help, placeholder, sentence
from phalanx.cli.parser import Options, Parser
from phalanx.wording import is_path, shown

FILE, HELP, PRINT = "config", ".help", "print_config"


class _Given(Action):
    """Note what was given, in the order of the arguments."""

    @override
    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None
    ) -> None:
        namespace.given.append((self.dest, values))


class Form(Parser):
    """A parser that makes values of dataclasses.

    Args:
        prog: the command.
        description: what the command does.
        roots: the dataclasses.
        hidden: names of options that a configuration file can hold, but that the help does not show.
        options: further arguments of `argparse.ArgumentParser`.
    """

    def __init__(self, prog: str, description: str, *roots: type, hidden: Sequence[str] = (), **options: Any) -> None:
        super().__init__(prog, description, **options)
        self.draft, self.hidden = Draft(*roots), hidden
        self.objects = set[str]()  # names of options whose value can have options of its own
        self.groups = set[str]()
        help_ = "A YAML file with any of the options. Later options override it."
        self.add_argument(f"--{FILE}", action=_Given, metavar="FILE", help=help_)
        help_ = "Print all options as such a file, and exit."
        self.add_argument(f"--{PRINT}", action="store_true", help=help_)
        for root in roots:
            summary, texts = documentation(root)
            group = self.add_argument_group(summary.rstrip("."))
            taken = parameters(root)
            for name in [n for n in taken if not is_group(taken[n].kind)]:
                self._add(group, name, taken[name], texts.get(name, ""))
            for name in [n for n in taken if is_group(taken[n].kind)]:
                self._add_group(name, taken[name], texts.get(name, ""))

    def _add(self, group: Any, name: str, parameter: Parameter, text: str) -> None:
        if has_class(parameter.kind):
            self.objects.add(name)
        flag = {"nargs": "?", "const": "true"} if parameter.kind is bool and "." not in name else {}
        help_ = SUPPRESS if name in self.hidden else sentence(text) if flag else option_help(name, text, parameter)
        metavar = placeholder(name, parameter.kind)
        self.add_to_group(group, f"--{name}", action=_Given, metavar=metavar, help=help_, **flag)

    def _add_group(self, name: str, parameter: Parameter, text: str) -> None:
        self.groups.add(name)
        group = self.add_argument_group(sentence(text).rstrip("."))
        help_ = "A YAML file with these options."
        self.add_to_group(group, f"--{name}", action=_Given, metavar="FILE", help=help_)
        _, texts = documentation(parameter.kind)
        for inner, its in parameters(parameter.kind).items():
            default = getattr(parameter.default, inner, its.default)
            self._add(group, f"{name}.{inner}", its._replace(default=default), texts.get(inner, ""))

    @override
    def options(self, arguments: Sequence[str]) -> Options:
        """Return the options that are no fields, and as `draft` those that are; exit if there is a mistake in them."""
        arguments = self.words(arguments)
        for name in dict.fromkeys(self._further(arguments)):
            self.add_argument(f"--{name}", action=_Given, help=SUPPRESS, nargs="?" if name.endswith(HELP) else None)
        options, rest = self.parse_known_args(arguments, Options(given=[]))
        if rest:
            given = next((word for word in rest if word.startswith("-")), rest[0])
            known = [name for part in self.draft.parts.values() for name in _names(part)]
            self.error(advice.unknown_option(given.split("=")[0], self.shown, known))
        try:
            for name, value in options.given:
                self._take(name, value)
            self.draft.check()
        except ConfigurationError as error:
            self.error(str(error))
        if options[PRINT]:
            print(yaml.safe_dump(self.draft.config(), sort_keys=False), end="")
            self.exit()
        options.draft = self.draft
        return options

    def _further(self, arguments: Sequence[str]) -> Iterator[str]:
        """Yield the options that the arguments name, and that may be those of a class."""
        for argument in arguments:
            name = argument.removeprefix("--").split("=")[0]
            if not argument.startswith("--") or f"--{name}" in self.shown:
                continue
            steps = name.split(".")
            within = {".".join(steps[:k]) for k in range(1, len(steps))}
            if within & self.objects or (name.endswith(HELP) and name.removesuffix(HELP) in self.groups):
                yield name

    def _take(self, name: str, value: str) -> None:
        if name == FILE and not is_path(value):
            raise ConfigurationError(f"{FILE} must be the path of a file, got {shown(value) or 'nothing'}.")
        if name == FILE:
            self.draft.load(Path(value))
        elif name.endswith(HELP):
            path = name.removesuffix(HELP)
            if value is not None:
                self.draft.set(path, Text(value))
            kind, now = self.draft.at(path)
            print(class_help(path, kind, now if value is not None or is_group(kind) else None).format_help(), end="")
            self.exit()
        else:
            self.draft.set(name, Text(value))


def _names(part: ChosenClass, before: str = "") -> Iterator[str]:
    """Yield the names of all options of a class and of the classes in it."""
    for name in parameters(part.kind):
        yield before + name
        if isinstance(inner := part.values.get(name), ChosenClass):
            yield from _names(inner, f"{before}{name}.")
