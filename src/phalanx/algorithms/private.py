"""Clients that hide what they hold: each upload is clipped in norm, and Gaussian noise is added before it leaves.

The Gaussian mechanism, as in Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", 2014, Appendix A;
of whole clients, as in McMahan et al., "Learning Differentially Private Recurrent Language Models", 2018, but with the
noise added by each client and not by the server, which is not trusted here.  `phalanx.runs.accounting` says what that
guarantees, and `docs/privacy.md` what it costs and what it does not hide.

Where the noise comes from.  In a simulation from the stream "privacy" of `seed`, named besides by what is sent, so that
a run has the same bits each time, and no two different uploads share their noise.  On a deployment from the operating
system's entropy, since whoever knows the seed can subtract the noise: `secretly` makes that of an algorithm, and a
`Participant` of `phalanx.flower` asks for it.

An update that is not finite is sent as zero, with noise: a refusal by the guard would tell that training diverged.
"""

import hashlib
import math
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phalanx.algorithms.wrapper import Wrapper
from phalanx.core import Algorithm, InfeasibleError, Vector
from phalanx.rng import numpy_generator


@dataclass(frozen=True)
class Private(Wrapper):
    """Clients clip what they upload to a norm, and add Gaussian noise to it; the server is that of the algorithm.

    It composes: inside `Quorum` and `Permuted`, and around them.

    Args:
        algorithm: what is done otherwise.
        clip: the norm that an upload has at most before noise is added.
        noise_multiplier: standard deviation of the noise in each entry, as a multiple of `clip`; 0 clips only, and
            guarantees nothing.
        seed: of the noise in a simulation; None: the noise is the operating system's, and no run can be repeated.

    Raises:
        InfeasibleError: the algorithm needs the exact loss of each client, which is not protected.
    """

    clip: float
    noise_multiplier: float
    seed: int | None = 0

    def __post_init__(self) -> None:
        if not 0 < self.clip < math.inf:
            raise ValueError(f"clip must be positive and finite, got {self.clip}.")
        if not 0 <= self.noise_multiplier < math.inf:
            raise ValueError(f"noise_multiplier must be at least 0 and finite, got {self.noise_multiplier}.")
        if self.exact_losses:
            raise InfeasibleError(
                f"{type(self.algorithm).__name__} needs the exact loss of each client, and that tells of its examples "
                "what the noise on updates is to hide. Choose an algorithm that does not, or leave Private out."
            )

    def upload(self, delta: Vector, memory: Tensor | None) -> tuple[Vector, Tensor | None]:
        """See `Algorithm`."""
        sent, memory = self.algorithm.upload(delta, memory)
        return self.protected(sent), memory

    def protected(self, sent: Vector) -> Vector:
        """What leaves the client in place of `sent`."""
        x = sent.detach().cpu().double().numpy()
        peak = float(np.abs(x).max(initial=0.0))  # dividing by it, no square can overflow
        finite = 0 < peak < math.inf
        norm = peak * float(np.linalg.norm(x / peak)) if finite else 0.0
        clipped = x * min(1.0, self.clip / norm) if finite else np.zeros_like(x)
        noisy = clipped + self.noise_multiplier * self.clip * self._noise(x) if self.noise_multiplier else clipped
        return torch.from_numpy(noisy).to(sent.device, sent.dtype)

    def _noise(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Standard normal numbers, as many as `x` has."""
        if self.seed is None:
            return entropy(len(x))
        return numpy_generator(self.seed, "privacy", hashlib.sha256(x.tobytes()).hexdigest()).standard_normal(len(x))


def entropy(count: int) -> NDArray[np.float64]:
    """Standard normal numbers from the operating system's entropy, by the transform of Box and Muller (1958).

    No generator of NumPy or torch will do: their numbers can be computed from a few that are seen, or from 32 bits.
    """
    half = (count + 1) // 2
    bits = np.frombuffer(os.urandom(16 * half), dtype=np.uint64).reshape(2, half) >> np.uint64(11)
    u = (bits.astype(np.float64) + 0.5) * 2.0**-53  # in (0, 1)
    radius, angle = np.sqrt(-2.0 * np.log(u[0])), 2.0 * np.pi * u[1]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def secretly(algorithm: Algorithm[Any]) -> Algorithm[Any]:
    """The algorithm, with noise that nobody can compute again, wherever in it `Private` is."""
    if not isinstance(algorithm, Wrapper):
        return algorithm
    inner = secretly(algorithm.algorithm)
    if isinstance(algorithm, Private):
        return replace(algorithm, algorithm=inner, seed=None)
    return algorithm if inner is algorithm.algorithm else replace(algorithm, algorithm=inner)


def privately(algorithm: Algorithm[Any]) -> bool:
    """Whether `Private` is somewhere in an algorithm."""
    return isinstance(algorithm, Private) or (isinstance(algorithm, Wrapper) and privately(algorithm.algorithm))
