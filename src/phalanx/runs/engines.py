"""The engines of local training by SGD: the loop, stacked clients, a compiled loop; and the fastest one for a run.

Their results differ by rounding, so that the engine is a part of the run and of its identity: it is `stacked` and
`compiled` of `LocalSGD`.  A choice by time is made once, before the run, on models that are thrown away.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from typing_extensions import override

from phalanx.core import InfeasibleError
from phalanx.data import Dataset
from phalanx.runs.federation import Federation
from phalanx.runs.plan import Run
from phalanx.simulation.executor import together
from phalanx.training.local import LocalTask, LocalTrainer, LocalTraining, check_correctable
from phalanx.training.sgd import LocalSGD

ENGINES = ("loop", "stacked", "compiled")  # the loop is the default
BUDGET = 0.6  # seconds of training that are timed, about
TURNS = 10  # timed turns of each engine, at most
GAIN = 0.05  # of its time that another engine must save to replace the loop

Clock = Callable[[], float]


@dataclass(frozen=True)
class Choice:
    """An engine for a run, and the reasons.

    Args:
        plan: the run with that engine.
        seconds: that a client trains, by engine; empty if there was one engine only, and nothing to compare.
        refused: why the run cannot have an engine, by engine.
    """

    plan: Run
    seconds: Mapping[str, float]
    refused: Mapping[str, str]

    @override
    def __str__(self) -> str:
        engine = self.plan.training.engine
        head = f"{engine}, {_duration(self.seconds[engine])} a client" if self.seconds else engine
        others = ", ".join(f"{name} {_duration(s)}" for name, s in self.seconds.items() if name != engine)
        parts = [*([others] if others else []), *(f"{name}: {why}" for name, why in self.refused.items())]
        return f"{head} ({'; '.join(parts)})" if parts else head


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.9995 else f"{1000 * seconds:.3g} ms"


def with_engine(plan: Run, engine: str) -> Run:
    """Return the run with another engine, also within trainings such as `Ditto`.

    Raises:
        InfeasibleError: its clients do not train by `LocalSGD`.
        ValueError: its training does not go with this engine.
    """
    if plan.training.engine not in ENGINES:
        raise InfeasibleError(
            f"Only LocalSGD has engines, and clients of this run train by {plan.training.engine}. Leave the engine "
            "out, or set training to LocalSGD."
        )
    flags: dict[str, Any] = {name: name == engine for name in ENGINES if name != "loop"}
    return replace(plan, training=_each_sgd(plan.training, lambda sgd: replace(sgd, **flags)))


def _each_sgd(training: LocalTraining, change: Callable[[LocalSGD], LocalSGD]) -> LocalTraining:
    """Return the training with each `LocalSGD` in it changed."""
    if isinstance(training, LocalSGD):
        return change(training)
    values = {f.name: getattr(training, f.name) for f in fields(cast(Any, training))}
    inner = {name: _each_sgd(value, change) for name, value in values.items() if isinstance(value, LocalTraining)}
    changed: LocalTraining = replace(cast(Any, training), **inner)
    return changed


def variants(plan: Run) -> tuple[dict[str, Run], dict[str, str]]:
    """Return the run with each engine that its training goes with, and why not with others; errors as `with_engine`."""
    plans, refused = {ENGINES[0]: with_engine(plan, ENGINES[0])}, dict[str, str]()
    for engine in ENGINES[1:]:
        try:
            plans[engine] = with_engine(plan, engine)
        except ValueError as error:
            refused[engine] = _reason(error)
    return plans, refused


def _reason(error: ValueError) -> str:
    """Return what is between "Clients cannot be stacked: " and ". Set training.stacked to false."."""
    said = str(error).rpartition(". Set ")[0] or str(error).rstrip(".")
    return said.partition(": ")[2] or said


def fastest(
    plan: Run,
    data_dir: Path | str | None = None,
    device: torch.device | str = "cpu",
    *,
    clock: Clock | None = None,
) -> Choice:
    """Return the fastest engine for a run: the loop, unless another takes at least 5 % less time.

    Each engine trains some clients of typical size and the largest one, for about a second in all, and longer only
    where a single step takes long, or if Numba has to compile.  Nothing of the run is changed by that.

    Args:
        plan: the run, with any engine.
        data_dir: where data sets lie; they are downloaded if not given.
        device: where it computes.
        clock: that of the measurement; if not given, the processor time of this process, or with several threads or on
            a GPU the wall time.

    Raises:
        InfeasibleError: clients do not train by `LocalSGD`; or the run cannot even begin.
        ValueError: the latter, for a part that does not fit another.
    """
    plans, refused = variants(plan)
    federation = Federation(plans["loop"], None if data_dir is None else Path(data_dir), device)
    clock = clock or _clock(federation.device)
    trainers = dict[str, LocalTrainer]()
    for engine in [*plans]:
        try:
            trainers[engine] = _trainer(plans[engine], federation)
            trainers[engine].try_out(federation.few)
        except ValueError as error:
            if engine == "loop":
                raise
            refused[engine] = _reason(error)
    most = plan.asked if plan.algorithm.synchronous else 1  # clients that can train together
    clients = _sample(federation, min(most, max(trainer.width for trainer in trainers.values())))
    if len(trainers) == 1 or not clients:
        return Choice(plans["loop"], {}, refused)
    bench = Bench(federation, clients, most, clock)
    seconds = bench.compare({engine: plans[engine] for engine in trainers})
    best = min(seconds, key=lambda engine: seconds[engine])
    chosen = best if seconds[best] <= (1 - GAIN) * seconds["loop"] else "loop"
    return Choice(plans[chosen], seconds, refused)


class Preferred:
    """An engine for those of many runs that have it.

    Args:
        engine: its name.
        data_dir: where data sets lie; they are downloaded if not given.
        device: where runs compute.
    """

    def __init__(self, engine: str, data_dir: Path | str | None = None, device: torch.device | str = "cpu") -> None:
        self.engine, self._device = engine, device
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._known = dict[str, bool]()  # by what decides

    def form(self, plan: Run) -> Run | None:
        """Return the run with the engine, which its network need not have; None if its training does not go with it."""
        try:
            return with_engine(plan, self.engine)
        except ValueError:
            return None

    def __call__(self, plan: Run) -> Run:
        """Return the run with the engine; as it is if its network, training or algorithm does not have it.

        Raises:
            InfeasibleError: the run cannot even begin.
            ValueError: the same, for a part that does not fit another.
        """
        form = self.form(plan)
        if form is None or form == plan:
            return plan
        kind = repr((plan.data, plan.model, plan.buffers, form.training, plan.task, type(plan.algorithm)))
        if kind not in self._known:
            self._known[kind] = self._has(form)
        return form if self._known[kind] else plan

    def _has(self, form: Run) -> bool:
        federation = Federation(with_engine(form, "loop"), self._data_dir, self._device)
        try:
            _trainer(form, federation).try_out(federation.few)
        except ValueError:
            return False
        return True


def _clock(device: torch.device) -> Clock:
    """Return what tells the time: other programs on the machine do not count where that can be had."""

    def of_gpu() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    if device.type == "cuda":
        return of_gpu
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def _trainer(plan: Run, federation: Federation, steps: int | None = None) -> LocalTrainer:
    """Return a trainer of the run, which takes so many steps if they are given; raise `ValueError` if it has none."""
    limited = plan.training if steps is None else _each_sgd(plan.training, partial(replace, steps=steps))
    trainer = limited.trainer(federation.model, plan.task, plan.seed)
    check_correctable(plan.algorithm, trainer)
    return trainer


def _sample(federation: Federation, wanted: int) -> list[int]:
    """Return honest clients of middle sizes and the largest one, so many, but at least two; none without examples."""
    sizes = {client: len(federation.data[client]) for client in federation.honest}
    order = sorted((client for client in sizes if sizes[client]), key=lambda client: sizes[client])
    count = min(max(wanted, 2), len(order))
    first = (len(order) - count + 1) // 2
    return [*order[first : first + count - 1], *order[-1:]]


class Bench:
    """The measurement of engines on the same tasks.

    Args:
        federation: of the run.
        clients: that train.
        most: clients that train together.
        clock: tells the time.
    """

    def __init__(self, federation: Federation, clients: Sequence[int], most: int, clock: Clock) -> None:
        self.federation, self.most, self.clock = federation, most, clock
        start = federation.start
        self.tasks = [LocalTask(client, 0, 0, start, torch.empty_like(start)) for client in clients]
        self.data: dict[int, Dataset] = {client: federation.data[client] for client in clients}

    def compare(self, plans: Mapping[str, Run]) -> dict[str, float]:
        """Return the seconds that a client trains with each engine: the least of several turns, after one for nothing.

        Where whole tasks would take too long, each client takes fewer steps, and the time is multiplied.
        """
        sgd = plans["loop"].training.base
        assert isinstance(sgd, LocalSGD)
        counts = [sgd.count(len(held)) for held in self.data.values()]
        probe = _trainer(plans["loop"], self.federation, steps=1)
        _, step = self._time(probe), self._time(probe)  # of all clients
        steps = max(1, int(BUDGET / (2 * len(plans) * step))) if step else max(counts)
        whole = steps >= max(counts)
        trainers = {engine: _trainer(each, self.federation, None if whole else steps) for engine, each in plans.items()}
        for trainer in trainers.values():
            self._time(trainer)
        found: dict[str, list[float]] = {engine: [] for engine in trainers}
        begun = self.clock()
        for _ in range(TURNS):
            for engine, trainer in trainers.items():
                found[engine].append(self._time(trainer))
            if self.clock() - begun >= BUDGET:
                break
        factor = 1.0 if whole else sum(counts) / (steps * len(counts))
        return {engine: factor * min(times) / len(self.tasks) for engine, times in found.items()}

    def _time(self, trainer: LocalTrainer) -> float:
        """Return the seconds in which a trainer trains all clients once."""
        begun = self.clock()
        for some in together(self.tasks, min(trainer.width, self.most)):
            trainer.train_together(some, self.data)
        return self.clock() - begun
