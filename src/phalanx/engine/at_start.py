"""The promise of a run of the engine."""

from collections.abc import Mapping
from typing import Any

from phalanx.core import Algorithm, Setting
from phalanx.engine.connection import Joinable, Lossy, Transport
from phalanx.engine.participation import Sampler
from phalanx.promises import BrokenPromise, Promise, promise


def promised(
    algorithm: Algorithm[Any],
    transport: Transport,
    sizes: Mapping[int, int] | int,
    sample: Sampler,
    *,
    steps: int | None = None,
    tolerate: int | None = None,
    broken: BrokenPromise = "hold",
    left: int | None = None,
) -> Promise:
    """Return the promise of a run.

    Args:
        algorithm: that of the run.
        transport: tells whether answers can be missing, and whether clients can join.
        sizes: those that the enrolled clients report; their number alone: whatever they report.
        sample: draws the clients of a round; with a method `count`, as `Participation` has, if it draws a fixed number.
        steps: number of steps of the run, if it is known.
        tolerate: number of attackers that must be tolerated; None: as many as the settings give.
        broken: treatment of what breaks the promise, as by `LoopSettings.broken_promise`.
        left: number of clients that are still there; None: all.

    Raises:
        InfeasibleError: no step could ever be taken, or none that tolerates so many.
    """
    n = left if left is not None else sizes if isinstance(sizes, int) else len(sizes)
    count = getattr(sample, "count", None)
    setting = Setting(
        n,
        None if isinstance(sizes, int) else sizes,
        drawn=min(count(n), n) if callable(count) and algorithm.traits.synchronous else None,
        steps=steps,
        lossy=not isinstance(transport, Lossy) or transport.lossy,  # unless it knows better, it can lose answers
        joins=isinstance(transport, Joinable) and transport.joins,
    )
    return promise(algorithm, setting, f=tolerate, broken=broken)
