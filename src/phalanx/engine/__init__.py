"""The loop between server and clients, the sampling of clients, and the guard against invalid updates."""

from phalanx.engine.at_start import promised
from phalanx.engine.guard import Guard
from phalanx.engine.loop import Snapshot, run
from phalanx.engine.lost import LostRounds
from phalanx.engine.participation import Participation, everyone

__all__ = ["Guard", "LostRounds", "Participation", "Snapshot", "everyone", "promised", "run"]
