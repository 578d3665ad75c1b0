"""`phalanx study` and `phalanx compare`: many runs, side by side."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from phalanx.cli.checks import check_device, check_folder
from phalanx.cli.consoles import escape, say
from phalanx.cli.models import plan_of
from phalanx.cli.options import data_dir
from phalanx.cli.parser import Options
from phalanx.cli.study_file import read_study
from phalanx.cli.workers import workers_of
from phalanx.cli.written import parted
from phalanx.core import InfeasibleError
from phalanx.experiments.carrying_out import Means
from phalanx.experiments.existing import compared
from phalanx.experiments.results import Results
from phalanx.experiments.shown import study_tables
from phalanx.experiments.shown.progress_display import first_line
from phalanx.experiments.shown.study_page import write
from phalanx.experiments.shown.text import terminal_table
from phalanx.experiments.store import Store
from phalanx.experiments.study import Study
from phalanx.experiments.trace import Trace
from phalanx.runs.record import Record
from phalanx.trust import UntrustedError, reading
from phalanx.wording import plural, visible


def study_command(options: Options, console: Console) -> int:
    """Carry out the runs of a study that have no record yet, and write its pages; return the exit status."""
    study = _study(options.file)
    folder = options.folder or study.folder
    _check(options, folder)
    where = data_dir(options.data_dir)
    if not options.no_training:
        jobs = options.jobs or 1
        if not options.again:
            say(console, f"{study.name}: {study.cost(folder, data_dir=where).text(jobs)}")
        if options.estimate:
            return 0
        _train(study, folder, options, console)
    results = study.results(folder)
    results = replace(results, notes=(*results.notes, *_unsealed(folder, [row.trace for row in results.rows])))
    if not results.rows:
        raise InfeasibleError(f"{folder} holds no record of the study. Leave out --no_training to make them.")
    return _show(results, folder, f"phalanx study {shlex.quote(str(options.file))}", console)


def _study(named: Path) -> Study:
    """Return the study of a YAML file, or that of a Python file, such as my_file.py:STUDY.

    Raises:
        InfeasibleError: there is none, or it is not feasible.
        ConfigurationError: the YAML file cannot be read, or says what a study does not know.
    """
    if ".py" not in named.name:
        return read_study(named)
    file, module, name = parted(str(named), visible(str(named)))
    found = getattr(module, name, None) if name else None
    if not isinstance(found, Study):
        there = ", ".join(key for key, value in vars(module).items() if isinstance(value, Study)) or "no study"
        raise InfeasibleError(f"{visible(str(named))} names no study. {file} has {there}. Write {file}:NAME.")
    return found


def _check(options: Options, folder: Path) -> None:
    check_device(options.device)
    check_folder(folder)
    if options.jobs is not None and options.jobs < 1:
        raise InfeasibleError(f"--jobs must be at least 1, got {options.jobs}.")
    if options.no_training and (options.again or options.estimate):
        raise InfeasibleError("--no_training shows what is there. Leave out --again and --estimate, or this.")
    if options.ray is not None and options.device != "cpu":
        raise InfeasibleError(f"--ray computes on CPUs, and --device is {options.device}: give one of them.")


def _train(study: Study, folder: Path, options: Options, console: Console) -> None:
    """Carry out the missing runs.

    Raises:
        InfeasibleError: another process writes in the folder.
        KeyboardInterrupt: the user stopped it; its notes say what is kept.
    """
    store, where = Store(folder), data_dir(options.data_dir)
    means = Means(where, options.device, resume=not options.again, measures=study.measures)
    workers = partial(workers_of, options.jobs, options.ray, store, means)
    how = {"data_dir": where, "device": options.device, "again": options.again, "console": console}
    try:
        study.run(folder, workers=workers, **how)
    except KeyboardInterrupt as stop:
        kept = len(list(store.folder.glob("*.json")))
        stop.add_note(f"{plural(kept, 'record')} are kept in {store.folder}.")
        stop.add_note("Runs on their way are saved every minute. The same command goes on from there.")
        raise


def compare_command(options: Options, console: Console) -> int:
    """Write the pages of runs that are on disk; return the exit status."""
    check_folder(options.folder)
    if options.target is not None and not 0 < options.target <= 1:
        raise InfeasibleError(f"--target must be an accuracy in (0, 1], got {options.target}.")
    notes = list[str]()
    with reading(trust=options.trust, files=options.trust):
        traces = [trace for folder in options.runs for trace in _traces(folder, options, notes, console)]
        results = compared(traces, options.name, options.target)
    results = replace(results, notes=(*results.notes, *notes))
    return _show(results, options.folder, shlex.join(["phalanx", "compare", *map(str, options.runs)]), console)


def _traces(folder: Path, options: Options, notes: list[str], console: Console) -> list[Trace]:
    """Return the records in a folder: that of a run, or of a study; note on the results if a run is not sealed."""
    if not folder.is_dir():
        raise InfeasibleError(f"There is no folder {folder}. Name that of a run, or of a study.")
    if found := list(Store(folder).traces()):
        notes += _unsealed(folder, found)
        return found
    record = Record.load(folder, unsealed=options.unsealed)
    if record.seal is not None and record.seal.sentence:
        notes.append(f"{visible(str(folder))}: {record.seal.sentence}")
    try:
        plan = plan_of(record)
    except ValueError as error:  # of real clients, or with a class that is not here: what its server knew
        if isinstance(error.__cause__, UntrustedError):
            say(console, f"{folder} is compared by its settings as written: {error}")
        return [Trace.of_record(record, record.config, record.config.get("seed", 0), len(record.summary.clients))]
    return [Trace.of(plan, record)]


def _unsealed(folder: Path, traces: Sequence[Trace]) -> list[str]:
    """Return a note on records that do not show whether they were changed."""
    count = sum(not trace.sealed for trace in traces)
    changed = "whether they were changed since they were written cannot be seen"
    return [f"{visible(str(folder))}: {plural(count, 'record')} without a seal: {changed}."] if count else []


def _show(results: Results, folder: Path, command: str, console: Console) -> int:
    """Print the tables, and write all files; return 1 if a run failed, else 0."""
    files = write(results, folder, command)
    for table in study_tables.tables(results):
        console.print(terminal_table(table))
        say(console, *table.notes)
    say(console, *results.notes)
    failed = [row for row in results.rows if row.trace.failed]
    for row in failed:
        name = f"{', '.join(row.labels.values())} (seed {row.trace.seed})"
        console.print(f"[red]Failed:[/] {escape(name)}: {escape(first_line(row.trace.error))}", soft_wrap=True)
    if results.missing:
        say(console, f"{plural(results.missing, 'run')} without a record.")
    say(console, f"Page: {files[0]}; next to it study.md, runs.csv, tables.csv, tests.csv and figures.")
    return 1 if failed else 0
