"""Cost of Phalanx on top of Flower: time per update, memory of the server, and updates per minute with real nodes.

python benchmarks/flower.py time        # of our own code, per update of 1,000,000 parameters
python benchmarks/flower.py memory      # of the server, 100 clients x 1,000,000 parameters
python benchmarks/flower.py live        # updates per minute of 4 SuperNodes, asynchronous, on this machine; minutes
python benchmarks/flower.py live --clients 1 --training 10
"""

import argparse
import itertools
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, Message, RecordDict

import phalanx
from phalanx.algorithms import FedAvg
from phalanx.core import Until
from phalanx.engine import LoopSettings
from phalanx.engine.guard import Guard
from phalanx.flower import FlowerTransport, InProcessGrid, Member, Roster, Timeouts, codec
from phalanx.flower.codec import WORDS, AnswerMessage, TaskMessage
from phalanx.flower.demo import deal, write_app
from phalanx.flower.identity import public_bytes, signed_by
from phalanx.flower.live import lines
from phalanx.flower.local_federation import LocalFederation, marked
from phalanx.numerics.allocation import return_freed_memory
from phalanx.signals import stopped_like_ctrl_c

D = 1_000_000
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32) for i in range(1, 101)]


def milliseconds(work: Callable[[], object], times: int = 15) -> float:
    """Return the median time of some work, after one warm-up."""
    work()
    seen = []
    for _ in range(times):
        begun = time.process_time()
        work()
        seen.append(1e3 * (time.process_time() - begun))
    return statistics.median(seen)


def answered(task: TaskMessage, key: Ed25519PrivateKey, vector: torch.Tensor) -> RecordDict:
    """Return a client's signed answer."""
    answer = AnswerMessage(task.nonce, public_bytes(key), task.version, 0.5, b"")
    content = codec.answer_content(answer, codec.encode(vector, task.transfer))
    content[WORDS]["signature"] = key.sign(codec.signing_input(task, content))
    return content


def time_per_update() -> None:
    """Measure the CPU time per update, of Flower's records alone and of ours."""
    vector, out = torch.randn(D), torch.empty(D)
    print(
        f"{'CPU milliseconds':22} {'server sends':>13} {'client reads':>13} {'client sends':>13} {'server reads':>13}"
    )

    def flowers() -> list[float]:
        record = ArrayRecord({"values": Array(vector.numpy())})
        read = milliseconds(lambda: out.copy_(torch.from_numpy(record["values"].numpy())))
        made = milliseconds(lambda: RecordDict({"arrays": ArrayRecord({"values": Array(vector.numpy())})}))
        return [made, read, made, read]

    def ours(transfer: codec.Transfer) -> list[float]:
        task, key = TaskMessage("train", "abc", bytes(32), 0, 3, 2, transfer), KEYS[0]
        content, sent = answered(task, key, vector), codec.task_content(task, vector)

        def read() -> None:
            answer = codec.read_answer(content)
            assert signed_by(public_bytes(key), answer.signature, codec.signing_input(task, content))
            codec.read_update(content, transfer, out)

        return [
            milliseconds(lambda: codec.task_content(task, vector)),
            milliseconds(lambda: codec.read_task(sent, out)),
            milliseconds(lambda: answered(task, key, vector)),
            milliseconds(read),
        ]

    flowers(), ours("float32")  # so that the first is not the one that pays for fresh memory
    base = flowers()
    rows = {"Flower's records": base, **{f"ours, {t}": ours(t) for t in ("float32", "bfloat16", "int8")}}
    for name, row in rows.items():
        extra = f"   in all {sum(row):.1f}"
        print(f"{name:22} " + " ".join(f"{v:13.2f}" for v in row) + extra)


class Canned(InProcessGrid):
    """A grid that makes each reply when it is pulled, so that only the server uses memory."""

    def __init__(self, clients: int) -> None:
        super().__init__({})
        self.clients, self.tasks = clients, {}
        self.update = codec.encode(torch.randn(D))

    def get_node_ids(self):
        return list(range(100, 100 + self.clients))

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            words = dict(message.content[WORDS])
            task = TaskMessage(**{name: words[name] for name in TaskMessage._fields})
            number = task.nonce.hex()
            message.metadata.__dict__["_message_id"] = number
            bare = Message(RecordDict(), message.metadata.dst_node_id, message.metadata.message_type)
            bare.metadata.__dict__["_message_id"] = number
            self.tasks[number] = bare, task
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids):
        replies = []
        for number in message_ids:
            sent_to, task = self.tasks.pop(number)
            key = KEYS[sent_to.metadata.dst_node_id - 100]
            value = 10 if task.kind == "enrol" else 0.5
            answer = AnswerMessage(task.nonce, public_bytes(key), task.version, value, b"")
            update = None
            if task.kind == "train":  # a copy of the bytes, as after a transfer
                sent = self.update["values"]
                data = bytes(bytearray(sent.data))
                update = ArrayRecord({"values": Array(sent.dtype, sent.shape, sent.stype, data)})
            content = codec.answer_content(answer, update)
            content[WORDS]["signature"] = key.sign(codec.signing_input(task, content))
            replies.append(Message(content, reply_to=sent_to))
        return replies


def resident() -> float:
    """Return the memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def peak() -> float:
    """Return the peak memory of this process in MB since the last reset."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1e3


def memory(clients: int = 100) -> None:
    """Measure the additional memory of the server in a round."""
    return_freed_memory()  # as `server_app` does
    roster = Roster(tuple(Member(i, f"c{i}", public_bytes(KEYS[i])) for i in range(clients)))
    matrix = clients * D * 4 / 1e6
    with FlowerTransport(Canned(clients), roster, timeouts=Timeouts(roll_call=0.5, poll=0.05)) as transport:
        model, before = torch.zeros(D), []

        def observer(progress):
            if progress.step == 0:
                before.append(resident())
                Path("/proc/self/clear_refs").write_text("5")

        begun = time.perf_counter()
        phalanx.run(FedAvg(), transport, model, LoopSettings(until=Until(1), guard=Guard()), observers=[observer])
        held = peak() - before[0]
        seconds = time.perf_counter() - begun
    print(f"{clients} clients x {D:,} parameters: the matrix is {matrix:.0f} MB, the server held {held:.0f} MB more")
    print(f"than before, {held / matrix:.2f} times the matrix; a round took {seconds:.1f} s.")


# With real nodes

APP = """import time

from flwr.clientapp import ClientApp
from phalanx.flower import client_app, server_app
from phalanx.flower.demo import coordinator, participant

server = server_app(coordinator)
inner = client_app(participant)
client = ClientApp()


@client.query()
def introduce(message, context):
    return inner(message, context)


@client.train()
def train(message, context):
    time.sleep({training})
    return inner(message, context)
"""


class Watched(NamedTuple):
    """Measurements between two steps of a run."""

    updates: int
    seconds: float
    cpu: float  # seconds, of all processes of the federation
    others: float  # cores that all other processes took
    cycles: list[float]  # seconds from one update of a client to its next
    ages: list[float]  # of updates, in versions


def cpu_seconds(mark: str) -> float:
    """Return the CPU time of a federation's processes and of their finished child processes."""
    ticks = 0
    for pid in marked(mark):
        with suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float:
    """Return the CPU time of all processes of this machine, including time stolen by its host."""
    user, nice, system, _, _, *rest = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def watch(federation: LocalFederation, history: Path, run: subprocess.Popen[bytes], first: int, last: int) -> Watched:
    """Measure a run from the first step to the last."""
    before: tuple[float, float, float] | None = None

    def now() -> tuple[float, float, float]:
        return time.monotonic(), cpu_seconds(federation.mark), busy_seconds()

    while True:
        steps = {line.step: line for line in lines(history.parent) if line.verdicts}
        if before is None and first in steps:
            before = now()
        if last in steps:
            break
        if run.poll() is not None:
            raise SystemExit((federation.folder / "logs" / "run.log").read_text()[-2000:])
        time.sleep(0.05)
    passed, cpu, busy = (b - a for a, b in zip(before or now(), now(), strict=True))
    counted = [steps[k] for k in range(first, last + 1)]
    at = dict[int, list[float]]()
    for line in counted:
        for client in line.verdicts:
            at.setdefault(client, []).append(line.seconds)
    cycles = [b - a for times in at.values() for a, b in itertools.pairwise(times)]
    ages = [verdict.score for line in counted for verdict in line.verdicts.values()]
    seconds = counted[-1].seconds - counted[0].seconds
    return Watched(last - first, seconds, cpu, (busy - cpu) / passed, cycles, ages)


class Started(LocalFederation):
    """A federation in which a Python process is started for each task, as Flower does it."""

    NODE = ("flower-supernode",)


def live(clients: int, updates: int, training: float) -> None:
    """Measure updates per minute over a real SuperLink: nodes of Flower, our own, and these with a second task."""
    print(f"{clients} SuperNodes, FedAsync, {updates} updates, {training:g} s of training that needs no CPU here")
    heads = ("updates/min", "s per task", "beyond training", "CPU s per task", "mean age", "cores of others", "load")
    print(f"{'':20}" + "".join(f"{head:>17}" for head in heads))
    ways = {"a process is started": (Started, False), "forked": (LocalFederation, False)}
    for title, (made, prefetch) in (ways | {"one more prefetched": (LocalFederation, True)}).items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            config = {"clients": clients, "steps": 10**6, "asynchronous": True, "prefetch": prefetch}
            config |= {"roster": str(folder / "roster.yaml"), "folder": str(folder / "run")}
            app = write_app(folder / "app")
            (app / "phalanx_demo.py").write_text(APP.format(training=training))
            nodes = deal(folder / "data", clients)
            with stopped_like_ctrl_c(), made(folder, clients, nodes) as federation:
                run = federation.run(app, config)
                first = 2 * clients  # until then processes start, and second tasks are not there yet
                seen = watch(federation, folder / "run" / "history.jsonl", run, first, first + updates)
        cycle = statistics.mean(seen.cycles)
        row = (60 * seen.updates / seen.seconds, cycle, cycle - training, seen.cpu / seen.updates)
        row += (statistics.mean(seen.ages), seen.others, os.getloadavg()[0])
        print(f"{title:20}" + "".join(f"{value:17.1f}" for value in row), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["time", "memory", "live"])
    parser.add_argument("--clients", type=int, default=4, help="live: SuperNodes")
    parser.add_argument("--updates", type=int, default=40, help="live: number of updates to count")
    parser.add_argument("--training", type=float, default=0.0, help="live: seconds that a client waits in each task")
    torch.set_num_threads(1)
    given = parser.parse_args()
    if given.what == "live":
        live(given.clients, given.updates, given.training)
    else:
        {"time": time_per_update, "memory": memory}[given.what]()
