"""A live view of a run with real clients: rounds, who is there, the last verdicts.

It reads what the server writes into its folder, so that it can be opened, closed and opened again, by anybody who may
read there.  Where there is no terminal, each line of the history is one line of text.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from phalanx.core import Verdict
from phalanx.flower.status import BEAT, STANDINGS, STATUS, ClientStatus, RunStatus, read
from phalanx.runs.record import HISTORY, SUMMARY, read_step
from phalanx.runs.schema import StepRecord
from phalanx.wording import percent

LOOK = 0.5  # seconds between two looks at the folder
QUIET = 3 * BEAT  # seconds without a sign of life, after which it is said
ROUNDS, FEWEST = 8, 3  # rows of the table of rounds, at most, and where clients need the room
AROUND = 7  # lines of a window that are no rows, but for what is said above: headings, and where the cursor is
SIZE = (120, 40)  # columns and lines of a window of which nothing is known
COLOURS = {"here": "green", "missing": "yellow", "suspended": "red", "excluded": "red", "revoked": "dim"}
FIRST = ("suspended", "missing", "excluded", "here", "revoked")  # who is shown where not all have room
UNUSED = ("not enrolled", "filtered", "invalid", "lost")


def follow(folder: Path, console: Console, over: Callable[[], bool], known: int = 0) -> None:
    """Shows a run until it is over: a live view in a terminal, elsewhere a line for each line of the history.

    It says so where the server has given no sign of life for a while, and goes on looking: it may be started again.

    Args:
        folder: the run's.
        console: where.
        over: whether nothing comes any more.
        known: lines of the history that need not be shown.
    """
    if not console.is_terminal:
        for text in _fresh(folder, over, known):
            console.print(escape(text), soft_wrap=True)
        return
    with Live(view(None, []), console=console, auto_refresh=False) as live:
        while True:
            ended = over()
            picture = view(
                status(folder), lines(folder), (console.width, console.height), 0.0 if ended else silence(folder)
            )
            live.update(picture, refresh=True)
            if ended:
                return
            time.sleep(LOOK)


def ended(folder: Path) -> bool:
    """Whether the run of a folder is over, or did not begin.

    A summary that is there while a server waits for its clients is that of an earlier run.
    """
    phase = None if (known := status(folder)) is None else known.phase
    return phase in ("over", "not begun") or (phase != "waiting" and (folder / SUMMARY).is_file())


def silence(folder: Path) -> float:
    """Seconds since the server has last given a sign of life; 0 if it has given none yet."""
    try:
        return max(0.0, time.time() - (folder / STATUS).stat().st_mtime)
    except FileNotFoundError:
        return 0.0


def _fresh(folder: Path, over: Callable[[], bool], known: int) -> Iterator[str]:
    """What there is to say, as it comes."""
    shown, quiet = known, False
    while True:
        last, found = over(), lines(folder)
        for step in found[shown if shown <= len(found) else 0 :]:  # fewer: another run has begun here
            yield in_words(step)
        shown = len(found)
        if last:
            return
        if (silence(folder) >= QUIET) is not quiet:
            quiet = not quiet
            yield _without_sign(silence(folder)) if quiet else "The server gives signs of life again."
        time.sleep(LOOK)


def _without_sign(seconds: float) -> str:
    units = (("h", 3600), ("min", 60), ("s", 1))
    unit, size = next((unit, size) for unit, size in units if seconds >= 2 * size or size == 1)
    return f"No sign of life from the server for {seconds // size:.0f} {unit}. If it was killed, start it again."


def lines(folder: Path) -> list[StepRecord]:
    """Return the steps of the whole lines of the history in a folder; none if there is no history."""
    try:
        whole = (folder / HISTORY).read_bytes().rpartition(b"\n")[0]
    except FileNotFoundError:  # or the server removes it just now
        return []
    return [read_step(line) for line in whole.splitlines()]


def status(folder: Path) -> RunStatus | None:
    """Return what the server of a folder says of its clients; None if it has said nothing yet."""
    return read(folder / STATUS)


def view(
    status: RunStatus | None,
    history: Sequence[StepRecord],
    size: tuple[int, int] = SIZE,
    silence: float = 0.0,
) -> RenderableType:
    """The picture of a moment, in which rounds make room for clients with whom something is the matter.

    Args:
        status: of `status.json`; None before the run has begun.
        history: the steps so far.
        size: columns and lines of the window.
        silence: seconds without a sign of life from the server.
    """
    said = ["The server waits for its clients."] if status is not None and status.phase == "waiting" else []
    said += [_without_sign(silence)] if silence >= QUIET else []
    notes = [_on_one_line(f"[yellow]{text}[/]") for text in said]
    if not history:
        return Group("Waiting for the run to begin.", *notes)
    last = history[-1]
    clients = {} if status is None else status.clients
    counts = Counter(client.standing for client in clients.values())
    words = [f"[{COLOURS[s]}]{counts[s]} {s}[/]" for s in STANDINGS if counts[s]]
    head = f"[bold]step {last.step}[/]  version {last.version}  {last.seconds:.1f} s   {'  '.join(words)}"
    parts: list[RenderableType] = [_on_one_line(head), *notes]
    (width, height), rows = size, _rows(clients, history)
    room = max(height - AROUND - len(parts), 2 * FEWEST)
    troubled = sum(row.rank[0] == 0 for row in rows)
    rounds = max(FEWEST, min(ROUNDS, room - min(len(rows), max(troubled + 1, room // 2))))
    shown = history[-rounds:]
    return Group(*parts, "", _rounds(shown), "", _clients(rows, room - len(shown), width))


def _on_one_line(markup: str) -> Text:
    text = Text.from_markup(markup, overflow="ellipsis")
    text.no_wrap = True
    return text


def _table() -> Table:
    return Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))


def _rounds(history: Sequence[StepRecord]) -> Table:
    table = _table()
    for heading in ("step", "seconds", "accuracy", "used", "filtered", "invalid", "lost"):
        table.add_column(heading, justify="right", no_wrap=True)
    for step in history:
        used = sum(verdict.accepted for verdict in step.decided.values())
        numbers = (used, len(step.decided) - used, len(step.invalid), len(step.lost))
        fates = [str(n) if n else "·" for n in numbers]
        table.add_row(str(step.step), f"{step.seconds:.1f}", percent(step.accuracy), *fates)
    return table


class Row(NamedTuple):
    """A client of the table."""

    rank: tuple[int, int, int]  # 0 for those with whom something is the matter; place in `FIRST`; id
    name: str
    standing: str
    fate: str  # of its last update
    why: str


def _rows(clients: Mapping[int, ClientStatus], history: Sequence[StepRecord]) -> list[Row]:
    """The clients in the order in which they are shown.  The first number of a rank is small for those in trouble."""
    fates, rows = _fates(history), list[Row]()
    for client, about in clients.items():
        fate, why = fates.get(client, ("-", ""))
        standing = about.standing
        troubled = standing in FIRST[:3] or (standing == "here" and fate.partition(" @")[0] in UNUSED)
        rank = (0 if troubled else 1, FIRST.index(standing), client)
        rows.append(Row(rank, about.name, standing, fate, about.why or why))
    return sorted(rows)


def _clients(rows: Sequence[Row], room: int, width: int) -> Table:
    """Who is there, and what became of the last update of each, on one line each."""
    table = _table()
    table.expand = True
    for heading in ("client", "name", "standing", "last update"):
        most = max(8, width // 6) if heading == "name" else None
        table.add_column(heading, justify="right" if heading == "client" else "left", no_wrap=True, max_width=most)
    table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
    shown = rows if len(rows) <= room else rows[: room - 1]
    for row in shown:
        standing = f"[{COLOURS[row.standing]}]{row.standing}[/]"
        table.add_row(str(row.rank[-1]), escape(row.name), standing, row.fate, escape(row.why))
    if left := rows[len(shown) :]:
        troubled = sum(row.rank[0] == 0 for row in left)
        table.add_row("", f"and {len(left)} more", f"{troubled} in trouble" if troubled else "")
    return table


def _fates(history: Sequence[StepRecord]) -> dict[int, tuple[str, str]]:
    """What happened to the last update of each client, with the step, and why."""
    fates = dict[int, tuple[str, str]]()
    for step in history:
        for client, verdict in step.verdicts.items():
            word = "waits" if verdict.waits else "used" if verdict.accepted else "filtered"
            score = "" if verdict.score is None else f", {verdict.score:.3g}"
            fates[client] = (f"{word} @{step.step}{score}", verdict.reason)
        for word, reasons in (("not enrolled", step.not_enrolled), ("invalid", step.invalid), ("lost", step.lost)):
            fates |= {client: (f"{word} @{step.step}", why) for client, why in reasons.items()}
    return fates


def in_words(step: StepRecord) -> str:
    """Return a step of a history as one line of text."""
    words = [f"step {step.step:>3}", f"{step.seconds:6.1f} s"]
    words += [f"accuracy {100 * step.accuracy:.1f} %"] if step.accuracy is not None else []
    if step.verdicts:
        words.append(f"updates of clients {', '.join(map(str, sorted(step.verdicts)))}")
        words += [f"not used: {i} ({_reason(v)})" for i, v in sorted(step.verdicts.items()) if not v.accepted]
    for what, reasons in (("not enrolled", step.not_enrolled), ("invalid", step.invalid), ("lost", step.lost)):
        words += [f"{what}: {i} ({why})" for i, why in reasons.items()]
    return "  ".join(words)


def _reason(verdict: Verdict) -> str:
    """Why an update was not used, and by which figure."""
    return verdict.reason if verdict.score is None else f"{verdict.reason}; {verdict.score:.3g}"
