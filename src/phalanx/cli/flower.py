"""`phalanx flower`: keys, the roster, and a federation on one machine."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from phalanx.cli.parser import Options
from phalanx.core import InfeasibleError
from phalanx.flower import live
from phalanx.flower.audit import AUDIT, Entry, read
from phalanx.flower.certificates import CA, CERTIFICATE, KEY, make_certificates
from phalanx.flower.demo import deal, write_app
from phalanx.flower.identity import Roster, as_text, from_text, new_key, public_bytes
from phalanx.flower.local import LOGS, ROSTER, LocalFederation
from phalanx.flower.lock import LOCK, exclusive
from phalanx.flower.models import MODEL
from phalanx.flower.register import SERVED
from phalanx.flower.signals import stopped_like_ctrl_c
from phalanx.flower.status import STATUS
from phalanx.flower.upload_counter import ASKED
from phalanx.runs.checkpoint import Header, peek
from phalanx.runs.record import CHECKPOINT, SUMMARY, Record
from phalanx.wording import plural

DATA = "data"  # folder of the shares of the digits
TOLD = "up.json"  # what the last `up` in a folder was told
STEPS = 5  # of the demonstration
EXCLUSIONS = ("not enrolled", "excluded", "suspended", "revoked")  # events of an audit trail
LONGEST = 1500  # characters of a log that are shown
CENTURY = 36_500  # days


def up(options: Options, console: Console) -> int:
    """A federation on this machine; 0 if its run came to its end."""
    _check_up(options)
    folder = options.folder.absolute()
    results = folder / "run"
    app = options.app or write_app(folder / "app")
    config: dict[str, Any] = {"roster": str(folder / ROSTER), "folder": str(results)}
    if options.app is None:
        config |= {"clients": options.clients, "steps": options.steps or STEPS, "asynchronous": options.asynchronous}
    known = _begin(options, folder, results, console)
    started = f"{plural(options.clients, 'client')} and a server"
    console.print(f"Starting {started}. Logs: {folder / LOGS}", soft_wrap=True)
    nodes, stopping = deal(folder / DATA, options.clients), partial(console.print, "Shutting down.")
    try:
        with stopped_like_ctrl_c(), LocalFederation(folder, options.clients, nodes, ending=stopping) as federation:
            console.print(f"The SuperLink listens on {federation.address}. Waiting for clients to enrol.")
            run = federation.run(app.absolute(), config)
            live.follow(results, console, lambda: run.poll() is not None, known)
            ended = run.wait()
    except KeyboardInterrupt as stop:
        stop.add_note(_so_far(results))
        raise
    done = ended == 0 and bool(live.lines(results)) and (results / MODEL).is_file()
    stopped = (results / SUMMARY).is_file() and Record.load(results).summary.status == "stopped"
    if not (done or stopped):
        log = (folder / LOGS / "run.log").read_text(errors="replace")
        console.print(escape(cause(log)), soft_wrap=True)
    for told in excluded(read(results / AUDIT) if (results / AUDIT).is_file() else []):
        console.print(escape(told), soft_wrap=True)
    how = "Done" if done else "The run was stopped" if stopped else "The run failed"
    console.print(f"{how}. Results: {results}", soft_wrap=True)
    return 0 if done else 1


def excluded(trail: Sequence[Entry]) -> Iterator[str]:
    """Who takes no part any more, by an audit trail, why, and by which figure; of each the last that keeps it out."""
    out = dict[tuple[int | None, str], Entry]()  # by client and event
    for entry in trail:
        client, event = entry.client, entry.event
        if event in EXCLUSIONS:
            out.pop((client, event), None)
            out[client, event] = entry
        elif event == "re-admitted":  # who is revoked stays so when a sentence is over, and who is excluded in any case
            for over in ("suspended",) if entry.why == SERVED else ("suspended", "revoked"):
                out.pop((client, over), None)
    for entry in {entry.client: entry for entry in out.values()}.values():
        figure = "" if entry.score is None else f" ({entry.score:.3g})"
        yield f"Client {entry.client} ({entry.name}): {entry.event} in step {entry.step}: {entry.why}{figure}"


def _check_up(options: Options) -> None:
    """Raises InfeasibleError where `up` cannot do what it is told."""
    for name in ("clients", "steps"):
        if options[name] is not None and options[name] < 1:
            raise InfeasibleError(f"--{name} must be at least 1, got {options[name]}.")
    if options.app is None:
        return
    if not (options.app / "pyproject.toml").is_file():
        raise InfeasibleError(f"There is no {options.app / 'pyproject.toml'}. Name the folder of a Flower app.")
    for name in ("steps", "asynchronous"):
        if options[name]:
            raise InfeasibleError(
                f"--{name} is for the demonstration: an app of your own decides that itself. Leave it out, and set it "
                f"in the app, as in its {options.app / 'pyproject.toml'}."
            )


def _begin(options: Options, folder: Path, results: Path, console: Console) -> int:
    """Makes the folder of the results ready, for the run that was stopped there, if it was this one, or for a new one.

    Returns:
        How many lines of the history are there already.
    """
    told = {
        "app": str(options.app and options.app.absolute()),
        "clients": options.clients,
        "asynchronous": options.asynchronous,
    }
    note = folder / TOLD
    with exclusive(results):
        stopped = _stopped(results, again=options.again)
        if stopped is not None and not options.again and _before(note) == told:
            console.print(f"Goes on after step {stopped.step}, where the run was stopped. (--again begins anew.)")
            for name in (STATUS, SUMMARY):
                (results / name).unlink(missing_ok=True)
            return stopped.lines
        if (results / CHECKPOINT).is_file():
            where = f" after step {stopped.step}" if stopped is not None else ""
            console.print(f"Begins anew. What was stopped{where} is removed, but for its audit trail.")
        clear(results)
        partial = note.with_suffix(".partial")
        partial.write_text(json.dumps(told), encoding="utf-8")
        partial.replace(note)
    return 0


def _stopped(results: Path, *, again: bool) -> Header | None:
    """How far the run came that was stopped there; None if none was, or nobody needs to know and its file is damaged.

    Raises:
        InfeasibleError: it is damaged.
    """
    try:
        return peek(results)
    except ValueError as error:
        if again:
            return None
        raise InfeasibleError(
            f"What was stopped cannot go on: {results / CHECKPOINT} is damaged. Begin anew with `phalanx flower up "
            "--again`, which removes it."
        ) from error


def _before(note: Path) -> Any:
    """What the last `up` was told; None if there was none.

    Raises:
        InfeasibleError: nobody can read that.
    """
    try:
        return json.loads(note.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise InfeasibleError(
            f"{note} does not say what was stopped there: {error}. Begin anew with `phalanx flower up --again`, which "
            "removes what was stopped; or, to keep that, choose another --folder."
        ) from error


def _so_far(results: Path) -> str:
    """What a run that was stopped has left."""
    if not live.lines(results):
        return "The run had not begun: there are no results."
    said = [f"Results so far: {results}."]
    if (results / SUMMARY).is_file():
        said.append(f"`phalanx report {results}` makes a page of them.")
    said.append(f"The same command {'goes on from there' if peek(results) else 'begins anew'}.")
    return " ".join(said)


def clear(results: Path) -> None:
    """Removes what an earlier run has left, but for audit trails, and how often clients were asked."""
    results.mkdir(parents=True, exist_ok=True)
    for old in results.iterdir():
        if old.is_file() and old.name not in (ASKED, LOCK) and not old.name.startswith(Path(AUDIT).stem):
            old.unlink()


def cause(log: str) -> str:
    """Why a run failed, by its log: what the last error in it says, or the end of it where there is none."""
    _, found, last = log.rpartition("Traceback (most recent call last):\n")
    frames = dropwhile(lambda line: line.startswith(" "), last.splitlines())
    said = "\n".join(takewhile(lambda line: "Exit Code:" not in line, frames)).strip()
    return re.sub(r"^phalanx\.core\.\w+: ", "", said) if found and said else log[-LONGEST:]


def watch(options: Options, console: Console) -> int:
    """A live view of a run, until it is over."""
    if not options.folder.is_dir():
        raise InfeasibleError(
            f"There is no folder {options.folder}. Name that of a run, as the coordinator's `folder` says."
        )
    live.follow(options.folder, console, lambda: live.ended(options.folder))
    status = live.status(options.folder)
    if status is not None and status.phase == "not begun":
        console.print(escape(f"The run did not begin: {status.why}"), soft_wrap=True)
    return 0


def key(options: Options, console: Console) -> int:
    """A new key; shows its public half."""
    try:
        made = new_key(options.file)
    except FileExistsError as error:
        raise InfeasibleError(
            f"There is a {options.file}, and a key is not written over: the coordinator knows its client by it. Choose "
            "another name, or move it away."
        ) from error
    console.print(f"Private key: {escape(str(options.file))}. It stays here.", soft_wrap=True)
    console.print(f"Public key, for the coordinator: {as_text(public_bytes(made))}", soft_wrap=True)
    return 0


def certificates(options: Options, console: Console) -> int:
    """Certificates of a coordinator."""
    if not 1 <= options.days <= CENTURY:
        raise InfeasibleError(f"--days must be 1 to {CENTURY}, got {options.days}.")
    there = [name for name in (CA, CERTIFICATE, KEY) if (options.folder / name).exists()]
    if there:
        raise InfeasibleError(
            f"There is a {options.folder / there[0]}, and who has that certificate would not know the coordinator by "
            "another. Choose another --folder, or move it away."
        )
    make_certificates(options.folder, options.hosts, options.days)
    folder = escape(str(options.folder))
    console.print(f"For the SuperLink: {folder}/{CERTIFICATE} and {folder}/{KEY}.", soft_wrap=True)
    console.print(f"For each client: {folder}/{CA}.", soft_wrap=True)
    return 0


def enrol(options: Options, console: Console) -> int:
    """A new client."""
    roster = Roster.load(options.roster) if options.roster.exists() else Roster()
    roster = roster.adding(options.name, from_text(options.key))
    roster.save(options.roster)
    console.print(f"{escape(options.name)} is client {roster.members[-1].id}.", soft_wrap=True)
    return 0


def revoke(options: Options, console: Console) -> int:
    """A client less."""
    return _changed(options, console, "is revoked", lambda roster: {"revoked": True})


def readmit(options: Options, console: Console) -> int:
    """A client with a clean record."""

    def next_term(roster: Roster) -> dict[str, Any]:
        found = next((m for m in roster.members if m.id == options.client), None)
        if found is not None and found.revoked and not options.revoked:
            raise InfeasibleError(
                f"Client {found} is revoked. Give --revoked if it is to take part again all the same."
            )
        return {"term": found.term + 1 if found else 1, "revoked": False}

    return _changed(options, console, "is let in again", next_term)


def rotate(options: Options, console: Console) -> int:
    """A client under another key."""
    return _changed(options, console, "has a new key", lambda roster: {"key": from_text(options.key)})


def _changed(options: Options, console: Console, what: str, fields: Callable[[Roster], Mapping[str, Any]]) -> int:
    roster = Roster.load(options.roster)
    roster.changing(options.client, **fields(roster)).save(options.roster)
    console.print(f"Client {options.client} {what}.")
    return 0


def roster(options: Options, console: Console) -> int:
    """Who may take part, one on a line."""
    for m in sorted(Roster.load(options.roster).members, key=lambda m: m.id):
        state = "revoked" if m.revoked else f"term {m.term}"
        console.print(f"{m.id:>4}  {as_text(m.key)}  {state}  {escape(m.name)}", soft_wrap=True)
    return 0
