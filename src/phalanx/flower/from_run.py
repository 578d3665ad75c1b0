"""A simulated run, with real clients: what is written down as a `Run` is carried out over Flower.

For demonstrations and tests, where the data of all clients can be dealt out by everybody.  The same `Run` gives the
same bits as `phalanx.simulate`, as long as its algorithm is synchronous and nobody is late.
"""

from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from phalanx.algorithms.hidden import hiding, unhidden
from phalanx.flower.client import Participant
from phalanx.flower.identity import Roster
from phalanx.flower.models import hide
from phalanx.flower.server import Coordinator
from phalanx.rng import borrowed
from phalanx.runs.federation import Federation, population
from phalanx.runs.history import nothing
from phalanx.runs.plan import Run


def participant_of(
    plan: Run, client: int, key: Any, memory: Path | None = None, federation: Federation | None = None
) -> Participant:
    """One client of a run.

    Args:
        plan: the run.
        client: which.
        key: its private key, or the file of it.
        memory: where it remembers.
        federation: of the plan, where there is one already.

    Raises:
        InfeasibleError: the client is Byzantine, and its attack needs to see what others send.
    """
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
    )


def coordinator_of(
    plan: Run, roster: Path | Roster, federation: Federation | None = None, **options: Any
) -> Coordinator:
    """The server of a run; where clients hide models from it, it is given a model that one of them has hidden.

    Args:
        plan: the run.
        roster: its clients.
        federation: of the plan, where there is one already.
        options: of `Coordinator`. Models that depend on what clients remember are not evaluated: only they have them.
    """
    made = federation or Federation(plan)
    module = _module(plan, made)
    if hiding(plan.algorithm) is not None:
        hide(module, plan.algorithm, plan.buffers)
    return Coordinator(
        unhidden(plan.algorithm),
        module,
        roster,
        plan.until,
        **{
            "guard": plan.guard,
            "sample": plan.sampler,
            "buffers": plan.buffers,
            "reference": made.reference,
            "measure": nothing if plan.algorithm.remembers else made.measure,
            "name": plan.title,
            "setup": plan.config,
            "known": partial(population, made),
            **options,
        },
    )


def _module(plan: Run, federation: Federation) -> nn.Module:
    """The model as it is before training."""
    with borrowed(plan.seed, "model"):
        return plan.model.build(tuple(federation.train.x.shape[1:]), federation.train.classes)
