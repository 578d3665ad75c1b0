"""The help of options that are fields of classes: the docstring, the possible values, and the default."""

import inspect
import re
import typing
from argparse import SUPPRESS
from functools import cache
from typing import Any, Literal

from phalanx.cli import advice
from phalanx.cli.configuration import ChosenClass, Parameter, by_default, made, only_class, parameters
from phalanx.cli.parser import Parser
from phalanx.fields import PLAIN, bare, described, members, range_of


@cache
def documentation(kind: type) -> tuple[str, dict[str, str]]:
    """Return the first sentence of a class's docstring, and what it and its bases say of arguments."""
    texts = dict[str, str]()
    for base in reversed(kind.__mro__):
        texts |= _arguments(inspect.cleandoc(base.__doc__ or ""))
    summary = inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0]
    return " ".join(summary.split()), texts


def _arguments(text: str) -> dict[str, str]:
    """Return what the section `Args:` of a docstring says, by argument."""
    if not (section := re.search(r"^Args:\n((?: .*\n?|\n)+)", text, re.MULTILINE)):
        return {}
    found = re.findall(r"^ {4}(\w+):((?:.*\n?)(?: {5,}.*\n?)*)", section[1], re.MULTILINE)
    return {name: " ".join(said.split()) for name, said in found}


def option_help(path: str, text: str, parameter: Parameter) -> str:
    """Return the help of one option: what it does, what can be given, the default."""
    words = ", or ".join(_kinds(path, parameter))
    default = "required" if parameter.default is inspect.Parameter.empty else f"default: {_shown(parameter.default)}"
    return f"{sentence(text)} ({words}{'; ' if words else ''}{default})".strip().replace("%", "%%")


def sentence(text: str) -> str:
    """Return the text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


def _shown(default: Any) -> str:
    if isinstance(default, str):
        return default
    if isinstance(default, float):
        return f"{default:g}"
    if default is None:
        return "null"
    return repr(default).lower() if isinstance(default, bool) else repr(default)


def _kinds(path: str, parameter: Parameter) -> list[str]:
    """Return in words what can be given, with ranges; nothing where the placeholder shows it."""
    kind, full = parameter.kind, parameter.declared or members(parameter.kind)
    numbers = {int, float}.issubset(map(bare, full)) and not any(map(range_of, full))
    plain = [k for k in full if bare(k) in PLAIN and k is not type(None) and not (numbers and k is int)]
    words = [described(k) for k in plain]
    if names := advice.choices(kind):
        words.append(f"one of {', '.join(names)}, or the import path of your own")
    elif only_class(kind) is not None:
        words.append(f"given by its options, which --{path}.help lists")
    return words


def placeholder(name: str, kind: Any) -> str:
    """Return how the help writes the value of an option: its choices, or the name in capitals."""
    listed = [choice for k in members(kind) if typing.get_origin(k) is Literal for choice in typing.get_args(k)]
    only = all(typing.get_origin(k) is Literal or k is type(None) for k in members(kind))
    return "{" + ",".join(map(str, listed)) + "}" if listed and only else name.rpartition(".")[2].upper()


def class_help(path: str, kind: Any, value: Any) -> Parser:
    """Return a parser with the help of a class that an option has chosen, or of all that can be chosen.

    Args:
        path: of the option.
        kind: its declared type.
        value: what has been chosen; all are listed if it is no class.
    """
    if not isinstance(value, ChosenClass):
        value = by_default(only) if (only := only_class(kind)) is not None else None
    if value is None:
        return _choices_help(path, kind)
    summary, texts = documentation(value.kind)
    empty = "" if (taken := parameters(value.kind)) else "It has no options."
    parser = Parser("", f"{value.kind.__name__}: {summary}", usage=SUPPRESS, add_help=False, epilog=empty)
    group = parser.add_argument_group("options")
    for name, parameter in taken.items():
        shown = parameter if name not in value.values else parameter._replace(default=made(value.values[name]))
        help_ = option_help(f"{path}.{name}", texts.get(name, ""), shown)
        parser.add_to_group(group, f"--{path}.{name}", metavar=placeholder(name, parameter.kind), help=help_)
    return parser


def _choices_help(path: str, kind: Any) -> Parser:
    """Return a parser whose help lists the classes that can be chosen, each with one sentence."""
    parser = Parser(
        "", f"What --{path} can be. --{path}.help NAME lists the options of one.", usage=SUPPRESS, add_help=False
    )
    group = parser.add_argument_group("classes")
    for name, summary in sorted(
        {c.__name__: documentation(c)[0] for b in advice.bases(kind) for c in advice.classes(b)}.items()
    ):
        parser.add_to_group(group, name, help=summary.replace("%", "%%"))
    return parser
