"""Federations in one process, on a virtual clock."""

from phalanx.simulation.clock import Clock
from phalanx.simulation.joining import Late
from phalanx.simulation.latency import Constant, Latency, Lognormal, Normal
from phalanx.simulation.transport import Simulation

__all__ = ["Clock", "Constant", "Late", "Latency", "Lognormal", "Normal", "Simulation"]
