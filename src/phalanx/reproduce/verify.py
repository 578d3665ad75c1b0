"""Whether a stored record comes out again: to the bit, or by how much each figure differs."""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from phalanx.reproduce.trace import Trace

CONDITIONS = ("torch", "numpy", "numba", "instructions", "device", "threads")  # of a provenance
LATER = "received_accuracy"  # a figure that older records lack


def differences(stored: Trace, computed: Trace) -> dict[str, float]:
    """Return by how much the figures of two records of one run differ, the largest difference of each figure.

    Figures that are equal to the bit are left out, and so are those that older records lack.  A difference is infinite
    where the two cannot be subtracted: curves of other lengths, other clients.
    """
    before, after = _figures(stored), _figures(computed)
    found = {name: distance(value, after.get(name)) for name, value in before.items() if value or name != LATER}
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
    """Return what may make the bits of two records differ: versions, device, instructions, if both say what it was."""
    before, after = stored.provenance, computed.provenance
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in CONDITIONS]
    return [f"{name} {then}, now {now}" for name, then, now in pairs if None not in (then, now) and then != now]


def _figures(trace: Trace) -> dict[str, Any]:
    """Return all that a record says of the outcome, and of who took part."""
    return {
        "status": trace.status,
        "steps": trace.steps,
        "dimension": trace.dimension,
        "data": trace.data.get("fingerprint"),
        **trace.curves,
        **{f"state {name}": column for name, column in trace.state.items()},
        "received_accuracy": trace.received_accuracy,
        "filtered": trace.filtered,
        "detection": trace.detection,
        "excluded": {one.client: one.step for one in trace.excluded},
        "invalid": {one.client: one.times for one in trace.invalid},
        "not_enrolled": sorted(trace.not_enrolled),
        "byzantine": trace.byzantine,
        "reported": trace.reported,
        "held": trace.held,
    }
