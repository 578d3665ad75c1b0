"""A whole federation on one machine: certificates, keys, SuperLink and SuperNodes, each in its own process.

It is set up as `docs/deployment.md` describes for several machines: TLS, authenticated nodes, the server's app in a
separate process, a database, and no telemetry.  However it ends, no process is left running.
"""

import os
import random
import re
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from phalanx.core import InfeasibleError
from phalanx.flower.certificates import CA, CERTIFICATE, KEY, make_certificates, make_node_key, make_secret
from phalanx.flower.identity import COORDINATOR_KEY, ROSTER, EnrolmentRequest, Roster, new_key, public_text
from phalanx.flower.signed_schema import sign_schema
from phalanx.signals import undisturbed

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
MARK = "PHALANX_FEDERATION"  # environment variable that identifies the processes of a federation
HOST = "127.0.0.1"
PORTS = range(20_000, 32_768)  # below those that systems give to outgoing connections
LOGS = "logs"
FULL = re.compile(  # what SQLite and the operating system say
    "database or disk is full|disk I/O error|No space left on device|Disk quota exceeded|File too large"
)
FAREWELL = 5.0  # seconds for the server's app to write its record and for Flower to disconnect


def nothing() -> None:
    """Do nothing."""


class LocalFederation:
    """A federation on this machine, as a context manager.

    Args:
        folder: receives certificates, keys, the roster and logs; existing ones are replaced.
        clients: number of clients.
        node_config: configuration of each client's app in addition to its key and its memory folder.
        proxy: the address of a proxy in front of the SuperLink, to which nodes connect.
        ending: called before anything is stopped.
    """

    NODE: ClassVar = ("phalanx", "flower", "node")  # the command of a client

    def __init__(
        self,
        folder: Path,
        clients: int,
        node_config: Mapping[int, Mapping[str, Any]] | None = None,
        proxy: str | None = None,
        ending: Callable[[], None] = nothing,
    ) -> None:
        self.folder, self.clients, self.node_config = folder.absolute(), clients, dict(node_config or {})
        self.ports = free_ports(1 + clients)
        self.address = f"{HOST}:{self.ports[0]}"
        self.node_address, self._ending = proxy or self.address, ending
        self.node_certificates = self.folder / "certificates" / CA  # that nodes trust
        self.mark, self.coordinator = secrets.token_hex(8), ""  # the second is the coordinator's public key
        self.environment = os.environ | QUIET | {MARK: self.mark, "FLWR_HOME": str(self.folder / "flwr")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self.environment |= {"PATH": path, "PYTHONUNBUFFERED": "1"}
        self.server: subprocess.Popen[bytes] | None = None
        self.executor: subprocess.Popen[bytes] | None = None
        self.nodes = dict[int, subprocess.Popen[bytes]]()
        self.runs = list[subprocess.Popen[bytes]]()

    def __enter__(self) -> "LocalFederation":
        try:
            self._prepare()
            self.start_server()
            for client in range(self.clients):
                self.register(client)
                self.start_node(client)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # Setting up

    def _prepare(self) -> None:
        """Make certificates, keys, the roster, and the configuration of Flower's command line."""
        for name in ("flwr", "certificates", "keys", LOGS):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / name).mkdir(parents=True)
        (self.folder / COORDINATOR_KEY).unlink(missing_ok=True)
        make_certificates(self.folder / "certificates", [HOST, "localhost"])
        make_secret(self.folder / "keys" / "superexec")
        private = new_key(self.folder / COORDINATOR_KEY)
        roster = Roster(coordinator=public_text(private))
        self.coordinator = roster.coordinator
        for client in range(self.clients):
            key = new_key(self.folder / "keys" / f"client-{client}.pem")
            roster = roster.adding(EnrolmentRequest.sign(f"client-{client}", key, self.coordinator))
            make_node_key(self.folder / "keys" / f"node-{client}")
        roster.save(self.folder / ROSTER)
        for schema in {str(config["schema"]) for config in self.node_config.values() if "schema" in config}:
            sign_schema(Path(schema), private)
        lines = ["[superlink]", 'default = "here"', "[superlink.here]", f'address = "{self.address}"']
        lines.append(f'root-certificates = "{self.folder / "certificates" / CA}"')
        (self.folder / "flwr" / "config.toml").write_text("\n".join(lines) + "\n")

    def start_server(self) -> None:
        """Start the SuperLink, wait until it responds, and start the executor of the server's app.

        Raises:
            InfeasibleError: the SuperLink does not respond within a minute.
        """
        self.start_superlink()
        self.start_executor()

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it responds.

        Raises:
            InfeasibleError: it does not respond within a minute.
        """
        certificates, secret = self.folder / "certificates", self.folder / "keys" / "superexec"
        database = self.folder / "flwr" / "state.db"
        self.server = self._start(
            "superlink", "flower-superlink", "--host", HOST, "--port", self.ports[0],
            "--ssl-ca-certfile", certificates / CA, "--ssl-certfile", certificates / CERTIFICATE,
            "--ssl-keyfile", certificates / KEY, "--enable-supernode-auth", "--database", database,
            "--isolation", "process", "--superexec-auth-secret-file", secret,
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        self._wait_for_server()

    def start_executor(self) -> None:
        """Start the executor of the server's app."""
        certificates, secret = self.folder / "certificates", self.folder / "keys" / "superexec"
        self.executor = self._start(
            "superexec", "phalanx", "flower", "executor", "--runtime-api-address", self.address,
            "--root-certificates", certificates / CA, "--superexec-auth-secret-file", secret,
        )  # fmt: skip

    def _wait_for_server(self, seconds: float = 60.0) -> None:
        context = ssl.create_default_context(cafile=str(self.folder / "certificates" / CA))
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.server is not None and self.server.poll() is None:
            try:
                with urllib.request.urlopen(f"https://{self.address}/health", timeout=5, context=context):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        why = without_room(self.folder) or f"See {self.folder / LOGS / 'superlink.log'}."
        raise InfeasibleError(f"The SuperLink did not start. {why}")

    def register(self, client: int) -> None:
        """Register the key of a client's node with the SuperLink."""
        self.flwr("supernode", "register", str(self.folder / "keys" / f"node-{client}.pub"), "here")

    def start_node(self, client: int) -> None:
        """Start the SuperNode of a client."""
        keys = self.folder / "keys"
        config = {
            "key": str(keys / f"client-{client}.pem"),
            "memory": str(self.folder / "memory" / str(client)),
            "coordinator": self.coordinator,
            **self.node_config.get(client, {}),
        }
        node_config = " ".join(f"{name}={_quoted(value)}" for name, value in config.items())
        self.nodes[client] = self._start(
            f"node-{client}", *self.NODE, "--superlink", self.node_address,
            "--root-certificates", self.node_certificates, "--auth-supernode-private-key", keys / f"node-{client}",
            "--host", HOST, "--port", self.ports[1 + client], "--node-config", node_config,
        )  # fmt: skip

    def run(self, app: Path, config: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        """Run an app and return the `flwr run` process, which ends with the run and logs to run.log."""
        run_config = " ".join(f"{name}={_quoted(value)}" for name, value in config.items())
        self.runs.append(self._start("run", "flwr", "run", app, "here", "--stream", "--run-config", run_config))
        return self.runs[-1]

    def flwr(self, *arguments: str, timeout: float = 120.0) -> str:
        """Run a `flwr` command and return its output.

        Raises:
            InfeasibleError: the command failed.
        """
        command = [str(Path(sys.executable).parent / "flwr"), *arguments]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode:
            raise InfeasibleError(f"flwr {' '.join(arguments)} failed: {(done.stderr or done.stdout).strip()[-500:]}")
        return done.stdout

    def _command(self, name: str, program: str, *arguments: object) -> list[str]:
        """Return the command that starts a process of the federation, such as "superlink" or "node-0"."""
        return [str(Path(sys.executable).parent / program), *map(str, arguments)]

    def _start(self, name: str, program: str, *arguments: object) -> subprocess.Popen[bytes]:
        command = self._command(name, program, *arguments)
        with (self.folder / LOGS / f"{name}.log").open("ab") as file:
            return subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True, cwd=self.folder,
            )  # fmt: skip

    # Ending

    def kill_node(self, client: int) -> None:
        """Kill a client's SuperNode and its child processes, as a power cut would."""
        kill_tree(self.nodes.pop(client))

    def kill_server_app(self) -> None:
        """Kill the server's app, as a power cut would; the SuperLink keeps running."""
        if self.executor is not None:
            kill_tree(self.executor)
            self.executor = None

    def kill_server(self) -> None:
        """Kill the SuperLink and the server's app, as a power cut would; `start_server` starts them again."""
        self.kill_server_app()
        self.kill_superlink()

    def kill_superlink(self) -> None:
        """Kill the SuperLink, as a power cut would; the server's app keeps running."""
        if self.server is not None:
            kill_tree(self.server)
            self.server = None

    def stop(self) -> None:
        """Stop the server's app, the nodes and the SuperLink: terminate them, then kill those that remain.

        They are stopped even if `ending` raises, as it does when it prints to a closed terminal.
        """
        with undisturbed():
            try:
                self._ending()
            finally:
                self._stop()

    def _stop(self) -> None:
        first, then = [*self.runs, *self.nodes.values()], [p for p in (self.executor, self.server) if p is not None]
        processes = [*first, *then]
        apps = self._stop_server_app()
        for process in first:
            process.terminate()
        deadline = time.monotonic() + FAREWELL
        while apps & {*marked(self.mark)} and time.monotonic() < deadline:
            time.sleep(0.2)
        for process in then:
            process.terminate()
            _wait([*first, process], 3.0)
        for process in processes:
            kill_tree(process)
        for _ in range(50):
            if not (left := marked(self.mark)):
                break
            for pid in left:
                _kill(pid)
            time.sleep(0.05)
        self.nodes, self.runs, self.server, self.executor = {}, [], None, None

    def _stop_server_app(self) -> set[int]:
        """Terminate the server's app, so that it saves its record, and return its process ids."""
        if self.executor is None or self.executor.poll() is not None:
            return set()
        apps = {*descendants(self.executor.pid)}
        for pid in apps:
            _kill(pid, signal.SIGTERM)
        return apps


def without_room(folder: Path) -> str:
    """Return what the logs of a federation say of a full disk, in a sentence; empty if they say nothing of it."""
    for log in sorted((folder / LOGS).glob("*.log")):
        if FULL.search(log.read_text(errors="replace")):
            what = f"The disk of {folder} is full, or your quota of it, as {log} says"
            return f"{what}. Free some space; then repeat the command."
    return ""


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its descendants."""
    if process.poll() is not None:  # its process id may belong to another process by now
        return
    family = descendants(process.pid)
    _kill(process.pid)
    process.wait()
    for pid in family:
        _kill(pid)


def descendants(pid: int) -> list[int]:
    """Return the ids of the child processes of a process, and of theirs."""
    parents = dict[int, int]()
    for other in _processes():
        try:
            fields = Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[other] = int(fields[1])
    found, new = list[int](), [pid]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        found += new
    return found


def marked(mark: str) -> list[int]:
    """Return the ids of the running processes that were started for a federation."""
    wanted, found = f"{MARK}={mark}".encode(), list[int]()
    for pid in _processes():
        try:
            dead = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if not dead and wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def _processes() -> list[int]:
    folder = Path("/proc")
    return [int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()] if folder.is_dir() else []


def _kill(pid: int, how: signal.Signals = signal.SIGKILL) -> None:
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        return


def _wait(processes: list[subprocess.Popen[bytes]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Return ports on which nothing listens at the moment, and which no outgoing connection is given meanwhile.

    Raises:
        InfeasibleError: there are not so many.
    """
    found = list[int]()
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if len(found) == count:
            return found
        with socket.socket() as one, suppress(OSError):
            one.bind((HOST, port))
            found.append(port)
    raise InfeasibleError(f"Fewer than {count} ports from {PORTS.start} to {PORTS.stop - 1} are free.")


def _quoted(value: Any) -> str:
    """Return a value in the syntax of Flower's command line."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else f'"{value}"'
