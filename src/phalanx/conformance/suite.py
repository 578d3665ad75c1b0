"""The cases, run on a library, and what came out."""

import datetime
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from phalanx.conformance.cases import CASES, Case, Judgement
from phalanx.conformance.libraries import Library
from phalanx.conformance.process import LibraryError, LibraryProcess, environment
from phalanx.errors import InfeasibleError

LIMIT = 30.0  # seconds for the calls of a rule in one case
GIGABYTES = 10.0  # of addresses
Judged = Mapping[str, Judgement]  # the verdict on each way to run a rule; empty if the library has no such rule


@contextmanager
def running(
    library: Library, python: str = sys.executable, variables: Mapping[str, str] | None = None
) -> Iterator[LibraryProcess]:
    """Return a library in a process of its own, which ends with the context.

    Args:
        library: the library.
        python: the interpreter of its environment.
        variables: environment variables besides those of this process.
    """
    command = (python, "-P", "-m", "phalanx.conformance.worker", library.module, "1", str(GIGABYTES))
    process = LibraryProcess(command, environment(1) | dict(variables or {}), LIMIT)
    try:
        yield process
    finally:
        process.close()


def versions(library: Library, process: LibraryProcess) -> dict[str, str]:
    """Return the versions of the packages of a library.

    Raises:
        InfeasibleError: it cannot be imported.
    """
    try:
        return dict(process.ask("hello"))
    except LibraryError as failed:
        raise InfeasibleError(f"{library.title} cannot be imported: {failed.said}") from failed


def judged(case: Case, rule: str, process: LibraryProcess) -> Judged:
    """Return the verdict on each form in which a library has a rule."""
    order = [one.order() for one in case.inputs]
    try:
        found = process.ask("conform", rule=rule, parameters=case.parameters(rule), inputs=order)
    except LibraryError as failed:  # no answer in time
        return {"": Judgement(False, str(failed))}
    return {form: case.judge(outcomes) for form, outcomes in found.items()}


def record(
    library: Library,
    process: LibraryProcess,
    each: Callable[[Case, Mapping[str, Judged]], None] = lambda case, rules: None,
) -> dict[str, Any]:
    """Run all cases on a library.

    Args:
        library: the library.
        process: it, running.
        each: is called after each case, with the verdicts on each rule.

    Returns:
        The library, its versions, date, machine and verdicts, as the scorecard keeps them.
    """
    kept: dict[str, Any] = {
        "library": library.title,
        "versions": versions(library, process),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine().replace('_', '-')}",
        "verdicts": {},
    }
    for case in CASES:
        rules = {rule: judged(case, rule, process) for rule in case.rules}
        each(case, rules)
        kept["verdicts"][case.name] = {
            rule: {form: list(verdict) for form, verdict in forms.items()} for rule, forms in rules.items()
        }
    return kept


def counted(rules: Mapping[str, Mapping[str, Sequence[Any]]]) -> str:
    """Return in how many of the rules that a library has every form meets the criterion."""
    offered = [[met for met, _ in forms.values()] for forms in rules.values() if forms]
    if not offered:
        return "-"
    if any(met is None for forms in offered for met in forms):
        return "convention"
    return f"{sum(all(forms) for forms in offered)} of {len(offered)}"


def cell(forms: Mapping[str, Sequence[Any]], no: str = "**no**") -> str:
    """Return the verdict on a rule in words: one if all forms agree, else one for each; "-" if there is no such rule.

    Args:
        forms: the verdicts.
        no: how a criterion that is not met is written.
    """
    if not forms:
        return "-"
    texts = {form: _text(Judgement(*verdict), no) for form, verdict in forms.items()}
    if len({*texts.values()}) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{form}: {text}" for form, text in texts.items())


def _text(verdict: Judgement, no: str) -> str:
    if verdict.met is None:
        return verdict.said
    return f"{'yes' if verdict.met else no}, {verdict.said}"
