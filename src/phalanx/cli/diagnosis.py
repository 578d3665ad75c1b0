"""A finding of `phalanx doctor`."""

from typing import Literal, NamedTuple

Level = Literal["ok", "warning", "wrong"]


class Diagnosis(NamedTuple):
    """One line of the findings."""

    level: Level
    subject: str
    what: str
    remedy: str = ""  # empty if all is well
