"""The store of a paper's records: one small file for each run, named by its identity."""

import shutil
from contextlib import suppress
from pathlib import Path

from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run
from phalanx.runs.summary import unusable


class Store:
    """The records of a paper.

    Args:
        folder: of the paper's results; records are in `records` below it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._underway = folder / "records", folder / "underway"

    def path(self, plan: Run) -> Path:
        """Return the path of the record of a run, whether it exists or not."""
        return self.folder / f"{plan.identity}.json"

    def find(self, plan: Run) -> tuple[Trace | None, str]:
        """Return the record of a run, of any numerics version, and why it cannot be used.

        Returns:
            The trace, if any; and if there is one that cannot be used, why not.

        Raises:
            ValueError: the file of that name holds something else.
        """
        path = self.path(plan)
        if not path.is_file():
            return None, ""
        trace = Trace.load(path)
        why = unusable(plan, trace)
        return (None, why) if why else (trace, "")

    def keep(self, trace: Trace) -> None:
        """Write a record, in place of an older one of the same run."""
        trace.save(self.folder / f"{trace.identity}.json")

    def underway(self, plan: Run) -> Path:
        """Return the folder of a run that has not ended, with the checkpoint from which it goes on if it is killed."""
        return self._underway / plan.identity

    def tidy(self, plan: Run) -> None:
        """Remove the folder of a run that has ended."""
        shutil.rmtree(self.underway(plan), ignore_errors=True)
        with suppress(OSError):  # others have not ended
            self._underway.rmdir()
