"""The settings of the loop between server and clients, for simulated and for real clients: one place for each."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from phalanx.core import Until
from phalanx.engine.guard import Guard
from phalanx.engine.lost import LostRounds
from phalanx.fields import PositiveInt, check_fields
from phalanx.promises import BrokenPromise

REMEDIES = {"until": "Until(steps=30), Until(seconds=60.0), or a number of steps."}  # for values of a wrong type


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """The settings of the loop.

    Args:
        until: when the run ends; in Python also a number of steps.
        guard: defines which updates and sizes are invalid.
        lost_rounds: what follows a round whose updates are too few for the algorithm, or without a result for its rule.
        influence: number of attackers whose influence on the aggregate of each step is measured: how far they could
            have moved it; null measures nothing. No other number of the run depends on it.
        tolerate: number of Byzantine clients that each aggregation must tolerate, whichever they are: those that do not
            are not done, and their rounds are lost or wait for more updates. null: as many as the settings tolerate.
        broken_promise: treatment of an aggregation that breaks the promise of the run, as after clients have left or
            joined. "hold": it is not done: the round is lost, or waits for more updates. "unweighted": its clients
            weigh the same. "remark": it is done as it is. The record says so for each, and counts them.

    Raises:
        TypeError: a value has another type.
        ValueError: a number is out of its range.
    """

    until: Until = Until()
    guard: Guard = Guard()
    lost_rounds: LostRounds = LostRounds()
    influence: PositiveInt | None = None
    tolerate: PositiveInt | None = None
    broken_promise: BrokenPromise = "hold"

    def __post_init__(self) -> None:
        if isinstance(self.until, int) and not isinstance(self.until, bool):
            object.__setattr__(self, "until", Until.of(self.until))
        check_fields(self, REMEDIES, LoopSettings)

    @property
    def loop(self) -> dict[str, Any]:
        """The settings of the loop alone, by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(LoopSettings)}
