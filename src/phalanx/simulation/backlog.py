"""Tasks that train ahead of the time at which their results are needed."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.training.local import LocalTask


class Key(NamedTuple):
    """The name of a task; no two tasks of a run share one."""

    client: int
    turn: int

    @classmethod
    def of(cls, task: LocalTask) -> "Key":
        """Return the name of a task."""
        return cls(task.client, task.turn)


@dataclass(eq=False)
class Begun:
    """A task whose result is still needed."""

    task: LocalTask
    loss: float | None = None  # None until it has trained


class Backlog:
    """The tasks of a run that have begun, by number; those that are needed first are handed out first."""

    def __init__(self) -> None:
        self.jobs = dict[int, Begun]()
        self._order = list[tuple[float, int]]()  # heap of the jobs that were not handed out
        self._numbers = dict[Key, int]()  # job of each task whose result is still needed
        self._count = 0  # of jobs so far

    def add(self, task: LocalTask, due: float) -> None:
        """Add a task whose result is needed at a time."""
        self.jobs[self._count] = Begun(task)
        self._numbers[Key.of(task)] = self._count
        heapq.heappush(self._order, (due, self._count))
        self._count += 1

    def pop(self) -> int | None:
        """Hand out the job that is needed first, by its number; None if there is none."""
        return next(self._needed(), None)

    def _needed(self) -> Iterator[int]:
        """Take jobs from the heap, and yield those that were neither forgotten nor done in the meantime."""
        while self._order:
            _, number = heapq.heappop(self._order)
            if number in self.jobs and self.jobs[number].loss is None:
                yield number

    def job(self, task: LocalTask) -> Begun:
        """Return the job of a task."""
        return self.jobs[self._numbers[Key.of(task)]]

    def forget(self, task: LocalTask) -> None:
        """Drop a task: its result is not needed any more."""
        del self.jobs[self._numbers.pop(Key.of(task))]
