"""Kill `phalanx run` at random moments, and compare what the same command makes of the rest with an undisturbed run.

python tests/reliability/kills.py [--kills 200] [--seed 1] [--of algorithms settings]

Runs on digits with every algorithm of the tests, and with settings of everything else, with every step saved.  Each
kill takes the next run, in an order drawn by the seed; its moment is uniform over the time that the undisturbed run
took, the report left out.  The command is given again until it ends.  History, summary (without the time on the wall),
configuration and all models of the last step, also the clients' own, must be the same to the bit.  Commands are forks
of one warm process.
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
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from algorithms.test_common import ALGORITHMS, needed
from phalanx import LocalSGD, Run, Until
from phalanx.aggregators import Median
from phalanx.algorithms import CentrallyPrivate, FedAvg, FedBuff, LowRankProducts, PerCluster, Quorum
from phalanx.attacks import ALIE, Chameleon, Gaussian, HoldBack, LazyFreeRider, PoisonedFL, Replay, Scheduled
from phalanx.cli import progress
from phalanx.cli import run as cli
from phalanx.cli.main import main as command
from phalanx.data import Digits, HeldOut, RotatedImages
from phalanx.engine.observer import Progress
from phalanx.models import MLP, LoRA, PartlyTrained
from phalanx.runs.checkpoint import Checkpoint
from phalanx.simulation import Both, Crashes, Deadline, Late, Lognormal, OnOff
from phalanx.training import Ditto, Evaluation, FedPer, LocalOptimizer, PrivateSGD
from phalanx.weighting import Ignore, Truncate

SMALL = Run(
    data=Digits(test_share=0.8),
    clients=6,
    model=MLP((4,), dropout=0.2),
    training=LocalSGD(batch_size=16, momentum=0.5),
    until=Until(8),
)
SCATTERED = {"latency": Lognormal(sigma=1.0, each_turn=True)}
LINEAR = ("1", "3")  # names of the linear layers of the perceptron
ADAPTERS = LoRA(MLP((8,)), LINEAR, rank=2)
AHEAD = {"algorithm": FedBuff(size=3), "until": Until(20), **SCATTERED}
SETTINGS: list[dict[str, Any]] = [
    {"attack": LazyFreeRider(), "byzantine": 2, "participation": 0.5},
    {"attack": Gaussian(), "byzantine": 1, "deadline": Deadline(2.0), **SCATTERED},
    {"model": ADAPTERS},
    {"model": ADAPTERS, "algorithm": LowRankProducts(aggregate=Median()), "attack": ALIE(), "byzantine": 1},
    {"model": PartlyTrained(MLP((8,)), ("3.*",))},
    {"training": PrivateSGD(LocalSGD(batch_size=16)), "model": MLP((4,))},
    {"algorithm": CentrallyPrivate(FedAvg(preprocess=Ignore()), clip=1.0, noise_multiplier=0.1, count_noise=0.5)},
    {"training": Ditto(LocalSGD(batch_size=16, momentum=0.5))},
    {"training": FedPer(("1.*",), LocalSGD(batch_size=16)), "participation": 0.5},
    {"training": FedPer(("1.*",), LocalOptimizer(remember=True))},
    {"training": LocalOptimizer("AdamW", remember=True, schedule="cosine", parts=2)},
    {"training": LocalOptimizer("SGD", options={"momentum": 0.9}, remember=True), **AHEAD},
    {"training": LocalSGD(batch_size=16, engine="compiled"), "model": MLP((4,))},
    {"data": HeldOut(SMALL.data), "influence": 1, "validation": 0.1},
    {"algorithm": FedAvg(aggregate=Median(), preprocess=Truncate()), "train_truncated": True},
    {"groups": RotatedImages(), "algorithm": PerCluster(FedAvg(), min_turns=1, min_part_size=2, min_gap=0.01)},
    {"evaluation": Evaluation(every=2, local_epochs=1, by_clients=True), "validation": 0.2, "late": Late(2, 3.0)},
    {"availability": OnOff(on=3.0, off=2.0), "participation": 0.7},
    {"availability": Both(Crashes(0.3, 2.0), OnOff(on=5.0, off=1.0)), **AHEAD},
    {"attack": PoisonedFL(every=2), "byzantine": 2},
    {"attack": Chameleon(), "byzantine": 1},
    {"attack": Replay(), "byzantine": 1, **AHEAD},
    {"attack": HoldBack(), "byzantine": 1, **AHEAD},
    {"attack": Scheduled(ALIE(), start=2, stop=6, every=2), "byzantine": 2, "additional_byzantine": 1},
    {"algorithm": Quorum(FedAvg(aggregate=Median()), k=3), "late": Late(1, 4.0), **SCATTERED},
]
PLANS = {
    "algorithms": [
        dataclasses.replace(
            SMALL,
            algorithm=algorithm,
            **({} if algorithm.traits.synchronous else {"until": Until(20), **SCATTERED}),
            **needed(algorithm, 20),
        )
        for algorithm in ALGORITHMS
    ],
    "settings": [dataclasses.replace(SMALL, **changes) for changes in SETTINGS],
}


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
    models = {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(run.glob("**/*.safetensors"))}
    last = (folder / "model").read_text()
    return (run / "history.jsonl").read_bytes(), json.dumps(summary), (run / "run.json").read_bytes(), last, models


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
    parser.add_argument("--of", nargs="+", choices=PLANS, default=[*PLANS])
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng, begun = random.Random(options.seed), time.monotonic()
    order = [plan for name in options.of for plan in PLANS[name]]
    rng.shuffle(order)
    undisturbed, moments, wrong = dict[str, Undisturbed](), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="phalanx-kills-") as made:
        for k, plan in enumerate(PLANS["algorithms"][:2]):  # imports and compiles what the forks need
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
