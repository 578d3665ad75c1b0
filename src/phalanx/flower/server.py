"""The coordinator's side: the loop of `phalanx.engine` over Flower's messages, as an app that Flower starts."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

import phalanx
from phalanx.canonical import canonical, digest, source
from phalanx.checkpoint import Checkpoint, Keeper, Origin, resumption
from phalanx.core import Algorithm, AnyState, Observer, Progress, Until
from phalanx.engine import Sampler, Train, everyone, run
from phalanx.flower.codec import Transfer
from phalanx.flower.discipline import Discipline
from phalanx.flower.identity import Roster
from phalanx.flower.patience import Patience
from phalanx.flower.transport import FlowerTransport
from phalanx.guard import Guard
from phalanx.history import HISTORY, History, Record
from phalanx.vector import BufferPolicy, FlatModule

log = logging.getLogger("phalanx.flower")

MODEL = "model.pt"  # the last model, as the state_dict of its module
EVERY_STEP = Checkpoint(every_seconds=0)  # a step takes seconds, and clients remember two turns


def nothing(progress: Progress) -> Mapping[str, Any]:
    """Measures nothing."""
    return {}


@dataclass(frozen=True, eq=False)
class Coordinator:
    """What the server does, and with whom.

    Args:
        algorithm: the same as the clients'.
        model: what is trained; its values are where training begins.
        roster: who may take part: a file, which is read again when it has changed.
        until: when training ends; an integer counts steps.
        folder: where history.jsonl, checkpoints and the last model go. A server that was killed goes on from there.
            None: nothing is kept.
        guard: what is refused.
        sample: who is asked in a round.
        patience: how long the server waits.
        discipline: who is suspended.
        transfer: in which form updates travel.
        buffers: what becomes of buffers of the model; the same as the clients'.
        measure: evaluates a state, for the history.
        reference: the server's own training, for algorithms that compare updates with one.
        observers: are shown each step.
        checkpoint: when the run is saved on its way.
    """

    algorithm: Algorithm
    model: nn.Module
    roster: Path | Roster
    until: Until | int
    folder: Path | None = None
    guard: Guard = Guard()
    sample: Sampler = everyone
    patience: Patience = Patience()
    discipline: Discipline = Discipline()
    transfer: Transfer = "float32"
    buffers: BufferPolicy = "refuse"
    measure: Callable[[Progress], Mapping[str, Any]] = nothing
    reference: Train | None = None
    observers: Sequence[Observer] = ()
    checkpoint: Checkpoint = EVERY_STEP

    def config(self, dimension: int) -> dict[str, Any]:
        """What decides whether a run can go on from another's checkpoint."""
        return {
            "algorithm": canonical(self.algorithm, Algorithm),
            "dimension": dimension,
            "guard": canonical(self.guard, Guard),
            "transfer": self.transfer,
        }


def tell(progress: Progress) -> None:
    """An observer that writes each step to the log."""
    served = len(progress.updates) if progress.updates is not None else 0
    failed = {**progress.lost, **progress.refused}
    without = f", without clients {', '.join(map(str, sorted(failed)))}" if failed else ""
    log.info("step %d after %.1f s: %d updates%s", progress.step, progress.now, served, without)


def coordinate(grid: Grid, coordinator: Coordinator) -> AnyState:
    """Trains with the clients that `grid` reaches; goes on where a killed server stopped.

    Returns:
        The last state.

    Raises:
        Infeasible: not enough clients enrolled, or the algorithm cannot serve them; says who is missing.
        Stalled: nobody is left who could bring the next update.
    """
    model = FlatModule(coordinator.model, coordinator.buffers)
    start, folder = model.read(), coordinator.folder
    config = coordinator.config(len(start))
    origin = Origin(digest(config), source(coordinator.algorithm), phalanx.__version__, {}, {})
    resumed = resumption(folder, coordinator.checkpoint, origin, torch.device("cpu"))
    begun = time.perf_counter() - resumed.seconds
    history = History(
        coordinator.algorithm.observed,
        coordinator.measure,
        folder / HISTORY if folder else None,
        lambda: Record.begin(folder, config, resumed=resumed.snapshot is not None) if folder else None,
        resumed.lines,
    )
    keeper = Keeper(folder, coordinator.checkpoint, origin, history, begun)
    transport = FlowerTransport(
        grid,
        coordinator.roster,
        patience=coordinator.patience,
        discipline=coordinator.discipline,
        transfer=coordinator.transfer,
    )
    if resumed.snapshot is not None:
        log.info("goes on after step %d", resumed.snapshot.step)
    with transport, history:
        try:
            state: AnyState = run(
                coordinator.algorithm,
                transport,
                start,
                until=coordinator.until,
                sample=coordinator.sample,
                guard=coordinator.guard,
                reference=coordinator.reference,
                observers=(transport, history, tell, *coordinator.observers),
                keep=keeper,
                resume=resumed.snapshot,
            )
        except BaseException:
            keeper.leave()
            raise
    if folder is not None:
        model.load(state.model)
        torch.save(model.module.state_dict(), folder / MODEL)
    keeper.discard()
    return state


def server_app(coordinator: Coordinator | Callable[[Context], Coordinator]) -> ServerApp:
    """Flower's app of the server.

    Args:
        coordinator: what it does; or what makes it from the context, which holds the configuration of the run.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        _speak()
        made = coordinator if isinstance(coordinator, Coordinator) else coordinator(context)
        coordinate(grid, made)

    return app


def _speak() -> None:
    """Has the log of this package come out, and not that of each request, which Flower would send over the wire."""
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
