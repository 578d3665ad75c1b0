"""The live view of a run as a page of HTML, a single file that a browser loads again by itself.

It has no script and loads nothing.  Text of clients reaches it through Jinja's escaping.
"""

import logging
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

from phalanx.flower.live import (
    HEADINGS,
    Seen,
    Tail,
    client_rows,
    counts,
    ended,
    ending,
    in_words,
    notices,
    round_cells,
    silence,
    status,
    to_do,
)
from phalanx.flower.status import BEAT, utc
from phalanx.report.page import filled, put
from phalanx.runs.files import HISTORY
from phalanx.wording import percent, visible

log = logging.getLogger("phalanx.flower")

AGAIN = 5  # seconds until a browser loads the page again


class WatchPage:
    """Keeps the page of a run.

    Args:
        folder: the run's, which need not exist yet.
        path: of the page.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, folder: Path, path: Path) -> None:
        self._folder, self._path = folder, path
        self._tail, self._seen = Tail(folder / HISTORY), Seen()
        self._shown, self._written, self._failed = dict[str, Any](), 0.0, False
        try:
            self._keep(over=False)
        except BaseException:
            self.close()
            raise

    def look(self) -> bool:
        """Write the page where something has changed, or it is `BEAT` seconds old; return whether the run is over."""
        over = ended(self._folder)
        try:
            self._keep(over=over)
            self._failed = False
        except OSError as error:  # a view is missing, and nothing else
            if not self._failed:
                log.warning("%s cannot be written: %s", self._path, error)
            self._failed = True
        return over

    def close(self) -> None:
        """Close the history.  The page stays as it is."""
        self._tail.close()

    def _keep(self, *, over: bool) -> None:
        if self._tail.look():
            self._seen = Seen()
        self._seen.add(self._tail.new())
        content, now = self._content(over=over), time.monotonic()
        if over or content != self._shown or now - self._written >= BEAT:
            template = files("phalanx.flower").joinpath("watch.html").read_text(encoding="utf-8")
            put(filled(template, **content, time=utc(time.time())), self._path)
            self._shown, self._written = content, now

    def _content(self, *, over: bool) -> dict[str, Any]:
        """Return what the page says, by the names of its template."""
        known, steps = status(self._folder), list(self._seen.last)
        clients = {} if known is None else known.clients
        rows, (how, said) = client_rows(clients, self._seen), ending(self._folder) if over else (None, "")
        return {
            "title": visible(self._folder.absolute().name),
            "again": None if over else AGAIN,
            "ending": visible(said),
            "finished": how == "finished",
            "progress": [] if not steps else [
                f"step {steps[-1].step}", f"version {steps[-1].version}", f"{steps[-1].seconds:.1f} s"],
            "counts": counts(clients),
            "notices": [] if over else [*map(visible, notices(known, silence(self._folder)))],
            "promise": [] if known is None or known.promise is None else [*map(visible, known.promise.text)],
            "to_do": [*map(visible, to_do(rows))],
            "clients": [
                (row.rank[-1], visible(row.name), row.standing, percent(row.accuracy), row.fate.text, visible(row.why))
                for row in rows
            ],
            "troubled": {row.rank[-1] for row in rows if row.rank[0] == 0},
            "headings": HEADINGS,
            "rounds": [round_cells(step) for step in reversed(steps)],
            "words": [visible(in_words(step)) for step in reversed(steps)],
        }  # fmt: skip
