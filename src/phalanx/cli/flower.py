"""`phalanx flower`: a federation on one machine, its live view, kits, nodes and executors."""

import json
import re
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import dropwhile, takewhile
from multiprocessing import get_all_start_methods
from pathlib import Path
from typing import Any

from rich.console import Console

from phalanx.cli.checks import check_folder
from phalanx.cli.consoles import escape, say
from phalanx.cli.parser import Options
from phalanx.core import InfeasibleError
from phalanx.data import Digits
from phalanx.data.table_schema import SCHEMA_FILE
from phalanx.flower import live
from phalanx.flower.audit import Entry, read
from phalanx.flower.demo import deal, write_app
from phalanx.flower.identity import ROSTER
from phalanx.flower.kit import COORDINATOR, OFFLINE, SITES, Consortium, write_kit
from phalanx.flower.local_federation import LOGS, LocalFederation, without_room
from phalanx.flower.register import SERVED
from phalanx.flower.status import STATUS
from phalanx.flower.upload_counter import ASKED
from phalanx.reading import LARGEST_PART, contents
from phalanx.runs.checkpoint import Header, peek
from phalanx.runs.files import AUDIT, replacing
from phalanx.runs.lock import LOCK, exclusive
from phalanx.runs.models import MODEL
from phalanx.runs.record import CHECKPOINT, SUMMARY, Record
from phalanx.runs.seal import SEAL, check_resumed
from phalanx.wording import plural

DATA = "data"  # folder of the shares of the digits
SETTINGS = "up.json"  # the settings of the last `up` in a folder
STEPS = 5  # of the demonstration
EXCLUSIONS = ("not enrolled", "excluded", "suspended", "revoked")  # events of an audit trail
PATIENCE = 300  # seconds in which a run that has been started makes its folder
LONGEST = 1500  # characters of a log that are shown


def up(options: Options, console: Console) -> int:
    """Run a federation on this machine; return 0 if its run came to its end."""
    _check_up(options)
    folder = options.folder.absolute()
    results = folder / "run"
    app = options.app or write_app(folder / "app")
    config: dict[str, Any] = {"roster": str(folder / ROSTER), "folder": str(results)}
    if options.app is None:
        config |= {"clients": options.clients, "steps": options.steps or STEPS, "asynchronous": options.asynchronous}
    known = _begin(options, folder, results, console)
    started = f"{plural(options.clients, 'client')} and a server"
    say(console, f"Starting {started}. Logs: {folder / LOGS}")
    nodes, stopping = deal(folder / DATA, options.clients), partial(console.print, "Shutting down.")
    if options.app is not None and "schema" in _configured(options.app):
        config["schema"] = str(folder / DATA / SCHEMA_FILE)
    try:
        with LocalFederation(folder, options.clients, nodes, ending=stopping) as federation:
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
        said = cause(log)
        said = said if "Free some space" in said else without_room(folder) or said
        console.print(escape(said, lines=True), soft_wrap=True)
    say(console, *excluded(read(results / AUDIT) if (results / AUDIT).is_file() else []))
    how = "Done" if done else "The run was stopped" if stopped else "The run failed"
    say(console, f"{how}. Results: {results}")
    return 0 if done else 1


def _configured(app: Path) -> Mapping[str, Any]:
    """Return what a Flower app says of its configuration."""
    found: Any = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
    for name in ("tool", "flwr", "app", "config"):
        found = found.get(name, {})
    return dict(found)


def excluded(trail: Sequence[Entry]) -> Iterator[str]:
    """Yield the clients that take no part any more, by an audit trail, with the last reason of each and its score."""
    out = dict[tuple[int | None, str], Entry]()  # by client and event
    for entry in trail:
        client, event = entry.client, entry.event
        if event in EXCLUSIONS:
            out.pop((client, event), None)
            out[client, event] = entry
        elif event == "re-admitted":  # revoked clients stay so after a suspension, and excluded ones always
            for over in ("suspended",) if entry.why == SERVED else ("suspended", "revoked"):
                out.pop((client, over), None)
    for entry in {entry.client: entry for entry in out.values()}.values():
        figure = "" if entry.score is None else f" ({entry.score:.3g})"
        yield f"Client {entry.client} ({entry.name}): {entry.event} in step {entry.step}: {entry.why}{figure}"


def _check_up(options: Options) -> None:
    """Raise InfeasibleError if the options of `up` cannot be carried out."""
    for name in ("clients", "steps"):
        if options[name] is not None and options[name] < 1:
            raise InfeasibleError(f"--{name} must be at least 1, got {options[name]}.")
    check_folder(options.folder)
    if options.app is None:
        most = Digits().load()[0].y.numel()
        if options.clients > most:
            raise InfeasibleError(f"--clients must be at most {most:,}, the number of examples, got {options.clients}.")
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
    """Prepare the folder of the results: for the run that was stopped there, if it was this one, or for a new one.

    Returns:
        How many lines of the history are there already.
    """
    settings = {
        "app": str(options.app and options.app.absolute()),
        "clients": options.clients,
        "asynchronous": options.asynchronous,
    }
    note = folder / SETTINGS
    with exclusive(results):
        stopped = _stopped(results, again=options.again)
        if stopped is not None and not options.again and _before(note) == settings:
            check_resumed(results)
            console.print(f"Goes on after step {stopped.step}, where the run was stopped. (--again starts over.)")
            for name in (SEAL, STATUS, SUMMARY):
                (results / name).unlink(missing_ok=True)
            return stopped.lines
        if (results / CHECKPOINT).is_file():
            where = f" after step {stopped.step}" if stopped is not None else ""
            console.print(f"Starts over. The stopped run{where} is removed, except its audit trail.")
        clear(results)
        with replacing(note) as file:
            file.write(json.dumps(settings).encode())
    return 0


def _stopped(results: Path, *, again: bool) -> Header | None:
    """Return the progress of the run that was stopped there; None if there is none, or its file is damaged but unused.

    Raises:
        InfeasibleError: it is damaged.
    """
    try:
        return peek(results)
    except ValueError as error:
        if again:
            return None
        raise InfeasibleError(
            f"The stopped run cannot go on: {results / CHECKPOINT} is damaged. Start over with `phalanx flower up "
            "--again`, which removes it."
        ) from error


def _before(note: Path) -> Any:
    """Return the settings of the last `up`; None if there was none.

    Raises:
        InfeasibleError: nobody can read that.
    """
    try:
        return json.loads(contents(note, LARGEST_PART))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise InfeasibleError(
            f"{note} does not describe the stopped run: {error}. Start over with `phalanx flower up --again`, which "
            "removes what was stopped; or, to keep that, choose another --folder."
        ) from error


def _so_far(results: Path) -> str:
    """Return a sentence on the files of a stopped run."""
    if not live.lines(results):
        return "The run had not begun: there are no results."
    said = [f"Results so far: {results}."]
    if (results / SUMMARY).is_file():
        said.append(f"`phalanx report {results}` makes a page of them.")
    said.append(f"The same command {'goes on from there' if peek(results) else 'starts over'}.")
    return " ".join(said)


def clear(results: Path) -> None:
    """Remove the files of an earlier run, except audit trails and upload counts."""
    results.mkdir(parents=True, exist_ok=True)
    for old in results.iterdir():
        if old.is_file() and old.name not in (ASKED, LOCK) and not old.name.startswith(Path(AUDIT).stem):
            old.unlink()


def cause(log: str) -> str:
    """Return why a run failed by its log: the last error, or the end of the log if there is none."""
    _, found, last = log.rpartition("Traceback (most recent call last):\n")
    frames = dropwhile(lambda line: line.startswith(" "), last.splitlines())
    said = "\n".join(takewhile(lambda line: "Exit Code:" not in line, frames)).strip()
    return re.sub(r"^phalanx\.core\.\w+: ", "", said) if found and said else log[-LONGEST:]


def watch(options: Options, console: Console) -> int:
    """Show a live view of a run, until it is over; return 0 if it finished, and 1 otherwise."""
    if options.page is None:
        return _watch(options.folder, lambda: live.ended(options.folder), console)
    from phalanx.flower.watch_page import WatchPage  # noqa: PLC0415  (only this option needs what a report needs)

    with closing(WatchPage(options.folder, options.page)) as page:
        return _watch(options.folder, page.look, console)


def _watch(folder: Path, over: Callable[[], bool], console: Console) -> int:
    deadline = time.monotonic() + PATIENCE
    if not folder.exists() and any(above.is_dir() for above in (folder.parent, folder.parent.parent)):
        what = f"There is no folder {folder} yet: a run that has just been started makes it"
        say(console, f"{what}. Waiting for it, {PATIENCE} s at most.")
        while not folder.exists() and time.monotonic() < deadline:
            time.sleep(live.LOOK)
    if not folder.is_dir():
        raise InfeasibleError(f"There is no folder {folder}. Name that of a run, as the coordinator's `folder` says.")
    live.follow(folder, console, over)
    how, said = live.ending(folder)
    if how == "finished":
        said += f" Next: `phalanx report`, `phalanx verify` and `phalanx export` of {folder}."
    say(console, said)
    return 0 if how == "finished" else 1


def kit(options: Options, console: Console) -> int:
    """Write the kit of a consortium."""
    check_folder(options.folder)
    consortium = Consortium.load(options.consortium)
    compared = write_kit(consortium, options.folder)
    folder = options.folder
    say(
        console,
        f"For the machine of the coordinator: {folder / COORDINATOR}. It begins with README.md.",
        f"For {plural(len(consortium.sites), 'site')}, an archive each, without any secret: {folder / SITES}.",
        f"For a medium that is not connected: {folder / OFFLINE}, the keys of the authorities.",
        "Each site compares, by telephone:",
        f"    fingerprint of proxy-ca.crt   {compared['fingerprint']}",
        f"    key of the coordinator        {compared['key']}",
    )
    return 0


def node(options: Options, console: Console) -> int:
    """Be a SuperNode, until it is stopped."""
    _check_forks("flower-supernode")
    given = [("--superlink", options.superlink), ("--root-certificates", options.root_certificates),
             ("--auth-supernode-private-key", options.auth_supernode_private_key),
             ("--node-config", options.node_config), ("--trusted-entities", options.trusted_entities)]  # fmt: skip
    _check_files(given[1:3])
    from phalanx.flower.node import run  # noqa: PLC0415  (only this command needs it, and it is slow to import)

    run([word for name, value in given if value is not None for word in (name, str(value))], options.host, options.port)
    return 0


def executor(options: Options, console: Console) -> int:
    """Be the executor of the coordinator's app, until it is stopped."""
    _check_forks("flower-superexec")
    given = [("--runtime-api-address", options.runtime_api_address), ("--root-certificates", options.root_certificates),
             ("--superexec-auth-secret-file", options.superexec_auth_secret_file)]  # fmt: skip
    _check_files(given[1:])
    from phalanx.flower.forking_executor import run  # noqa: PLC0415  (only this command needs it, and it is slow to import)

    run([word for name, value in given for word in (name, str(value))])
    return 0


def _check_forks(other: str) -> None:
    if "forkserver" not in get_all_start_methods():
        raise InfeasibleError(f"This operating system cannot fork processes. Use `{other}`, of the same options.")


def _check_files(given: Sequence[tuple[str, Path]]) -> None:
    for name, value in given:
        if not value.is_file():
            raise InfeasibleError(f"There is no file {value}, which {name} names.")
