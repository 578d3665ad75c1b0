"""`phalanx reproduce`: carries out the runs of experiments that are missing, and renders what came of them."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from phalanx.cli import parser
from phalanx.cli.checks import check_device, check_folder
from phalanx.cli.options import data_dir
from phalanx.core import InfeasibleError
from phalanx.report.words import duration
from phalanx.reproduce.display import Display, first_line
from phalanx.reproduce.drawing import styled
from phalanx.reproduce.experiment import PACKAGE, SCALES, Context, Experiment, Scale, Study, chosen, named, studies
from phalanx.reproduce.files import shortened, write
from phalanx.reproduce.output import flat, terminal_table
from phalanx.reproduce.results import Rendering
from phalanx.reproduce.store import Store
from phalanx.reproduce.trace import Trace
from phalanx.reproduce.workers import Ended, Means, Workers, local_workers
from phalanx.runs.canonical import digest
from phalanx.runs.plan import Run
from phalanx.wording import plural


@dataclass(frozen=True)
class Options:
    """What the user asks for.

    Args:
        paper: its name; None lists all papers.
        experiment: its name, or "all"; None lists those of the paper.
        scale: "quick" or "paper".
        seeds: how many, counted from 0; None: one, or with `no_training` those of which there are records.
        jobs: processes at a time; None: one, or on a Ray cluster as many as it has free CPUs.
        ray: address of a Ray cluster that carries out the runs; None: this machine does.
        folder: of all results.
        data_dir: where data sets lie; they are downloaded if None.
        device: where runs compute: "cpu", "cuda", "cuda:1".
        package: where papers are looked for.
        no_training: whether only to render what is there.
        again: whether to repeat runs that are done.
        only: which cells to carry out, as a pattern with * and ?; None: all. Tables show whatever there is.
    """

    paper: str | None = None
    experiment: str | None = None
    scale: Scale = "quick"
    seeds: int | None = None
    jobs: int | None = None
    ray: str | None = None
    folder: Path = Path("results")
    data_dir: Path | None = None
    device: str = "cpu"
    package: str = PACKAGE
    no_training: bool = False
    again: bool = False
    only: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Options":
        """The options from what the command line gave for them; InfeasibleError if they cannot be meant."""
        if given["scale"] not in SCALES:
            raise InfeasibleError(f"--scale must be {' or '.join(SCALES)}, got {given['scale']}.")
        for name in ("seeds", "jobs"):
            if given[name] is not None and given[name] < 1:
                raise InfeasibleError(f"--{name} must be at least 1, got {given[name]}.")
        if given["no_training"] and given["again"]:
            raise InfeasibleError("--no_training renders what is there, --again repeats it: give one of them.")
        if given["ray"] is not None and given["device"] != "cpu":
            raise InfeasibleError(f"--ray computes on CPUs, and --device is {given['device']}: give one of them.")
        return cls(**{f.name: given[f.name] for f in fields(cls)})

    @property
    def command(self) -> str:
        """The command that goes on where this one was stopped."""
        words = ["phalanx", "reproduce", self.paper or "", self.experiment or "", "--scale", self.scale]
        words += ["--seeds", str(self.seeds or 1)]
        words += ["--jobs", str(self.jobs or 1)] if self.jobs or not self.ray else []
        words += ["--ray", self.ray] if self.ray else []
        words += ["--folder", str(self.folder)]
        words += ["--data_dir", str(self.data_dir)] if self.data_dir else []
        words += ["--device", self.device] if self.device != "cpu" else []
        words += ["--package", self.package] if self.package != PACKAGE else []
        words += ["--only", self.only] if self.only else []
        return shlex.join(words)


def reproduce_command(options: parser.Options, console: Console) -> int:
    """Compute tables and figures of papers again; return the exit status."""
    check_device(options.device)
    check_folder(options.folder)
    given = {**vars(options), "data_dir": data_dir(options.data_dir), "package": options.package or PACKAGE}
    return reproduce(Options.of(given), console)


def reproduce(options: Options, console: Console) -> int:
    """The command.

    Returns:
        Its exit status: 0, or 1 if a run failed.

    Raises:
        InfeasibleError: a name is wrong, or there is nothing to render.
        ValueError: a file that should hold a record holds something else.
    """
    found = studies(options.package)
    if options.paper is None or options.experiment is None:
        return _list(found, options, console)
    study, experiments = chosen(found, options.paper, options.experiment)
    store = Store(options.folder / study.paper.name)
    seeds = {e.name: _seeds(e, store, options) for e in experiments}
    needed = Needed.by(experiments, options.scale, seeds)
    known = _known(needed, store, options, console)
    if not options.no_training:
        known |= _train(needed, known, store, options, console)
    elif needed.plans and not known:
        raise InfeasibleError(f"{store.folder} holds none of the records. Leave out --no_training to make them.")
    for experiment in experiments:
        records, missing = needed.traces(experiment, known), needed.missing(experiment, known)
        context = Context(options.scale, range(seeds[experiment.name]), study.published, options.data_dir)
        with styled():
            rendering = experiment.exhibit.render(records, context)
            files = write(rendering, experiment, context, records, missing=missing, folder=store.folder.parent)
        _show(experiment, rendering, files, console)
    return _complain(needed, known, console)


def _seeds(experiment: Experiment, store: Store, options: Options) -> int:
    """How many seeds of an experiment are meant: as many as were asked for, or as there are records of."""
    if options.seeds is not None or not options.no_training:
        return options.seeds or 1
    seeds = 0
    while any(store.path(plan).is_file() for plan in experiment.exhibit.runs(options.scale, seeds).values()):
        seeds += 1
    return max(seeds, 1)


@dataclass(frozen=True)
class Needed:
    """The runs of some experiments, each once.

    Args:
        plans: by identity.
        names: what each is for, by identity: the first place where it occurs.
        cells: identities, one for each seed, by experiment and cell.
    """

    plans: dict[str, Run] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    cells: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    @classmethod
    def by(cls, experiments: Sequence[Experiment], scale: Scale, seeds: Mapping[str, int]) -> "Needed":
        """The runs that experiments need on a scale, for so many seeds each."""
        out = cls()
        for experiment in experiments:
            cells = out.cells.setdefault(experiment.name, {})
            for seed in range(seeds[experiment.name]):
                for cell, plan in experiment.exhibit.runs(scale, seed).items():
                    out.plans.setdefault(plan.identity, plan)
                    out.names.setdefault(plan.identity, f"{experiment.name}: {cell} (seed {seed})")
                    if plan.identity not in cells.setdefault(cell, []):  # a run without chance is one run, not several
                        cells[cell].append(plan.identity)
        return out

    def like(self, pattern: str | None) -> set[str]:
        """The identities of runs in a cell whose name is like a pattern.

        Raises:
            InfeasibleError: no name is like it.
        """
        if pattern is None:
            return set(self.plans)
        cells = [pair for cells in self.cells.values() for pair in cells.items()]
        found = {i for cell, identities in cells if fnmatchcase(cell, pattern) for i in identities}
        if not found:
            names = shortened(list(dict(cells)))
            raise InfeasibleError(f"No cell has a name like {pattern!r}. There are: {names}.")
        return found

    def missing(self, experiment: Experiment, known: Mapping[str, Trace]) -> list[str]:
        """The names of the runs of an experiment that are not known."""
        identities = {i: None for cell in self.cells[experiment.name].values() for i in cell if i not in known}
        return [self.names[i] for i in identities]

    def traces(self, experiment: Experiment, known: Mapping[str, Trace]) -> dict[str, list[Trace]]:
        """For each cell of an experiment, the traces that there are."""
        cells = self.cells[experiment.name]
        return {cell: [known[i] for i in identities if i in known] for cell, identities in cells.items()}


def _known(needed: Needed, store: Store, options: Options, console: Console) -> dict[str, Trace]:
    """The records that are there and can be used; says how many, and why others cannot."""
    out, reasons = dict[str, Trace](), Counter[str]()
    for identity, plan in needed.plans.items() if not options.again else ():
        trace, why = store.find(plan)
        if trace is not None:
            out[identity] = trace
        elif why:
            reasons[why] += 1
    if needed.plans:
        console.print(f"{len(out)} of {plural(len(needed.plans), 'record')} are in {store.folder}.", soft_wrap=True)
    for why, count in reasons.items():
        console.print(escape(f"{plural(count, 'more record')} cannot be used: {why}."), soft_wrap=True)
    return out


def _train(
    needed: Needed, known: Mapping[str, Trace], store: Store, options: Options, console: Console
) -> dict[str, Trace]:
    """Carries out what is not known.

    Raises:
        KeyboardInterrupt: the user stopped it; its notes say what is kept.
    """
    wanted = needed.like(options.only)
    missing = [plan for identity, plan in needed.plans.items() if identity in wanted and identity not in known]
    if not missing:
        return {}
    _load(missing, options.data_dir)
    names, out = {plan.identity: needed.names[plan.identity] for plan in missing}, dict[str, Trace]()
    means = Means(options.data_dir, options.device, resume=not options.again)
    try:
        with Display(console, names) as display, _workers(options, store, means) as workers:
            for event in workers.events(missing):
                display.show(event)
                if isinstance(event, Ended):
                    out[event.trace.identity] = event.trace
    except KeyboardInterrupt as stop:
        kept = sum(store.find(plan)[0] is not None for plan in needed.plans.values())
        stop.add_note(f"{kept} of {plural(len(needed.plans), 'record')} are kept in {store.folder}.")
        stop.add_note("Runs on their way are saved every minute, and go on from there.")
        stop.add_note(f"To go on: {options.command}")
        raise
    return out


def _workers(options: Options, store: Store, means: Means) -> AbstractContextManager[Workers]:
    """What carries out the runs: processes of this machine, or a Ray cluster."""
    if options.ray is None:
        return local_workers(options.jobs or 1, store, means)
    from phalanx.ray import ray_workers  # noqa: PLC0415  (Ray is an optional dependency, and slow to import)

    return ray_workers(options.ray, options.jobs, store, means)


def _load(plans: Sequence[Run], data_dir: Path | None) -> None:
    """Loads each data set once, so that what is wrong with it shows before any work, and one process downloads it."""
    for data in {digest(plan.config["data"]): plan.data for plan in plans}.values():
        data.load(data_dir)


def _show(experiment: Experiment, rendering: Rendering, files: Sequence[Path], console: Console) -> None:
    """Tables and notes of an experiment, and where its files are."""
    console.print(f"\n[bold]{escape(experiment.title)}[/]: {escape(experiment.exhibit.title)}", soft_wrap=True)
    console.print(f"The paper: {escape(experiment.exhibit.claim)}", soft_wrap=True)
    for table in map(flat, rendering.tables):
        console.print(terminal_table(table))
        for note in table.notes:
            console.print(escape(note), soft_wrap=True)
    for line in (*rendering.notes, "", *map(str, files)):
        console.print(escape(line), soft_wrap=True)


def _complain(needed: Needed, known: Mapping[str, Trace], console: Console) -> int:
    """Says what failed and what is missing; returns the exit status."""
    missing = [name for identity, name in needed.names.items() if identity not in known]
    if missing:
        console.print(escape(f"Missing: {plural(len(missing), 'run')}: {shortened(missing)}."), soft_wrap=True)
    reasons = dict[str, list[str]]()
    for identity, trace in known.items():
        if trace.failed:
            reasons.setdefault(first_line(trace.error), []).append(needed.names[identity])
    for reason, names in reasons.items():
        console.print(f"[red]{plural(len(names), 'run')} failed:[/] {escape('; '.join(names))}.", soft_wrap=True)
        console.print(escape(f"  {reason}"), soft_wrap=True)
    return 1 if reasons else 0


# What there is


def _list(found: Mapping[str, Study], options: Options, console: Console) -> int:
    """Papers and their experiments: what they show, what they cost, how much of it is there."""
    shown = list(found.values()) if options.paper is None else [named(found, options.paper, "paper")]
    if not shown:
        raise InfeasibleError(f"{options.package} holds no papers.")
    for study in shown:
        console.print(f"[bold]{escape(study.paper.name)}[/]: {escape(study.paper.citation)}", soft_wrap=True)
        console.print(_listed(study, options) if study.experiments else "  (no experiments)\n")
        if options.paper is not None:
            for experiment in study.experiments.values():
                console.print(f"[bold]{experiment.name}[/]: {escape(experiment.exhibit.claim)}", soft_wrap=True)
    examples = [experiment.title for study in shown for experiment in study.experiments.values()]
    if examples:
        told = f"Times are of one process. To compute one: phalanx reproduce {examples[0]} --seeds 3 --jobs 2"
        console.print(told, soft_wrap=True)
    return 0


def _listed(study: Study, options: Options) -> Table:
    """A line for each experiment of a paper."""
    table = Table(box=SIMPLE_HEAD)
    for heading in ("experiment", "what it shows", *(f"{scale} scale" for scale in SCALES)):
        table.add_column(heading)
    store = Store(options.folder / study.paper.name)
    for experiment in study.experiments.values():
        cost = [_cost(experiment, store, scale, options) for scale in SCALES]
        table.add_row(experiment.name, escape(experiment.exhibit.title), *cost)
    return table


def _cost(experiment: Experiment, store: Store, scale: Scale, options: Options) -> str:
    """`15 runs, 4.0 min, 3 done`, for the seeds of the options; a damaged record does not hide the others."""
    plans = Needed.by([experiment], scale, {experiment.name: options.seeds or 1}).plans
    if not plans:
        return "no training"
    done = damaged = 0
    for plan in plans.values():
        try:
            done += store.find(plan)[0] is not None
        except ValueError:
            damaged += 1
    seconds = 60 * (options.seeds or 1) * experiment.exhibit.minutes[scale]
    return f"{plural(len(plans), 'run')}, {duration(seconds)}, {done} done" + (
        f", {damaged} damaged" if damaged else ""
    )
