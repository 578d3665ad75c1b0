"""A pool of processes on this machine.

Every process has its own pipe to the parent, which assigns the jobs.  So the death of a process is noticed at once,
loses one job, and blocks no other; and when the parent is gone, the others end.
"""

import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import Any

import torch
from typing_extensions import override

from phalanx.errors import InfeasibleError
from phalanx.numerics.allocation import keep_freed_memory
from phalanx.pool import AWAKE, Died, Done, Failed, Message, Ready, WorkerPool, WorkerReport, is_stopped
from phalanx.signals import ignore_stop_signals

CONTEXT = multiprocessing.get_context("spawn")  # a fork of a process that has used torch or numba can hang
STILLBORN = 3  # processes in a row that die before they are ready, after which no more are started
SCRIPT = (
    "A script that starts processes does so below the line `if __name__ == '__main__':`, since each of them reads the "
    "script when it begins."
)
BOOTSTRAPPING = "bootstrapping phase"  # words of multiprocessing where a script lacks that line
Task = Callable[
    [Any, Callable[[Any], None]], Any
]  # the arguments are a job, and a function that takes reports of its progress; returns the result


def check_script() -> None:
    """Raise `InfeasibleError` in a process that still reads the script which started it: it may start no others."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise InfeasibleError(SCRIPT)


class Processes(WorkerPool):
    """Processes that do jobs.  All of them end on leaving the context, also in the middle of a job.

    Args:
        count: largest number of processes.
        task: does a job; created in each process by its import path. None: a subclass says which in `start`.
        threads: of each process.
    """

    def __init__(self, count: int, task: Task | None, threads: int = 1) -> None:
        super().__init__()
        self.count, self.task, self.threads = count, task, threads
        self.processes = dict[Connection, Any]()
        self._looked = 0.0  # when processes were last looked at
        self._stillborn, self._why = 0, ""  # processes in a row that died before they were ready; how the last did

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for connection in list(self.processes):
            self.stop(connection)
        self.workers.clear()

    @override
    def start(self, wanted: int) -> None:
        while len(self.processes) < min(wanted, self.count) and self.can_begin():
            assert self.task is not None
            self.begin(self.task)

    def can_begin(self) -> bool:
        """Return whether another process is started: not if the last ones have died before they were ready.

        Raises:
            ConnectionError: they have, and there is no other.
        """
        if self._stillborn >= STILLBORN and not self.processes:
            raise ConnectionError(f"{self._stillborn} processes in a row ended before they were ready. {self._why}")
        return self._stillborn < STILLBORN

    def begin(self, task: Task) -> Connection:
        """Start a process, which is given jobs once it is ready.

        Raises:
            InfeasibleError: this is itself a process that only begins.
        """
        here, there = CONTEXT.Pipe()
        process = CONTEXT.Process(target=work, args=(there, task, self.threads), daemon=True)
        with _deaf():
            try:
                process.start()
            except RuntimeError as error:
                if BOOTSTRAPPING not in str(error):
                    raise
                raise InfeasibleError(SCRIPT) from None
        there.close()
        self.processes[here] = process
        return here

    @override
    def give(self, worker: Connection, number: int, job: Any) -> None:
        message = _Pickler.dumps((number, job))
        with suppress(BrokenPipeError, ConnectionResetError):  # it has died already; the next wait reports it
            worker.send_bytes(message)

    @override
    def wait(self, seconds: float) -> Sequence[Message]:
        found = [self._next(found) for found in wait(self.processes, seconds) if isinstance(found, Connection)]
        return [*found, *self._asleep()]

    def _asleep(self) -> Iterator[Message]:
        """Look whether processes were stopped."""
        if (now := time.monotonic()) - self._looked < AWAKE:
            return
        self._looked = now
        for connection, process in [*self.processes.items()]:
            yield from self.halted(connection, str(process.pid), stopped=is_stopped(process.pid))

    def _next(self, connection: Connection) -> Message:
        try:
            message: Message = connection.recv()
        except (EOFError, ConnectionResetError):
            self.processes[connection].join()
            code = self.stop(connection)
            if connection in self.workers:
                return Died(connection, _death(code, "in the middle of the run"))
            self.workers[connection] = []
            self._stillborn += 1
            self._why = _death(code, "before it was ready")
            if code == 1:  # an error of Python's
                self._why += f" Standard error has the reason. {SCRIPT}"
            return Died(connection, self._why)
        if isinstance(message, Ready):
            self._stillborn = 0
            return Ready(connection)
        return message

    @override
    def stop(self, worker: Connection) -> int | None:
        """See `WorkerPool`; return how the process ended."""
        process = self.processes.pop(worker)
        process.kill()
        process.join()
        worker.close()
        code: int | None = process.exitcode
        return code

    @override
    def surrender(self, deaths: int, died: Died) -> Exception | None:
        """See `WorkerPool`: a job that ended its process would most likely end the next one."""
        return None if died.halted and deaths == 1 else ConnectionError(died.why)


class _Pickler(ForkingPickler):
    """Refuses classes and functions that the other process could not import."""

    @override
    def reducer_override(self, obj: Any) -> Any:
        own = isinstance(obj, (type, FunctionType)) and obj.__module__ == "__main__"
        if own and not hasattr(sys.modules["__main__"], "__file__"):
            raise InfeasibleError(
                f"{obj.__qualname__} was defined in a notebook or at a prompt, where other processes cannot find it. "
                "Write it into a file, such as own.py (in a notebook: %%writefile own.py), and import it from there."
            )
        return NotImplemented


def work(connection: Connection, task: Task, threads: int) -> None:
    """Do the jobs received through a pipe, until it is closed."""
    ignore_stop_signals()  # Ctrl-C, and SIGTERM by SLURM, reach all processes; the parent decides
    torch.set_num_threads(threads)
    keep_freed_memory()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        connection.send(Ready(None))
        while True:
            number, job = connection.recv()
            try:
                message: Message = Done(number, task(job, partial(_say, connection, number)))
            except (BrokenPipeError, ConnectionResetError):
                raise
            except Exception as error:
                message = Failed(number, error)
            connection.send(message)


def _say(connection: Connection, number: int, what: Any) -> None:
    connection.send(WorkerReport(number, what))


@contextmanager
def _deaf() -> Iterator[None]:
    """Let processes that start in this context ignore Ctrl-C, even before their first line."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _death(code: int | None, when: str) -> str:
    """Return in words how a process ended."""
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        memory = ", as the operating system does when memory runs out: give fewer --jobs" * (name == "SIGKILL")
        return f"Its process was killed by the signal {name}{memory}."
    return f"Its process ended with the status {code}, {when}."
