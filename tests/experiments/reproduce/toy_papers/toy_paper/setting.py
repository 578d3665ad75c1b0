"""What the experiments share, and attackers that misbehave in ways that only tests want."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from phalanx.attacks import Attack
from phalanx.core import Until
from phalanx.data import Digits
from phalanx.models import MLP
from phalanx.runs.plan import Run
from phalanx.training.sgd import LocalSGD

STEPS = {"quick": 3, "paper": 6}
PAUSE, MARKS = "TOY_PAUSE", "TOY_MARKS"  # environment: seconds of each step; a folder that takes a mark for each run


def base(scale, seed):
    return Run(
        data=Digits(), clients=5, model=MLP((8,)), training=LocalSGD(epochs=1, batch_size=32, lr=0.2),
        until=Until(steps=STEPS[scale]), seed=seed,
    )  # fmt: skip


@dataclass(frozen=True)
class Noise(Attack):
    """Sends noise, and takes its time; leaves a mark for each run that begins."""

    std: float = 1.0

    def forge(self, update, knowledge, rng):
        if update.version == 0 and MARKS in os.environ:
            handle = Path(os.environ[MARKS]) / f"{time.monotonic_ns()}-{os.getpid()}"
            handle.touch()
        time.sleep(float(os.environ.get(PAUSE, "0")))
        return self.std * update.delta.new_empty(len(update.delta)).normal_(generator=rng)


@dataclass(frozen=True)
class Deadly(Attack):
    """Kills its process in the second round, as an operating system short of memory would."""

    def forge(self, update, knowledge, rng):
        if update.version == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return update.delta


@dataclass(frozen=True)
class Broken(Attack):
    """Has a mistake."""

    def forge(self, update, knowledge, rng):
        return update.no_such_field
