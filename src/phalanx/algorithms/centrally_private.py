"""Differential privacy of clients by a trusted server: it clips each update, and adds Gaussian noise to their mean.

McMahan, Ramage, Talwar and Zhang, "Learning Differentially Private Recurrent Language Models", 2018, with one norm for
the whole update; the norm follows a quantile of the clients' norms as in Andrew, Thakkar, McMahan and Ramaswamy,
"Differentially Private Learning with Adaptive Clipping", 2021, Algorithm 1.  In a round of n updates

    Delta_i' = Delta_i min(1, C / |Delta_i|),      Delta = mean of Delta_i' + N(0, (z_Delta C / n)^2) for each entry
    b_i = 1 if |Delta_i| <= C, else 0,             b = 1/2 + (sum of (b_i - 1/2) + N(0, sigma_b^2)) / n
    C <- C exp(-eta (b - gamma)),                  z_Delta = (z^-2 - (2 sigma_b)^-2)^(-1/2)

The mean and the count together are one Gaussian mechanism of multiplier z, whose composition over rounds
`phalanx.runs.accounting.central_epsilon` computes; `docs/privacy.md` says what that guarantees, and what not.

Where it differs from the papers:

* n is the number of updates that came, not the number that is expected.  So participation is not hidden.
* Sizes are not hidden either: where they give weights, "1/n" of the noise is the largest share of a client.
* The paper draws each client by itself; here a fixed number is drawn (`phalanx.engine.Participation`).
* What the server does with the mean (`FedAdam`, say) is within, and needs no further noise.

Source of the noise: in a simulation the stream "central privacy" of `seed`, with version, model and clients in its
name; a `Coordinator` of `phalanx.flower` takes the operating system's entropy instead.

Against Byzantine clients a mean of clipped updates gives no guarantee: f of n move it by up to f C / n in any direction
in every round.  C itself stays among the honest norms as long as the share of attackers is below gamma and 1 - gamma;
more of them can drive it to zero, or up without limit.  Robust rules are refused: the noise is made for a mean.
"""

import hashlib
import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from typing_extensions import override

from phalanx.aggregators import Mean
from phalanx.algorithms.fedavg import FedAvg
from phalanx.algorithms.hidden import Hidden
from phalanx.algorithms.private import Noisy, Private
from phalanx.algorithms.server_optimizers import ServerOptimizer
from phalanx.algorithms.wrapper import OneModelWrapper, OuterStateWithInnerVerdicts, Wrapper
from phalanx.core import Algorithm, InfeasibleError, Pool, Setting, Traits, Updates, Vector
from phalanx.fields import NonNegativeFloat, PositiveFloat
from phalanx.numerics.linalg import norms, shortened
from phalanx.rng import Entropy, numpy_generator
from phalanx.weighting import AsReported


@dataclass(frozen=True)
class CentrallyPrivateState(OuterStateWithInnerVerdicts):
    """The server's state of `CentrallyPrivate`."""

    norm: float  # C, to which the updates of the next round are clipped


@dataclass(frozen=True)
class CentrallyPrivate(OneModelWrapper, Noisy):
    """Clipping of updates and Gaussian noise on their mean, by a server that is trusted with single updates.

    Only models are protected, not the record of the run, which has figures of single clients.

    Args:
        algorithm: `FedAvg` with the mean and bounded weights; an optimiser of the server may be around it.
        clip: C, the norm to which updates are clipped in the first round.
        noise_multiplier: z, the standard deviation of the noise as a multiple of what one client can change; 0 clips
            only, and guarantees nothing.
        quantile: gamma, in [0, 1], the share of the clients whose updates are to be shorter than C. Null: C stays.
        clip_rate: eta, how fast C follows the quantile, positive.
        count_noise: sigma_b / n, the standard deviation of the noise on the share of short updates; 1/20 in the paper.
        seed: of the noise in a simulation; None: the noise is the operating system's, and no run can be repeated.

    Raises:
        InfeasibleError: the algorithm reveals more of single updates than their mean, or one client can have most of
            the weight.
    """

    clip: PositiveFloat
    noise_multiplier: NonNegativeFloat
    quantile: Annotated[float, Meta(ge=0, le=1)] | None = 0.5
    clip_rate: PositiveFloat = 0.2
    count_noise: PositiveFloat = 0.05
    seed: int | None = 0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        _check_mean(self.algorithm)

    @property
    @override
    def traits(self) -> Traits:
        """See `Algorithm`: it shows the norm, too."""
        inner = super().traits
        return inner._replace(observed=(*inner.observed, "norm"))

    # Role: server

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[CentrallyPrivateState, Set[int]]:
        self._check(len(sizes))
        inner, ready = self.algorithm.init(model, sizes)
        return CentrallyPrivateState(inner, self.clip), ready

    @override
    def step(self, state: CentrallyPrivateState, updates: Updates) -> tuple[CentrallyPrivateState, Set[int]]:
        self._check(n := len(updates))
        weights = self.algorithm.weights(state.inner, updates.clients)
        share, lengths = max(weights.values()) / sum(weights.values()), norms(updates.deltas)
        drawn = self._noise(state, updates)
        noise = torch.from_numpy(self._multiplier(n) * state.norm * share * drawn[:-1])
        rows = shortened(updates.deltas, state.norm, lengths)
        rows += noise.to(rows.device, rows.dtype)  # the same on each row, so that their mean has it once
        inner, ready = self.algorithm.step(state.inner, replace(updates, deltas=rows))
        return CentrallyPrivateState(inner, self._next_norm(state.norm, lengths.tolist(), float(drawn[-1]))), ready

    def _multiplier(self, n: int) -> float:
        """Return z_Delta for a round of n updates."""
        z = self.noise_multiplier
        if self.quantile is None or not z:
            return z
        return float((z**-2 - (2 * self.count_noise * n) ** -2) ** -0.5)

    def _next_norm(self, norm: float, lengths: list[float], drawn: float) -> float:
        """Return C of the next round, given C, the norms of the updates, and a standard normal number."""
        if self.quantile is None:
            return norm
        short = sum(length <= norm for length in lengths) / len(lengths)
        noisy = short + (self.count_noise * drawn if self.noise_multiplier else 0.0)
        return norm * math.exp(-self.clip_rate * (noisy - self.quantile))

    def _noise(self, state: CentrallyPrivateState, updates: Updates) -> NDArray[np.float64]:
        """Return standard normal numbers: one for each entry of the mean, and one for the count."""
        count = updates.deltas.shape[1] + 1
        if not self.noise_multiplier:
            return np.zeros(count)
        if self.seed is None:
            return Entropy().standard_normal(count)
        content = hashlib.sha256(state.model.detach().cpu().double().numpy().tobytes()).hexdigest()
        name = (self.seed, "central privacy", state.version, content, ",".join(map(str, updates.clients)))
        return numpy_generator(*name).standard_normal(count)

    @override
    def pools(self, setting: Setting, state: CentrallyPrivateState | None = None) -> tuple[Pool, ...] | None:
        """See `Algorithm`: the noise on the count must leave some of z for the mean."""
        inner = super().pools(setting, state)
        return inner and tuple(replace(pool, refused=self._too_noisy(setting.asked) or pool.refused) for pool in inner)

    def _too_noisy(self, m: int) -> str:
        """Return why rounds of m updates need more noise than there is; "" if they do not."""
        z, rest = self.noise_multiplier, 2 * self.count_noise * m
        if self.quantile is None or z < rest:
            return ""
        return (
            f"A noise_multiplier of {z:g} for mean and count needs more noise on the count than count_noise = "
            f"{self.count_noise:g} of {m} updates: raise count_noise above {z / (2 * m):.3g}, or set quantile to "
            "null, so that nothing is counted."
        )

    def _check(self, m: int) -> None:
        """Raise `InfeasibleError` if rounds of m updates need more noise than there is."""
        if why := self._too_noisy(m):
            raise InfeasibleError(why)


def _check_mean(algorithm: Algorithm) -> None:
    """Raise `InfeasibleError` if a server that runs this shows more of single updates than their bounded mean."""
    while isinstance(algorithm, (ServerOptimizer, Hidden, Private)):
        algorithm = algorithm.algorithm
    if type(algorithm) is not FedAvg or type(algorithm.aggregate) is not Mean:
        raise InfeasibleError(
            f"CentrallyPrivate adds noise for a mean of clipped updates, and {algorithm.title} reveals more of single "
            "updates than that. Choose FedAvg with the rule Mean, or Private, whose clients protect each update."
        )
    if isinstance(algorithm.preprocess, AsReported):
        raise InfeasibleError(
            "CentrallyPrivate makes the noise large enough for the largest weight, and by AsReported one client can "
            "report any. Set preprocess to Ignore, or to Truncate."
        )


def check_not_central(name: str, algorithm: Algorithm) -> None:
    """Raise `InfeasibleError` if `CentrallyPrivate` is in an algorithm around which a wrapper uses single updates.

    Args:
        name: of the wrapper.
        algorithm: the one within.
    """
    while isinstance(algorithm, Wrapper):
        if isinstance(algorithm, CentrallyPrivate):
            raise InfeasibleError(
                f"{name} serves models that follow from single updates, which the noise of CentrallyPrivate does not "
                "protect. Choose Private, whose clients protect each update."
            )
        algorithm = algorithm.algorithm
