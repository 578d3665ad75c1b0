"""A live view of a run with real clients: rounds, who is there, the last verdicts.

It reads what the server writes into its folder, so that it can be opened, closed and opened again, by anybody who may
read there.  Where there is no terminal, each line of the history is one line of text.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from phalanx.flower.board import STANDINGS, STATUS
from phalanx.history import HISTORY, SUMMARY
from phalanx.terminal import percent

LOOK = 0.5  # seconds between two looks at the folder
ROUNDS, CLIENTS = 8, 20  # rows of the tables, at most
COLOURS = {"here": "green", "missing": "yellow", "suspended": "red", "removed": "red", "revoked": "dim"}
FIRST = ("suspended", "missing", "removed", "here", "revoked")  # who is shown where not all have room


def follow(folder: Path, console: Console, over: Callable[[], bool]) -> None:
    """Shows a run until it is over: a live view in a terminal, elsewhere a line for each line of the history.

    Args:
        folder: the run's.
        console: where.
        over: whether nothing comes any more.
    """
    if not console.is_terminal:
        for line in _fresh(folder, over):
            console.print(escape(told(line)), soft_wrap=True)
        return
    with Live(view({}, []), console=console, auto_refresh=False) as live:
        while True:
            ended = over()
            live.update(view(status(folder), lines(folder)), refresh=True)
            if ended:
                return
            time.sleep(LOOK)


def ended(folder: Path) -> bool:
    """Whether the run of a folder has left its summary."""
    return (folder / SUMMARY).is_file()


def _fresh(folder: Path, over: Callable[[], bool]) -> Iterator[Mapping[str, Any]]:
    shown = 0
    while True:
        last = over()
        for line in lines(folder)[shown:]:
            shown += 1
            yield line
        if last:
            return
        time.sleep(LOOK)


def lines(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of the history in a folder; none if there is none."""
    path = folder / HISTORY
    if not path.is_file():
        return []
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def status(folder: Path) -> dict[str, Any]:
    """What the server says of its clients; empty if it has said nothing yet."""
    path = folder / STATUS
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def view(status: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The picture of a moment.

    Args:
        status: of `status.json`; empty before the run has begun.
        history: the lines so far.
    """
    if not history:
        return "Waiting for the run to begin."
    last = history[-1]
    clients = status.get("clients", {})
    counts = Counter(about["standing"] for about in clients.values())
    words = [f"[{COLOURS[s]}]{counts[s]} {s}[/]" for s in STANDINGS if counts[s]]
    head = f"[bold]step {last['step']}[/]  version {last['version']}  {last['seconds']:.1f} s   {'  '.join(words)}"
    return Group(head, _rounds(history[-ROUNDS:]), _clients(clients, history))


def _rounds(history: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("step", "seconds", "accuracy", "used", "rejected", "refused", "lost"):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in history:
        decided = [v for v in line.get("verdicts", {}).values() if not v.get("waits")]
        used = sum(v["accepted"] for v in decided)
        numbers = (used, len(decided) - used, len(line.get("refused", {})), len(line.get("lost", {})))
        fates = [str(n) if n else "·" for n in numbers]
        table.add_row(str(line["step"]), f"{line['seconds']:.1f}", percent(line.get("accuracy")), *fates)
    return table


def _clients(clients: Mapping[str, Mapping[str, str]], history: Sequence[Mapping[str, Any]]) -> Table:
    """Who is there, and what became of the last update of each; those first with whom something is the matter."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("client", "name", "standing", "last update", "why"):
        table.add_column(heading, justify="right" if heading == "client" else "left")
    fates = _fates(history)
    order = sorted(clients.items(), key=lambda item: (FIRST.index(item[1]["standing"]), int(item[0])))
    for client, about in order[:CLIENTS]:
        fate, why = fates.get(client, ("-", ""))
        standing = about["standing"]
        shown = escape(about["why"] or why)
        table.add_row(client, escape(about["name"]), f"[{COLOURS[standing]}]{standing}[/]", fate, shown)
    if len(order) > CLIENTS:
        table.add_row("", f"and {len(order) - CLIENTS} more")
    return table


def _fates(history: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """What became of the last update of each client, with the step, and why."""
    fates = dict[str, tuple[str, str]]()
    for line in history:
        for client, verdict in line.get("verdicts", {}).items():
            word = "waits" if verdict.get("waits") else "used" if verdict["accepted"] else "rejected"
            score = "" if verdict.get("score") is None else f", {verdict['score']:.3g}"
            fates[client] = (f"{word} @{line['step']}{score}", verdict["reason"])
        for word in ("refused", "lost"):
            fates |= {client: (f"{word} @{line['step']}", why) for client, why in line.get(word, {}).items()}
    return fates


def told(line: Mapping[str, Any]) -> str:
    """A line of a history for people."""
    words = [f"step {line['step']:>3}", f"{line['seconds']:6.1f} s"]
    words += [f"accuracy {100 * line['accuracy']:.1f} %"] if line.get("accuracy") is not None else []
    if verdicts := line.get("verdicts"):
        words.append(f"updates of clients {', '.join(sorted(verdicts, key=int))}")
        words += [f"not used: {i} ({v['reason']})" for i, v in sorted(verdicts.items()) if not v["accepted"]]
    for what in ("refused", "lost"):
        words += [f"{what}: {i} ({why})" for i, why in line.get(what, {}).items()]
    return "  ".join(words)
