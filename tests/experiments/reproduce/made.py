"""Traces that are made, not trained."""

from phalanx.experiments.papers import Trace
from phalanx.runs.provenance import NUMERICS, Provenance

DIGEST = "0" * 64


def trace(values, seed=0, *, failed=False, step=None, **curves):
    """A run whose accuracy takes these values, shares from 0 to 1."""
    values = tuple(values)
    steps = tuple(range(len(values))) if step is None else tuple(step)
    return Trace(
        name="a run",
        identity=f"{seed:064}",
        source=None,
        settings={"seed": seed, "clients": 4},
        seed=seed,
        clients=4,
        status="failed" if failed else "finished",
        error="Nobody is left." if failed else None,
        provenance=Provenance("0.1.0", NUMERICS, torch="2", python="3", device="cpu", threads=1),
        wall_seconds=2.0,
        steps=len(values),
        curves={"step": steps, "seconds": tuple(10.0 * s for s in steps), "accuracy": values, **curves},
    )
