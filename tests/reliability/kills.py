"""Kill `phalanx run` at random moments, and compare what the same command makes of the rest with an undisturbed run.

python tests/reliability/kills.py [--kills 200] [--seed 1]

Runs on digits with every algorithm of the tests, with every step saved.  Each kill takes the next algorithm, in an
order drawn by the seed; its moment is uniform over the time that the undisturbed run took, the report left
out.  The command is given again until it ends.  History, summary (without the time on the wall),
configuration and the last model must be the same to the bit.  Commands are forks of one warm process.
"""

import argparse
import dataclasses
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from hashlib import sha256
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from algorithms.test_common import ALGORITHMS, needed
from phalanx import LocalSGD, Run, Until
from phalanx.attacks import Gaussian, LazyFreeRider
from phalanx.cli import progress
from phalanx.cli import run as cli
from phalanx.cli.main import main as command
from phalanx.core import Progress
from phalanx.data import Digits
from phalanx.models import MLP
from phalanx.runs.checkpoint import Checkpoint
from phalanx.simulation import Deadline, Lognormal

SMALL = Run(
    data=Digits(test_share=0.8),
    clients=6,
    model=MLP((4,), dropout=0.2),
    training=LocalSGD(batch_size=16, momentum=0.5),
    until=Until(8),
)
SCATTERED = {"latency": Lognormal(sigma=1.0, each_turn=True)}
PLANS = [
    dataclasses.replace(
        SMALL,
        algorithm=algorithm,
        **({} if algorithm.synchronous else {"until": Until(20), **SCATTERED}),
        **needed(algorithm, 20),
    )
    for algorithm in ALGORITHMS
] + [
    dataclasses.replace(SMALL, attack=LazyFreeRider(), byzantine=2, participation=0.5),
    dataclasses.replace(SMALL, attack=Gaussian(), byzantine=1, deadline=Deadline(2.0), **SCATTERED),
]


class Undisturbed:
    """What a run leaves that nobody disturbs, and how long it takes."""

    def __init__(self, plan: Run, folder: Path) -> None:
        begun = time.monotonic()
        status = ended(begun_in(plan, folder))
        self.seconds = time.monotonic() - begun
        assert status == 0, (folder / "said").read_text()
        self.left = left(folder)


def asked(plan: Run, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(plan.config))


def begun_in(plan: Run, folder: Path) -> int:
    """Give the command in a process of its own; return its id."""
    asked(plan, folder)
    if pid := os.fork():
        return pid
    said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    status = 99
    try:
        status = carried_out(folder)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def carried_out(folder: Path) -> int:
    """Give the command in this process."""
    cli.Checkpoint = lambda **options: Checkpoint(0.0, **options)
    cli._show = lambda *_: 0
    progress.follow = lambda *_: model_to(folder / "model")
    return command(["run", "--config", str(folder / "plan.json"), "--folder", str(folder / "run")])


def model_to(path: Path):
    """An observer that keeps the SHA-256 of the model of the last step."""

    def observer(at: Progress) -> None:
        path.write_text(sha256(at.state.model.numpy().tobytes()).hexdigest())

    return observer


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def left(folder: Path) -> tuple[object, ...]:
    """What a run leaves, but for the clock on the wall."""
    run = folder / "run"
    summary = json.loads((run / "summary.json").read_text())
    assert summary.pop("wall_seconds") > 0
    assert not (run / "checkpoint").exists()
    model = (folder / "model").read_text()
    return (run / "history.jsonl").read_bytes(), json.dumps(summary), (run / "run.json").read_bytes(), model


def moment(folder: Path) -> str:
    """Say at what moment a command was killed, by what it left."""
    run = folder / "run"
    if (run / "summary.json").is_file():
        return "after the summary"
    if (run / "checkpoint").is_file():
        return "with a checkpoint"
    return "before a checkpoint" if (run / "history.jsonl").is_file() else "before the history"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng, order, begun = random.Random(options.seed), [*PLANS], time.monotonic()
    rng.shuffle(order)
    undisturbed, moments, wrong = dict[str, Undisturbed](), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="phalanx-kills-") as made:
        for k, plan in enumerate((PLANS[0], PLANS[1])):  # imports and compiles what the forks need
            asked(plan, Path(made) / f"warm-{k}")
            carried_out(Path(made) / f"warm-{k}")
        for k in range(options.kills):
            plan = order[k % len(order)]
            if plan.slug not in undisturbed:
                undisturbed[plan.slug] = Undisturbed(plan, Path(made) / "undisturbed" / plan.slug)
            known, folder = undisturbed[plan.slug], Path(made) / str(k)
            pid, seconds = begun_in(plan, folder), rng.uniform(0, known.seconds)
            time.sleep(seconds)
            os.kill(pid, signal.SIGKILL)
            ended(pid)
            moments[moment(folder)] += 1
            status = ended(begun_in(plan, folder))
            if status or left(folder) != known.left:
                wrong += 1
                said = (folder / "said").read_text()
                print(f"{plan.algorithm}, killed after {seconds:.3f} s: exit {status}\n{said}", flush=True)
            else:
                shutil.rmtree(folder)
    told = ", ".join(f"{count} {name}" for name, count in sorted(moments.items()))
    took = time.monotonic() - begun
    print(f"{options.kills} kills of {len(undisturbed)} runs in {took:.0f} s ({told}): {wrong} differ.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
