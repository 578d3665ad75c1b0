"""A `Run` carried out over Flower, with real clients.

For demonstrations and tests, in which every process can compute the data of all clients.  A `Run` gives the same bits
as by `phalanx.simulate`, as long as its algorithm is synchronous and no client is late.
"""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from phalanx.algorithms.hidden import hiding, unhidden
from phalanx.core import InfeasibleError
from phalanx.flower.client import ANY, Participant
from phalanx.flower.identity import Roster
from phalanx.flower.served_models import hide
from phalanx.flower.server import Coordinator
from phalanx.rng import borrowed
from phalanx.runs.engine_choice import named
from phalanx.runs.federation import Federation, population
from phalanx.runs.history import nothing
from phalanx.runs.plan import Run

SIMULATED = ("latency", "late", "availability", "deadline")  # options of a run that only simulated clients follow


def participant_of(
    plan: Run,
    client: int,
    key: Any,
    memory: Path | None = None,
    federation: Federation | None = None,
    *,
    coordinator: str = ANY,
) -> Participant:
    """Return one client of a run.

    Args:
        plan: the run.
        client: its id.
        key: its private key, or the file of it.
        memory: folder of its local state.
        federation: of the plan, if there is one already.
        coordinator: see `Participant`.

    Raises:
        InfeasibleError: the client is Byzantine, and its attack needs to see what others send; or it is to train on its
            truncated number of examples, which no coordinator tells it.
    """
    if plan.train_truncated:
        raise InfeasibleError("Only simulated clients train on their truncated number of examples. Leave it out.")
    made = federation or Federation(plan)
    return Participant(
        plan.algorithm,
        _module(plan, made),
        plan.training,
        made.data[client],
        key,
        memory,
        plan.seed,
        plan.buffers,
        attack=plan.attack if client in made.byzantine else None,
        noise="stream",
        coordinator=coordinator,
        task=plan.task,
        held_out=made.kept[client] if plan.evaluation.by_clients else None,
    )


def coordinator_of(
    plan: Run, roster: Path | Roster, federation: Federation | None = None, **options: Any
) -> Coordinator:
    """Return the server of a run; if clients hide models from it, its initial model is one that a client has hidden.

    Warn of options that only simulated clients follow: real ones come and answer when they do.

    Args:
        plan: the run.
        roster: its clients.
        federation: of the plan, if there is one already.
        options: of `Coordinator`. Models that depend on clients' local states are not evaluated: clients keep these.
    """
    if left_out := [name for name in SIMULATED if getattr(plan, name) != getattr(Run(), name)]:
        warnings.warn(f"Only simulated clients follow {', '.join(left_out)}. Over Flower, see timeouts.", stacklevel=2)
    made = federation or Federation(plan)
    module = _module(plan, made)
    if hiding(plan.algorithm) is not None:
        hide(module, plan.algorithm, plan.buffers, plan.training)
    return Coordinator(
        unhidden(plan.algorithm),
        module,
        roster,
        **{
            **plan.loop,
            "sample": plan.sampler(made.byzantine),
            "suspicion": plan.suspicion,
            "accept": ("no promise",),  # an experiment may have more attackers than its settings tolerate
            "buffers": plan.buffers,
            "reference": made.reference,
            "noise": "stream",
            "measure": nothing if plan.algorithm.traits.remembers or plan.training.personalizes else made.measure,
            "training": plan.training,
            "name": plan.title,
            "setup": named(plan).config,
            "known": partial(population, made),
            "inputs": made.inputs,
            "architecture": plan.model,
            **options,
        },
    )


def _module(plan: Run, federation: Federation) -> nn.Module:
    """Return the model before training."""
    with borrowed(plan.seed, "model"):
        return plan.model.build(federation.train.shape, plan.task.outputs(federation.train))
