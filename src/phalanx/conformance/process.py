"""A library's process, seen from the outside."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any


class LibraryError(RuntimeError):
    """A library failed; the text is short enough for a table.

    Args:
        text: what happened.
        said: by the library.
    """

    def __init__(self, text: str, said: str = "") -> None:
        super().__init__(text)
        self.said = said or text


class LibraryProcess:
    """A library in a separate process, which is started again after it had to be stopped.

    Args:
        command: starts it.
        variables: its environment.
        limit: seconds for an answer.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], limit: float) -> None:
        self.command, self.variables, self.limit = command, variables, limit
        self.process: subprocess.Popen[str] | None = None
        self.answers: queue.Queue[str] = queue.Queue()

    def ask(self, order: str, **details: Any) -> Any:
        """Send an order and return the answer.

        Raises:
            LibraryError: the library raised, ran out of memory, or did not answer in time.
        """
        process = self.process or self._start()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died, which the answer says
            process.stdin.write(json.dumps({"order": order, **details}) + "\n")
            process.stdin.flush()
        try:
            line = self.answers.get(timeout=self.limit)
        except queue.Empty:
            self.stop()
            raise LibraryError(f"> {self.limit:g} s") from None
        if not line:
            self.stop()
            raise LibraryError("died")
        answer = json.loads(line)
        if "error" in answer:
            raise LibraryError("memory" if "MemoryError" in answer["error"] else "error", answer["error"])
        return answer["answer"]

    def close(self) -> None:
        """Let the process end by itself, so that it can clean up."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        self.stop()

    def stop(self) -> None:
        """Kill the process and its descendants."""
        if self.process is not None:
            assert self.process.stdin is not None
            with contextlib.suppress(ProcessLookupError):
                if sys.platform == "win32":
                    self.process.kill()
                else:
                    os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            with contextlib.suppress(OSError):  # what was not sent has nobody to read it
                self.process.stdin.close()
        self.process = None

    def _start(self) -> "subprocess.Popen[str]":
        self.answers = queue.Queue()
        self.process = subprocess.Popen(
            self.command,
            env=self.variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._listen, args=(self.process, self.answers), daemon=True).start()
        return self.process

    @staticmethod
    def _listen(process: "subprocess.Popen[str]", answers: "queue.Queue[str]") -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                answers.put(line)
        answers.put("")


def environment(threads: int) -> dict[str, str]:
    """Return the environment variables of a process with so many threads."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, str(threads))}
