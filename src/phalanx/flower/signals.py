"""What becomes of a process that is asked to end: by Ctrl-C, a polite kill, or a terminal that is closed."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)  # Windows has none
ASKED = tuple(number for number in (signal.SIGINT, signal.SIGTERM, HANGUP) if number is not None)


def minds_signals() -> bool:
    """Whether this thread is the one that signals interrupt."""
    return threading.current_thread() is threading.main_thread()


def minded() -> tuple[signal.Signals, ...]:
    """The signals that ask this process to end; a terminal that is closed does not, where `nohup` has said so."""
    return tuple(n for n in ASKED if not (n == HANGUP and signal.getsignal(n) == signal.SIG_IGN))


@contextmanager
def stopped_like_ctrl_c() -> Iterator[list[int]]:
    """Has the first signal that asks for the end raise KeyboardInterrupt, and the others do nothing.

    Gives a list that holds that signal as soon as it has come.
    """
    came = list[int]()
    if not minds_signals():
        yield came
        return

    def stop(number: int, *_: object) -> None:
        if not came:
            came.append(number)
            raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in minded()}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def handed_on() -> Iterator[None]:
    """As `stopped_like_ctrl_c`; then the signal reaches whoever minded it before, as Flower, which ends the process."""
    try:
        with stopped_like_ctrl_c() as came:
            yield
    except KeyboardInterrupt:
        for number in came:
            signal.raise_signal(number)
        raise


@contextmanager
def undisturbed() -> Iterator[None]:
    """Does something to its end, whoever presses Ctrl-C once more."""
    if not minds_signals():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ASKED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
