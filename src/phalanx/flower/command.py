"""`phalanx flower`: keys, the roster, and a federation on one machine."""

import re
from collections.abc import Callable, Mapping
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from rich.console import Console
from rich.markup import escape

from phalanx.core import Infeasible
from phalanx.flower import live
from phalanx.flower.audit import AUDIT
from phalanx.flower.certificates import CA, CERTIFICATE, KEY, make_certificates
from phalanx.flower.demo import deal, write_app
from phalanx.flower.identity import Roster, as_text, from_text, new_key, public_bytes
from phalanx.flower.local import LOGS, ROSTER, LocalFederation, stopped_like_ctrl_c
from phalanx.flower.server import MODEL
from phalanx.wording import plural

DATA = "data"  # folder of the shares of the digits
LONGEST = 1500  # characters of a log that are shown
CENTURY = 36_500  # days


def up(options: Namespace, console: Console) -> int:
    """A federation on this machine; 0 if its run came to its end."""
    for name in ("clients", "steps"):
        if options[name] < 1:
            raise Infeasible(f"--{name} must be at least 1, got {options[name]}.")
    if options.app is not None and not (options.app / "pyproject.toml").is_file():
        raise Infeasible(f"There is no {options.app / 'pyproject.toml'}. Name the folder of a Flower app.")
    folder = options.folder.absolute()
    results = folder / "run"
    app = options.app or write_app(folder / "app")
    config: dict[str, Any] = {"roster": str(folder / ROSTER), "folder": str(results)}
    if options.app is None:
        config |= {"clients": options.clients, "steps": options.steps, "asynchronous": options.asynchronous}
    clear(results)
    started = f"{plural(options.clients, 'client')} and a server"
    console.print(f"Starting {started}. Logs: {folder / LOGS}", soft_wrap=True)
    nodes = deal(folder / DATA, options.clients)
    try:
        with stopped_like_ctrl_c(), LocalFederation(folder, options.clients, nodes) as federation:
            console.print(f"The SuperLink listens on {federation.address}. Waiting for clients to enrol.")
            run = federation.run(app.absolute(), config)
            live.follow(results, console, lambda: run.poll() is not None)
            ended = run.wait()
            console.print("Shutting down.")
    except KeyboardInterrupt as stop:
        stop.add_note(f"Results so far: {results}")
        raise
    done = ended == 0 and bool(live.lines(results)) and (results / MODEL).is_file()
    if not done:
        log = (folder / LOGS / "run.log").read_text(errors="replace")
        console.print(escape(cause(log)), soft_wrap=True)
    console.print(f"{'Done' if done else 'The run failed'}. Results: {results}", soft_wrap=True)
    return 0 if done else 1


def clear(results: Path) -> None:
    """Removes what an earlier run has left, but for audit trails."""
    results.mkdir(parents=True, exist_ok=True)
    for old in results.iterdir():
        if old.is_file() and not old.name.startswith(Path(AUDIT).stem):
            old.unlink()


def cause(log: str) -> str:
    """Why a run failed, by its log: what the last error in it says, or the end of it where there is none."""
    _, found, last = log.rpartition("Traceback (most recent call last):\n")
    frames = dropwhile(lambda line: line.startswith(" "), last.splitlines())
    said = "\n".join(takewhile(lambda line: "Exit Code:" not in line, frames)).strip()
    return re.sub(r"^phalanx\.core\.\w+: ", "", said) if found and said else log[-LONGEST:]


def watch(options: Namespace, console: Console) -> int:
    """A live view of a run, until it is over."""
    if not options.folder.is_dir():
        raise Infeasible(
            f"There is no folder {options.folder}. Name that of a run, as the coordinator's `folder` says."
        )
    live.follow(options.folder, console, lambda: live.ended(options.folder))
    return 0


def key(options: Namespace, console: Console) -> int:
    """A new key; shows its public half."""
    made = new_key(options.file)
    console.print(f"Private key: {options.file}. It stays here.", soft_wrap=True)
    console.print(f"Public key, for the coordinator: {as_text(public_bytes(made))}", soft_wrap=True)
    return 0


def certificates(options: Namespace, console: Console) -> int:
    """Certificates of a coordinator."""
    if not 1 <= options.days <= CENTURY:
        raise Infeasible(f"--days must be 1 to {CENTURY}, got {options.days}.")
    there = [name for name in (CA, CERTIFICATE, KEY) if (options.folder / name).exists()]
    if there:
        raise Infeasible(
            f"There is a {options.folder / there[0]}, and who has that certificate would not know the coordinator by "
            "another. Choose another --folder, or move it away."
        )
    make_certificates(options.folder, options.hosts, options.days)
    console.print(f"For the SuperLink: {options.folder / CERTIFICATE} and {options.folder / KEY}.", soft_wrap=True)
    console.print(f"For each client: {options.folder / CA}.", soft_wrap=True)
    return 0


def enrol(options: Namespace, console: Console) -> int:
    """A new client."""
    roster = Roster.load(options.roster) if options.roster.exists() else Roster()
    roster = roster.adding(options.name, from_text(options.key))
    roster.save(options.roster)
    console.print(f"{options.name} is client {roster.members[-1].id}.")
    return 0


def revoke(options: Namespace, console: Console) -> int:
    """A client less."""
    return _changed(options, console, "is revoked", lambda roster: {"revoked": True})


def readmit(options: Namespace, console: Console) -> int:
    """A client with a clean record."""

    def next_term(roster: Roster) -> dict[str, Any]:
        return {"term": next((m.term for m in roster.members if m.id == options.client), 0) + 1, "revoked": False}

    return _changed(options, console, "is let in again", next_term)


def rotate(options: Namespace, console: Console) -> int:
    """A client under another key."""
    return _changed(options, console, "has a new key", lambda roster: {"key": from_text(options.key)})


def _changed(options: Namespace, console: Console, what: str, fields: Callable[[Roster], Mapping[str, Any]]) -> int:
    roster = Roster.load(options.roster)
    roster.changing(options.client, **fields(roster)).save(options.roster)
    console.print(f"Client {options.client} {what}.")
    return 0


def roster(options: Namespace, console: Console) -> int:
    """Who may take part, one on a line."""
    for m in sorted(Roster.load(options.roster).members, key=lambda m: m.id):
        state = "revoked" if m.revoked else f"term {m.term}"
        console.print(f"{m.id:>4}  {as_text(m.key)}  {state}  {escape(m.name)}", soft_wrap=True)
    return 0


COMMANDS: dict[str, Callable[[Namespace, Console], int]] = {
    "up": up,
    "watch": watch,
    "key": key,
    "certificates": certificates,
    "enrol": enrol,
    "revoke": revoke,
    "readmit": readmit,
    "rotate": rotate,
    "roster": roster,
}
