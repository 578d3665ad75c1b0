"""The coordinator's side: the loop of `phalanx.engine` over Flower's messages, as an app that Flower starts."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import nn
from typing_extensions import override

from phalanx.algorithms.hidden import hiding, unhidden
from phalanx.algorithms.private import secretly
from phalanx.core import Algorithm, AnyState, InfeasibleError, Until
from phalanx.data import Schema
from phalanx.data.table_columns import LISTED
from phalanx.data.table_statistics import POOLED
from phalanx.engine.at_start import promised
from phalanx.engine.guard import Guard
from phalanx.engine.observer import Observer, Progress
from phalanx.engine.participation import Sampler, everyone
from phalanx.engine.reference import Train
from phalanx.engine.settings import LoopSettings
from phalanx.flower.audit import Audit, Note
from phalanx.flower.contract import UnderContract, check_outputs, inputs_of
from phalanx.flower.durable_files import only_for_owner
from phalanx.flower.flower_transport import FlowerTransport
from phalanx.flower.gathered_statistics import gather
from phalanx.flower.identity import Roster
from phalanx.flower.logs import Form, WarningLog, configure_logs, log_fields, logged_warnings
from phalanx.flower.metrics import HOST, PrometheusMetrics
from phalanx.flower.run_record import ENGINE, population, unknown
from phalanx.flower.status import STATUS, StatusBoard
from phalanx.flower.suspension import Suspension
from phalanx.flower.timeouts import Timeouts
from phalanx.flower.upload_counter import ASKED, UploadCounter
from phalanx.models import Model
from phalanx.numerics.allocation import return_freed_memory
from phalanx.runs.canonical import canonical, configuration, digest, source
from phalanx.runs.checkpoint import Checkpoint, Origin
from phalanx.runs.evidence import EvidenceMaker
from phalanx.runs.files import AUDIT, write_inside
from phalanx.runs.history import Measure, nothing
from phalanx.runs.lock import exclusive
from phalanx.runs.models import ModelInputs, ModelKeeper, SavedModels, served_alike
from phalanx.runs.provenance import provenance
from phalanx.runs.schema import StepRecord
from phalanx.runs.session import Session
from phalanx.runs.summary import Ending, Population, RunInfo
from phalanx.runs.updates import Transfer, UpdateKeeper
from phalanx.runs.witnesses import WITNESSES, as_json, witnesses_of
from phalanx.signals import passing_signals_on
from phalanx.training.local import LocalTraining
from phalanx.training.sgd import LocalSGD
from phalanx.training.vector import BufferPolicy, FlatModule
from phalanx.version import VERSION

log = logging.getLogger("phalanx.flower")

HASTE = (
    "no client has to wait between two tasks, so that one which answers without training has most of the updates. Set "
    "Suspension(interval=...) to about the seconds that the honest need for a task"
)
EVERY_STEP = Checkpoint(every_seconds=0)  # a step takes seconds, and clients remember three turns


@dataclass(frozen=True, eq=False)
class Coordinator(LoopSettings, UnderContract):
    """The configuration of the server.

    Args:
        algorithm: the same as the clients', but without what hides models from the server (`Permuted`, `Rotated`).
        model: what is trained; its values are where training begins. Or the description of a network, such as
            `MLP((32,))`, for the inputs and classes of `schema`.
        roster: who may take part: a file, which is read again when it has changed.
        folder: where history.jsonl, checkpoints and the models go. A server that was killed goes on from there.
            None: nothing is kept.
        sample: chooses the clients of a round.
        suspicion: whether updates that stand out are noted, and clients that keep sending such are named suspicious.
            Nobody is excluded for it.
        accept: what the operator accepts by name. "pooled scaling": a schema whose scaling one lying site can move.
            "no promise": that the plan tolerates no attacker. Without that, such a plan does not start.
        timeouts: how long the server waits.
        suspension: who is suspended.
        transfer: in which form updates travel.
        prefetch: whether clients are sent a second task while they work on the first, for a newer version. More
            updates come, and older ones. Asynchronous algorithms only.
        buffers: policy for buffers of the model, such as running statistics; the same as the clients'.
        measure: evaluates a state, for the history; None where it was not evaluated.
        reference: the server's own training, for algorithms that compare updates with one.
        observers: are shown each step.
        checkpoint: when the run is saved on its way.
        log: form of the log: "text", readable lines, or "json", one object per line.
        metrics: the port of the loopback address at which figures for Prometheus are served; None: none are.
        name: of the run, for its record and report; made from the algorithm if empty.
        noise: source of the noise of `CentrallyPrivate` and the shifts of `Challenge`: "system", which nobody can
            reproduce, or "stream" as in a simulation, for demonstrations.
        setup: further settings of the run for its record, which the server does not know.
        known: returns, for the history, what else the summary says of the clients. A simulated `Run` knows which
            examples each client holds, and which clients attack.
        models: which models are kept.
        inputs: what the model takes and returns, for the record; None: the record does not say it.
        training: local training of the clients. It matters where a part of the model stays with them (`FedPer`).
        architecture: description of the network, for `Record.model`; None: the record has none.
        schema: of the tables of all clients, or its file. A client with another one is turned away. It is stored with
            the models, so that `phalanx predict`, `evaluate` and `export` take tables.
        key: private key of the coordinator, by which it signs each task, or its file; None: `coordinator.pem` next to
            the file of the roster, where `phalanx flower coordinator` puts it.
        statistics: whether nothing is trained, and clients send the statistics of their tables: the schema that they
            agree on lies in `statistics/schema.json` of the folder. Clients need `Participant(statistics=True)`.
        keep_updates: whether each step's updates are kept in the folder, for `phalanx replay`. Each takes as many bytes
            as travelled, and says something about its client's data: who can read the folder can read them.
    """

    algorithm: Algorithm
    model: nn.Module | Model
    roster: Path | Roster
    until: Until = field(kw_only=True)  # a deployment says how long it lasts
    folder: Path | None = None
    sample: Sampler = everyone
    timeouts: Timeouts = Timeouts()
    suspension: Suspension = Suspension()
    transfer: Transfer = "float32"
    buffers: BufferPolicy = "refuse"
    measure: Measure = nothing
    reference: Train | None = None
    observers: Sequence[Observer] = ()
    checkpoint: Checkpoint = EVERY_STEP
    log: Form = "text"
    metrics: int | None = None
    name: str = ""
    setup: Mapping[str, Any] = field(default_factory=dict)
    known: Callable[[Sequence[StepRecord]], Population] = unknown
    prefetch: bool = False
    suspicion: bool = True
    accept: tuple[Literal["no promise", "pooled scaling"], ...] = ()
    noise: Literal["system", "stream"] = "system"
    models: SavedModels = SavedModels()
    inputs: ModelInputs | None = None
    architecture: Model | None = None
    training: LocalTraining = LocalSGD()
    schema: Schema | Path | str | None = None
    key: Ed25519PrivateKey | Path | None = None
    keep_updates: bool = False
    statistics: bool = False

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.statistics and (self.contract is None or self.folder is None):
            raise InfeasibleError(
                "statistics are those of tables by a schema. Give schema and folder, or leave it out."
            )
        check_outputs(self.module, self.contract, self.buffers)
        if self.pooled and POOLED not in self.accept:
            raise InfeasibleError(
                f"{self.pooled} Take the median (phalanx schema scale), or accept that by name: "
                f'Coordinator(accept=("{POOLED}",)).'
            )
        self.training.check(self.algorithm)
        if (how := hiding(self.algorithm)) is not None:
            name = type(how).__name__
            raise InfeasibleError(
                f"{name} hides models from the server, and a server that runs it knows the seed. Give it "
                f"{unhidden(self.algorithm)}, and a model that a client has transformed (phalanx.flower.hide). "
                f"Only clients run {name}."
            )

    @property
    def title(self) -> str:
        """The name of the run, such as `FedAvg(Median), real clients`."""
        rule = self.algorithm.rule
        inner = f"({rule.title})" if rule is not None else ""
        return self.name or f"{type(self.algorithm).__name__}{inner}, real clients"

    @property
    def pooled(self) -> str:
        """A sentence on the columns whose scaling is pooled; empty if there are none."""
        columns = () if self.contract is None else self.contract.pooled
        more = f" and {len(columns) - LISTED} more" if len(columns) > LISTED else ""
        which = ", ".join(map(repr, columns[:LISTED])) + more
        what = f"The scaling of {which} is pooled over all rows: one site that lied moved it as far as it liked."
        return what if columns else ""

    def config(self, dimension: int) -> dict[str, Any]:
        """Return the settings that decide whether a run can go on from another's checkpoint."""
        schema = {} if self.contract is None else {"schema": self.contract.digest}
        return {
            "algorithm": canonical(self.algorithm, Algorithm),
            "dimension": dimension,
            "guard": canonical(self.guard, Guard),
            "transfer": self.transfer,
            **schema,
        }

    def recorded(self, dimension: int) -> dict[str, Any]:
        """Return the configuration for the record."""
        parts: dict[str, Any] = {
            "algorithm": configuration(self.algorithm, Algorithm),
            "guard": configuration(self.guard, Guard),
            **configuration(LoopSettings(**self.loop), LoopSettings),
            "timeouts": configuration(self.timeouts, Timeouts),
            "suspension": configuration(self.suspension, Suspension),
            "prefetch": self.prefetch,
        }
        if self.accept:
            parts["accept"] = list(self.accept)
        if self.training.personalizes:
            parts["training"] = configuration(self.training, LocalTraining)
        return {**self.setup, **self.config(dimension), **parts, "engine": ENGINE}


@dataclass
class PromiseCheck:
    """An observer that ends a run which promises nothing before it trains, unless that is accepted by name.

    Args:
        accept: what is accepted.
        note: takes the event.
        pooled: what was accepted of the scaling; empty if it is not pooled.
    """

    accept: Sequence[str]
    note: Callable[[Note], None]
    pooled: str = ""

    def __call__(self, progress: Progress, /) -> None:
        """Read the promise.

        Raises:
            InfeasibleError: nothing is promised, and that is not accepted.
        """
        if progress.step:
            return
        if self.pooled:
            self.note(Note("accepted", None, self.pooled))
        promise = progress.promise
        if promise is None or promise.f > 0:
            return
        if "no promise" not in self.accept:
            raise InfeasibleError(
                f"{promise.sentence} A plan that promises nothing does not start. Change it, or accept that by name: "
                'Coordinator(accept=("no promise",)).'
            )
        self.note(Note("accepted", None, promise.sentence))


@dataclass
class WitnessKeeper:
    """An observer that keeps the last head of the audit trail that each client has co-signed, in `witnesses.json`.

    Args:
        folder: of the run; None: nothing is kept.
        transport: knows the co-signatures.
    """

    folder: Path | None
    transport: FlowerTransport

    def __call__(self, progress: Progress, /) -> None:
        """Write what has changed."""
        self.write()

    def write(self) -> None:
        """Write all of them, if there are any."""
        if self.folder is not None and (found := self.transport.register.witnessed):
            write_inside(self.folder, WITNESSES, as_json(found))


def tell(progress: Progress) -> None:
    """Write each step to the log; an observer."""
    served = len(progress.updates) if progress.updates is not None else 0
    failed = {**progress.lost, **progress.invalid}
    without = f", without clients {', '.join(map(str, sorted(failed)))}" if failed else ""
    said = log_fields("step", step=progress.step)
    log.info("step %d after %.1f s: %d updates%s", progress.step, progress.now, served, without, extra=said)


def coordinate(grid: Grid, coordinator: Coordinator) -> AnyState:
    """Train with the clients that `grid` reaches; go on where a killed server stopped.

    The folder holds a record as that of a simulated run, for `phalanx report`, also of a run that failed.  Of one that
    did not begin, `status.json` says why; a record that was there before stays.

    Returns:
        The last state.

    Raises:
        InfeasibleError: not enough clients enrolled, or the algorithm cannot serve them; says who is missing. Or
            another server works in the folder.
        StalledError: nobody is left who could bring the next update.
    """
    with ExitStack() as stack:
        warned = stack.enter_context(logged_warnings())
        if coordinator.folder is not None:
            stack.enter_context(only_for_owner(coordinator.folder))
            stack.enter_context(exclusive(coordinator.folder))
        return _coordinated(grid, coordinator, warned)


def _coordinated(grid: Grid, coordinator: Coordinator, warned: WarningLog) -> AnyState:
    """Do as `coordinate`, in a folder that is locked for this server."""
    model = FlatModule(coordinator.module, coordinator.buffers, personal=coordinator.training.personal)
    start, folder, algorithm = model.read(), coordinator.folder, coordinator.algorithm
    if coordinator.noise == "system":
        algorithm = secretly(algorithm)
    config, schema = coordinator.recorded(len(start)), coordinator.contract
    origin = Origin(digest(coordinator.config(len(start))), source(algorithm), VERSION, {}, {})

    info = RunInfo(
        coordinator.title,
        config,
        digest(config),
        origin.source,
        len(start),
        provenance("cpu", version("flwr")),
        findings=(coordinator.pooled,) if coordinator.pooled else (),
    )

    def who(history: Sequence[StepRecord]) -> Population:
        register, known = transport.register, coordinator.known(history)
        reported, tasks = register.kept()[0], transport.asked.counts
        return population(history, reported, register.roster, coordinator.guard, known, tasks=tasks)

    session = Session(
        info,
        origin,
        observed=algorithm.traits.observed,
        measure=coordinator.measure,
        population=who,
        folder=folder,
        checkpoint=coordinator.checkpoint,
        device=torch.device("cpu"),
        on_end=lambda how: _end(how, audit, transport, witnesses),
        models=ModelKeeper(
            model,
            partial(served_alike, algorithm),
            folder,
            settings=coordinator.models,
            identity=info.identity,
            inputs=coordinator.inputs if schema is None else inputs_of(schema),
            architecture=coordinator.model if isinstance(coordinator.model, Model) else coordinator.architecture,
            schema=schema,
        ),
        audit=AUDIT,
        audited=lambda: audit.mark,
    )
    resumed = session.resumed.snapshot
    known = (step.promise for step in session.history.lines if step.promise is not None)
    evidence = EvidenceMaker(
        partial(served_alike, algorithm),
        lambda: session.history.last,
        config["algorithm"],
        folder,
        promise=deque(known, maxlen=1),
    )
    audit = Audit(
        folder / AUDIT if folder else None,
        lambda: transport.now,
        lambda i: name_of(transport, i),
        resumed=resumed is not None,
        reached=session.resumed.audit,
        session=lambda: transport.register.session,
        of_step=lambda progress: evidence.of_step(
            progress,
            transport.signed,
            kept[0].digest if kept else "",
            session=transport.register.session,
            coordinator=transport.register.coordinator,
            transfer=coordinator.transfer,
        ),
        of_end=evidence.of_end,
    )
    warned.tell(audit.warned)
    transport = FlowerTransport(
        grid,
        coordinator.roster,
        timeouts=coordinator.timeouts,
        suspension=coordinator.suspension,
        transfer=coordinator.transfer,
        prefetch=coordinator.prefetch,
        tell=audit.note,
        asked=UploadCounter(folder / ASKED if folder else None),
        update_size=len(start),
        schema=schema,
        key=coordinator.key,
        head=audit.head,
        keeps=coordinator.keep_updates,
    )
    if resumed is not None and folder is not None:
        transport.register.witnessed |= witnesses_of(folder)
    transport.f = _expected(algorithm, transport, coordinator)
    witnesses, kept = WitnessKeeper(folder, transport), list[UpdateKeeper]()
    if coordinator.keep_updates and folder is not None:
        sizes, how = lambda: transport.register.kept()[0], coordinator.transfer
        models = partial(served_alike, algorithm)
        guard, broken = coordinator.guard, coordinator.broken_promise
        sent = transport.sent
        kept.append(UpdateKeeper(folder, models, sizes, guard, sent=sent, transfer=how, broken_promise=broken))
    check = PromiseCheck(coordinator.accept, audit.note, coordinator.pooled)
    if not (algorithm.traits.synchronous or coordinator.suspension.interval):
        warned(HASTE)
    if resumed is not None:
        log.info("goes on after step %d", resumed.step)
    board = StatusBoard(folder / STATUS if folder else None, transport.register, coordinator.timeouts.roll_call)
    with transport, board, _served(coordinator.metrics, board) as metrics, session:
        session.run(
            algorithm,
            transport,
            start,
            coordinator,
            sample=coordinator.sample,
            reference=coordinator.reference,
            suspicion=coordinator.suspicion,
            named=lambda i: f"client {i} ({name_of(transport, i)})",
            observers=(
                *kept,
                witnesses,  # before the line of the trail that names who has signed
                audit,
                check,
                transport,
                tell,
                board,
                *metrics,
                *coordinator.observers,
            ),
        )
        session.keep_models()
    return session.state


def _end(how: Ending, audit: Audit, transport: FlowerTransport, witnesses: WitnessKeeper) -> None:
    """Note how a run ends; the clients co-sign the end of one that is finished."""
    audit.end(": ".join(filter(None, how)))
    if how.status == "finished":
        transport.register.show_end()
        witnesses.write()


def _expected(algorithm: Algorithm[Any], transport: FlowerTransport, coordinator: Coordinator) -> int:
    """Return how many attackers the plan tolerates if all of the roster takes part, whatever sizes they report."""
    steps, n = coordinator.until.limit, len(transport.register.roster.active)
    try:
        plan = promised(algorithm, transport, n, coordinator.sample, steps=steps, tolerate=coordinator.tolerate)
    except InfeasibleError:  # which ends the run once clients are there
        return 0
    return plan.f


@contextmanager
def _served(port: int | None, board: StatusBoard) -> Iterator[tuple[PrometheusMetrics, ...]]:
    """Serve figures for Prometheus, if a port is given."""
    if port is None:
        yield ()
        return
    metrics = PrometheusMetrics(board.counts, board.suspicious)
    log.info("metrics: http://%s:%d/metrics", HOST, metrics.serve(port))
    try:
        yield (metrics,)
    finally:
        metrics.close()


def name_of(transport: FlowerTransport, client: int) -> str:
    """Return the name of a client in the roster."""
    return next((member.name for member in transport.register.roster.members if member.id == client), "")


def server_app(coordinator: Coordinator | Callable[[Context], Coordinator]) -> ServerApp:
    """Return Flower's app of the server.  A stop signal, as by `flwr stop`, leaves the record of a stopped run.

    Args:
        coordinator: what it does; or what makes it from the context, which holds the configuration of the run.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        configure_logs("text")
        made = coordinator if isinstance(coordinator, Coordinator) else coordinator(context)
        configure_logs(made.log)
        return_freed_memory()  # this process is the app's own
        with passing_signals_on():
            if made.statistics:
                gather(grid, made)
            else:
                coordinate(grid, made)

    return app
