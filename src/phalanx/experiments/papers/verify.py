"""Verification of stored records: are they reproduced to the bit, or by how much does each figure differ."""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from phalanx.experiments.papers.experiment import SCALES, Experiment, Scale
from phalanx.experiments.papers.needed import Form
from phalanx.experiments.store import Store
from phalanx.experiments.trace import Trace
from phalanx.runs.engine_choice import named
from phalanx.runs.files import write
from phalanx.runs.plan import Run

CONDITIONS = ("torch", "numpy", "numba", "instructions", "device", "threads")  # of a provenance
LATER = ("received_accuracy", "client_accuracy", "clusters")  # figures that older records lack


TOLERANCE = 0.02  # of final accuracies, shares: two points

Outcome = Literal["to the bit", "within tolerance", "differs"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


class Stored(NamedTuple):
    """A record of a run that an experiment needs."""

    name: str
    plan: Run
    trace: Trace
    item: str  # experiment and scale


def stored(experiments: Sequence[Experiment], store: Store, form: Form = named) -> Iterator[Stored]:
    """Yield the records of experiments, each once: by scale, those of seeds from 0 on, and of runs in some form."""
    seen = set[str]()
    for experiment, scale in itertools.product(experiments, SCALES):
        for cell, seed, plan in _kept(experiment, scale, store, form):
            trace = store.find(plan)[0] if plan.identity not in seen else None
            seen.add(plan.identity)
            if trace is not None:
                item = f"{experiment.title} {scale}"
                yield Stored(f"{item}: {cell} (seed {seed})", plan, trace, item)


def _kept(experiment: Experiment, scale: Scale, store: Store, form: Form) -> Iterator[tuple[str, int, Run]]:
    """Yield the runs of an experiment of which there are records, with cell and seed, up to a seed that has none."""
    before = set[str]()
    for seed in itertools.count():
        plans = {cell: form(plan) for cell, plan in experiment.exhibit.runs(scale, seed).items()}
        there = {cell: plan for cell, plan in plans.items() if store.holds(plan)}
        found = {plan.identity for plan in there.values()}
        if found == before or not found:  # runs without chance are the same for every seed
            return
        yield from ((cell, seed, plan) for cell, plan in there.items())
        before = found


def outcome(stored: Trace, computed: Trace) -> Outcome:
    """Return how a record came out again.

    Within tolerance: with the same end, and the last accuracy within two points; where there is none, the last loss
    within 5 %.
    """
    if not differences(stored, computed):
        return "to the bit"
    if (stored.status, stored.excluded == ()) != (computed.status, computed.excluded == ()):
        return "differs"
    for figure, share in (("accuracy", None), ("loss", 0.05)):
        before, after = stored.final(figure), computed.final(figure)
        if before is not None and after is not None:
            near = abs(before - after) <= (TOLERANCE if share is None else share * abs(before))
            return "within tolerance" if near else "differs"
    return "within tolerance" if stored.failed else "differs"


def write_badge(folder: Path, item: str, counts: Mapping[Outcome, int], records: int) -> None:
    """Write what a badge says of an item, in JSON as https://shields.io/badges/endpoint-badge reads it.

    Args:
        folder: of the badges; the file is named by the item.
        item: experiment and scale.
        counts: how many records came out how.
        records: how many there are.
    """
    checked = sum(counts.values())
    found = ", ".join(f"{counts[name]} {name}" for name in OUTCOMES if counts.get(name))
    rest = f", {records - checked} not checked" if checked < records else ""
    color = "lightgrey" if not checked else "red" if counts.get("differs") else "yellow" if rest else "brightgreen"
    message = f"{found}{rest}" if checked else "not checked"
    form = {"schemaVersion": 1, "label": item, "message": message, "color": color}
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / f"{item.replace(' ', '-')}.json", json.dumps(form).encode())


def differences(stored: Trace, computed: Trace) -> dict[str, float]:
    """Return the largest difference of each figure between two records of one run.

    Figures that are equal to the bit are left out, and so are those that older records lack.  A difference is infinite
    where the two cannot be subtracted: curves of other lengths, other clients.
    """
    before, after = _figures(stored), _figures(computed)
    found = {name: distance(value, after.get(name)) for name, value in before.items() if value or name not in LATER}
    return {name: by for name, by in found.items() if by}


def distance(one: Any, other: Any) -> float:
    """Return the largest absolute difference of the numbers in two values, infinite if these are of other forms."""
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        return max((distance(value, other[key]) for key, value in one.items()), default=0.0)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        return max((distance(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
    if isinstance(one, Real) and isinstance(other, Real):
        return 0.0 if one == other else abs(float(one) - float(other))
    return 0.0 if one == other else math.inf


def conditions(stored: Trace, computed: Trace) -> list[str]:
    """Return the differing conditions of two records: versions, device, instructions, as far as both have them."""
    before, after = stored.provenance, computed.provenance
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in CONDITIONS]
    return [f"{name} {then}, now {now}" for name, then, now in pairs if None not in (then, now) and then != now]


def _figures(trace: Trace) -> dict[str, Any]:
    """Return all figures of a record on the outcome, and on the clients."""
    return {
        "status": trace.status,
        "steps": trace.steps,
        "dimension": trace.dimension,
        "data": trace.data.get("fingerprint"),
        **trace.curves,
        **{f"state {name}": column for name, column in trace.state.items()},
        "received_accuracy": trace.received_accuracy,
        "client_accuracy": trace.client_accuracy,
        "clusters": trace.clusters,
        "filtered": trace.filtered,
        "detection": trace.detection,
        "excluded": {one.client: one.step for one in trace.excluded},
        "invalid": {one.client: one.times for one in trace.invalid},
        "not_enrolled": sorted(trace.not_enrolled),
        "byzantine": trace.byzantine,
        "reported": trace.reported,
        "held": trace.held,
    }
