"""Parts of runs that end processes."""

import os
import signal
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from phalanx.attacks import Attack
from phalanx.models import Model


def die():
    """Ends this process as an operating system short of memory would."""
    os.kill(os.getpid(), signal.SIGKILL)


class _Mortal(nn.Linear):
    deadly: "Mortal"

    def forward(self, x):
        if self.training and os.getpid() != self.deadly.home and self.deadly.strikes():
            die()
        return super().forward(x)


@dataclass(frozen=True)
class Mortal(Model):
    """A linear model that ends the worker that trains it, as often as there are files in a folder."""

    folder: str
    home: int = field(default_factory=os.getpid)  # the process that made it, whose pre-flight lives

    def build(self, shape, classes):
        layer = _Mortal(shape[0], classes)
        layer.deadly = self
        return layer

    def strikes(self):
        """Whether it is to be now; takes a file away."""
        for file in Path(self.folder).iterdir():
            try:
                file.unlink()
            except FileNotFoundError:  # another process was faster
                continue
            return True
        return False


@dataclass(frozen=True)
class Deadly(Attack):
    """Ends the process of the simulation in the second round, as often as there are files in a folder."""

    folder: str = ""

    def forge(self, update, knowledge, rng):
        if update.version == 1 and Mortal(self.folder).strikes():
            die()
        return update.delta


@dataclass(frozen=True)
class Complaining(Attack):
    """Warns of itself in each round."""

    def forge(self, update, knowledge, rng):
        warnings.warn("something is odd", stacklevel=1)
        return update.delta
