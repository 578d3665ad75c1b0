"""Wrong commands, made from the options themselves: every option of every command with every wrong kind of value.

A case is the arguments of a command.  `typed` are wrong whatever the rest is; `extreme` are values of the right kind
that no run can mean, or few: each must be refused, or must do what it says.
"""

import contextlib
import itertools
import os
import socket
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from phalanx.cli import advice
from phalanx.cli.configuration import is_group, only_class, parameters
from phalanx.cli.main import COMMANDS, GROUPS
from phalanx.cli.options import Execution
from phalanx.cli.parser import path as a_path
from phalanx.cli.study_file import KEYS, OF_TUNING
from phalanx.fields import members
from phalanx.runs.plan import Run

Case = tuple[str, ...]
DEEP = "[" * 3000  # parentheses that a recursive reader does not survive
CYCLE = "&a [*a]"
BOMB = "{" + ", ".join(f"x{k}: &x{k} [{', '.join([f'*x{k - 1}' if k else 'a'] * 9)}]" for k in range(9)) + "}"
LONG = "9" * 5000  # more digits than Python turns into an integer

WRONG: dict[Any, tuple[str, ...]] = {  # for each kind of value what is none of it
    int: ("x", "1.5", "true", "[1]", "{nonsense: 1}", "", "nan", "010", "1:30", LONG, DEEP),
    float: ("x", "true", "[1]", "{nonsense: 1}", "", "1:30.5", DEEP, BOMB, "--", "0x"),
    bool: ("maybe", "1", "[true]", "{a: true}", "null", DEEP),
    str: (),
    Path: ("",),
    Literal: ("nonsense", "1.5", "[a]", "", DEEP, CYCLE),
    tuple: ("x", "1", "{nonsense: 1}", "true", "[[]]", "[x, {}]", DEEP, CYCLE, BOMB),
    type: (
        "Nonsense", "3", "true", "", "[1]", "{nonsense: 1}", "no.such.Class", "os.path", "builtins.int", ".", "..",
        "a.", "phalanx.core.Algorithm", "phalanx.runs.plan.Run", "{class_path: 3}", "{class_path: [1]}",
        "{class_path: {}}",
        "{class_path: no.such.Class, init_args: 3}", "{init_args: [1]}", "{class_path: null}", DEEP, CYCLE, BOMB, LONG,
    ),
}  # fmt: skip
EXTREME: dict[Any, tuple[str, ...]] = {
    int: ("-1", "0", "1000000000", "1000000000000000000000", "-9223372036854775809", LONG[:400]),
    float: ("-1", "0", "nan", "inf", "-inf", "1e308", "-1e308", "5e-324", "1e-300", "0.5", "1.0", LONG[:400]),
    str: ("", " ", "null", "..", "/", "x" * 5000, "\x1b[31m", "a\nb", "[bold]"),
    tuple: ("[]", "[0]", "[-1]", "[1000000000]", "[nan]", "[[1, 1]]", "[[0, 0], [1, 1]]", "[1, 1]", "[1.5, .inf]"),
}


def kinds(declared: Any) -> set[Any]:
    """Return which of the keys of `WRONG` a declared type has values of."""
    found = set()
    for member in members(declared):
        origin = typing.get_origin(member)
        if member in (int, float, bool, str, Path):
            found.add(member)
        elif origin is Literal:
            found.add(Literal)
        elif origin in (tuple, list, set, frozenset):
            found.add(tuple)
        elif isinstance(member, type) and member is not type(None) and origin is None:
            found.add(type)
    return found


def wrong(declared: Any) -> list[str]:
    """Return texts that are no value of a declared type."""
    held = kinds(declared)
    if str in held or not held:
        return []
    right = {int: {"010"}, float: {"nan", LONG}, Path: {"x"}}
    allowed = set[str]().union(*(right.get(kind, ()) for kind in held))
    listed = dict.fromkeys(text for kind in held for text in WRONG[kind])
    if float in held:
        listed = {text: None for text in listed if text not in ("nan", "1.5", "3", LONG)}
    if int in held or Path in held:
        allowed |= {text for text in listed if Path in held and text}
    if type(None) in members(declared):
        allowed |= {"null"}
    else:
        listed["null"] = None
    if bool in held:
        allowed |= {"true"}
    of = {
        kind for member in members(declared) if typing.get_origin(member) is tuple for kind in typing.get_args(member)
    }
    if str in of:  # one text without brackets is a list of it
        allowed |= {text for text in listed if text and not text.startswith(("[", "{", "&"))}
    elif of & {int, float}:
        allowed |= {"1"}
    return [text for text in listed if text not in allowed]


def fields(
    kind: type, path: str = "", before: Case = (), inside: tuple[type, ...] = ()
) -> Iterator[tuple[str, Any, Case]]:
    """Return each option of a class and of the classes in it, its declared type, and the options that choose these."""
    for name, parameter in parameters(kind).items():
        here = f"{path}.{name}" if path else name
        if not is_group(parameter.kind):
            yield here, parameter.kind, before
        only = only_class(parameter.kind)
        if only is not None and only not in inside:
            yield from fields(only, here, before, (*inside, only))
        for base in advice.bases(parameter.kind):
            for chosen in advice.classes(base):
                if chosen not in inside and len(inside) < 2 and chosen.__module__.startswith("phalanx."):
                    choose = (*before, f"--{here}", chosen.__name__)
                    yield from fields(chosen, here, choose, (*inside, chosen))


def of_runs(command: str, texts: Any) -> Iterator[Case]:
    """Return commands with an option of a run, or of a class in it, and each of the texts for its type."""
    seen = set[tuple[str, str, Any]]()
    for root in (Run, Execution):
        for path, declared, before in fields(root):
            option = (before[-1] if before else "", path.rpartition(".")[2], declared)
            if option not in seen:  # Gaussian.std is the same option wherever a Gaussian is chosen
                seen.add(option)
                yield from ((command, *before, f"--{path}={text}") for text in texts(declared))


def extreme(declared: Any) -> list[str]:
    """Return texts of the right type that few runs can mean."""
    return [text for kind in kinds(declared) for text in EXTREME.get(kind, ())]


# --- the other commands

OF_KIND: dict[Any, tuple[str, ...]] = {
    int: ("x", "1.5", "", "nan", "[1]", LONG, "1e3", "\x1b[31m", "a\nb", "''"),
    float: ("x", "", "0x1", "[1]", "1,5", DEEP, "\x1b[31m", '"', "--"),
    a_path: ("", "\0", "a\0b", "\x1b[31m", "\udcff"),
}


def of_parsers() -> Iterator[Case]:
    """Return commands with an option of the wrong kind, without its value, with one too many, or unknown."""
    grouped = {f"{group} {name}": c for group, (_, commands) in GROUPS.items() for name, c in commands.items()}
    for action, command in {**COMMANDS, **grouped}.items():
        words = tuple(action.split())
        for option in command.parser()._actions:
            name = next((n for n in option.option_strings if n.startswith("--")), "")
            for text in OF_KIND.get(option.type, ()):
                yield (*words, f"{name}={text}") if name else (*words, text)
            if name and option.nargs == 0 and name != "--help":
                yield from ((*words, f"{name}={text}") for text in ("x", "", "1", LONG))
            elif name and option.nargs != "?" and name != "--help":
                yield (*words, name)
            if name and name != "--help":
                yield from ((*words, changed) for changed in (f"{name}x", f"-{name}", f"{name}x=1"))
        yield from ((*words, text) for text in ("--nonsense", "---", "--=", "-x", "--nonsense=" + LONG, "-\x1b[31m"))


def of_names() -> Iterator[Case]:
    """Return what is no command."""
    names = ("", " ", "Run", "runs", "run ", "--run", "-", "--", LONG, "\x1b[31m", "a\nb", "-1", "flower run", "help")
    yield from ((name,) for name in names)
    yield from ((group, name) for group in GROUPS for name in names)
    yield from ((f"--{option}", "run") for option in ("config", "clients", "seed=1", "folder=x"))


def of_studies() -> Iterator[str]:
    """Return studies in YAML with a wrong value of each key, of an axis, of an option of a class, and wrong calls."""
    small = "base: {clients: 2, model.hidden: [], until.steps: 1}\n"
    grid = "grid: {clients: [2]}\n"
    values = ("x", "-1", "1.5", ".nan", "true", "[]", "[[]]", "[a]", "{a: b}", "[{a: {b: c}}]", "''",
              '"\\e[31m"', LONG, DEEP)  # fmt: skip
    right = {"name": {"x", "-1", "1.5", ".nan", "true"}, "exclude": {"[]", "''"}, "leave_out": {"true"}}
    for key in KEYS:
        rest = "" if key == "base" else small + ("" if key == "grid" else grid)
        yield from (f"{rest}{key}: {text}" for text in values if text not in right.get(key, ()))
    tuning = {"axis": "clients", "options": "{all: {training.lr: [0.1]}}", "settings": "1"}
    for key, text in itertools.product(OF_TUNING, ("x", "[[]]", "{a: b}", DEEP)):
        changed = ", ".join(f"{name}: {value}" for name, value in {**tuning, key: text}.items())
        yield f"{small}{grid}tuning: {{{changed}}}"
    yield from (
        f"{small}seeds: {text}\n{grid}" for text in ("1000000000000", "100001", "[0, 0]", "[1000000000000000000]")
    )
    axes = ("[{class_path: Krum, init_args: [1]}]", "[{class_path: null}]", "{a: {b: c}}", "{a: 3}", "[[a]]",
            "[Krum, Krum]", "[Krum(f=1]", *(f'["{call}"]' for call in CALLS))  # fmt: skip
    yield from (f"{small}grid: {{algorithm.aggregate: {axis}}}" for axis in axes)
    yield from (
        f"{small}grid: {{{name}: [1]}}" for name in ("seed", "x", "1.5", "''", "a.b", ".", "training..lr", "? []")
    )


CALLS = (
    "Krum(1)", "Krum(**a)", "Krum(f=1, f=2)", "Krum(f=1+1)", "Krum(f=lambda: 1)", "Krum(f={1})", "Krum(f=1j)",
    "Krum(f=...)", "Krum(f=)", "Krum(g=1)", "Nothing(f=1)", "__import__(name=os)", "Krum(f=Krum(f=1))", "Krum(f='\\0')",
    f"Krum(f={LONG})", "Krum(f=" * 300 + "1" + ")" * 300, "Krum(f=" + "-" * 3000 + "1)",
)  # fmt: skip


# --- files

CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "a line feed": b"\n",
    "binary": bytes(range(256)) * 20,
    "zeros": bytes(1000),
    "UTF-16": "clients: 4\nid,size\n1,2\n".encode("utf-16"),
    "Latin-1": "é,ü\n1,2".encode("latin-1"),
    "a mark of order": b"\xef\xbb\xbf",
    "lists in lists": b"[" * 100_000,
    "mappings in mappings": b'{"a":' * 100_000,
    "closed lists in lists": b"[" * 700 + b"]" * 700,
    "a long line": b"a" * 2_000_000,
    "many digits": b"9" * 10_000,
    "JSON": b'{"a": 1}',
    "a list": b"[1, 2]",
    "null": b"null",
    "a number": b"3",
    "not a number": b"NaN",
    "half a text": b'"',
    "half of a pair": b'"\\ud800"',
    "half a CSV": b'a,b\n"',
    "a long cell": b"client,seconds\n0," + b"1" * 131_073,
    "half a gzip file": b"\x1f\x8b\x08\x00",
    "a tag of Python": b'!!python/object/apply:os.system ["touch here"]',
    "no integer": b"a: !!int x",
    "no date": b"a: !!timestamp x",
    "no truth": b"!!bool x",
    "an odd key": b"? [a]\n: b",
    "an odd merge": b"<<: 3",
    "two documents": b"a: 1\n---\nb: 2",
    "a key twice": b"seed: 1\nseed: 2",
    "itself": b"a: &a [*a]",
    "a bomb": b"a: &x0 [a,a,a,a,a,a,a,a,a]\n"
    + b"".join(b"b%d: &x%d [%s]\n" % (k, k, b",".join([b"*x%d" % (k - 1)] * 9)) for k in range(1, 9)),
    "no members": b"clients: [3]",
    "a header alone": b"phalanx checkpoint 1\n",
    "a header that is too short": b"phalanx checkpoint 1\n" + (10**18).to_bytes(8, "little") + b"{}",
    "a nested header": b"phalanx checkpoint 1\n" + (500_000).to_bytes(8, "little") + b'{"a":' * 100_000,
    "no verdict": b'{"schema":2,"step":1,"version":1,"seconds":1,"verdicts":{"0":{"weight":1}}}',
}
SPECIAL = ("a pipe", "a socket", "a device", "a hole")  # where a command would wait, or read for ever
PLACES = ("a folder", "nothing", "a loop", "a link to nothing", "half of it", "most of it", *SPECIAL)
HOLE = 1 << 40  # bytes of a file that takes no room on the disk


def place(path: Path, kind: str, good: bytes) -> None:
    """Put something wrong at a path, where `good` was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind in CONTENTS:
        path.write_bytes(CONTENTS[kind])
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a loop":
        path.symlink_to(path.name)
    elif kind == "a link to nothing":
        path.symlink_to("nowhere")
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):  # its path may have 108 bytes
            made.bind(path.name)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    elif kind == "a hole":
        path.write_bytes(good)
        os.truncate(path, HOLE)
    elif kind != "nothing":
        path.write_bytes(good[: len(good) * (5 if kind == "half of it" else 9) // 10])
