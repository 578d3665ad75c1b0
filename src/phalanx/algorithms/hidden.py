"""Models that the server does not see in the clear: clients transform what they send, and invert this on downloads.

Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under
Privacy Constraints", 2019, Section V-B: clients agree on an orthonormal transform P, send P(delta) instead of delta,
and invert it on downloads.  Norms, inner products and cosines are the same on both sides (Equation 45).

The server of `Permuted(A, seed)` is the server of A: its role does not use the seed, except that `init` hides the
initial model.  In a simulation one object performs both roles.  A real server runs A (`unhidden`), from an initial
model that a client has hidden and that the server has not seen in the clear (`phalanx.flower.hide`).

A server that knows both P(x) and x for one model x with distinct entries knows a permutation P.  The initial model is
such an x; so is a model whose entries it can guess.  `docs/clustered-fl.md` says which properties are hidden.
"""

from abc import abstractmethod
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from phalanx.algorithms.wrapper import Wrapper
from phalanx.core import Algorithm, Correction, Local, Pool, Setting, Vector
from phalanx.rng import generator


@dataclass(frozen=True)
class Hidden(Wrapper):
    """An algorithm whose clients transform what they send, and invert this on downloads.

    Args:
        algorithm: the algorithm on transformed vectors.
        seed: of the transform; known to the clients only.

    Raises:
        ValueError: the algorithm compares updates with training of the server's own, which needs models in the clear;
            or its server uses layers; or it hides models itself.
    """

    seed: int = 0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        own, name = type(self).__name__, type(self.algorithm).__name__
        if self.algorithm.traits.needs_reference:
            raise ValueError(
                f"{own} hides models from the server, and {name} has the server train them on examples of its own: "
                "use it alone, or choose an algorithm whose server has no examples."
            )
        if self.algorithm.traits.knows_layout:
            raise ValueError(
                f"{own} hides from the server which entry of a model is which, and {self.algorithm} has it look at "
                "layers or classes: use it alone, or without them."
            )
        if self.algorithm.traits.vectors != 1:
            raise ValueError(f"{own} hides models, and {name} sends more than a model: use it alone.")
        if (inner := hiding(self.algorithm)) is not None:
            raise ValueError(f"{own} is around {type(inner).__name__}, and one transform hides all: take either.")

    @abstractmethod
    def hidden(self, vector: Vector) -> Vector:
        """Return P x: a model, or a change to one, as the server sees it."""

    @abstractmethod
    def revealed(self, vector: Vector) -> Vector:
        """Return P^-1 y: the model, or the change to one, that the server sees as y."""

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[Any, Set[int]]:
        return self.algorithm.init(self.hidden(model), sizes)

    # Role: client

    @override
    def integrate(self, local: Local | None, download: Vector) -> Vector:
        return self.algorithm.integrate(self._revealed_local(local), self.revealed(download))

    @override
    def correction(self, local: Local | None, download: Vector, reach: float) -> Correction | None:
        if not self.traits.corrects:
            return None
        return self.algorithm.correction(self._revealed_local(local), self.revealed(download), reach)

    def _revealed_local(self, local: Local | None) -> Local | None:
        if local is None or self.traits.keeps != "training":
            return local
        return local._replace(delta=self.revealed(local.delta))

    @override
    def upload(self, delta: Vector, memory: Tensor | None) -> tuple[Vector, Tensor | None]:
        sent, memory = self.algorithm.upload(delta, memory)
        return self.hidden(sent), memory


def hiding(algorithm: Algorithm) -> Hidden | None:
    """Return the part of an algorithm that hides models from the server, within any wrapper; None if there is none."""
    while isinstance(algorithm, Wrapper) and not isinstance(algorithm, Hidden):
        algorithm = algorithm.algorithm
    return algorithm if isinstance(algorithm, Hidden) else None


def unhidden(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm of a server that must not know the transform: without `Permuted` and `Rotated`."""
    if isinstance(algorithm, Hidden):
        return algorithm.algorithm
    return replace(algorithm, algorithm=unhidden(algorithm.algorithm)) if isinstance(algorithm, Wrapper) else algorithm


@dataclass(frozen=True)
class Permuted(Hidden):
    """An algorithm whose clients permute the coordinates of what they send, in an order unknown to the server.

    Models are equal to the last bit to those without it, if the algorithm does not depend on the order: means, medians
    and trimmed means by coordinate, choices by norm, distance or cosine.  Rules that compute weights from norms or
    distances in floating point (clipping, geometric medians) agree to rounding.  Algorithms that use the layers of a
    model cannot be wrapped.

    The server still sees the value of every parameter and of every change, in one order for the whole run: their
    distribution, which parameters move together, and whose updates are alike.

    Args:
        algorithm: the algorithm on permuted vectors.
        seed: of the permutation; known to the clients only.
    """

    @override
    def hidden(self, vector: Vector) -> Vector:
        return vector[permutation(self.seed, len(vector))[0].to(vector.device)]

    @override
    def revealed(self, vector: Vector) -> Vector:
        return vector[permutation(self.seed, len(vector))[1].to(vector.device)]

    @override
    def pools(self, setting: Setting, state: Any = None) -> tuple[Pool, ...] | None:
        """See `Algorithm`: rules by coordinate do not see the order of the coordinates."""
        return super().pools(setting, state)


@dataclass(frozen=True)
class Rotated(Hidden):
    """An algorithm whose clients rotate what they send, by a random orthonormal transform unknown to the server.

    Every number that the server sees is a mixture of all parameters, so that single values and their distribution are
    hidden too; norms and angles are not, nor which updates are similar.  Models are equal to those without it, to
    rounding, if an algorithm depends on norms, distances and cosines only: means, Krum, geometric medians, clipping,
    clustering.  Rules by coordinate (medians, trimmed means, signs) work on other coordinates then, and give other
    results.

    The transform is S3 H S2 H S1: S are random signs and a random permutation, H is the Hartley transform, which is
    orthonormal and its own inverse in any dimension.  O(d log d) time, O(d) memory; it is computed in float64.

    Args:
        algorithm: the algorithm on rotated vectors.
        seed: of the transform; known to the clients only.
    """

    @override
    def hidden(self, vector: Vector) -> Vector:
        first, *others = self._mixers(vector)
        y = first.mix(vector.double())
        for mixer in others:
            y = mixer.mix(hartley(y))
        return y.to(vector.dtype)

    @override
    def revealed(self, vector: Vector) -> Vector:
        *others, last = self._mixers(vector)
        x = last.unmix(vector.double())
        for mixer in reversed(others):
            x = mixer.unmix(hartley(x))
        return x.to(vector.dtype)

    def _mixers(self, vector: Vector) -> list["Mixer"]:
        return [mixer.to(vector.device) for mixer in mixers(self.seed, len(vector))]

    @override
    def pools(self, setting: Setting, state: Any = None) -> tuple[Pool, ...] | None:
        """See `Algorithm`: a range of rotated coordinates is none of the model's."""
        inner = super().pools(setting, state)
        return inner and tuple(replace(pool, bounds="share") for pool in inner)


class Mixer(NamedTuple):
    """A permutation with signs."""

    order: Int[Tensor, "d"]
    signs: Float[Tensor, "d"]

    def mix(self, x: Float[Tensor, "d"]) -> Float[Tensor, "d"]:
        """Return S x."""
        return (x * self.signs)[self.order]

    def unmix(self, y: Float[Tensor, "d"]) -> Float[Tensor, "d"]:
        """Return S^-1 y."""
        x = torch.empty_like(y)
        x[self.order] = y
        return x * self.signs

    def to(self, device: torch.device) -> "Mixer":
        """Return the same on a device."""
        return Mixer(self.order.to(device), self.signs.to(device))


def hartley(x: Float[Tensor, "d"]) -> Float[Tensor, "d"]:
    """Return the orthonormal discrete Hartley transform, y_k = sum over n of x_n (cos + sin)(2 pi k n / d) / sqrt(d).

    Symmetric, and its own inverse.  O(d log d) for every d.
    """
    half = torch.fft.rfft(x, norm="ortho")
    rest = half[1 : (len(x) + 1) // 2].flip(0)  # the other half of the spectrum is the conjugate of this
    return torch.cat([half.real - half.imag, rest.real + rest.imag])


@lru_cache(maxsize=4)
def permutation(seed: int, d: int) -> tuple[Int[Tensor, "d"], Int[Tensor, "d"]]:
    """Return a random order of d coordinates, and its inverse."""
    order = torch.randperm(d, generator=generator(seed, "hidden order"))
    return order, order.argsort()


@lru_cache(maxsize=4)
def mixers(seed: int, d: int) -> tuple[Mixer, Mixer, Mixer]:
    """Return three random permutations of d coordinates with random signs."""

    def one(number: int) -> Mixer:
        rng = generator(seed, "hidden rotation", number)
        signs = torch.randint(0, 2, (d,), generator=rng).double() * 2 - 1
        return Mixer(torch.randperm(d, generator=rng), signs)

    return one(0), one(1), one(2)
