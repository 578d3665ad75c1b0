"""Simulations on several machines, over Ray: its workers, and the clients of one round.

For trusted machines only: anyone who can reach a Ray cluster can run any code on it.  Use `phalanx.flower` for
untrusted clients.
"""

from phalanx.installation import installation

try:
    import ray  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"Several machines need Ray: {installation('ray')}.") from error

from phalanx.ray.crew import joined
from phalanx.ray.ray_executor import RayExecutors

__all__ = ["RayExecutors", "joined"]
