"""The execution of a run.

Every parameter that could change a number of a `Run` is part of its identity.  The folder of the data, the device and
the folder of the results are not: those are arguments of `simulate`.
"""

import logging
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch

from phalanx.core import Algorithm, AnyState, InfeasibleError, StalledError, Vector
from phalanx.engine.connection import Transport
from phalanx.engine.loop import Snapshot, run
from phalanx.engine.observer import CatchingUp, Observer, Progress, StopRunError
from phalanx.engine.participation import Sampler
from phalanx.engine.reference import Train
from phalanx.engine.settings import LoopSettings
from phalanx.engine.suspicion import Watch, by_number
from phalanx.runs.canonical import source
from phalanx.runs.card import card
from phalanx.runs.checkpoint import (
    EVERY_MINUTE,
    Checkpoint,
    CheckpointWriter,
    Origin,
    Resumption,
    begun_in,
    no_audit,
    peek,
    resumption,
)
from phalanx.runs.federation import Federation, population
from phalanx.runs.files import HISTORY, is_full, write_inside
from phalanx.runs.history import History, Measure
from phalanx.runs.lock import exclusive
from phalanx.runs.models import CARD, THE_LAST, ModelKeeper, SavedModels, served_alike
from phalanx.runs.plan import Run
from phalanx.runs.preflight import ACCEPTED
from phalanx.runs.provenance import conditions, provenance
from phalanx.runs.record import Record
from phalanx.runs.schema import StepRecord
from phalanx.runs.seal import UNSEALED, Mark, seal, to_be_sealed
from phalanx.runs.summary import Ending, Population, RunInfo, ending, record_of
from phalanx.runs.updates import UpdateKeeper
from phalanx.signals import Holding
from phalanx.simulation.executor import ExecutorFactory
from phalanx.version import VERSION

log = logging.getLogger("phalanx.runs")

Failure = TypeVar("Failure", bound=Exception)


def ignore(ending: Ending) -> None:
    """Ignore how a run ends."""


class DiskFullError(OSError):
    """A run stopped because its disk is full.  The message says what to do, and where the run goes on."""


def _without_frames(error: Failure) -> Failure:
    """Return an error without the frames that it and its causes have passed, which hold all data of the run."""
    left, known = list[BaseException]([error]), set[int]()
    while left:
        one = left.pop().with_traceback(None)
        known.add(id(one))
        left += [cause for cause in (one.__cause__, one.__context__) if cause is not None and id(cause) not in known]
    return error


def _make_ready(folder: Path | None, info: RunInfo, resumed: Resumption) -> None:
    if folder is not None:
        Record.begin(folder, info.config, resumed=resumed.snapshot is not None)


class Session:
    """A run and its folder: it begins or goes on there, is observed, and leaves a record however it ends.

    It is entered as a context, in which `run` is called.

    Args:
        info: what it is, for its summary.
        origin: what decides about its bits.
        observed: fields of the algorithm's state that the history holds.
        measure: evaluates a state, for the history.
        population: who took part, by its history.
        folder: where record and checkpoints are kept; None: nowhere.
        checkpoint: when the run is saved on its way; None: never.
        device: where it computes.
        begun: when it began, by `time.perf_counter`; None: now.
        on_end: called with how the run ended, once its record is written; of a run that raises, only if it has a
            folder.
        models: keeps the models of the run.
        audit: the name of the audit trail in the folder.
        audited: returns the place that it has come to; None if there is none.
    """

    def __init__(
        self,
        info: RunInfo,
        origin: Origin,
        *,
        observed: Iterable[str],
        measure: Measure,
        population: Callable[[Sequence[StepRecord]], Population],
        folder: Path | None,
        checkpoint: Checkpoint | None,
        device: torch.device,
        begun: float | None = None,
        on_end: Callable[[Ending], None] = ignore,
        models: ModelKeeper,
        audit: str = "",
        audited: Callable[[], Mark | None] = no_audit,
    ) -> None:
        begun = time.perf_counter() if begun is None else begun
        self.info, self.folder = info, folder
        self.resumed = resumption(folder, checkpoint, origin, device)
        self.begun = begun - self.resumed.seconds
        self._population, self._on_end = population, on_end
        path = folder / HISTORY if folder else None
        # A method of this session would tie it to itself, and to the data, until the garbage collector comes.
        ready = partial(_make_ready, folder, info, self.resumed)
        self.history = History(observed, measure, path, ready, self.resumed.lines)
        self._holding, self._stepped = Holding(self._safe), False
        self.keeper = CheckpointWriter(folder, checkpoint, origin, self.history, self.begun, audit=audited)
        self._audit, self._audited = audit, audited
        self.failure: Exception | None = None  # by which the run had to stop, where that is its result
        self.record: Record | None = None  # once it has ended
        self.state: AnyState  # the last, once it has begun
        self._models, self._observers = models, tuple[Observer, ...]()
        self._watch: Watch | None = None  # of suspicious clients
        self._stop: StopRunError | None = None  # the first that an observer has raised
        models.go_on(self.history.lines)

    def run(
        self,
        algorithm: Algorithm[Any],
        transport: Transport,
        model: Vector,
        settings: LoopSettings,
        *,
        sample: Sampler,
        reference: Train | None,
        suspicion: bool = False,
        named: Callable[[int], str] = by_number,
        observers: Sequence[Observer],
    ) -> None:
        """Carry out the run from where it is, and keep its models.  The arguments are those of `phalanx.run`.

        `named` says who a client is, where the conduct of another has to do with it.

        A run that an observer stops ends here like any other; its record says so.
        """
        self._observers = (self._models, *observers)
        self._watch = Watch(algorithm, (step.conduct for step in self.history.lines), named) if suspicion else None
        if self.resumed.snapshot is not None:
            for observer in self._observers:
                if isinstance(observer, CatchingUp):
                    observer.catch_up(self.history.lines)
        try:
            run(
                algorithm,
                transport,
                model,
                settings,
                sample=sample,
                reference=reference,
                observers=(self,),
                on_snapshot=self._between_steps,
                resume=self.resumed.snapshot,
            )
        except StopRunError as stop:
            self.failure = _without_frames(stop)

    def __call__(self, progress: Progress) -> None:
        """Record the progress and show it to the observers, with what was measured; see `Observer`."""
        if self._watch is not None:
            progress = progress._replace(conduct=self._watch(progress.state, progress.updates))
        self.history(progress)
        self.state, self._stepped = progress.state, True
        shown = progress._replace(metrics=self.history.metrics)
        for observer in self._observers:
            try:
                observer(shown)
            except StopRunError as stop:
                self._stop = self._stop or stop

    def _between_steps(self, take: Callable[[], Snapshot[Any]]) -> None:
        """See `phalanx.engine.OnSnapshot`: a run that is asked to stop is left here, with all its steps."""
        self.keeper(take, now=self._stop is not None or self._holding.pending is not None)
        self._stepped = False
        if self._stop is not None:
            raise self._stop
        self._holding.release()

    def _safe(self) -> bool:
        """Whether a run can be left without losing a step that is done, or nearly done."""
        return self.keeper.path is None or (self.keeper.holds_this_step and not self._stepped)

    def __enter__(self) -> "Session":
        self._holding.begin()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._holding.leave()
        try:
            try:
                self._close(error)
            finally:
                self._seal()
        finally:
            self._holding.end(stopped=isinstance(error, KeyboardInterrupt))

    def _close(self, error: BaseException | None) -> None:
        """Leave the record, and what the run can go on from if it is not over.

        Raises:
            DiskFullError: the run ended because the disk is full; says what it has left.
        """
        with self.history:
            if error is None:
                self._end(self.failure)
                if isinstance(self.failure, StopRunError):
                    self.keeper.leave()
                else:
                    self.keeper.discard()
                return
            if is_full(error) and self.folder is not None:
                self._end_on_full_disk(error, self.folder)
            self.keeper.leave()
            if self.folder is None:
                return
            try:
                with self._noted(error, "the models of the last step are not kept", Exception):
                    self.keep_models()
            finally:
                with self._noted(error, "how the run ended is not all on record", OSError):
                    self._end(error)

    def _seal(self) -> None:
        """Seal the folder, if it holds the record of this run; warn if that is not possible."""
        if self.folder is None or self.record is None:
            return
        audited = self._audited()
        known = {HISTORY: self.history.mark} | ({} if audited is None else {self._audit: audited})
        try:
            seal(self.folder, known)
        except (OSError, ValueError, MemoryError) as failure:
            later = ". Free some space; then the same command seals it" if is_full(failure) else ""
            if not later:
                (self.folder / UNSEALED).unlink(missing_ok=True)
            warnings.warn(f"The record of this run has no seal: {failure or 'too little memory'}{later}", stacklevel=2)

    def keep_models(self) -> None:
        """Keep the models of the last step; raise `OSError` if they cannot be written."""
        self._models.keep()

    @staticmethod
    @contextmanager
    def _noted(error: BaseException, what: str, kind: type[Exception]) -> Iterator[None]:
        """Note on the error by which a run ends that something else went wrong as well."""
        try:
            yield
        except kind as failure:
            log.error("%s: %s", what, failure)
            error.add_note(f"{what.capitalize()}: {failure}")

    def _end_on_full_disk(self, error: BaseException, folder: Path) -> NoReturn:
        """Leave what there is room for: a checkpoint, a history that is at least as long, and a summary if possible."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it cannot be saved is said below
            self.keeper.leave()
        saved = peek(folder)
        then = "starts over, since nothing was saved yet"
        if saved is not None and saved.origin == self.keeper.origin:
            then = f"goes on after step {saved.step}"
        full = DiskFullError(
            f"The disk of {folder} is full, or your quota of it. Free some space; then the same command {then}."
        )
        with suppress(OSError):
            try:
                self._end(full)
            except OSError:
                if saved is None:
                    raise
                self.history.cut(saved.lines)  # what comes after the checkpoint is computed again anyway
                self._end(full)
        raise full from error

    def _end(self, error: BaseException | None) -> None:
        how = ending(error)
        try:
            if self.history.lines:
                lines, seconds = self.history.settled(), time.perf_counter() - self.begun
                record = record_of(self.info, lines, self._population(lines), how, seconds)
                record = replace(record, models=self._models.models, best=self._models.best)
                if self.folder is not None:
                    to_be_sealed(self.folder)
                    if record.models is not None:
                        write_inside(self.folder, CARD, card(record).encode())
                    record.save(self.folder)
                self.record = record
        finally:
            self._on_end(how)


def simulate(
    plan: Run,
    *,
    name: str | None = None,
    folder: Path | str | None = None,
    data_dir: Path | str | None = None,
    device: torch.device | str = "cpu",
    observers: Sequence[Observer] = (),
    checkpoint: Checkpoint | None = EVERY_MINUTE,
    executors: ExecutorFactory | None = None,
    models: SavedModels | None = THE_LAST,
    keep_updates: bool = False,
) -> Record:
    """Carry out a run in this process, on virtual time.

    Args:
        plan: the run. A `LocalSGD` of it that names no engine gets one by rule, from the run and its data alone; the
            record names it. A run that goes on keeps the one that it began with.
        name: a readable name; made from the run if not given.
        folder: where run.json, history.jsonl, summary.json and the models go, in place of an older run's; nothing is
            written if not given, nor before the run has begun. If this run was begun there before, and stopped or
            killed, it goes on.
        data_dir: where data sets lie; they are downloaded if not given.
        device: where it computes.
        observers: are called after each step; of a run that goes on, after those that are left. One that raises
            `StopRunError` ends it.
        checkpoint: when the run is saved on its way in `folder`, so that it can go on; None for never.
        executors: has clients train elsewhere, to the same bits: `phalanx.simulation.parallel.ProcessExecutors`, say.
        models: which models are kept, in `folder` and for `Record.model`; None for none.
        keep_updates: whether each step's updates are kept in `folder`, for `phalanx replay`: as many bytes a step as
            clients times parameters times 4.

    Returns:
        What happened; but for `wall_seconds` the same to the bit, also if the run was killed and went on. A run that
        had to stop, because nobody was left who could go on or the algorithm could not, has the status "failed" and the
        error in its summary; one that an observer stopped has the status "stopped" and the reason. Called again, the
        latter goes on.

    Raises:
        InfeasibleError: the run cannot even begin, or another process writes in `folder`; or it was begun under
            conditions (threads, versions, device, data) that give other bits than those of today.
        ValueError: the same, for a part that does not fit another (a model and its data, say), or a file in `folder`
            that is damaged.
        DiskFullError: the disk of `folder` is full. Called again, the run goes on from its last checkpoint.
        KeyboardInterrupt: the user stopped it. What was done until then is in the folder, with the status "stopped";
            any other mistake of a part of the run leaves the status "failed". Called again, the run goes on.
    """
    begun = time.perf_counter()
    folder, data_dir = None if folder is None else Path(folder), None if data_dir is None else Path(data_dir)
    federation = Federation(plan, data_dir, device, executors, begun="" if folder is None else begun_in(folder))
    plan = federation.plan  # with its engine
    for remark in federation.remarks:
        if not remark.endswith(ACCEPTED):
            warnings.warn(remark, stacklevel=2)
    origin = Origin(plan.identity, source(plan), VERSION, federation.fingerprint, conditions(federation.device))
    info = RunInfo(
        name or plan.title,
        plan.config,
        plan.identity,
        origin.source,
        len(federation.start),
        provenance(federation.device, engine=plan.training.computed_by),
        texts=federation.test.y.ndim == 2 and federation.test.classes > 0,
        findings=federation.remarks,
    )
    if keep_updates and folder is not None:
        served, sizes = partial(served_alike, plan.algorithm), lambda: federation.transport.reported
        observers = (
            UpdateKeeper(folder, served, sizes, federation.settings.guard, broken_promise=plan.broken_promise),
            *observers,
        )
    with nullcontext() if folder is None else exclusive(folder, needed=False):
        session = Session(
            info,
            origin,
            observed=plan.algorithm.traits.observed,
            measure=federation.measure,
            population=lambda history: population(federation, history),
            folder=folder,
            checkpoint=checkpoint,
            device=federation.device,
            begun=begun,
            models=ModelKeeper(
                federation.model,
                federation.all_served,
                folder,
                settings=models,
                identity=plan.identity,
                inputs=federation.inputs,
                architecture=plan.model,
                schema=federation.schema,
            ),
        )
        try:
            with reproducible(federation.device), session:
                _carry_out(federation, session, observers)
        except BaseException as error:  # a mistake in somebody's class, or Ctrl-C
            if session.record is not None and folder is not None:
                error.add_note(f"What was done until then is in {folder}; phalanx report {folder} shows it.")
                if session.keeper.step and not isinstance(error, DiskFullError):
                    error.add_note(f"When it is run again, it goes on after step {session.keeper.step}.")
            raise
        assert session.record is not None
        return session.record


def _carry_out(federation: Federation, session: Session, observers: Sequence[Observer]) -> None:
    """Carry out the run itself; an error by which it has to stop is its result."""
    plan = federation.plan
    try:
        session.run(
            plan.algorithm,
            federation.transport,
            federation.start,
            federation.settings,
            sample=plan.sampler(federation.byzantine),
            reference=federation.reference,
            suspicion=plan.suspicion,
            observers=observers,
        )
    except (InfeasibleError, StalledError, ValueError) as error:
        if not session.history.lines:
            raise
        session.failure = _without_frames(error)
    session.history.conclude(federation.evaluate)
    session.keep_models()


@contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """Make a GPU compute the same bits each time, as a CPU does; restore its settings on leaving."""
    if device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield
