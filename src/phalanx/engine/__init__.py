"""The loop between server and clients, who takes part in it, and what it refuses."""

from phalanx.engine.guard import Guard
from phalanx.engine.loop import Snapshot, run
from phalanx.engine.participation import Participation, everyone

__all__ = ["Guard", "Participation", "Snapshot", "everyone", "run"]
