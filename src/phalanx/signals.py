"""Handling of the signals that end a process: Ctrl-C, `kill`, and a closed terminal."""

import _thread
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)  # Windows has none
STOP_SIGNALS = tuple(number for number in (signal.SIGINT, signal.SIGTERM, HANGUP) if number is not None)
GRACE = 20.0  # seconds that a step may still take; Kubernetes and SLURM kill after 30
HELD = b"\nStopping after this step. Once more stops at once.\n"


def on_main_thread() -> bool:
    """Return whether this is the main thread, the only one that receives signals."""
    return threading.current_thread() is threading.main_thread()


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end this process; under `nohup`, a closed terminal is not one of them."""
    return tuple(n for n in STOP_SIGNALS if not (n == HANGUP and signal.getsignal(n) == signal.SIG_IGN))


@contextmanager
def stopped_like_ctrl_c() -> Iterator[list[int]]:
    """Raise `KeyboardInterrupt` at the first stop signal and ignore the others.

    Yield a list that holds the signal once it has arrived.
    """
    received = list[int]()
    if not on_main_thread():
        yield received
        return

    def stop(number: int, *_: object) -> None:
        if not received:
            received.append(number)
            raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in stop_signals()}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def passing_signals_on() -> Iterator[None]:
    """Like `stopped_like_ctrl_c`, then raise the signal for the previous handler: Flower's ends the process."""
    try:
        with stopped_like_ctrl_c() as received:
            yield
    except KeyboardInterrupt:
        for number in received:
            signal.raise_signal(number)
        raise


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore stop signals, so that the block completes."""
    if not on_main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_stop_signals() -> None:
    """Ignore stop signals from now on: the process is about to end anyway."""
    if on_main_thread():
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)


class Holding:
    """Holds a stop signal until a run can be left without losing a step; see `held_until_safe`.

    Args:
        safe: whether nothing is lost now.
    """

    def __init__(self, safe: Callable[[], bool]) -> None:
        self.pending: int | None = None  # the signal that is held
        self._safe, self._before = safe, dict[int, Callable[[int, FrameType | None], Any]]()
        self._timer: threading.Timer | None = None
        self._leaving = False

    def begin(self) -> None:
        """Hold the signals from now on that some function handles; others end the process, or are ignored."""
        if on_main_thread():
            found = {number: signal.getsignal(number) for number in stop_signals()}
            self._before = {number: handler for number, handler in found.items() if callable(handler)}
            for number in self._before:
                signal.signal(number, self._hold)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if self._leaving:  # all that comes now waits for the end, which is near
            self.pending = number
        elif self.pending is not None or self._safe():  # the second, or the end of `GRACE`
            self._cancel()
            self._before[number](number, frame)
        else:
            self.pending = number
            self._timer = threading.Timer(GRACE, _thread.interrupt_main, (number,))
            self._timer.daemon = True
            self._timer.start()
            with suppress(OSError):  # the terminal may be gone
                os.write(2, HELD)

    def _cancel(self) -> None:
        self.pending = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def release(self) -> None:
        """Pass a signal on that is held: now nothing is lost."""
        if (number := self.pending) is not None:
            self._cancel()
            self._before[number](number, None)

    def leave(self) -> None:
        """Hold all signals until `end`, so that what is written now is whole."""
        if self._timer is not None:
            self._timer.cancel()
        self._leaving = True

    def end(self, *, stopped: bool) -> None:
        """Handle signals as before, and pass one on that is held unless the run was stopped anyway."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._safe = lambda: True  # lets go of the run
        held, self.pending = self.pending, None
        if held is not None and not stopped:
            self._before[held](held, None)
