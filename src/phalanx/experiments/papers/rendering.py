"""The results of an experiment: tables, plots, notes and claims."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from phalanx.experiments.papers.claims import Claim
from phalanx.experiments.papers.comparison import SMALLER, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Plot:
    """A figure.

    Args:
        figure: drawn; see `phalanx.experiments.shown.plotting`.
        part: distinguishes it from other figures of the same experiment, in its file's name; "" if it is alone.
        caption: explains the figure.
    """

    figure: "Figure"
    part: str = ""
    caption: str = ""


@dataclass(frozen=True)
class Rendering:
    """All results of an experiment.

    Args:
        tables: in order.
        plots: in order, each with a `part` of its own.
        notes: sentences at the end: our differences from the paper, and the reasons.
        claims: of the paper, which the runs are judged on.
    """

    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    notes: Sequence[str] = ()
    claims: Sequence[Claim] = ()

    def __post_init__(self) -> None:
        parts = [plot.part for plot in self.plots]
        if len(parts) != len(set(parts)):
            raise ValueError(f"Each plot of an experiment needs a part of its own, got {parts}.")

    def unjudged(self, why: Sequence[str]) -> "Rendering":
        """Return the same results without any verdict, since a baseline has learned nothing.

        Args:
            why: a sentence for each such run.
        """
        tables = [table.alone for table in self.tables]
        return replace(self, tables=tables, claims=(), notes=(*self.notes, *(f"Not judged: {one}" for one in why)))

    @property
    def alone(self) -> "Rendering":
        """The same results without published numbers, since their runs are smaller than the paper's."""
        return replace(self, tables=[table.alone for table in self.tables], notes=(*self.notes, SMALLER))
