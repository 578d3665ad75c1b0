"""Kill a federation over Flower's messages at random moments, and compare its end with the simulation.

python tests/reliability/chaos.py [--kills 50] [--seed 1]

Coordinator and clients are one process, whose messages are Flower's.  It is killed with SIGKILL within 50 ms after some
round, up to the sixth since its start, and started again on the same folders, until a run of forty rounds is over; then
the next algorithm begins.  At the end of each run the whole state of the server must be that of the simulation, to the
bit, and the record and the audit trail must be whole.
"""

import argparse
import dataclasses
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from itertools import cycle
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from flower.federations import SMALL, at_nodes, coordinator, honest, states_in_simulation
from phalanx import Run, Until
from phalanx.aggregators import Median
from phalanx.algorithms import IFCA, RFFL, ByzantineCFL, ClusteredFL, FedAvg, FLTrust, SignSGD
from phalanx.flower import InProcessGrid, coordinate
from phalanx.flower.audit import read
from phalanx.models import MLP
from phalanx.runs.packing import pack
from phalanx.runs.record import Record
from phalanx.wording import plural
from runs.test_checkpoint import Personal

ROUNDS, MOST, AFTER = 40, 6, 0.05  # rounds of a run and, at most, of a life; seconds from a round to the kill
ALGORITHMS = (
    FedAvg(),
    RFFL(),
    Personal(),
    ClusteredFL(min_round=1),
    FedAvg(aggregate=Median()),
    ByzantineCFL(),
    IFCA(2),
    SignSGD(),
    FLTrust(),
)


def planned(algorithm) -> Run:
    own = {"server_examples": 8, "model": MLP((4,))} if algorithm.traits.needs_reference else {}
    return dataclasses.replace(SMALL, algorithm=algorithm, until=Until(ROUNDS), **own)


def digest(state: object) -> str:
    """Return the SHA-256 of a state."""
    packed = pack(state)
    memory = b"".join(tensor.contiguous().numpy().tobytes() for tensor in packed.tensors)
    return sha256(json.dumps(packed.form["tree"]).encode() + memory).hexdigest()


def in_a_process(work: Callable[[Run, Path], None], plan: Run, folder: Path) -> int:
    """Do some work in a fork; return its id."""
    if pid := os.fork():
        return pid
    status = 99
    try:
        work(plan, folder)
        status = 0
    finally:
        sys.stdout.flush()
        os._exit(status)


def deployed(plan: Run, folder: Path) -> None:
    """Carry out a run over Flower's messages, or what is left of it, and keep the digest of its last state."""
    said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 2)
    with InProcessGrid(at_nodes(honest(plan, folder / "memory"))) as grid:
        state = coordinate(grid, coordinator(plan, folder=folder / "run"))
    (folder / "digest").write_text(digest(state))


def lines(folder: Path) -> int:
    path = folder / "run" / "history.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def killed(pid: int, folder: Path, rng: random.Random) -> int | None:
    """Kill a process when its history has grown; return its exit status if it ended by itself before."""
    last = lines(folder) + rng.randint(0, MOST)
    while lines(folder) < last:
        time.sleep(0.002)
        if (ended := os.waitpid(pid, os.WNOHANG))[0]:
            return os.waitstatus_to_exitcode(ended[1])
    time.sleep(rng.uniform(0, AFTER))
    os.kill(pid, signal.SIGKILL)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return None if ended == -signal.SIGKILL else ended


def simulated(plan: Run, folder: Path) -> None:
    (folder / "simulated").write_text(digest(states_in_simulation(plan)[-1]))


def wrong(folder: Path) -> str:
    """Return what is wrong with a run that is over; empty if nothing is."""
    if (folder / "digest").read_text() != (folder / "simulated").read_text():
        return "the last state is not that of the simulation"
    record = Record.load(folder / "run")
    if [line.step for line in record.history] != list(range(ROUNDS + 1)):
        return "steps are missing in the history, or twice"
    events = Counter(entry.event for entry in read(folder / "run" / "audit.jsonl"))
    if events["enrolled"] != SMALL.clients or events["ended"] != 1:
        return f"the audit trail has {dict(events)}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng, kills, runs, bad, begun = random.Random(options.seed), 0, 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="phalanx-chaos-") as made:
        for plan in map(planned, cycle(ALGORITHMS)):
            folder = Path(made) / str(runs)
            folder.mkdir()
            os.waitpid(in_a_process(simulated, plan, folder), 0)
            status = None
            while status is None:
                pid = in_a_process(deployed, plan, folder)
                if kills < options.kills:
                    status = killed(pid, folder, rng)
                    kills += status is None
                else:
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            runs += 1
            if why := f"it ended with {status}" if status else wrong(folder):
                bad += 1
                print(f"{plan.algorithm}: {why}\n{(folder / 'said').read_text()[-3000:]}", flush=True)
            if kills >= options.kills:
                break
    print(f"{kills} kills in {plural(runs, 'run')} of {ROUNDS} rounds, {time.monotonic() - begun:.0f} s: {bad} differ.")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
