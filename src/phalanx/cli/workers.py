"""The workers that a command asks for."""

from contextlib import AbstractContextManager

from phalanx.experiments.carrying_out import Means, Workers, local_workers
from phalanx.experiments.store import Store


def workers_of(jobs: int | None, ray: str | None, store: Store, means: Means) -> AbstractContextManager[Workers]:
    """Return the workers that carry out runs: processes of this machine, or a Ray cluster.

    Args:
        jobs: number of runs at a time; None: one, or on a Ray cluster as many as it has free CPUs.
        ray: address of the cluster; None: this machine.
        store: takes the records.
        means: of carrying out runs.
    """
    if ray is None:
        return local_workers(jobs or 1, store, means)
    import phalanx.ray  # noqa: F401, PLC0415  (if Ray is not installed, this says what to install)
    from phalanx.experiments.ray_runs import ray_workers  # noqa: PLC0415  (slow to import)

    return ray_workers(ray, jobs, store, means)
