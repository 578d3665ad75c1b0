"""What observers see of a run, and how one stops it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from phalanx.aggregators.influence import Influence
from phalanx.core import AnyState, Updates
from phalanx.engine.suspicion import Conduct
from phalanx.promises.promise import Promise
from phalanx.training.evaluation import Metrics


class Progress(NamedTuple):
    """The view that observers have of a run.

    They are called before the first step (of a resumed run: the first after that), after each step, and after each wait
    that brought no usable answer, only invalid or lost ones.
    """

    step: int  # steps so far
    now: float  # seconds since the run began
    state: AnyState
    updates: Updates | None  # of this step; None if no step was taken
    invalid: Mapping[int, str]  # client -> why, since the previous call
    lost: Mapping[int, str]  # client -> why, since the previous call; also clients that are late, and still waited for
    enrolled: frozenset[int] = frozenset()  # clients that were enrolled so far; excluded ones stay enrolled
    remarks: tuple[str, ...] = ()  # since the previous call: what the run warns of, a sentence each
    metrics: Metrics | None = None  # of this state, in a run that evaluates it; None if it was not evaluated
    influences: tuple[Influence, ...] = ()  # of attackers on each aggregation of this step, in a run that measures it
    promise: Promise | None = None  # on the first call, and whenever it changes
    shares: tuple[float, ...] = ()  # the largest that f clients hold, for each aggregation of this step
    broken: int = 0  # aggregations since the previous call that broke the promise and were done all the same
    watched: int = 0  # number of clients that the aggregations of this step were checked for
    conduct: Mapping[int, Conduct] = {}  # of the clients with an update in this step, in a run that judges it


class StopRunError(Exception):
    """Raised by an observer, stops the run after this step, with a reason for its record.

    A run with a folder can go on later: it keeps a checkpoint of its last step.
    """


@runtime_checkable
class Observer(Protocol):
    """A function that reads a run, and never changes it; it can stop the run by raising `StopRunError`."""

    def __call__(self, progress: Progress, /) -> None:
        """Read the progress."""


@runtime_checkable
class CatchingUp(Protocol):
    """An observer that depends on earlier steps: of a resumed run it is shown the history before its first call."""

    def catch_up(self, history: Sequence[Any], /) -> None:
        """Read the steps so far, each a `phalanx.runs.schema.StepRecord`."""
