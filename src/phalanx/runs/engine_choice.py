"""The engine of a run's local training: another one, whether the run can have it, and which one it gets by rule."""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, cast

from phalanx.core import InfeasibleError
from phalanx.runs.plan import Run
from phalanx.training.engines import DEFAULT, TRAINERS, Engine
from phalanx.training.local import LocalTraining
from phalanx.training.sgd import LocalSGD

WORK = 1e11  # examples x parameters of a run, above which it is compiled by rule: some ten seconds of a perceptron


def with_engine(plan: Run, engine: Engine) -> Run:
    """Return the run with another engine, also within trainings such as `Ditto`.

    Raises:
        InfeasibleError: its clients do not train by `LocalSGD`.
        ValueError: its training does not go with this engine.
    """
    if plan.training.computed_by not in TRAINERS:
        raise InfeasibleError(
            f"Only LocalSGD has engines, and clients of this run train by {plan.training.computed_by}. Leave the "
            "engine out, or set training to LocalSGD."
        )
    return replace(plan, training=_each_sgd(plan.training, lambda sgd: replace(sgd, engine=engine)))


def named(plan: Run, engine: Engine = DEFAULT) -> Run:
    """Return the run with this engine where none is named; the run itself if it names one, or can have none."""
    base = plan.training.base
    if plan.training.computed_by not in TRAINERS or not isinstance(base, LocalSGD) or base.engine is not None:
        return plan
    return replace(plan, training=_each_sgd(plan.training, lambda sgd: replace(sgd, engine=sgd.engine or engine)))


def possible(plan: Run) -> list[Run]:
    """Return the runs that a run can become by rule, compiled first; the run itself if it names its engine."""
    loop = named(plan)
    return [plan] if loop is plan else [named(plan, "compiled"), loop]


def done_as(plan: Run, identity: str) -> Run:
    """Return which of the runs that a run can become has this identity."""
    return next(one for one in possible(plan) if one.identity == identity)


def _each_sgd(training: LocalTraining, change: Callable[[LocalSGD], LocalSGD]) -> LocalTraining:
    """Return the training with each `LocalSGD` in it changed."""
    if isinstance(training, LocalSGD):
        return change(training)
    values = {f.name: getattr(training, f.name) for f in fields(cast(Any, training))}
    inner = {name: _each_sgd(value, change) for name, value in values.items() if isinstance(value, LocalTraining)}
    changed: LocalTraining = replace(cast(Any, training), **inner)
    return changed


def by_rule(plan: Run, sizes: Sequence[int], parameters: int, begun: str) -> list[Run]:
    """Return the run with its engine: the one that it names, or that follows by rule, then the one to fall back on.

    Compiled is a run with more work than `WORK`, or whose work is not known before: the number of examples that clients
    train on in the whole run, times the number of parameters.  No clock decides, so that a seed gives the same bits on
    another day.

    Args:
        plan: the run.
        sizes: numbers of examples of its clients.
        parameters: number of parameters that are trained.
        begun: identity of the run that is there already, which keeps its engine; empty if there is none.
    """
    loop = named(plan)
    if loop is plan or (begun and begun == loop.identity):
        return [loop]
    compiled, much = named(plan, "compiled"), _work(plan, sizes, parameters) > WORK
    return [compiled, loop] if much or (begun and begun == compiled.identity) else [loop]


def _work(plan: Run, sizes: Sequence[int], parameters: int) -> float:
    """Return the number of examples that clients train on in a run, times the number of parameters."""
    sgd = plan.training.base
    assert isinstance(sgd, LocalSGD)
    examples = [sgd.count(n) * sgd.examples(n) if sgd.steps else sgd.epochs * n for n in sizes]
    together = plan.asked if plan.algorithm.traits.synchronous else 1
    steps = math.inf if plan.until.limit is None else plan.until.limit
    return steps * together * sum(examples) / len(sizes) * parameters
