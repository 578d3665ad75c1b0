"""The loop between server and clients, the sampling of clients, and the guard against invalid updates."""

from phalanx.engine.at_start import promised
from phalanx.engine.guard import Guard
from phalanx.engine.loop import Snapshot, run
from phalanx.engine.lost import LostRounds
from phalanx.engine.participation import Participation, everyone
from phalanx.engine.settings import LoopSettings

__all__ = ["Guard", "LoopSettings", "LostRounds", "Participation", "Snapshot", "everyone", "promised", "run"]
