"""`phalanx reproduce`: carries out the missing runs of experiments, and renders their results."""

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, cast

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from phalanx.cli import parser
from phalanx.cli.checks import check_device, check_folder
from phalanx.cli.consoles import escape, say
from phalanx.cli.options import data_dir
from phalanx.cli.workers import workers_of
from phalanx.core import InfeasibleError
from phalanx.experiments.carrying_out import Carrier, Means
from phalanx.experiments.papers.claims import claims_table, judged
from phalanx.experiments.papers.experiment import (
    ALL,
    PACKAGE,
    SCALES,
    Context,
    Experiment,
    Reproduction,
    Scale,
    chosen,
    form_of,
    named,
    reproductions,
)
from phalanx.experiments.papers.manifest import Manifest, Page
from phalanx.experiments.papers.needed import Form, Needed, Traces
from phalanx.experiments.papers.output import flat
from phalanx.experiments.papers.rendering import Rendering
from phalanx.experiments.papers.scoreboard import Shown, write_scoreboard
from phalanx.experiments.papers.untrained import untrained
from phalanx.experiments.papers.verify import OUTCOMES, Stored, conditions, differences, outcome, stored, write_badge
from phalanx.experiments.papers.writing import shortened, write
from phalanx.experiments.shown.plotting import styled
from phalanx.experiments.shown.progress_display import first_line
from phalanx.experiments.shown.text import terminal_table
from phalanx.experiments.store import Store
from phalanx.experiments.trace import Trace
from phalanx.report.words import duration
from phalanx.runs import engine_choice
from phalanx.runs.engine_choice import with_engine
from phalanx.runs.federation import can_begin
from phalanx.runs.lock import exclusive
from phalanx.runs.plan import Run
from phalanx.runs.provenance import NUMERICS, counts_as
from phalanx.training.engines import Engine
from phalanx.wording import plural

MOST_SEEDS = 1000


@dataclass(frozen=True)
class ReproduceOptions:
    """The options of the command.

    Args:
        paper: its name; None lists all papers.
        experiment: its name, or "all"; None lists those of the paper.
        scale: "quick" or "paper".
        seeds: how many, counted from 0; None: one, or with `no_training` those of the page that is there.
        jobs: processes at a time; None: one, or on a Ray cluster as many as it has free CPUs.
        ray: address of a Ray cluster that carries out the runs; None: this machine does.
        folder: of all results.
        data_dir: where data sets lie; they are downloaded if None.
        device: where runs compute: "cpu", "cuda", "cuda:1".
        package: where papers are looked for.
        no_training: whether only to render what is there.
        again: whether to repeat runs that are done; with `only` those of these cells.
        mixed: whether a page may show records of several numerics versions.
        verify: how many stored records to compute again, drawn at random, and to compare; None: none.
        within: draw records only of runs that took at most so many seconds; None: all.
        draw: which random choice of records.
        check: whether to compute stored records again, the cheapest first, and to judge them item by item.
        pack: whether to bring the records of the paper into one file, and to do nothing else.
        hours: with `check`, the largest sum of the records' own durations; None: no limit.
        only: which cells to carry out, as a pattern with * and ?; None: all. Tables show whatever there is.
        engine: that runs train by where they have it, on pages of their own; None: the experiments' own.
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
    mixed: bool = False
    verify: int | None = None
    within: float | None = None
    draw: int = 0
    check: bool = False
    hours: float | None = None
    pack: bool = False
    only: str | None = None
    engine: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "ReproduceOptions":
        """Return the options from the command line; raise InfeasibleError if they are inconsistent."""
        if given["scale"] not in SCALES:
            raise InfeasibleError(f"--scale must be {' or '.join(SCALES)}, got {given['scale']}.")
        for name in ("seeds", "jobs", "verify"):
            if given[name] is not None and given[name] < 1:
                raise InfeasibleError(f"--{name} must be at least 1, got {given[name]}.")
        if given["seeds"] is not None and given["seeds"] > MOST_SEEDS:
            raise InfeasibleError(f"--seeds must be at most {MOST_SEEDS:,}, got {given['seeds']}.")
        if given["no_training"] and given["again"]:
            raise InfeasibleError("--no_training renders what is there, --again repeats it: give one of them.")
        if given["within"] is not None and given["verify"] is None:
            raise InfeasibleError("--within limits which records --verify draws: give --verify as well.")
        if given["verify"] is not None and (given["no_training"] or given["again"] or given["only"]):
            raise InfeasibleError("--verify changes no page: leave out --no_training, --again and --only.")
        if given["hours"] is not None and not (given["check"] and given["hours"] > 0):
            raise InfeasibleError("--hours limits what --check computes: give --check as well, and a positive number.")
        if given["check"] and (given["no_training"] or given["again"] or given["only"] or given["verify"]):
            raise InfeasibleError("--check changes no page: leave out --no_training, --again, --only and --verify.")
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
        words += ["--engine", self.engine] if self.engine else []
        words += ["--mixed"] if self.mixed else []
        return shlex.join(words)


def reproduce_command(options: parser.Options, console: Console) -> int:
    """Compute tables and figures of papers again; return the exit status."""
    check_device(options.device)
    check_folder(options.folder)
    given = {**vars(options), "data_dir": data_dir(options.data_dir)}
    given["package"] = PACKAGE if options.package is None else options.package
    return reproduce(ReproduceOptions.of(given), console)


def reproduce(options: ReproduceOptions, console: Console) -> int:
    """Carry out the command; return the exit status.

    Returns:
        Its exit status: 0, or 1 if a run failed.

    Raises:
        InfeasibleError: a name is wrong, or there is nothing to render.
        ValueError: a file that should hold a record holds something else.
    """
    found = reproductions(options.package)
    if options.verify is not None:
        return verify(found, options, console)
    if options.check:
        return _check(found, options, console)
    if options.paper == ALL:
        return _everything(found, options, console)
    if options.pack and options.paper is not None:
        return _pack(found, options, console)
    if options.paper is None or options.experiment is None:
        return _list(found, options, console)
    status, _ = _pages_of(found, options, console)
    return status


def _pack(found: Mapping[str, Reproduction], options: ReproduceOptions, console: Console) -> int:
    """Bring the records of a paper into one file; return the exit status."""
    assert options.paper is not None
    store = Store(options.folder / named(found, options.paper, "paper").paper.name)
    with exclusive(store.folder.parent, needed=False):
        say(console, f"{plural(store.pack(), 'record')} are in {store.packed}.")
    return 0


def _everything(found: Mapping[str, Reproduction], options: ReproduceOptions, console: Console) -> int:
    """Draw all pages that are there from their records, and the scoreboard of all claims; return the exit status.

    Raises:
        InfeasibleError: runs would be carried out.
    """
    if not options.no_training:
        raise InfeasibleError(
            "All papers take hundreds of core-hours. Give --no_training to draw what is there, or the name of one."
        )
    status, shown = 0, list[Shown]()
    for name, reproduction in found.items():
        manifest = Manifest(options.folder / name)
        forms = dict.fromkeys(form for e in reproduction.experiments for form in manifest.forms(e))
        for scale, _, engine in (form.partition("-") for form in sorted(forms)):
            of = replace(options, paper=name, experiment=ALL, scale=cast(Scale, scale), engine=engine or None)
            failed, pages = _pages_of(found, of, console)
            status, shown = max(status, failed), shown + pages
    for path in write_scoreboard(shown, found, options.folder):
        say(console, str(path))
    return status


def _pages_of(
    found: Mapping[str, Reproduction], options: ReproduceOptions, console: Console
) -> tuple[int, list[Shown]]:
    """Carry out what is missing for the pages of a paper, and draw them; return the exit status, and the pages."""
    assert options.paper is not None
    assert options.experiment is not None
    reproduction, experiments = chosen(found, options.paper, options.experiment)
    with exclusive(options.folder / reproduction.paper.name, needed=False):
        return _pages_in(reproduction, experiments, options, console)


def _pages_in(
    reproduction: Reproduction, experiments: Sequence[Experiment], options: ReproduceOptions, console: Console
) -> tuple[int, list[Shown]]:
    folder = options.folder / reproduction.paper.name
    store, manifest = Store(folder), Manifest(folder)
    pages = _pages(experiments, manifest, options)
    experiments = [e for e in experiments if e.name in pages]
    form = _form(options, store, trains=not options.no_training)
    needed = Needed.by(experiments, options.scale, pages, form)
    again = needed.like(options.only) if options.again else set()
    known = _known(needed, again, store, console)
    new = set() if options.no_training else needed.like(options.only) - known.keys()
    as_they_are = options.no_training and options.seeds is None  # pages say which versions they show
    if not options.mixed and not as_they_are:
        _check_numerics(needed, experiments, known, new)
    if not options.no_training:
        known |= _train(needed, new, store, options, console)
    elif needed.plans and not known:
        raise InfeasibleError(f"{store.folder} holds none of the records. Leave out --no_training to make them.")
    shown = []
    for experiment in experiments:
        records, missing = needed.traces(experiment, known), needed.missing(experiment, known)
        seeds, exhibit = pages[experiment.name].seeds, experiment.exhibit
        own_size = exhibit.own_size(options.scale)
        context = Context(options.scale, seeds, reproduction.published, options.data_dir, options.engine, own_size)
        with styled():
            rendering = exhibit.results(records, context)
            if stuck := untrained(needed.baselines(experiment, known)):
                rendering = rendering.unjudged(stuck)
            files = write(rendering, experiment, context, records, missing=missing, folder=store.folder.parent)
        page = needed.page(experiment, known)
        if page != pages[experiment.name] or not as_they_are:
            manifest.keep(experiment.name, context.form, page)
        _show(experiment, rendering, files, console)
        shown.append(Shown(experiment, context, rendering, records, page.date))
    failed = _complain(needed, known, console)
    return 0 if options.no_training else failed, shown


def _form(options: ReproduceOptions, store: Store, *, trains: bool) -> Form:
    """Return what gives a run the engine of the options, if it has it; if nothing trains, if that has a record."""
    engine = cast("Engine | None", options.engine)
    if engine is None:
        return engine_choice.named
    known = dict[str, bool]()  # whether runs can have it, by what decides

    def form(plan: Run) -> Run:
        try:
            other = with_engine(plan, engine)
        except ValueError:
            return plan
        if other == plan or store.holds(other):
            return other
        kind = repr((plan.data, plan.model, plan.buffers, other.training, plan.task, type(plan.algorithm), plan.attack))
        if trains and kind not in known:
            known[kind] = can_begin(other, options.data_dir, options.device)
        return other if known.get(kind) else plan

    return form


def _pages(experiments: Sequence[Experiment], manifest: Manifest, options: ReproduceOptions) -> dict[str, Page]:
    """Return the records of the pages: the seeds of the options, or else those of the manifest.

    Raises:
        InfeasibleError: it knows none of the pages.
    """
    form = form_of(options.scale, options.engine)
    pages = {e.name: page for e in experiments if (page := manifest.page(e.name, form))}
    if options.seeds is not None or not options.no_training:
        new = Page.of(options.seeds or 1)
        return {e.name: replace(pages.get(e.name, new), seeds=new.seeds, without={}) for e in experiments}
    if not pages:
        names = shortened([e.name for e in experiments])
        raise InfeasibleError(
            f"{manifest.path} holds no {form} page of {names}. Leave out --no_training to make it, or give --seeds."
        )
    return pages


def _check_numerics(needed: Needed, experiments: Sequence[Experiment], known: Traces, new: set[str]) -> None:
    """Raise `InfeasibleError` if a page would show records of several numerics versions.

    Args:
        needed: the runs.
        experiments: the pages.
        known: the records that are there.
        new: identities of the runs that are going to be computed.
    """
    for experiment in experiments:
        versions = needed.numerics(experiment, known, new)
        if len(versions) > 1:
            found = ", ".join(f"{count} of version {version}" for version, count in sorted(versions.items()))
            raise InfeasibleError(
                f"{experiment.title} would show records of several numerics versions together: {found}. Code of "
                "different versions may give different numbers. Give --again to compute all of them with this version, "
                "or --mixed to show them together, which the page then says."
            )


def _known(needed: Needed, again: set[str], store: Store, console: Console) -> dict[str, Trace]:
    """Return the records that can be used; print their number and numerics versions, and why others cannot.

    Args:
        needed: the runs.
        again: identities of runs whose records are not to be used.
        store: of the records.
        console: shows it.
    """
    out, reasons = dict[str, Trace](), Counter[str]()
    for identity, plan in needed.plans.items():
        trace, why = store.find(plan) if identity not in again else (None, "")
        if trace is not None:
            out[identity] = trace
        elif why:
            reasons[why] += 1
    if needed.plans:
        say(console, f"{len(out)} of {plural(len(needed.plans), 'record')} are in {store.folder}.")
    for why, count in reasons.items():
        say(console, f"{plural(count, 'more record')} cannot be used: {why}.")
    versions = Counter(counts_as(trace.provenance.numerics, needed.plans[i]) for i, trace in out.items())
    for version, count in sorted(versions.items()):
        if version != NUMERICS:
            warning = f"Warning: {plural(count, 'record')} of numerics version {version}, this is {NUMERICS}: "
            console.print(f"[yellow]{warning}[/]this code may give other numbers.", soft_wrap=True)
    return out


def _train(
    needed: Needed, new: set[str], store: Store, options: ReproduceOptions, console: Console
) -> dict[str, Trace]:
    """Carry out runs, by their identities.

    Raises:
        KeyboardInterrupt: the user stopped it; its notes say what is kept.
    """
    try:
        return computed(
            {needed.names[i]: plan for i, plan in needed.plans.items() if i in new}, store, options, console
        )
    except KeyboardInterrupt as stop:
        kept = sum(store.find(plan)[0] is not None for plan in needed.plans.values())
        stop.add_note(f"{kept} of {plural(len(needed.plans), 'record')} are kept in {store.folder}.")
        stop.add_note("Runs on their way are saved every minute, and go on from there.")
        stop.add_note(f"To go on: {options.command}")
        raise


def computed(plans: Mapping[str, Run], store: Store, options: ReproduceOptions, console: Console) -> dict[str, Trace]:
    """Carry out runs, and return their traces, by identity; runs by name."""
    means = Means(options.data_dir, options.device, resume=not options.again)
    workers = partial(workers_of, options.jobs, options.ray, store, means)
    with Carrier(store, workers, options.data_dir, console) as carrier:
        return carrier.carry_out(plans)


def _show(experiment: Experiment, rendering: Rendering, files: Sequence[Path], console: Console) -> None:
    """Print tables and notes of an experiment, and the paths of its files."""
    console.print(f"\n[bold]{escape(experiment.title)}[/]: {escape(experiment.exhibit.title)}", soft_wrap=True)
    say(console, f"The paper: {experiment.exhibit.claim}")
    claims = judged(rendering.claims)
    for table in map(flat, (*rendering.tables, *([claims_table(claims)] if claims else []))):
        console.print(terminal_table(table))
        say(console, *table.notes)
    say(console, *(*rendering.notes, "", *map(str, files)))


def _complain(needed: Needed, known: Mapping[str, Trace], console: Console) -> int:
    """Print failed and missing runs; return the exit status."""
    missing = [name for identity, name in needed.names.items() if identity not in known]
    if missing:
        say(console, f"Missing: {plural(len(missing), 'run')}: {shortened(missing)}.")
    reasons = dict[str, list[str]]()
    for identity, trace in known.items():
        if trace.failed:
            reasons.setdefault(first_line(trace.error), []).append(needed.names[identity])
    for reason, names in reasons.items():
        console.print(f"[red]{plural(len(names), 'run')} failed:[/] {escape('; '.join(names))}.", soft_wrap=True)
        say(console, f"  {reason}")
    return 1 if reasons else 0


# The list of experiments


def _list(found: Mapping[str, Reproduction], options: ReproduceOptions, console: Console) -> int:
    """Print papers and their experiments: contents, costs, and numbers of existing records."""
    shown = list(found.values()) if options.paper is None else [named(found, options.paper, "paper")]
    if not shown:
        raise InfeasibleError(f"{options.package} holds no papers.")
    for reproduction in shown:
        console.print(
            f"[bold]{escape(reproduction.paper.name)}[/]: {escape(reproduction.paper.citation)}", soft_wrap=True
        )
        console.print(_listed(reproduction, options) if reproduction.experiments else "  (no experiments)\n")
        if options.paper is not None:
            for experiment in reproduction.experiments.values():
                console.print(f"[bold]{experiment.name}[/]: {escape(experiment.exhibit.claim)}", soft_wrap=True)
    examples = [experiment.title for reproduction in shown for experiment in reproduction.experiments.values()]
    if examples:
        hint = f"Times are of one process. To compute one: phalanx reproduce {examples[0]} --seeds 3 --jobs 2"
        say(console, hint)
    return 0


def _listed(reproduction: Reproduction, options: ReproduceOptions) -> Table:
    """Return a table with a line for each experiment of a paper."""
    table = Table(box=SIMPLE_HEAD)
    for heading in ("experiment", "what it shows", *(f"{scale} scale" for scale in SCALES)):
        table.add_column(heading)
    store = Store(options.folder / reproduction.paper.name)
    for experiment in reproduction.experiments.values():
        cost = [_cost(experiment, store, scale, options) for scale in SCALES]
        table.add_row(experiment.name, escape(experiment.exhibit.title), *cost)
    return table


def _cost(experiment: Experiment, store: Store, scale: Scale, options: ReproduceOptions) -> str:
    """Return the cost for the seeds of the options, `15 runs, 4.0 min, 3 done`; damaged records are counted."""
    page, form = Page.of(options.seeds or 1), _form(options, store, trains=False)
    plans = Needed.by([experiment], scale, {experiment.name: page}, form).plans
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


# Verification of stored records


def verify(found: Mapping[str, Reproduction], options: ReproduceOptions, console: Console) -> int:
    """Compute stored records again, and say by how much they differ.

    Returns:
        1 if a record differs that this numerics version computed under these conditions, else 0.

    Raises:
        InfeasibleError: there is no such record.
    """
    drawn = _drawn(found, options)
    with TemporaryDirectory() as scratch:
        again = computed({one.name: one.plan for one in drawn}, Store(Path(scratch)), options, console)
    table = Table("record", "numerics version", "seconds", "computed again", box=SIMPLE_HEAD)
    equal = wrong = 0
    for one in drawn:
        version, by = one.trace.provenance.numerics, differences(one.trace, again[one.trace.identity])
        other = conditions(one.trace, again[one.trace.identity])
        equal += not by
        wrong += bool(by) and counts_as(version, one.plan) == NUMERICS and not other
        table.add_row(escape(one.name), str(version), f"{one.trace.wall_seconds:.1f}", escape(_compared(by, other)))
    console.print(table)
    say(console, f"{equal} of {plural(len(drawn), 'record')} came out again to the bit.")
    if wrong:
        console.print(f"[red]{plural(wrong, 'record')} of numerics version {NUMERICS} differ.[/]", soft_wrap=True)
    return 1 if wrong else 0


def _check(found: Mapping[str, Reproduction], options: ReproduceOptions, console: Console) -> int:
    """Compute stored records again, the cheapest first, and judge them item by item; return the exit status.

    What was computed again is kept in `check` of the folder, so that the same command goes on.

    Returns:
        1 if a record differs, else 0.

    Raises:
        InfeasibleError: there are no records.
    """
    one = None if options.paper == ALL else options.paper
    shown = found.values() if one is None else [named(found, one, "paper")]
    seconds = math.inf if options.hours is None else 3600 * options.hours
    there, again = list[Stored](), dict[str, Trace]()
    for reproduction in shown:
        name = reproduction.paper.name
        store, checked = Store(options.folder / name), Store(options.folder / CHECKED / name)
        experiments = chosen({name: reproduction}, name, options.experiment or ALL)[1]
        records = sorted(
            stored(experiments, store, _form(options, store, trains=False)), key=lambda one: one.trace.wall_seconds
        )
        there += records
        again |= {r.trace.identity: trace for r in records if (trace := checked.find(r.plan)[0]) is not None}
        plans = dict[str, Run]()
        for record in records:
            if record.trace.identity not in again and record.trace.wall_seconds <= seconds:
                plans[record.name] = record.plan
                seconds -= record.trace.wall_seconds
        again |= computed(plans, checked, options, console)
    if not there:
        raise InfeasibleError(f"{options.folder} holds no such records.")
    table = Table("item", "records", *OUTCOMES, "not checked", box=SIMPLE_HEAD)
    total = Counter[str]()
    for item in dict.fromkeys(record.item for record in there):
        ours = [record for record in there if record.item == item]
        counts = Counter(outcome(r.trace, again[r.trace.identity]) for r in ours if r.trace.identity in again)
        total += Counter(map(str, counts.elements()))
        row = (counts[name] for name in OUTCOMES)
        table.add_row(escape(item), str(len(ours)), *map(str, row), str(len(ours) - counts.total()))
        write_badge(options.folder / CHECKED / "badges", item, counts, len(ours))
    console.print(table)
    words = ", ".join(f"{total[name]:,} {name}" for name in OUTCOMES)
    say(console, f"{total.total():,} of {plural(len(there), 'record')} checked: {words}.")
    return 1 if total["differs"] else 0


CHECKED = "check"  # folder of records computed again, below that of all results


def _drawn(found: Mapping[str, Reproduction], options: ReproduceOptions) -> list[Stored]:
    """Return random records among those that the options allow."""
    shown = found.values() if options.paper is None else [named(found, options.paper, "paper")]
    within = math.inf if options.within is None else options.within
    there = list[Stored]()
    for reproduction in shown:
        name, store = reproduction.paper.name, Store(options.folder / reproduction.paper.name)
        experiments = chosen({name: reproduction}, name, options.experiment or ALL)[1]
        records = stored(experiments, store, _form(options, store, trains=False))
        there += (one for one in records if one.trace.wall_seconds <= within)
    drawn = Random(options.draw).sample(there, min(len(there), options.verify or 0))
    if not drawn:
        raise InfeasibleError(f"{options.folder} holds no such record of a run that took at most {within:g} s.")
    return drawn


def _compared(by: Mapping[str, float], other: Sequence[str]) -> str:
    """Return the differences with possible causes, largest first, such as `loss differs by up to 1.2e-07`."""
    largest = sorted(by.items(), key=lambda item: -item[1])
    figures = shortened([f"{name} by up to {value:.2g}" if value < math.inf else name for name, value in largest])
    return (f"differs in {figures}" if by else "to the bit") + (f" ({'; '.join(other)})" if by and other else "")
