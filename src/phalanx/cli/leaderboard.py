"""`phalanx leaderboard`: every defence under its worst attack."""

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from phalanx.aggregators import Aggregator
from phalanx.algorithms import FedAvg
from phalanx.cli.checks import check_folder
from phalanx.cli.configuration import Draft, made, resolved
from phalanx.cli.consoles import escape, say
from phalanx.cli.options import PAGE, data_dir
from phalanx.cli.parser import Options
from phalanx.cli.study_file import called
from phalanx.cli.written import imported, with_numbers
from phalanx.core import Algorithm, InfeasibleError
from phalanx.experiments.carrying_out import Carrier, Means, Outcome, carried_out, local_workers, stored
from phalanx.experiments.leaderboard.board import SHOWN, Board, accuracy
from phalanx.experiments.leaderboard.board import write as write_page
from phalanx.experiments.leaderboard.defences import DEFENCES, Defence, Setup
from phalanx.experiments.leaderboard.ranking import RankedDefence, Trial, expected, ranked
from phalanx.experiments.leaderboard.tiers import TIERS, Tier
from phalanx.experiments.line_store import LineStore
from phalanx.report.words import duration, percent
from phalanx.runs.files import write
from phalanx.runs.lock import exclusive
from phalanx.runs.plan import Run
from phalanx.runs.provenance import checkout
from phalanx.training.sgd import LocalSGD
from phalanx.weighting import Ignore
from phalanx.wording import plural, shown

OWN = Path("leaderboard")  # folder for the scores and the page with a defence of the user's own
TIMED = 4  # kinds of runs that are timed for the estimate


def leaderboard_command(options: Options, console: Console) -> int:
    """Carry out what is missing of a tier, and write the page; return the exit status."""
    if options.tier not in TIERS:
        raise InfeasibleError(f"There is no tier {options.tier}. There are: {', '.join(TIERS)}.")
    if options.jobs < 1:
        raise InfeasibleError(f"--jobs must be at least 1, got {options.jobs}.")
    if options.retry and options.no_training:
        raise InfeasibleError("--no_training carries out nothing, --retry what failed: give one of them.")
    check_folder(options.folder)
    tier = TIERS[options.tier]
    if options.alone is not None:
        if not re.fullmatch(f"[0-9a-f]{{{SHOWN},}}", options.alone):
            raise InfeasibleError(
                f"--alone needs all {SHOWN} digits from a cell of the page, got {shown(options.alone)!r}."
            )
        return _alone(tier, options, console)
    own = None if options.defence is None else _own(options.defence)
    defences = _chosen(options.only) if own is None else [own]
    folder = options.folder if own is None else OWN
    alone = nullcontext() if options.no_training or options.estimate else exclusive(folder, needed=False)
    with alone:  # records name their machine by the number of a line
        store = _store(tier, folder, options)
        found = _rank(tier, defences, store, options, console)
    if found is None:
        return 0
    boards = _boards(tier, options, found)
    if own is None:
        files = write_page(boards, options.page, folder if options.page == PAGE else options.page.parent)
    else:
        rest = next((board.ranked for board in boards if board.tier is tier), ())
        board = Board(tier, [*rest, *found], store)
        say(console, _placed(board, found[0]))
        page = folder / f"{tier.name}.md" if options.page == PAGE else options.page
        files = write_page([board], page, page.parent)
    say(console, f"Written: {', '.join(map(str, files))}.")
    return 0


def _chosen(patterns: Sequence[str]) -> list[Defence]:
    """Return the defences with names like the patterns, in the order of these; all if there are none."""
    found = dict[str, Defence]()
    for pattern in patterns or ("*",):
        alike = {one.name: one for one in DEFENCES if fnmatchcase(one.name, pattern)}
        if not alike:
            names = "; ".join(one.name for one in DEFENCES)
            raise InfeasibleError(f"No defence has a name like {pattern!r}. There are: {names}.")
        found |= {name: one for name, one in alike.items() if name not in found}
    return list(found.values())


def _store(tier: Tier, folder: Path, options: Options) -> LineStore:
    """Return the records in a folder.

    Raises:
        InfeasibleError: they belong to the checkout of the code, which is not as committed.
    """
    store = LineStore(folder / f"{tier.name}.jsonl", any_numerics=options.no_training, failed=not options.retry)
    if not (options.no_training or options.estimate or options.defence is not None) and checkout()[1] is False:
        raise InfeasibleError(
            "The code of this checkout is not as committed, and records name the commit that computed them. Commit it "
            "first, or give --no_training to render what is there."
        )
    return store


def _boards(tier: Tier, options: Options, known: Sequence[RankedDefence] = ()) -> list[Board]:
    """Return the tiers that have records in the folder, from these alone.

    Args:
        tier: the tier of the options.
        options: of the command.
        known: results of this tier that need not be looked up again.
    """
    boards, there = [], {one.defence.name: one for one in known}
    for one in TIERS.values():
        store = LineStore(options.folder / f"{one.name}.jsonl", any_numerics=options.no_training)
        if len(store) and (one is tier or (options.defence is None and options.alone is None)):
            found = there if one is tier else {}
            every = [found.get(d.name) or ranked(one, d, partial(stored, store=store)) for d in DEFENCES]
            boards.append(Board(one, every, store))
    if not boards and options.defence is None:
        raise InfeasibleError(f"{options.folder} holds no records. Leave out --no_training to make them.")
    return boards


def _rank(
    tier: Tier, defences: Sequence[Defence], store: LineStore, options: Options, console: Console
) -> list[RankedDefence] | None:
    """Carry out the runs of some defences; return their results, or None if only the estimate was asked for."""
    if options.no_training and not len(store):
        return [RankedDefence(one) for one in defences]
    known = [ranked(tier, one, partial(stored, store=store)) for one in defences]
    where = data_dir(options.data_dir)
    if options.no_training:
        return known
    waiting = [one.defence for one in known if not one.cells and not one.error]
    say(console, _estimate(tier, waiting, len(defences), options.jobs, where))
    if options.estimate:
        return None
    runs = {one.name: expected(tier, one) for one in waiting}
    try:
        start = partial(local_workers, options.jobs, store, Means(where))
        with Carrier(store, start, where, console, at_most=sum(runs.values())) as carrier:
            for number, defence in enumerate(waiting, 1):
                ranked(tier, defence, carrier)
                found = ranked(tier, defence, partial(stored, store=store))  # with what the records say, of times too
                known = [found if one.defence is defence else one for one in known]
                del runs[defence.name]
                carrier.display.left_over(sum(runs.values()))
                words = f"{number} of {len(waiting)}: {defence.name}: {_brief(Board(tier, [found], store), found)}"
                say(console, ", ".join(filter(None, (words, carrier.display.left()))))
    except KeyboardInterrupt as stop:
        stop.add_note(f"{plural(len(store), 'record')} are kept in {store.file}. The same command goes on from there.")
        raise
    return known


def _estimate(tier: Tier, waiting: Sequence[Defence], number: int, jobs: int, where: Path | None) -> str:
    """Return what the missing runs cost, by timing some of them."""
    head = f"{tier.name}: {number - len(waiting)} of {plural(number, 'defence')} done"
    if not waiting:
        return f"{head}."
    plans = list[Run]()
    for one in waiting[:: max(1, len(waiting) // TIMED)]:
        plans += [run.plan for run in tier.study(one).planned if run.plan.byzantine == tier.made_for(one, 0)][:1]
    runs = sum(expected(tier, one) for one in waiting)
    for plan in plans:
        _carried_out(plan, where)  # compiles
    seconds = runs * sum(_carried_out(replace(plan, seed=1), where).cpu_seconds for plan in plans) / len(plans)
    return (
        f"{head}; up to {plural(runs, 'run')} for the others, about {duration(seconds)} of one core, "
        f"{duration(seconds / jobs)} with --jobs {jobs}."
    )


def _carried_out(plan: Run, where: Path | None) -> Outcome:
    """Carry out a run in this process."""
    return carried_out(plan, None, Means(where), lambda _: None)


def _brief(board: Board, one: RankedDefence) -> str:
    """Return the result of a defence in few words."""
    if not one.cells:
        return one.error or "not complete"
    f = board.tier.tuned_for
    found = board.average(one, f)
    return f"{board.share(f)} attackers: " + (accuracy(found) if found is not None else "no rank")


def _placed(board: Board, own: RankedDefence) -> str:
    """Return the rank of a defence."""
    if not own.cells or own.synchronous is None or board.rank_by(own) < 0:
        return f"{own.defence.name} has no rank: {own.error or 'it is refused or fails in some cells'}."
    rows, place = next(
        (rows, place)
        for _, rows in board.sorts
        for one, place in zip(rows, board.places(rows), strict=True)
        if own in one.defences
    )
    count = sum(board.rank_by(one.defences[0]) >= 0 for one in rows)
    return f"{own.defence.name}: rank {place} of {count}, {_brief(board, own)}."


# A defence of the user's own


def _own(text: str) -> Defence:
    """Return the defence that the user names.

    Args:
        text: a class by its import path, or by its file and name, with options; f, n and share in place of a value are
            the number of attackers, of clients, and their quotient.

    Raises:
        InfeasibleError: it is no rule and no algorithm.
    """
    text = imported(text, f"--defence {shown(text)}", (Aggregator, Algorithm), "no rule and no algorithm")

    def make(setup: Setup, _: Any) -> Algorithm:
        return _made(with_numbers(text, setup.f, setup.n))

    try:
        _ = Run(algorithm=make(Setup(4, 20, 0, LocalSGD()), None)).identity
    except TypeError as error:
        raise InfeasibleError(f"--defence {shown(text)}: {error}") from error
    return Defence(text, "own", make)


def _made(text: str) -> Algorithm:
    """Return an algorithm, or FedAvg with a rule, as it is written."""
    name, reasons = text.partition("(")[0].strip(), set[str]()
    for field, kind in (("algorithm.aggregate", Aggregator), ("algorithm", Algorithm)):
        try:
            resolved(name, kind)
        except LookupError as error:
            reasons.add(str(error))
            continue
        draft = Draft(Run)
        try:
            draft.set(field, called(text))
            draft.check()
            value = made(draft.at(field)[1])
        except ValueError as error:
            raise InfeasibleError(f"--defence {shown(text)}: {error}") from error
        return FedAvg(aggregate=value, preprocess=Ignore()) if isinstance(value, Aggregator) else value
    abstract = " that defines all that it must" if "it is abstract" in reasons else ""
    raise InfeasibleError(
        f"--defence {shown(text)} is no rule and no algorithm. Name one of the library, such as "
        f"TrimmedMean(beta=share), or a subclass of Aggregator or Algorithm of your own{abstract}, such as "
        "own_rule.py:ShortenedMean(factor=1)."
    )


# One run alone


def _alone(tier: Tier, options: Options, console: Console) -> int:
    """Carry out the run of one cell alone, write its configuration, and compare its accuracy with the score."""
    trial = _found(tier, options)
    file = OWN / f"{trial.key}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file, yaml.safe_dump(trial.plan.config, sort_keys=False).encode())
    trace, before = _carried_out(trial.plan, data_dir(options.data_dir)).trace, trial.accuracies[0]
    console.print(escape(f"{trial.plan.title}, seed {trial.plan.seed}: accuracy {percent(trace.final())}."))
    say(console, f"The record says {percent(before)}. With all its steps: phalanx run --config {file}")
    return 0


def _found(tier: Tier, options: Options) -> Trial:
    """Return the trial whose first run begins with the digits of the option."""
    for board in _boards(tier, options):
        for one in board.ranked:
            for cell in one.cells.values():
                for trial in cell.trials:
                    if trial.key.startswith(options.alone):
                        return trial
    raise InfeasibleError(
        f"No run of {tier.name} begins with {options.alone}. Take the digits from a cell of the page."
    )
