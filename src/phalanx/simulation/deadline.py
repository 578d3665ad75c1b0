"""The time for which the server waits for answers."""

from dataclasses import dataclass

from phalanx.fields import CheckedFields, NonNegativeInt, PositiveFloat


@dataclass(frozen=True)
class Deadline(CheckedFields):
    """The time after which the server no longer waits for an answer.

    A round ends when all answers have arrived, or at its deadline.  The task of a client that has not answered by then
    is lost, and the client gets a new one.  With `grace`, its answer still counts in one of the next rounds, and it
    gets no new task before.  If no client answers in time, the round ends with the first late answer that `grace`
    allows.

    An asynchronous algorithm has no rounds: the time of each client starts with its download; after the deadline the
    task is lost, and the client gets a new one.

    Args:
        seconds: seconds from the download, on the clock of the run.
        grace: number of rounds after its own in which a late answer still counts; 0 drops it. Synchronous algorithms
            only.
    """

    seconds: PositiveFloat = 10.0
    grace: NonNegativeInt = 0
