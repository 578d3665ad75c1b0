"""`phalanx run`, `phalanx demo` and `phalanx partition`."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from phalanx.cli import demo, progress, terminal
from phalanx.cli.checks import check_device, check_folder
from phalanx.cli.consoles import escape, say
from phalanx.cli.options import Execution, data_dir
from phalanx.cli.parser import Options
from phalanx.cli.remedies import remedy_options, with_options
from phalanx.cli.terminal import say_unsealed
from phalanx.core import InfeasibleError
from phalanx.data import holdings
from phalanx.engine.observer import Observer, Progress
from phalanx.numerics.allocation import keep_freed_memory
from phalanx.numerics.compilation import compilation
from phalanx.report import write
from phalanx.rng import numpy_generator
from phalanx.runs.checkpoint import Checkpoint, begun_in, peek
from phalanx.runs.engine_choice import named, with_engine
from phalanx.runs.federation import Federation, names_of
from phalanx.runs.files import write_figure
from phalanx.runs.learning import stuck
from phalanx.runs.lock import exclusive
from phalanx.runs.models import SavedModels
from phalanx.runs.plan import Run
from phalanx.runs.record import CHECKPOINT, REPORT, SUMMARY, Record
from phalanx.runs.seal import check_resumed, is_to_be_sealed, seal
from phalanx.runs.session import simulate
from phalanx.runs.summary import outdated
from phalanx.simulation.executor import ExecutorFactory
from phalanx.simulation.parallel import ProcessExecutors
from phalanx.training.engines import TRAINERS

COLUMNS = 30  # classes that the table of `phalanx partition` has columns for, at most


def run_command(options: Options, console: Console) -> int:
    """Carry out one run, with a bar, tables and a folder; return the exit status."""
    plan, execution = options.draft.make(Run), options.draft.make(Execution)
    with with_options(plan):
        return _carry_out_one(plan, execution, console)


def _carry_out_one(plan: Run, execution: Execution, console: Console) -> int:
    if execution.dry_run:
        federation = Federation(plan, data_dir(execution.data_dir))
        promise = federation.promise
        said = [*dict.fromkeys((*promise.text, *promise.remarks, *federation.remarks))]
        say(console, *said, *filter(None, [remedy_options(" ".join(said), plan)]))
        return 0
    _check_execution(execution, _folder(plan, execution))
    plan = _with_engine(plan, execution)
    folder = _folder(plan, execution)
    record = None if execution.again else _stored(plan, folder, console)
    if record is None:
        (record,) = _carry_out({plan.title: plan}, {plan.title: folder}, execution, console)
    return _show([record], folder, plan.title, console, plan)


def _folder(plan: Run, execution: Execution) -> Path:
    return execution.folder or Path("runs") / plan.slug


def _with_engine(plan: Run, execution: Execution) -> Run:
    """Return the run with the engine that the options name, or that follows by rule.

    A run that was begun before keeps its engine, so that the same command goes on or shows what is there.
    """
    if execution.engine == "auto":
        if named(plan) is plan:
            return plan
        begun = begun_in(_folder(plan, execution))
        return Federation(plan, data_dir(execution.data_dir), execution.device, begun=begun).plan
    if named(plan, execution.engine).training.computed_by in {*TRAINERS} - {execution.engine}:
        raise InfeasibleError(
            f"--engine is {execution.engine}, and training.engine another one. Leave out one of the two."
        )
    return with_engine(plan, execution.engine)


def _stored(plan: Run, folder: Path, console: Console) -> Record | None:
    """Return the record of the run if it is there and would come out the same again; print what was found."""
    saved = peek(folder)
    if saved is not None:
        check_resumed(folder)  # what is written again may be gone
    record = Record.load(folder, unsealed=saved is not None) if (folder / SUMMARY).is_file() else None
    if saved is not None and (record is None or record.summary.status != "finished"):
        _check_identity(saved.origin.identity, f"stopped after step {saved.step}", plan, folder)
        return None  # it goes on
    if record is None:
        return None
    _check_identity(record.summary.identity, record.name, plan, folder)
    if why := outdated(plan, record.summary):
        say(console, f"This run is repeated: {why}.")
        return None
    if saved is not None:  # it was killed between its end and the removal of what it went on from
        with exclusive(folder):
            (folder / CHECKPOINT).unlink(missing_ok=True)
    if is_to_be_sealed(folder):
        with exclusive(folder):
            seal(folder, {})
        record = Record.load(folder)
        say(console, "Sealed now, as it was not when it ended: what was changed until now is not found.")
    say_unsealed({folder: record}, console)
    lacking = " It has not kept its models." if record.models is None else ""
    done = f"This run is done already, its results are in {folder}.{lacking} Give --again to repeat it."
    say(console, done)
    return record


def _check_identity(found: str, title: str, plan: Run, folder: Path) -> None:
    """Raise `InfeasibleError` if the folder holds another run."""
    if found != plan.identity:
        raise InfeasibleError(
            f"{folder} holds another run ({title}). Choose another --folder, or --again to replace it."
        )


def demo_command(options: Options, console: Console) -> int:
    """Carry out six runs, with bars, tables and one report; return the exit status."""
    execution = Execution(options.folder, options.device, options.threads, ray=options.ray)
    _check_execution(execution, options.folder)
    plans = demo.runs(options.seed)
    folders = {name: options.folder / name.lower().replace(", ", "-").replace(" ", "-") for name in plans}
    (options.folder / REPORT).unlink(missing_ok=True)
    records = _carry_out(plans, folders, execution, console)
    status = _show(records, options.folder, "One federation, three algorithms, without and under attack", console)
    console.print(demo.WHY, soft_wrap=True)
    return status


def partition_command(options: Options, console: Console) -> int:
    """Show the examples of each client: a table, and a picture; return the exit status."""
    plan, execution = options.draft.make(Run), options.draft.make(Execution)
    train, _ = plan.data.load(data_dir(execution.data_dir))
    parts = plan.partition.split(train.y, plan.clients, numpy_generator(plan.seed, "partition"), train.owners)
    counts, sizes = holdings(train.y, parts, train.classes), [len(part) for part in parts]
    reading = train.reading
    names = names_of([train.of(part) for part in parts], train)
    title = f"{type(plan.data).__name__} dealt to {plan.clients} clients by {plan.partition}"
    console.print(_holdings(counts, sizes, title, names, reading.labels if reading is not None else ()))
    if options.picture is not None:
        from phalanx.data import plot_holdings  # noqa: PLC0415  (matplotlib is slow to import)

        options.picture.parent.mkdir(parents=True, exist_ok=True)
        write_figure(plot_holdings(counts, plan.attackers(names), sizes), options.picture, dpi=150)
        say(console, f"Picture: {options.picture}")
    return 0


def _holdings(
    counts: torch.Tensor, sizes: Sequence[int], title: str, names: Sequence[str], labels: Sequence[object]
) -> Table:
    """Return a table with a column for each class; with sums instead if there are more than `COLUMNS` classes."""
    table = Table(title=title, title_justify="left")
    few = counts.shape[1] <= COLUMNS
    classes = labels or range(counts.shape[1])
    for heading in ("client", "examples", *(classes if few else ("labels", "classes"))):
        table.add_column(escape(str(heading)), justify="right")
    for i, (size, row) in enumerate(zip(sizes, counts.tolist(), strict=True)):
        shown = [str(n) if n else "·" for n in row] if few else [str(sum(row)), str(sum(n > 0 for n in row))]
        table.add_row(escape(f"{i} {names[i]}") if names else str(i), str(size), *shown)
    return table


def _check_execution(execution: Execution, folder: Path) -> None:
    """Raise `InfeasibleError` if there is no such device or number of threads, or if no such folder can be made."""
    check_device(execution.device)
    if execution.threads < 1:
        raise InfeasibleError(f"--threads must be at least 1, got {execution.threads}.")
    if execution.jobs is not None and execution.jobs < 1:
        raise InfeasibleError(f"--jobs must be at least 1, got {execution.jobs}.")
    others = {"device": (execution.device, "cpu"), "threads": (execution.threads, 1), "jobs": (execution.jobs, None)}
    given = [(name, value) for name, (value, usual) in others.items() if value != usual]
    if execution.ray is not None and given:
        name, value = given[0]
        raise InfeasibleError(f"With --ray, clients train on CPUs, in one thread each. Leave out --{name} {value}.")
    check_folder(folder)


def _carry_out(
    plans: Mapping[str, Run], folders: Mapping[str, Path], execution: Execution, console: Console
) -> list[Record]:
    keep_freed_memory()
    torch.set_num_threads(execution.threads)
    records = []
    notice = compilation(partial(say, console, "Numba compiles code first, some seconds once after an installation."))
    with notice, _executors(execution) as executors, progress.progress_bar(console) as bar:
        for name, plan in plans.items():
            observers = [_where_it_goes_on(plan, console), progress.follow(bar, plan, name)]
            record = simulate(
                plan,
                name=name,
                folder=folders[name],
                data_dir=data_dir(execution.data_dir),
                device=execution.device,
                observers=observers,
                checkpoint=Checkpoint(resume=not execution.again),
                executors=executors if execution.ray or _spreads(plan, execution) else None,
                models=SavedModels(execution.keep_best, execution.model_gigabytes, execution.best_by),
                keep_updates=execution.keep_updates,
            )
            if said := stuck(record, plan):
                console.print(f"[yellow]Warning:[/] {escape(said)}", soft_wrap=True)
            records.append(record)
    return records


def _executors(execution: Execution) -> AbstractContextManager[ExecutorFactory | None]:
    """Return where the clients of a run train: on a Ray cluster if one is given, or else on this machine."""
    if execution.ray is None:
        return ProcessExecutors() if execution.jobs is None else ProcessExecutors(execution.jobs, after=0.0)
    from phalanx.ray import RayExecutors  # noqa: PLC0415  (Ray is an optional dependency, and slow to import)

    return RayExecutors(execution.ray)


def _spreads(plan: Run, execution: Execution) -> bool:
    """Return whether the clients of a run can train in several processes.

    Raises:
        InfeasibleError: they cannot, and several are requested.
    """
    reasons = {
        "it computes on a GPU": execution.device != "cpu",
        f"{plan.algorithm.title} corrects their gradients": plan.algorithm.traits.corrects,
        "its clients remember something of their training": plan.training.remembers,
    }
    why = next((why for why, holds in reasons.items() if holds), "")
    if why and (execution.jobs or 1) > 1:
        raise InfeasibleError(f"Clients of this run cannot train in several processes: {why}. Leave out --jobs.")
    return not why


def _where_it_goes_on(plan: Run, console: Console) -> Observer:
    """Return an observer that prints after which step a resumed run goes on."""
    calls = count()

    def observer(progress: Progress) -> None:
        if next(calls) == 0 and progress.step:
            limit = f" of {plan.until.limit}" if plan.until.limit else ""
            console.print(f"Goes on after step {progress.step}{limit}.")

    return observer


def _show(records: Sequence[Record], folder: Path, title: str, console: Console, plan: Run | None = None) -> int:
    for shown in (terminal.results, terminal.exclusions, terminal.unused, terminal.reports):
        table = shown(records)
        if table is not None:
            console.print(table)
    for record in records:
        if (promise := record.summary.promise) is not None:
            remedies = remedy_options(promise.text[0], plan) if plan is not None else ""
            say(console, f"{record.name}: {promise.text[0]}", *filter(None, [remedies]))
        for line in terminal.complaints(record):
            say(console, f"{record.name}: {line}")
    failed = [record for record in records if record.summary.status == "failed"]
    for record in failed:
        why = escape(record.summary.error or "", lines=True)
        console.print(f"[red]{escape(record.name)} had to stop.[/] {why}", soft_wrap=True)
        say(console, *filter(None, [remedy_options(record.summary.error or "", plan)] if plan is not None else []))
    say(console, f"Report: {write(records, folder, title)}")
    return 1 if failed else 0
