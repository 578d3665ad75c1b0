"""The clock of deadlines, which stops while the coordinator's process does.

A process that is stopped (SIGSTOP, a host without time for it, on Linux a suspended machine) hears no answer, and no
client is late for that.  Deadlines by this clock are extended by the pause.
"""

import threading
import time
from collections.abc import Callable

TICK = 1.0  # seconds between two looks at the clock, at most, while the process runs
PAUSE = 5.0  # seconds between two looks from which the process had stopped


def since_boot() -> float:
    """Return seconds that go on while the machine is suspended, where the system counts them, as Linux does."""
    there = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if there is None else time.clock_gettime(there)


class AwakeClock:
    """Seconds without the pauses of this process.  It may be read from any thread, and must be every `TICK` seconds.

    Args:
        now: seconds with the pauses.
    """

    def __init__(self, now: Callable[[], float] = since_boot) -> None:
        self._now, self._lock = now, threading.Lock()
        self._last = now()
        self.paused = 0.0  # seconds of all pauses so far

    def __call__(self) -> float:
        """Return the seconds."""
        with self._lock:
            now = self._now()
            gap, self._last = now - self._last, now
            if gap > PAUSE:
                self.paused += gap
            return now - self.paused
