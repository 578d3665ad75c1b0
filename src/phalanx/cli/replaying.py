"""`phalanx replay`: what another algorithm would have made of the updates of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from phalanx.cli.configuration import Draft
from phalanx.cli.consoles import escape, say
from phalanx.cli.parser import Options
from phalanx.core import Algorithm, InfeasibleError
from phalanx.runs.record import CONFIG, configuration_of
from phalanx.runs.replay import ReplayedStep, UpdateReplay
from phalanx.runs.seal import check
from phalanx.trust import reading
from phalanx.wording import plural, shown

LISTED = 40  # steps that the table lists, at most


@dataclass(frozen=True)
class Replaying:
    """What gets the updates.

    Args:
        algorithm: what gets the updates, with its rule and its weights, as in `phalanx run`; null: the run's own.
    """

    algorithm: Algorithm | None = None


def replay_command(options: Options, console: Console) -> int:
    """Print what each step comes to; return the exit status."""
    folder = options.folder
    if not (folder / CONFIG).is_file():
        raise InfeasibleError(f"{folder} holds no run. Name a folder that a run was written to, such as runs/NAME.")
    found = check(folder, unsealed=options.unsealed)
    if found.sentence:
        say(console, found.sentence)
    other = options.draft.make(Replaying).algorithm
    config = configuration_of(folder)
    with reading(trust=options.trust):
        draft = Draft(Replaying)
        draft.set("algorithm", config.get("algorithm"))
        own = draft.make(Replaying).algorithm
    if own is None:
        raise InfeasibleError(f"{folder / CONFIG} names no algorithm, so that the run cannot be replayed.")
    replay = UpdateReplay(folder, own, other, frozenset(options.without), secret=config.get("engine") == "flower")
    steps = [*replay.steps()]
    differing = [step.step for step in steps if not step.same]
    if replay.differs:
        console.print(_table(steps))
        say(console, *_answer(steps, other or own, replay.without))
    if differing:
        which = ", ".join(map(str, differing[:10])) + (" ..." if len(differing) > 10 else "")
        say(
            console,
            f"The run's own algorithm, {_title(own)}, does not come to the same bytes in step {which}: the "
            "updates or the models were changed, or versions, threads or the device are other ones.",
        )
        return 1
    console.print(f"{escape(_title(own))}, the run's own, comes to the same bytes in {plural(len(steps), 'step')}.")
    say(console, f"Compared with {replay.compared}.")
    return 0


def _title(algorithm: Algorithm) -> str:
    return f"{algorithm.title}({algorithm.rule.title})" if algorithm.rule is not None else algorithm.title


def _table(steps: Sequence[ReplayedStep]) -> Table:
    table = Table(title="Each step, from the model that the run had before it", title_justify="left")
    for heading in ("step", "length of the run's step", "difference", "of its length", "not used"):
        table.add_column(heading, justify="right")
    for step in steps[:LISTED]:
        unused = [str(i) for i, verdict in step.verdicts.items() if not (verdict.accepted or verdict.waits)]
        differs = "-" if step.difference is None else f"{step.difference:.4g}"
        share = f"{step.difference / step.length:.3f}" if step.difference is not None and step.length else "-"
        unused_or_lost = f"lost: {shown(step.lost, 60)}" if step.lost else ", ".join(unused) or "-"
        table.add_row(str(step.step), f"{step.length:.4g}", differs, share, escape(unused_or_lost))
    if len(steps) > LISTED:
        table.caption = f"and {plural(len(steps) - LISTED, 'step')} more"
    return table


def _answer(steps: Sequence[ReplayedStep], other: Algorithm, without: frozenset[int]) -> list[str]:
    """Return the answer in sentences."""
    alike = sum(step.difference == 0 and not step.lost for step in steps)
    lost = sum(bool(step.lost) for step in steps)
    left = f" without {'client' if len(without) == 1 else 'clients'} {', '.join(map(str, sorted(without)))}"
    lines = [
        f"{_title(other)}{left if without else ''}, with the same updates: the same model in {alike} of "
        f"{plural(len(steps), 'step')}" + (f", {lost} lost." if lost else ".")
    ]
    return [
        *lines,
        "After the first difference clients would have trained from other models: each answer is exact, and together "
        "they are no run.",
    ]
