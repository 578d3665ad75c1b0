"""Send hostile answers over HTTP to a deployment, and see what they cost the coordinator.

python tests/reliability/hostile.py [--megabytes 500] [--attacks large repeated] [--proxy] [--folder FOLDER]

A SuperLink and the server's app are processes of their own, with TLS; the clients are threads that speak Flower's
protocol.  Two of them are honest.  The third is in the roster, and does in each round one of the things below instead
of answering; those of `STRANGE` are done by somebody without a key at the same time.  Printed is, for each, what the
history says of that client, and the largest resident memory of the server's app and of the SuperLink so far.  The run
must come to its end with the honest clients in each round, one line in the log for each attack (and another where an
answer comes after its deadline), and less than 100 MiB of growth of the server's app.  With --proxy, clients reach the
SuperLink through nginx, with the configuration of `docs/deployment.md`.
"""

import argparse
import base64
import os
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supernode.fleet_http_connection import http_request_response

from flower.test_live import behind_a_proxy
from phalanx.flower import participant_of
from phalanx.flower.client import ClientWorker
from phalanx.flower.live import lines
from phalanx.flower.local_federation import LocalFederation, descendants, free_ports
from phalanx.runs.record import SUMMARY, Record
from reliability.processes import planned, write_app

CLIENTS, HOSTILE = 3, 2
MOST = 100.0  # MiB of growth of the server's app
STEADY = 2  # rounds before the first attack
SPARE = 8  # rounds that pass while the largest answer is sent
ANSWER, SHORTEST = 30, 6  # seconds for an answer, at most and at least
SHORT = 4.0  # seconds that a slow attack takes
POLL = 0.3  # seconds between two requests of a client: each costs the SuperLink 20 ms


# --- clients


class Link(NamedTuple):
    """Flower's connection of a node."""

    node: int
    receive: Callable[[], Any]
    send: Callable[..., tuple[set[str], str]]
    get_run: Callable[..., Any]
    get_fab: Callable[..., Any]
    pull: Callable[[int, str], bytes]
    push: Callable[[int, str, str, bytes], None]
    confirm: Callable[[int, str], None]


class Client(threading.Thread):
    """A client as a thread; a hostile one does one attack after another, from the third task on."""

    computing = threading.Lock()  # PyTorch's generator is one for all threads

    def __init__(self, federation: "Hosted", client: int, attacks: list["Attack"]) -> None:
        super().__init__(daemon=True)
        self.federation, self.client, self.attacks = federation, client, [*attacks]
        self.node_key = load_ssh_private_key((federation.folder / "keys" / f"node-{client}").read_bytes(), None)
        key = federation.folder / "keys" / f"client-{client}.pem"
        self.worker = ClientWorker(participant_of(planned(1, CLIENTS), client, key, coordinator=federation.coordinator))
        self.done, self.tasks = dict[int, Attack](), 0  # attacks by step

    def run(self) -> None:
        certificate = self.federation.node_certificates.read_bytes()
        keys = self.node_key, self.node_key.public_key()
        with http_request_response(self.federation.node_address, False, certificate, keys) as connection:
            link = Link(*connection)
            while not self.federation.stopping.is_set():
                with suppress(Exception):  # of an attack: the SuperLink refuses some
                    if (got := link.receive()) is not None:
                        self.answer(link, self.fetched(link, *got))
                time.sleep(POLL)

    def fetched(self, link: Link, message: Message, tree: ObjectTree) -> Message:
        run, number = message.metadata.run_id, message.metadata.message_id
        contents = pull_objects([t.object_id for t in iterate_object_tree(tree)], lambda o: link.pull(run, o))
        link.confirm(run, number)
        whole = inflate_object_from_contents(number, contents)
        whole.metadata.__dict__["_message_id"] = number
        return whole

    def answer(self, link: Link, message: Message) -> None:
        with self.computing:
            if message.metadata.message_type != "train":
                return deliver(link, Message(self.worker.introduce(message.content), reply_to=message))
            reply = Message(self.worker.train(message.content), reply_to=message)
        self.tasks, step = self.tasks + 1, int(message.content["phalanx"]["version"]) + 1
        if step < len(lines(self.federation.results)):
            return None  # its round was over while the last attack went on
        if self.attacks and self.tasks > STEADY:
            attack = self.done[step] = self.attacks.pop(0)
            return attack.work(Scene(self.federation, link, reply, headers(self.node_key)))
        return deliver(link, reply)


def announced(link: Link, reply: Message) -> tuple[dict[str, bytes], str]:
    """Announce a reply; return the contents of its objects, and the name of the upload."""
    reply.metadata.__dict__["_message_id"] = reply.object_id
    objects = get_all_nested_objects(reply)
    wanted, session = link.send(reply, get_object_tree(reply), 0.1)
    return {number: made.deflate() for number, made in objects.items() if number in wanted}, session


def deliver(link: Link, reply: Message) -> None:
    contents, session = announced(link, reply)
    for number, content in contents.items():
        link.push(reply.metadata.run_id, session, number, content)


# --- attacks


class Scene(NamedTuple):
    """What an attack works with.

    Args:
        federation: the deployment.
        link: Flower's connection of the client.
        reply: its honest answer.
        headers: that prove to Flower which node it is; empty for a stranger.
    """

    federation: "Hosted"
    link: Link
    reply: Message
    headers: bytes


class Attack(NamedTuple):
    """Something hostile, with what it is in words."""

    name: str
    what: str
    work: Callable[[Scene], None]


class Repeated(Array):
    """An array whose only piece is named so often that it has 500 GB."""

    def deflate(self) -> bytes:
        head, _, body = super().deflate().partition(b"\0")
        body = body.replace(b": [0]", b": [" + b"0, " * 99_999 + b"0]")
        return head.rpartition(b" ")[0] + b" %d\0" % len(body) + body


def with_array(scene: Scene, array: Array) -> None:
    scene.reply.content["vector"] = ArrayRecord({"vector": array})
    deliver(scene.link, scene.reply)


def large(scene: Scene) -> None:
    size = scene.federation.megabytes * 1_000_000
    with_array(scene, Array("float32", (size // 4,), "numpy.ndarray", os.urandom(size)))


def repeated(scene: Scene) -> None:
    with_array(scene, Repeated("float32", (1,), "numpy.ndarray", os.urandom(5_000_000)))


def wrong(scene: Scene) -> None:
    deliver(scene.link, replace_content(scene.reply, RecordDict({"x\n\x1b[2J": ConfigRecord({"\u202e": "x" * 9000})})))


def replace_content(reply: Message, content: RecordDict) -> Message:
    reply.content = content
    return reply


def drip(scene: Scene) -> None:
    """Announce the answer, and upload all of it but one piece, slowly."""
    contents, session = announced(scene.link, scene.reply)
    for number, content in [*contents.items()][:-1]:
        time.sleep(SHORT / len(contents))
        scene.link.push(scene.reply.metadata.run_id, session, number, content)


def truncated(scene: Scene) -> None:
    """Upload only the first half of each piece."""
    contents, session = announced(scene.link, scene.reply)
    for number, content in contents.items():
        with suppress(Exception):
            scene.link.push(scene.reply.metadata.run_id, session, number, content[: len(content) // 2])


def malformed(scene: Scene) -> None:
    """Upload a message that is not one of protobuf, under its right name."""
    content = b"Message  40\0" + b"\xff" * 40
    reply, number = scene.reply, sha256(content).hexdigest()
    reply.metadata.__dict__["_message_id"] = number
    _, session = scene.link.send(reply, ObjectTree(object_id=number), 0.1)
    scene.link.push(reply.metadata.run_id, session, number, content)


def headers(key: Any) -> bytes:
    """Return the headers by which Flower knows a node."""
    stamp = now().isoformat()
    fields = {
        FLEET_HTTP_PUBLIC_KEY_HEADER: base64.b64encode(public_key_to_bytes(key.public_key())).decode(),
        TIMESTAMP_HEADER: stamp,
        FLEET_HTTP_SIGNATURE_HEADER: base64.b64encode(sign_message(key, stamp.encode())).decode(),
    }
    return "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode()


@contextmanager
def posting(scene: Scene, length: int, kind: str = PROTOBUF_MEDIA_TYPE) -> Iterator[ssl.SSLSocket]:
    """Begin a request to the SuperLink, with the headers of a body of this length."""
    context = ssl.create_default_context(cafile=str(scene.federation.node_certificates))
    host, port = scene.federation.node_address.split(":")
    with (
        socket.create_connection((host, int(port)), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname=host) as opened,
    ):
        opened.sendall(
            b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\n" + scene.headers
            + f"Content-Type: {kind}\r\nContent-Length: {length}\r\n".encode()
        )  # fmt: skip
        yield opened


def endless_headers(scene: Scene) -> None:
    with posting(scene, 10) as opened, suppress(OSError):
        end = time.monotonic() + SHORT
        while time.monotonic() < end:
            opened.sendall(b"x-more: " + b"x" * 8000 + b"\r\n")


def slow_body(scene: Scene) -> None:
    with posting(scene, 1_000_000) as opened, suppress(OSError):
        opened.sendall(b"\r\n")
        for _ in range(10):
            time.sleep(SHORT / 10)
            opened.sendall(b"x")


def cut_body(scene: Scene) -> None:
    with posting(scene, 1_000_000) as opened:
        opened.sendall(b"\r\n" + bytes(1000))


def large_body(scene: Scene) -> None:
    size = scene.federation.megabytes
    with posting(scene, size * 1_000_000) as opened, suppress(OSError):
        opened.sendall(b"\r\n")
        for _ in range(size):
            opened.sendall(b"\x22" + bytes(999_999))
        opened.recv(100)


def garbage(scene: Scene) -> None:
    for kind in (PROTOBUF_MEDIA_TYPE, "application/json", "text/html"):
        with posting(scene, 100, kind) as opened:
            opened.sendall(b"\r\n" + b"\xff" * 100)
            opened.recv(100)


ATTACKS = {
    attack.name: attack
    for attack in (
        Attack("large", "an answer of 500 MB", large),
        Attack("repeated", "an answer of 5 MB that Flower unfolds to 500 GB", repeated),
        Attack("wrong", "other records, with control characters", wrong),
        Attack("malformed", "a message that is not protobuf", malformed),
        Attack("drip", "an answer that is announced, and uploaded slowly but for its end", drip),
        Attack("truncated", "an answer of which half of each piece comes", truncated),
        Attack("large_body", "a request of 500 MB", large_body),
        Attack("slow_body", "a request whose body comes slowly", slow_body),
        Attack("cut_body", "a request that ends early", cut_body),
        Attack("endless_headers", "a request whose headers do not end", endless_headers),
        Attack("garbage", "requests that are not protobuf, or of another type", garbage),
    )
}
STRANGE = ("large_body", "slow_body", "cut_body", "endless_headers", "garbage")


# --- the deployment


class Hosted(LocalFederation):
    """A federation whose clients are threads.

    Args:
        folder: of everything.
        megabytes: size of the large answers.
        attacks: of the hostile client.
        proxy: the address of a proxy in front of the SuperLink.
    """

    def __init__(self, folder: Path, megabytes: int, attacks: list[Attack], proxy: str | None = None) -> None:
        super().__init__(folder, CLIENTS, proxy=proxy)
        here = str(Path(__file__).parents[1])
        self.environment["PYTHONPATH"] = f"{here}:{self.environment.get('PYTHONPATH', '')}"
        self.megabytes, self.attacks, self.stopping = megabytes, attacks, threading.Event()
        self.threads, self.results = dict[int, Client](), self.folder / "run"
        self.found: int | None = None  # the process id of the server's app

    def start_node(self, client: int) -> None:
        self.threads[client] = Client(self, client, self.attacks if client == HOSTILE else [])
        self.threads[client].start()

    def begin(self, rounds: int) -> None:
        settings = {"roster": str(self.folder / "roster.yaml"), "folder": str(self.results), "rounds": rounds}
        settings |= {"clients": CLIENTS, "answer": ANSWER, "shortest": SHORTEST}
        app = self.folder / "app"
        self.run(app if app.exists() else write_app(app), settings)

    def app(self) -> int | None:
        """Return the process id of the server's app."""
        for pid in () if self.found else descendants(self.executor.pid):
            self.found = next(iter(descendants(pid)), None) or self.found  # a fork of a child of the executor
        return self.found


def peak(pid: int | None) -> float:
    """Return the largest resident memory of a process so far, in MiB; 0 if it is over."""
    with suppress(OSError, StopIteration):
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024
    return 0.0


def watched(federation: Hosted, rounds: int) -> dict[int, tuple[float, float]]:
    """Wait for the end of the run; return the memory of the server's app and of the SuperLink after each step."""
    memory, strange = dict[int, tuple[float, float]](), set[int]()
    hostile = federation.threads[HOSTILE]
    while not (federation.results / SUMMARY).is_file() and federation.runs[0].poll() is None:
        step = len(lines(federation.results)) - 1
        now_at = peak(federation.app()), peak(federation.server.pid)
        if now_at[0]:
            memory.setdefault(max(0, step), now_at)  # not what the next round costs
        for at, attack in [*hostile.done.items()]:
            if attack.name in STRANGE and at not in strange:
                strange.add(at)
                with suppress(OSError):
                    attack.work(Scene(federation, None, None, b""))
        time.sleep(POLL)
    return memory


class Finding(NamedTuple):
    """What an attack came to."""

    attack: Attack
    said: str  # by the history
    logged: int  # lines of the log that name the client
    app: float  # MiB
    superlink: float


def findings(federation: Hosted, memory: dict[int, tuple[float, float]]) -> list[Finding]:
    log = (federation.folder / "logs" / "run.log").read_text(errors="replace").splitlines()
    steps = {line.step: line for line in Record.load(federation.results).history}
    bounds = {step: next((k for k, text in enumerate(log) if f"step {step} after" in text), 0) for step in steps}
    made = []
    for step, attack in federation.threads[HOSTILE].done.items():
        said = steps[step].invalid.get(HOSTILE) or steps[step].lost.get(HOSTILE) or "an answer"
        here = log[bounds[step - 1] : bounds[step]]
        named = [text for text in here if f"client {HOSTILE}:" in text and "too late" not in text]
        after = [memory[at] for at in sorted(memory) if at >= step] or [(0.0, 0.0)]
        made.append(Finding(attack, said, len(named), *after[0]))
    return made


def problems(federation: Hosted, found: list[Finding], before: float) -> list[str]:
    record = Record.load(federation.results)
    rounds = record.history[1:]
    said = [] if record.summary.status == "finished" else [f"the run is {record.summary.status}"]
    said += [f"step {line.step} has {set(line.verdicts)}" for line in rounds if not {0, 1} <= set(line.verdicts)]
    said += [f"{one.attack.name}: {one.logged} lines of log" for one in found if one.logged != 1]
    said += [f"{one.attack.name}: {one.said}" for one in found if one.said == "an answer"]
    grown = max((one.app for one in found), default=before) - before
    return said + ([f"the server's app grew by {grown:.0f} MiB"] if grown > MOST else [])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=[*ATTACKS])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--proxy", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    attacks = [replace_size(ATTACKS[name], options.megabytes) for name in options.attacks]
    rounds = STEADY + len(attacks) + (SPARE if "large" in options.attacks else 1)
    with tempfile.TemporaryDirectory(prefix="phalanx-hostile-") as made:
        door = f"127.0.0.1:{free_ports(1)[0]}" if options.proxy else None
        federation = Hosted(options.folder or Path(made), options.megabytes, attacks, door)
        with behind_a_proxy(federation, "127.0.0.1") if door else nullcontext(), federation:
            federation.begin(rounds)
            memory = watched(federation, rounds)
            federation.stopping.set()
        found = findings(federation, memory)
        before = memory[STEADY][0] if STEADY in memory else 0.0
        print(f"before: server's app {before:.0f} MiB, SuperLink {memory[STEADY][1]:.0f} MiB")
        for one in found:
            print(f"{one.attack.what}: {one.said}; {one.app:.0f} and {one.superlink:.0f} MiB")
        bad = problems(federation, found, before)
    print("\n".join(bad) or f"{len(found)} attacks, {rounds} rounds: nothing wrong.")
    return 1 if bad else 0


def replace_size(attack: Attack, megabytes: int) -> Attack:
    return attack._replace(what=attack.what.replace("500 MB", f"{megabytes} MB"))


if __name__ == "__main__":
    sys.exit(main())
