"""A run as a value, and what becomes of it.

Every parameter that could change a number of a `Run` is part of its identity.  Where its data lies, on which device it
computes and where its results go is not: those are arguments of `simulate`.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import phalanx
from phalanx.core import InfeasibleError, Observer, StalledError
from phalanx.engine.loop import OnSnapshot, Snapshot, run
from phalanx.engine.participation import Participation, everyone
from phalanx.runs.canonical import source
from phalanx.runs.checkpoint import EVERY_MINUTE, Checkpoint, CheckpointWriter, Origin, resumption
from phalanx.runs.federation import Federation, population
from phalanx.runs.history import History
from phalanx.runs.plan import Run
from phalanx.runs.provenance import conditions, provenance
from phalanx.runs.record import HISTORY, Record
from phalanx.runs.summary import Origins, ending, record_of
from phalanx.simulation.executor import ExecutorFactory


def simulate(
    plan: Run,
    *,
    name: str | None = None,
    folder: Path | None = None,
    data_dir: Path | None = None,
    device: torch.device | str = "cpu",
    observers: Sequence[Observer] = (),
    checkpoint: Checkpoint | None = EVERY_MINUTE,
    executors: ExecutorFactory | None = None,
) -> Record:
    """Carries out a run in this process, on virtual time.

    Args:
        plan: what to do.
        name: for people; made from the run if not given.
        folder: where run.json, history.jsonl and summary.json go, in place of an older run's; nothing is written if not
            given, nor before the run has begun. If this run was begun there before, and stopped or killed, it goes on.
        data_dir: where data sets lie; they are downloaded if not given.
        device: where it computes.
        observers: are shown each step; of a run that goes on, those that are left.
        checkpoint: when the run is saved on its way in `folder`, so that it can go on; None for never.
        executors: has the clients of a round train elsewhere, to the same bits, such as `phalanx.ray.RayExecutors`.

    Returns:
        What happened; but for `wall_seconds` the same to the bit, also if the run was killed and went on. A run that
        had to stop, because nobody was left who could go on or the algorithm could not, has the status "failed" and the
        error in its summary.

    Raises:
        InfeasibleError: the run cannot even begin; or it was begun under conditions (threads, versions, device, data) that
            give other bits than those of today.
        ValueError: the same, for a part that does not fit another (a model and its data, say), or a file in `folder`
            that is damaged.
        KeyboardInterrupt: the user stopped it. What was done until then is in the folder, with the status "stopped";
            any other mistake of a part of the run leaves the status "failed". Called again, the run goes on.
    """
    begun, made_by = time.perf_counter(), source(plan)
    federation = Federation(plan, data_dir, device, executors)
    origin = Origin(plan.identity, made_by, phalanx.__version__, federation.fingerprint, conditions(federation.device))
    resumed = resumption(folder, checkpoint, origin, federation.device)
    begun -= resumed.seconds
    history = History(
        plan.algorithm.observed,
        federation.measure,
        folder / HISTORY if folder else None,
        lambda: Record.begin(folder, plan.config, resumed=resumed.snapshot is not None) if folder else None,
        resumed.lines,
    )
    keeper = CheckpointWriter(folder, checkpoint, origin, history, begun)

    def recorded(error: BaseException | None) -> Record:
        origins = Origins(
            name or plan.title,
            plan.config,
            plan.identity,
            made_by,
            len(federation.start),
            provenance(federation.device),
            texts=federation.test.y.ndim == 2,
        )
        who, seconds = population(federation, history.lines), time.perf_counter() - begun
        record = record_of(origins, history.lines, who, ending(error), seconds)
        if folder is not None:
            record.save(folder)
        return record

    try:
        with history, reproducible(federation.device):
            failure = _carry_out(federation, history, observers, keeper, resumed.snapshot)
    except BaseException as error:  # a mistake in somebody's class, or Ctrl-C: it goes on its way, and leaves a record
        if history.lines and folder is not None:
            keeper.leave()
            recorded(error)
            error.add_note(f"What was done until then is in {folder}; phalanx report {folder} shows it.")
            if keeper.step:
                error.add_note(f"When it is run again, it goes on after step {keeper.step}.")
        raise
    record = recorded(failure)
    keeper.discard()
    return record


def _carry_out(
    federation: Federation,
    history: History,
    observers: Sequence[Observer],
    keep: OnSnapshot,
    resume: Snapshot[Any] | None,
) -> Exception | None:
    """The run itself; returns why it had to stop, if it had to."""
    plan, failure = federation.plan, None
    try:
        run(
            plan.algorithm,
            federation.transport,
            federation.start,
            until=plan.until,
            sample=everyone if plan.participation == 1 else _sampler(plan, federation.byzantine),
            guard=plan.guard,
            reference=federation.reference,
            observers=(history, *observers),
            on_snapshot=keep,
            resume=resume,
        )
    except (InfeasibleError, StalledError, ValueError) as error:
        if not history.lines:
            raise
        failure = error
    history.conclude(federation.worth)
    return failure


def _sampler(plan: Run, byzantine: frozenset[int]) -> Participation:
    return Participation(plan.participation, plan.seed, byzantine, plan.byzantine_per_round)


@contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """Has a GPU compute the same bits each time, as a CPU does anyway; puts its settings back on leaving."""
    if device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield
