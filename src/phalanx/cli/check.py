"""`phalanx check`: the contract of a class, the user's own above all, or the cases on the rules of a library."""

from collections.abc import Collection, Mapping
from dataclasses import make_dataclass
from typing import Any

from rich.console import Console

from phalanx.cli.configuration import CLASS, FIELDS, ChosenClass, Draft, made, resolved
from phalanx.cli.consoles import escape, say
from phalanx.cli.parser import Options
from phalanx.cli.study_file import called
from phalanx.cli.written import imported, with_numbers
from phalanx.conformance import Case, find, record, running
from phalanx.conformance.suite import Judged, cell, counted, versions
from phalanx.contracts.breach import Examined
from phalanx.contracts.subject import KINDS, examine, kind_of
from phalanx.core import InfeasibleError
from phalanx.wording import shown


def check_command(options: Options, console: Console) -> int:
    """Print which properties hold, and a counterexample to each other; return 1 if there is one.

    Raises:
        InfeasibleError: there is no such class, it cannot be made, or a property cannot be left out; or the library is
            not here.
    """
    if (options.subject is None) == (options.library is None):
        raise InfeasibleError(
            "Name either a class, as in phalanx check my_file.py:MyRule, or a library, as in phalanx check --library "
            "byzfl."
        )
    if options.library is not None:
        return _library(options, console)
    subject, found = contract(options.subject, options.without)
    kind = kind_of(subject)
    console.print(
        f"{escape(subject.__name__)} is {kind.words}. {escape(shown(found.remark, 300))}".rstrip(), soft_wrap=True
    )
    for breach in found.broken:
        words = f"[red]{breach.property}[/]: {escape(breach.sentence)} {escape(shown(breach.example, 600))}"
        console.print(words, soft_wrap=True)
    listed = f": {', '.join(found.holding)}" if found.holding else ""
    total = len(found.broken) + len(found.untried) + len(found.holding)
    say(console, f"{len(found.holding)} of {total} properties hold{listed}.")
    for name, why in found.untried.items():
        say(console, f"Not tried: {name}, since {shown(why, 200)}.")
    return int(bool(found.broken))


def contract(written: str, without: Collection[str] = ()) -> tuple[type, Examined]:
    """Return a class, written as in a command, and which properties of its kind it has.

    Raises:
        InfeasibleError: there is no such class, it cannot be made, or a property cannot be left out.
    """
    said = shown(written) or "''"
    text = imported(written, said, (*KINDS,), "no class that can be checked")
    subject = _class(text.partition("(")[0].strip(), said)

    def settings(n: int, f: int) -> Mapping[str, Any]:
        return _settings(subject, with_numbers(text, f, n), said)

    try:
        return subject, examine(subject, settings, without)
    except TypeError as error:
        raise InfeasibleError(f"{said} cannot be made: {error}") from error


def _library(options: Options, console: Console) -> int:
    """Print which rules of a library meet the criterion of each case, and what the others did."""
    if options.without:
        raise InfeasibleError("--without is for a class: the cases of a library have no properties to leave out.")
    library, unmet, tried = find(options.library), 0, 0

    def show(case: Case, rules: Mapping[str, Judged]) -> None:
        nonlocal unmet, tried
        tried += sum(map(bool, rules.values()))
        missed = {rule: forms for rule, forms in rules.items() if any(v.met is False for v in forms.values())}
        unmet += len(missed)
        say(console, f"{case.title}: {counted(rules)}")
        for rule, forms in missed.items():
            console.print(f"  [red]{rule}[/]: {escape(cell(forms, 'no'))}", soft_wrap=True)
        if missed:
            say(console, f"  Expected: {case.criterion}")

    with running(library) as process:
        known = ", ".join(f"{name} {number}" for name, number in versions(library, process).items())
        console.print(f"{library.title}: {escape(known)}. Rules that meet the criterion, of those it has:")
        record(library, process, show)
    if not tried:
        raise InfeasibleError(f"{library.title} has none of the rules of the cases, so that nothing was tried.")
    return int(bool(unmet))


def _class(name: str, said: str) -> type:
    """Return the class of that name or import path."""
    reasons = list[str]()
    for base in KINDS:
        try:
            return resolved(name, base)
        except LookupError as error:
            reasons.append(str(error))
    listed = ", ".join(base.__name__ for base in KINDS)
    if "it is abstract" in reasons:
        raise InfeasibleError(f"{said} is abstract: define all that it must before it is checked.")
    raise InfeasibleError(
        f"{said} is no class that can be checked. Name a subclass of {listed}: of the library, such as "
        "TrimmedMean(beta=share), or your own, such as my_file.py:MyRule."
    )


def _settings(subject: type, text: str, said: str) -> Mapping[str, Any]:
    """Return the values that a text gives to fields of a class."""
    written = called(text)
    if not isinstance(written, dict):
        return {}
    draft = Draft(make_dataclass("Checked", [("subject", subject)], frozen=True))
    try:
        draft.set("subject", {CLASS: f"{subject.__module__}.{subject.__qualname__}", FIELDS: written[FIELDS]})
        chosen: ChosenClass = draft.at("subject")[1]
        return {name: made(chosen.values[name]) for name in written[FIELDS]}
    except ValueError as error:
        raise InfeasibleError(f"{said}: {error}") from error
