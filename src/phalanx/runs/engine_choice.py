"""The engine of a run's local training: another one, whether the run can have it, and which one it gets by rule."""

import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import torch

from phalanx.core import InfeasibleError
from phalanx.runs.federation import Federation
from phalanx.runs.plan import Run
from phalanx.training.engines import Engine
from phalanx.training.local import LocalTraining
from phalanx.training.sgd import LocalSGD

WORK = 1e11  # examples x parameters of a run, above which it is compiled by rule: some ten seconds of a perceptron


def with_engine(plan: Run, engine: Engine) -> Run:
    """Return the run with another engine, also within trainings such as `Ditto`.

    Raises:
        InfeasibleError: its clients do not train by `LocalSGD`.
        ValueError: its training does not go with this engine.
    """
    if not _has_engines(plan):
        raise InfeasibleError(
            f"Only LocalSGD has engines, and clients of this run train by {plan.training.computed_by}. Leave the "
            "engine out, or set training to LocalSGD."
        )
    return replace(plan, training=_each_sgd(plan.training, lambda sgd: replace(sgd, engine=engine)))


def _has_engines(plan: Run) -> bool:
    base = plan.training.base
    return isinstance(base, LocalSGD) and base.engine == base.computed_by


def _each_sgd(training: LocalTraining, change: Callable[[LocalSGD], LocalSGD]) -> LocalTraining:
    """Return the training with each `LocalSGD` in it changed."""
    if isinstance(training, LocalSGD):
        return change(training)
    values = {f.name: getattr(training, f.name) for f in fields(cast(Any, training))}
    inner = {name: _each_sgd(value, change) for name, value in values.items() if isinstance(value, LocalTraining)}
    changed: LocalTraining = replace(cast(Any, training), **inner)
    return changed


def can_begin(plan: Run, data_dir: Path | None = None, device: torch.device | str = "cpu") -> bool:
    """Return whether the network, the task, the algorithm and the attack of a run go with its engine.

    Raises:
        InfeasibleError: the run could not begin with the loop either.
        ValueError: the same, for a part that does not fit another.
    """
    try:
        Federation(plan, data_dir, device)
    except ValueError:
        Federation(with_engine(plan, "loop"), data_dir, device)
        return False
    return True


def by_rule(plan: Run, data_dir: Path | None = None, device: torch.device | str = "cpu") -> Run:
    """Return the run as it is trained where nobody names an engine: compiled, if it can be and has much work.

    The work is the number of examples that clients train on in the whole run, times the number of parameters: more than
    `WORK`, or not known before.  No clock decides, so that a seed gives the same bits on another day.

    Args:
        plan: the run, by the loop.
        data_dir: where data sets lie; they are downloaded if not given.
        device: where it computes.
    """
    if not _has_engines(plan):
        return plan
    form = with_engine(plan, "compiled")
    try:
        federation = Federation(form, data_dir, device)
    except ValueError:
        return plan  # if that cannot begin either, it says so when it does
    return form if _work(federation) > WORK else plan


def _work(federation: Federation) -> float:
    """Return the number of examples that clients train on in a run, times the number of parameters."""
    plan, sgd = federation.plan, federation.plan.training.base
    assert isinstance(sgd, LocalSGD)
    sizes = [len(held) for held in federation.data]
    examples = [sgd.count(n) * sgd.examples(n) if sgd.steps else sgd.epochs * n for n in sizes]
    together = plan.asked if plan.algorithm.traits.synchronous else 1
    steps = math.inf if plan.until.limit is None else plan.until.limit
    return steps * together * sum(examples) / len(sizes) * federation.model.trainable
