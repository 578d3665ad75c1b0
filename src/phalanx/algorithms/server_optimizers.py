"""Optimisers of the server, around any synchronous algorithm with one model.

Reddi et al., "Adaptive Federated Optimization", 2021: `FedAdagrad`, `FedAdam` and `FedYogi` are Algorithm 2.  Hsu, Qi
and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019:
`FedAvgM`.  The step of the algorithm within is the pseudo-gradient Delta_t = x' - x_t, and by coordinate

    FedAvgM:     m_t = beta m_{t-1} + Delta_t,                     x_{t+1} = x_t + eta m_t
    the others:  m_t = beta1 m_{t-1} + (1 - beta1) Delta_t,        x_{t+1} = x_t + eta m_t / (sqrt(v_t) + tau)
    FedAdagrad:  v_t = v_{t-1} + Delta_t^2
    FedAdam:     v_t = beta2 v_{t-1} + (1 - beta2) Delta_t^2
    FedYogi:     v_t = v_{t-1} - (1 - beta2) Delta_t^2 sign(v_{t-1} - Delta_t^2)

Where the papers leave a choice, or differ:

* The papers' Delta_t is a mean of updates.  Here it is whatever the algorithm within adds to its model: a robust
  aggregate, a majority of signs, a mean with noise.
* v_{-1} is tau^2, the least that Algorithm 2 allows; m_{-1} is zero.  No bias is corrected, as in Algorithm 2.
* Hsu et al. use Nesterov's form of momentum in their experiments, and the form above in their text.
* A lost round changes neither m nor v.

What a rule tolerates is a statement about Delta_t.  The division by sqrt(v_t) gives all coordinates a similar length,
so that a rule's small error in a coordinate in which the honest clients hardly move grows to the length of the others.
That length is bounded whatever is sent: |m_t| / sqrt(v_t) is at most `Adaptive.longest`, 2.35 for Adam's defaults, by
Cauchy and Schwarz.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from msgspec import Meta
from typing_extensions import override

from phalanx.algorithms.fedavg import FedAvg
from phalanx.algorithms.rounds import drift, stays_in_range
from phalanx.algorithms.wrapper import OneModelWrapper, OuterStateWithInnerVerdicts
from phalanx.core import Pool, Setting, Updates, Vector
from phalanx.fields import PositiveFloat
from phalanx.training.sgd import Schedule
from phalanx.wording import at_most


@dataclass(frozen=True)
class ServerOptimizerState(OuterStateWithInnerVerdicts):
    """The server's state of a `ServerOptimizer`."""

    m: Vector  # m_t, the momentum
    v: Vector  # v_t, the mean or the sum of squares; as it began where an optimiser has none


@dataclass(frozen=True)
class ServerOptimizer(OneModelWrapper):
    """The step of the algorithm within as a pseudo-gradient, of which an optimiser makes the step of the model.

    Args:
        algorithm: a synchronous one with one model for all clients.
        server_lr: eta, or its schedule by version.
    """

    server_lr: PositiveFloat | Schedule = 1.0

    @property
    def first_square(self) -> float:
        """The entries of v_{-1}."""
        return 0.0

    @abstractmethod
    def moments(self, m: Vector, v: Vector, delta: Vector) -> tuple[Vector, Vector]:
        """Return m_t and v_t, given m_{t-1}, v_{t-1} and Delta_t."""

    @abstractmethod
    def direction(self, m: Vector, v: Vector) -> Vector:
        """Return what the model moves by, up to the learning rate."""

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[ServerOptimizerState, Set[int]]:
        inner, ready = self.algorithm.init(model, sizes)
        m, v = torch.zeros_like(inner.model), torch.full_like(inner.model, self.first_square)
        return ServerOptimizerState(inner, m, v), ready

    @override
    def step(self, state: ServerOptimizerState, updates: Updates) -> tuple[ServerOptimizerState, Set[int]]:
        inner, ready = self.algorithm.step(state.inner, updates)
        m, v = self.moments(state.m, state.v, inner.model - state.model)
        lr = self.server_lr(state.version) if isinstance(self.server_lr, Schedule) else self.server_lr
        return ServerOptimizerState(_with_model(inner, state.model + lr * self.direction(m, v)), m, v), ready

    @override
    def pools(self, setting: Setting, state: Any = None) -> tuple[Pool, ...] | None:
        """See `Algorithm`: moments add up over rounds."""
        inner = super().pools(setting, state)
        return inner and tuple(replace(pool, bounds="share", beyond=self.beyond) for pool in inner)

    @property
    def beyond(self) -> str:
        """What a small shift of each round can come to, in words."""
        return "The server's moments add up over rounds: a small shift in each can be a large one after many."


def _with_model(state: Any, model: Vector) -> Any:
    """Return the state of an algorithm, or of a wrapper around it, with another model."""
    if isinstance(state, OuterStateWithInnerVerdicts):
        return replace(state, inner=_with_model(state.inner, model))
    return state._replace(model=model) if hasattr(state, "_replace") else replace(state, model=model)


@dataclass(frozen=True)
class FedAvgM(ServerOptimizer):
    """Momentum of the server.

    Args:
        algorithm: a synchronous one with one model for all clients.
        server_lr: eta, or its schedule by version. A constant step adds up to server_lr / (1 - momentum) of itself.
        momentum: beta, in [0, 1).
    """

    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9

    @override
    def moments(self, m: Vector, v: Vector, delta: Vector) -> tuple[Vector, Vector]:
        return self.momentum * m + delta, v

    @override
    def direction(self, m: Vector, v: Vector) -> Vector:
        return m

    @override
    def pools(self, setting: Setting, state: Any = None) -> tuple[Pool, ...] | None:
        """See `Algorithm`: each step of the algorithm within comes to 1 / (1 - beta) of itself at most."""
        inner, lr = self.algorithm, self.server_lr
        pools = super().pools(setting, state)
        if not pools or type(inner) is not FedAvg or isinstance(lr, Schedule) or not stays_in_range(inner.rule):
            return pools
        beyond = drift("Momentum repeats each step.", inner.rule, lr * inner.server_lr / (1 - self.momentum))
        return tuple(replace(pool, bounds="shift", beyond=beyond) for pool in pools)


@dataclass(frozen=True)
class Adaptive(ServerOptimizer):
    """A learning rate of the server for each parameter, from the squares of its past steps.

    Args:
        algorithm: a synchronous one with one model for all clients.
        server_lr: eta, or its schedule by version: about the length of each parameter's step.
        beta1: share of the past in the momentum, in [0, 1).
        tau: added to the root of the squares, positive; large values adapt less.
    """

    server_lr: PositiveFloat | Schedule = 0.1
    beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    tau: PositiveFloat = 1e-3

    @property
    @override
    def first_square(self) -> float:
        return self.tau**2

    @abstractmethod
    def squares(self, v: Vector, square: Vector) -> Vector:
        """Return v_t, given v_{t-1} and Delta_t^2."""

    @override
    def moments(self, m: Vector, v: Vector, delta: Vector) -> tuple[Vector, Vector]:
        return self.beta1 * m + (1 - self.beta1) * delta, self.squares(v, delta.square())

    @override
    def direction(self, m: Vector, v: Vector) -> Vector:
        return m / (v.sqrt() + self.tau)

    @property
    @abstractmethod
    def kept(self) -> tuple[float, float]:
        """The largest shares b of v_{t-1} and c of Delta_t^2 for which v_t is at least b v_{t-1} + c Delta_t^2."""

    @property
    def longest(self) -> float | None:
        """The least bound on |m_t| / sqrt(v_t); None if there is none.

        With b and c as in `kept`, |m_t| is (1 - beta1) times the sum of beta1^k |Delta_{t-k}| at most, and v_t is c
        times the sum of b^k Delta_{t-k}^2 at least.  The bound is that of Cauchy and Schwarz.
        """
        before, now = self.kept
        share = self.beta1**2 / before if self.beta1 and before > 0 else float(self.beta1 > 0)
        return (1 - self.beta1) / math.sqrt(now * (1 - share)) if now > 0 and share < 1 else None

    @property
    @override
    def beyond(self) -> str:
        """See `ServerOptimizer`: the division bounds each step, whatever the algorithm within adds to its model."""
        if self.longest is None or isinstance(self.server_lr, Schedule):
            return super().beyond
        most = f"{at_most(self.server_lr * self.longest)} H".removeprefix("1 ")
        return f"{super().beyond} Whatever is sent, no entry of the model moves by more than {most} in H steps."


@dataclass(frozen=True)
class FedAdagrad(Adaptive):
    """Adagrad on the server: steps that only get shorter.

    Args:
        algorithm: a synchronous one with one model for all clients.
        server_lr: eta, or its schedule by version.
        beta1: share of the past in the momentum, in [0, 1); 0 in the paper's experiments.
        tau: added to the root of the sum of squares, positive; large values adapt less.
    """

    beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.0

    @override
    def squares(self, v: Vector, square: Vector) -> Vector:
        return v + square

    @property
    @override
    def kept(self) -> tuple[float, float]:
        return 1.0, 1.0


@dataclass(frozen=True)
class FedAdam(Adaptive):
    """Adam on the server.

    Args:
        algorithm: a synchronous one with one model for all clients.
        server_lr: eta, or its schedule by version: about the length of each parameter's step.
        beta1: share of the past in the momentum, in [0, 1).
        tau: added to the root of the mean of squares, positive; large values adapt less.
        beta2: share of the past in the mean of squares, in [0, 1).
    """

    beta2: Annotated[float, Meta(ge=0, lt=1)] = 0.99

    @override
    def squares(self, v: Vector, square: Vector) -> Vector:
        return self.beta2 * v + (1 - self.beta2) * square

    @property
    @override
    def kept(self) -> tuple[float, float]:
        return self.beta2, 1 - self.beta2


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """Yogi on the server: as Adam, but the mean of squares changes by the present square at most.

    Args:
        algorithm: a synchronous one with one model for all clients.
        server_lr: eta, or its schedule by version: about the length of each parameter's step.
        beta1: share of the past in the momentum, in [0, 1).
        tau: added to the root of the mean of squares, positive; large values adapt less.
        beta2: one minus the share of the present square by which the mean can change, in [0, 1).
    """

    @override
    def squares(self, v: Vector, square: Vector) -> Vector:
        return v - (1 - self.beta2) * square * (v - square).sign()

    @property
    @override
    def kept(self) -> tuple[float, float]:
        """See `Adaptive`: of a square below the mean, which loses 1 - beta2 of it, any c with b = beta2 - c.

        Of such c up to 1 - beta2, the one that makes `longest` least.
        """
        now = min(1 - self.beta2, self.beta2 - self.beta1 * math.sqrt(self.beta2))
        return self.beta2 - now, now
