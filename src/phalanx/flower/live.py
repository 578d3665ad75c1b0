"""A live view of a run with real clients: rounds, connected clients, the last verdicts.

It reads the files in the server's folder, so that it can be opened, closed and opened again, by any user who may read
there.  Without a terminal, each line of the history is one line of text.
"""

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from phalanx.core import Verdict
from phalanx.engine.suspicion import SUSPICIOUS, Conduct
from phalanx.engine.suspicion import in_words as suspected
from phalanx.flower.status import BEAT, STANDINGS, STATUS, ClientStatus, RunStatus, Standing, read
from phalanx.reading import lines_of, opened
from phalanx.runs.files import HISTORY
from phalanx.runs.lock import LOCK
from phalanx.runs.record import SUMMARY, Record
from phalanx.runs.reports import AccuracyFalls, spread
from phalanx.runs.schema import Status, StepRecord
from phalanx.runs.steps import read_step
from phalanx.wording import percent, visible

LOOK = 0.5  # seconds between two looks at the folder
QUIET = 3 * BEAT  # seconds without a sign of life, after which the view says so
ROUNDS, FEWEST = 8, 3  # largest numbers of rows of rounds, usually and if clients need the room
AROUND = 7  # lines of a window that are no rows, apart from the text above: headings, and the line of the cursor
SIZE = (120, 40)  # columns and lines of a window of unknown size
COLOURS = {"here": "green", "missing": "yellow", "suspended": "red", "excluded": "red", "revoked": "dim"}
# order in which clients are shown if there is no room for all
FIRST = ("suspended", "missing", "excluded", "here", "revoked")
AWAY = ("missing", "suspended")
HEADINGS = ("step", "seconds", "accuracy", "used", "outlying", "filtered", "invalid", "lost")  # of the table of rounds
UNUSED = ("not enrolled", "filtered", "invalid", "lost")
REMEDIES = {  # for a standing, the fate of an update, or a doubt: what an operator can do, the worst first
    "suspicious": "The audit trail has its figures; ask the site; `phalanx flower revoke NAME` takes it out.",
    "fallen": "Look for an attacker, or for data unlike the others'; `phalanx export` refuses until you decide.",
    "suspended": "Ask the site for its log; then `phalanx flower readmit NAME` lets it in again.",
    "missing": "Is its node running, and does it reach this machine? `phalanx doctor` at the site.",
    "not enrolled": "The reason is next to its name; the site corrects it, and is let in without a restart.",
    "invalid": "The reason is next to its name; the site's own log has the whole of it.",
    "slow": "Rounds wait for it: give it fewer steps or a faster machine, or fewer others wait with `Quorum`.",
    "lost": "If it trains longer than that, raise `Timeouts(answer=...)`; else ask for its log.",
}
ADVICE, NAMED = 2, 3  # lines of advice that are shown, and clients that are named in one


def follow(folder: Path, console: Console, over: Callable[[], bool], known: int = 0) -> None:
    """Show a run until it is over: a live view in a terminal, elsewhere a line for each line of the history.

    If the server gives no sign of life for a while, it says so and goes on: the server may be started again.

    Args:
        folder: the run's.
        console: where.
        over: whether nothing comes any more.
        known: lines of the history that need not be shown.
    """
    if not console.is_terminal:
        for text in _fresh(folder, over, known):
            console.print(escape(visible(text)), soft_wrap=True)
        return
    seen = Seen()
    with closing(Tail(folder / HISTORY)) as tail, Live(view(None, seen), console=console, auto_refresh=False) as live:
        while True:
            ended = over()
            if tail.look():
                seen = Seen()
            seen.add(tail.new())
            picture = view(status(folder), seen, (console.width, console.height), 0.0 if ended else silence(folder))
            live.update(picture, refresh=True)
            if ended:
                return
            time.sleep(LOOK)


def ended(folder: Path) -> bool:
    """Return whether the run of a folder is over, or did not begin.

    A summary that is there while a server waits for its clients is that of an earlier run. After it, a server that
    lives collects the last signatures and seals the folder.
    """
    phase = None if (known := status(folder)) is None else known.phase
    if phase in ("over", "not begun"):
        return True
    busy = phase == "running" and (folder / LOCK).exists() and silence(folder) < QUIET
    return phase != "waiting" and not busy and (folder / SUMMARY).is_file()


def ending(folder: Path) -> tuple[Status | None, str]:
    """Return how a run that is over has ended, None if that is not known, and the same as a sentence."""
    known = status(folder)
    how, why = (None, "") if known is None else (known.ending, known.why)
    if how is None:  # killed before its last status, or older than those
        with suppress(FileNotFoundError, ValueError):
            summary = Record.load(folder, unsealed=True).summary
            how, why = summary.status, summary.error or ""
    if how == "finished":
        return how, "The run has finished."
    said = {"stopped": "was stopped", "failed": "failed", None: "ended, and it is not known how"}[how]
    if known is not None and known.phase == "not begun":
        said = "did not begin"
    return how, f"The run {said}{f': {why}' if why else '.'}"


def silence(folder: Path) -> float:
    """Return the seconds since the server's last sign of life; 0 if there was none yet."""
    try:
        return max(0.0, time.time() - (folder / STATUS).stat().st_mtime)
    except FileNotFoundError:
        return 0.0


def _fresh(folder: Path, over: Callable[[], bool], known: int) -> Iterator[str]:
    """Yield new lines of text as they come."""
    shown, quiet, notice, promise, falls = known, False, "", None, AccuracyFalls()
    clients = dict[int, ClientStatus]()
    with closing(Tail(folder / HISTORY)) as tail:
        while True:
            last = over()
            if tail.look() and tail.whole < shown:  # fewer: another run has begun here
                shown, falls = 0, AccuracyFalls()
            for step in tail.new():
                fell = falls.add(step.step, step.reports)
                if tail.count > shown:
                    yield "  ".join([in_words(step), *(f"fallen: {i} ({why})" for i, why in fell.items())])
                    shown = tail.count
            if (now := "" if (found := status(folder)) is None else found.notice or "") != notice:
                notice = now
                if notice or not last:
                    yield notice or "The last notice is over: the run goes on."
            if found is not None:
                if found.promise is not None and found.promise != promise:
                    promise = found.promise
                    yield " ".join(promise.text)
                yield from _changes(clients, found)
                clients = dict(found.clients) if found.phase == "running" else {}
            if last:
                return
            if (silence(folder) >= QUIET) is not quiet:
                quiet = not quiet
                yield _without_sign(silence(folder)) if quiet else "The server gives signs of life again."
            time.sleep(LOOK)


def _changes(before: Mapping[int, ClientStatus], status: RunStatus) -> Iterator[str]:
    """Yield who is missing, suspended, back or slow, and was not at the last look."""
    if status.phase != "running":
        return
    for client, now in status.clients.items():
        then, name = before.get(client), f"client {client} ({now.name})"
        if (then.standing if then else "here") != now.standing:
            away = f", after {_since(then.since)} of being {then.standing}" if then and then.standing in AWAY else ""
            yield f"{name}: {_standing(now) if now.standing in AWAY else f'{now.standing}{away}'}"
        if now.slow and not (then and then.slow):
            yield f"{name} is slow: {now.slow}"


def _since(when: str) -> str:
    """Return in words how long ago a time of a status was."""
    return _for(time.time() - datetime.fromisoformat(when).timestamp()) if when else "a time"


def _standing(client: ClientStatus) -> str:
    """Return a standing with its times and reason."""
    until = f" until {client.until}" if client.until else ""
    since = f" since {client.since}, {_since(client.since)}" if client.since else ""
    return f"{client.standing}{until or since}{f': {client.why}' if client.why else ''}"


def _for(seconds: float) -> str:
    """Return a length of time in its largest unit of which it has two."""
    units = (("h", 3600), ("min", 60), ("s", 1))
    unit, size = next((unit, size) for unit, size in units if seconds >= 2 * size or size == 1)
    return f"{max(0.0, seconds) // size:.0f} {unit}"


def _without_sign(seconds: float) -> str:
    return f"No sign of life from the server for {_for(seconds)}. If it was killed, start it again."


class Tail:
    """The steps of a history as they are written; each look reads only what is new.

    Args:
        path: of the file, which need not exist yet, and can be replaced.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._offset = 0
        self.count = 0  # lines of the present file that were read

    def close(self) -> None:
        """Close the file."""
        self._turn_to(None)

    def look(self) -> bool:
        """Return whether there is another file than at the last look, which is read from its beginning."""
        try:
            found = self._path.stat()
        except FileNotFoundError:  # or the server removes it just now
            return self._turn_to(None)
        if self._file is not None:
            known = os.fstat(self._file.fileno())  # open, so that no other file can have its number
            if (known.st_dev, known.st_ino) == (found.st_dev, found.st_ino) and found.st_size >= self._offset:
                return False
        try:
            return self._turn_to(opened(self._path))
        except FileNotFoundError:
            return self._turn_to(None)

    def _turn_to(self, file: BinaryIO | None) -> bool:
        before, self._file, self._offset, self.count = self._file, file, 0, 0
        if before is not None:
            before.close()
        return file is not before

    @property
    def whole(self) -> int:
        """The number of whole lines in the file."""
        if self._file is None:
            return 0
        self._file.seek(0)
        return sum(line.endswith(b"\n") for line in self._file)

    def new(self) -> Iterator[StepRecord]:
        """Return the steps of the whole lines that were added since this was last asked for."""
        if self._file is None:
            return
        self._file.seek(self._offset)
        for line in self._file:
            if not line.endswith(b"\n"):
                return
            self._offset, self.count = self._offset + len(line), self.count + 1
            yield read_step(line)


class Fate(NamedTuple):
    """How an update was treated: `step` is that of the server, `score` the rule's, if it has one."""

    word: str
    step: int
    score: float | None = None

    @property
    def short(self) -> str:
        """The fate in a narrow column."""
        return self._said(" @", "")

    @property
    def text(self) -> str:
        """The fate in words."""
        return self._said(" in step ", "score ")

    def _said(self, step: str, score: str) -> str:
        if self is NOTHING:
            return self.word
        return f"{self.word}{step}{self.step}" + ("" if self.score is None else f", {score}{self.score:.3g}")


NOTHING = Fate("-", 0)  # before the first update


class Seen:
    """The part of a history in the view: the last rounds, and the outcome of each client's last update.

    Args:
        steps: the history so far.
    """

    def __init__(self, steps: Iterable[StepRecord] = ()) -> None:
        self.last = deque[StepRecord](maxlen=ROUNDS)
        self.fates = dict[int, tuple[Fate, str]]()  # of the last update, by client; and why
        self.suspicious = dict[int, str]()  # by client, why it is
        self.falls = AccuracyFalls()
        self.accuracies = dict[int, float | None]()  # as last reported, by client
        self.add(steps)

    def add(self, steps: Iterable[StepRecord]) -> None:
        """Take in further steps."""
        for step in steps:
            self.last.append(step)
            self.falls.add(step.step, step.reports)
            self.accuracies |= {client: report.accuracy for client, report in step.reports.items()}
            for client, verdict in step.verdicts.items():
                word = "waits" if verdict.waits else "used" if verdict.accepted else "filtered"
                self.fates[client] = Fate(word, step.step, verdict.score), verdict.reason
            for client, conduct in step.conduct.items():
                if conduct.outlying and client in self.fates:
                    self.fates[client] = self.fates[client][0], self.fates[client][1] or _outlying(conduct)
            self.suspicious |= {i: suspected(found) for i, found in step.conduct.items() if found.newly}
            unused = ("not enrolled", step.not_enrolled), ("invalid", step.invalid), ("lost", step.lost)
            for word, reasons in unused:
                self.fates |= {client: (Fate(word, step.step), why) for client, why in reasons.items()}


def lines(folder: Path) -> list[StepRecord]:
    """Return the steps of the whole lines of the history in a folder; none if there is no history."""
    try:
        whole = lines_of(folder / HISTORY).rpartition(b"\n")[0]
    except FileNotFoundError:  # or the server removes it just now
        return []
    return [read_step(line) for line in whole.splitlines()]


def status(folder: Path) -> RunStatus | None:
    """Return what the server of a folder says of its clients; None if it has said nothing yet."""
    return read(folder / STATUS)


def view(
    status: RunStatus | None, history: Sequence[StepRecord] | Seen, size: tuple[int, int] = SIZE, silence: float = 0.0
) -> RenderableType:
    """Return the view of a moment, in which clients in trouble take room from rounds.

    Args:
        status: of `status.json`; None before the run has begun.
        history: the steps so far, or what is shown of them.
        size: columns and lines of the window.
        silence: seconds without a sign of life from the server.
    """
    notes = [_on_one_line(f"[yellow]{escape(visible(text))}[/]") for text in notices(status, silence)]
    notes += [_on_one_line(escape(status.promise.text[0]))] if status is not None and status.promise else []
    seen = history if isinstance(history, Seen) else Seen(history)
    if not seen.last:
        return Group("Waiting for the run to begin.", *notes)
    last = seen.last[-1]
    clients = {} if status is None else status.clients
    words = [f"[{COLOURS[s]}]{count} {s}[/]" for s, count in counts(clients).items()]
    head = f"[bold]step {last.step}[/]  version {last.version}  {last.seconds:.1f} s   {'  '.join(words)}"
    parts: list[RenderableType] = [_on_one_line(head), *notes]
    (width, height), rows = size, client_rows(clients, seen)
    parts += [_on_one_line(f"[yellow]{escape(visible(line))}[/]") for line in islice(to_do(rows), ADVICE)]
    room = max(height - AROUND - len(parts), 2 * FEWEST)
    troubled = sum(row.rank[0] == 0 for row in rows)
    rounds = max(FEWEST, min(ROUNDS, room - min(len(rows), max(troubled + 1, room // 2))))
    shown = list(seen.last)[-rounds:]
    return Group(*parts, "", _rounds(shown), "", _clients(rows, room - len(shown), width))


def notices(status: RunStatus | None, silence: float) -> list[str]:
    """Return what is wrong on the coordinator's side, or whom it waits for.

    Args:
        status: of `status.json`; None before the run has begun.
        silence: seconds without a sign of life from the server.
    """
    said = ["The server waits for its clients."] if status is not None and status.phase == "waiting" else []
    said += [_without_sign(silence)] if silence >= QUIET else []
    return said + ([status.notice] if status is not None and status.notice else [])


def counts(clients: Mapping[int, ClientStatus]) -> dict[Standing, int]:
    """Return the number of clients with each standing that some have."""
    found = Counter(client.standing for client in clients.values())
    return {standing: found[standing] for standing in STANDINGS if found[standing]}


def to_do(rows: Sequence["ClientRow"]) -> Iterator[str]:
    """Yield what an operator can do about clients in trouble, a line for each kind of trouble; the worst first."""
    for trouble, what in REMEDIES.items():
        names = [row.name for row in rows if trouble in (row.standing, row.fate.word, *row.doubts)]
        if names:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            yield f"{', '.join(names[:NAMED])}{more}: {trouble}. {what}"


def _on_one_line(markup: str) -> Text:
    text = Text.from_markup(markup, emoji=False, overflow="ellipsis")
    text.no_wrap = True
    return text


def _table() -> Table:
    return Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))


def _rounds(history: Sequence[StepRecord]) -> Table:
    table = _table()
    for heading in HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for step in history:
        table.add_row(*round_cells(step))
    return table


def round_cells(step: StepRecord) -> list[str]:
    """Return what the table of rounds has of a step, under `HEADINGS`."""
    used = sum(verdict.accepted for verdict in step.decided.values())
    outlying = sum(bool(found.outlying) for found in step.conduct.values())
    numbers = (used, outlying, len(step.decided) - used, len(step.invalid), len(step.lost))
    fates = [str(n) if n else "·" for n in numbers]
    return [str(step.step), f"{step.seconds:.1f}", percent(step.accuracy), *fates]


class ClientRow(NamedTuple):
    """A client of the table."""

    rank: tuple[int, int, int]  # 0 for clients in trouble; place in `FIRST`; id
    name: str
    standing: str
    fate: Fate  # of its last update
    why: str
    doubts: tuple[str, ...] = ()  # "suspicious", "fallen", "slow"
    accuracy: float | None = None  # as it last reported


def client_rows(clients: Mapping[int, ClientStatus], seen: Seen) -> list[ClientRow]:
    """Return the clients in the order of the view.  The first number of a rank is small for those in trouble."""
    rows = list[ClientRow]()
    for client, about in clients.items():
        fate, why = seen.fates.get(client, (NOTHING, ""))
        found = {"suspicious": seen.suspicious.get(client), "fallen": seen.falls.now.get(client), "slow": about.slow}
        doubts = {doubt: text for doubt, text in found.items() if text}
        standing = about.standing
        troubled = standing in FIRST[:3] or (standing == "here" and fate.word in UNUSED) or doubts
        rank = (0 if troubled else 1, FIRST.index(standing), client)
        away = _standing(about) if standing in AWAY and about.since else about.why
        said = "; ".join(filter(None, (away, *(f"{doubt}: {text}" for doubt, text in doubts.items())))) or why
        rows.append(ClientRow(rank, about.name, standing, fate, said, tuple(doubts), seen.accuracies.get(client)))
    return sorted(rows, key=lambda row: row.rank)


def _clients(rows: Sequence[ClientRow], room: int, width: int) -> Table:
    """Return the table of clients, with the last update of each, one per line."""
    table = _table()
    table.expand = True
    reported = any(row.accuracy is not None for row in rows)
    for heading in ("client", "name", "standing", *(("reports",) if reported else ()), "last update"):
        most = max(8, width // 6) if heading == "name" else None
        table.add_column(heading, justify="right" if heading == "client" else "left", no_wrap=True, max_width=most)
    table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
    shown = rows if len(rows) <= room else rows[: room - 1]
    for row in shown:
        standing = f"[{COLOURS[row.standing]}]{row.standing}[/]"
        accuracy = [percent(row.accuracy)] if reported else []
        table.add_row(
            str(row.rank[-1]), escape(visible(row.name)), standing, *accuracy, row.fate.short, escape(visible(row.why))
        )
    if left := rows[len(shown) :]:
        troubled = sum(row.rank[0] == 0 for row in left)
        table.add_row("", f"and {len(left)} more", f"{troubled} in trouble" if troubled else "")
    return table


def in_words(step: StepRecord) -> str:
    """Return a step of a history as one line of text."""
    words = [f"step {step.step:>3}", f"{step.seconds:6.1f} s"]
    words += [f"accuracy {100 * step.accuracy:.1f} %"] if step.accuracy is not None else []
    if step.accuracy is None and step.metrics is not None and step.metrics.loss is not None:
        words += [f"loss {step.metrics.loss:.3g}"]
    if step.verdicts:
        words.append(f"updates of clients {', '.join(map(str, sorted(step.verdicts)))}")
        words += [f"not used: {i} ({_reason(v)})" for i, v in sorted(step.verdicts.items()) if not v.accepted]
    if step.reports and (found := spread(step.reports)).values:
        lowest, middle, highest = found.in_words
        words.append(f"clients report {found.metric} {lowest} to {highest}, median {middle}")
    words += [f"outlying: {i} ({_outlying(c)})" for i, c in step.conduct.items() if c.outlying and not c.suspicious]
    words += [f"suspicious: {i} ({suspected(found)})" for i, found in step.conduct.items() if found.newly]
    for what, reasons in (("not enrolled", step.not_enrolled), ("invalid", step.invalid), ("lost", step.lost)):
        words += [f"{what}: {i} ({why})" for i, why in reasons.items()]
    return "  ".join(words)


def _outlying(found: Conduct) -> str:
    """Return why an update stands out, and how far its client is from being suspicious."""
    return f"{found.outlying}; evidence {found.evidence:.3g} of {SUSPICIOUS:g}"


def _reason(verdict: Verdict) -> str:
    """Return why an update was not used, with its score."""
    return verdict.reason if verdict.score is None else f"{verdict.reason}; {verdict.score:.3g}"
