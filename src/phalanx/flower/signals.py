"""Handling of the signals that end a process: Ctrl-C, `kill`, and a closed terminal."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)  # Windows has none
STOP_SIGNALS = tuple(number for number in (signal.SIGINT, signal.SIGTERM, HANGUP) if number is not None)


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
