"""Differential privacy of clients: each upload is clipped in norm, and Gaussian noise is added before it is sent.

The Gaussian mechanism, as in Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", 2014, Appendix A;
of whole clients, as in McMahan et al., "Learning Differentially Private Recurrent Language Models", 2018, but with the
noise added by each client and not by the server, which is not trusted here.  `phalanx.runs.accounting` computes the
guarantee; `docs/privacy.md` has its cost, and what it does not hide.

Source of the noise: in a simulation the stream "privacy" of `seed`, with the upload's content in its name, so that a
run is the same to the bit each time, and no two different uploads share their noise.  On a deployment the operating
system's entropy, since anyone who knows the seed can subtract the noise: `secretly` changes an algorithm in this way,
and a `Participant` of `phalanx.flower` calls it, as does a `Coordinator` for noise of the server.

An update that is not finite is sent as zero, with noise: an invalid update would reveal that training diverged.
"""

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from phalanx.algorithms.wrapper import Wrapper
from phalanx.core import Algorithm, InfeasibleError, Pool, Setting, Vector
from phalanx.fields import NonNegativeFloat, PositiveFloat
from phalanx.rng import Entropy, numpy_generator


class Noisy(Wrapper):
    """A wrapper that draws noise: from the stream of `seed`, or from the operating system if that is None."""

    seed: int | None


@dataclass(frozen=True)
class Private(Noisy):
    """Clipping of uploads to a norm, and Gaussian noise on them, by each client; the server is unchanged.

    It can be inside `Quorum` and `Permuted`, and around them.

    Args:
        algorithm: the algorithm on protected uploads.
        clip: the largest norm of an upload before noise is added.
        noise_multiplier: standard deviation of the noise in each entry, as a multiple of `clip`; 0 clips only, and
            guarantees nothing.
        seed: of the noise in a simulation; None: the noise is the operating system's, and no run can be repeated.

    Raises:
        InfeasibleError: the algorithm needs the exact loss of each client, which is not protected.
    """

    clip: PositiveFloat
    noise_multiplier: NonNegativeFloat
    seed: int | None = 0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.traits.exact_losses:
            raise InfeasibleError(
                f"{type(self.algorithm).__name__} needs the exact loss of each client, which reveals what the noise "
                "on updates hides of its examples. Choose an algorithm that does not, or leave Private out."
            )

    @override
    def upload(self, delta: Vector, memory: Tensor | None) -> tuple[Vector, Tensor | None]:
        sent, memory = self.algorithm.upload(delta, memory)
        return self.protected(sent), memory

    def protected(self, sent: Vector) -> Vector:
        """Return the protected upload for `sent`."""
        x = sent.detach().cpu().double().numpy()
        peak = float(np.abs(x).max(initial=0.0))  # dividing by it, no square can overflow
        finite = 0 < peak < math.inf
        norm = peak * float(np.linalg.norm(x / peak)) if finite else 0.0
        clipped = x * min(1.0, self.clip / norm) if finite else np.zeros_like(x)
        noisy = clipped + self.noise_multiplier * self.clip * self._noise(x) if self.noise_multiplier else clipped
        return torch.from_numpy(noisy).to(sent.device, sent.dtype)

    def _noise(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return standard normal numbers of the shape of `x`."""
        if self.seed is None:
            return Entropy().standard_normal(len(x))
        return numpy_generator(self.seed, "privacy", hashlib.sha256(x.tobytes()).hexdigest()).standard_normal(len(x))

    @override
    def pools(self, setting: Setting, state: Any = None) -> tuple[Pool, ...] | None:
        """See `Algorithm`: of updates with noise, between which ranges are."""
        return super().pools(setting, state)


def secretly(algorithm: Algorithm[Any]) -> Algorithm[Any]:
    """Return the algorithm with noise that nobody can recompute, wherever in it noise is drawn."""
    if (challenge := getattr(algorithm, "challenge", None)) is not None:
        algorithm = replace(algorithm, challenge=replace(challenge, seed=None))  # type: ignore[type-var]
    if not isinstance(algorithm, Wrapper):
        return algorithm
    inner = secretly(algorithm.algorithm)
    if isinstance(algorithm, Noisy):
        return replace(algorithm, algorithm=inner, seed=None)  # type: ignore[call-arg]  # a field of each subclass
    return algorithm if inner is algorithm.algorithm else replace(algorithm, algorithm=inner)


def privately(algorithm: Algorithm[Any]) -> bool:
    """Return whether `Private` is somewhere in an algorithm."""
    return isinstance(algorithm, Private) or (isinstance(algorithm, Wrapper) and privately(algorithm.algorithm))
