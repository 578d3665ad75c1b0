"""What happens to runs that are carried out."""

from typing import NamedTuple

from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run


class Began(NamedTuple):
    """A run has begun."""

    run: int  # its number among those that are carried out
    plan: Run


class Advanced(NamedTuple):
    """A run has made progress."""

    run: int
    share: float  # from 0 to 1


class Warned(NamedTuple):
    """A run has given a warning."""

    run: int
    text: str


class Ended(NamedTuple):
    """A run has ended; its trace is in the store if `kept`."""

    run: int
    trace: Trace
    kept: bool


Event = Began | Advanced | Warned | Ended
