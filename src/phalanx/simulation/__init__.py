"""Simulated federations on a virtual clock."""

from phalanx.simulation.availability import Availability, AvailabilityTrace, Both, Crash, Crashes, OnOff, Period, Silent
from phalanx.simulation.clock import Clock
from phalanx.simulation.deadline import Deadline
from phalanx.simulation.joining import Late
from phalanx.simulation.latency import (
    Bandwidth,
    Constant,
    Latency,
    LatencyTrace,
    Lognormal,
    Normal,
    Parts,
    PerExample,
    Stragglers,
    Workload,
    Zipf,
)
from phalanx.simulation.transport import Simulation

__all__ = [
    "Availability",
    "AvailabilityTrace",
    "Bandwidth",
    "Both",
    "Clock",
    "Constant",
    "Crash",
    "Crashes",
    "Deadline",
    "Late",
    "Latency",
    "LatencyTrace",
    "Lognormal",
    "Normal",
    "OnOff",
    "Parts",
    "PerExample",
    "Period",
    "Silent",
    "Simulation",
    "Stragglers",
    "Workload",
    "Zipf",
]
