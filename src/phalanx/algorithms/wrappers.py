"""Algorithms around algorithms: what the server sees is hidden from it, or it steps when enough clients have arrived.

`Quorum` turns rounds into arrivals.  `Permuted` and `Rotated` are algorithms whose server does not see the coordinates
of models.  Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization
under Privacy Constraints", 2019, Section V-B: clients agree on an orthonormal transform P, send P(delta) instead of
delta, and undo it on what they receive.  Norms, inner products and cosines are the same on both sides (Equation 45).

The server of `Permuted(A, seed)` is the server of A: nothing of its role looks at the seed, except that `init` hides
the initial model.  In a simulation one object plays both roles.  A real server runs A (`unhidden`), from an initial
model that a client has hidden and that the server has not seen in the clear (`phalanx.flower.hide`).

A server that knows both P(x) and x for one model x with distinct entries knows a permutation P.  The initial model is
such an x; so is a model whose entries it can guess.  See `docs/clustered-fl.md` for what is hidden and what is not.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from phalanx.aggregators import Aggregator
from phalanx.aggregators.aggregator import check_rows
from phalanx.algorithms.fedasync import told_of_age
from phalanx.core import Algorithm, Gathering, Infeasible, Local, Updates, Vector, Verdict
from phalanx.rng import generator


@dataclass(frozen=True)
class Wrapper(Algorithm[Any]):
    """An algorithm around another one: what is asked of it is asked of that one.

    Args:
        algorithm: the other one.
    """

    algorithm: Algorithm

    # What the engine, the history and attackers ask an algorithm for

    @property
    def synchronous(self) -> bool:  # type: ignore[override]  # a class variable elsewhere
        """That of the algorithm."""
        return self.algorithm.synchronous

    @property
    def observed(self) -> tuple[str, ...]:  # type: ignore[override]  # a class variable elsewhere
        """Those of the algorithm."""
        return self.algorithm.observed

    @property
    def exact_losses(self) -> bool:  # type: ignore[override]  # a class variable elsewhere
        """Whether the algorithm asks for them."""
        return self.algorithm.exact_losses

    @property
    def aggregate(self) -> object:
        """The algorithm's rule, None if it has none."""
        return getattr(self.algorithm, "aggregate", None)

    @property
    def preprocess(self) -> object:
        """What declared sizes count for in the algorithm, None if it does not say."""
        return getattr(self.algorithm, "preprocess", None)

    @property
    def remembers(self) -> bool:
        """Whether the algorithm's client role does."""
        return self.algorithm.remembers

    @property
    def knows_layout(self) -> bool:
        """Whether the algorithm does."""
        return self.algorithm.knows_layout

    def gathering(self, state: Any) -> Gathering | None:
        """What the algorithm waits for."""
        return self.algorithm.gathering(state)

    def check_round(self, m: int, population: int) -> None:
        """Looks whether rounds of m updates will do for the algorithm."""
        self.algorithm.check_round(m, population)


@dataclass(frozen=True)
class Hidden(Wrapper):
    """An algorithm whose clients transform what they send, and undo it on what they receive.

    Args:
        algorithm: what is done otherwise.
        seed: of the transform; known to the clients only.

    Raises:
        ValueError: the algorithm compares updates with training of the server's own, which needs models in the clear;
            or has the server look at layers; or hides models itself.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        own, name = type(self).__name__, type(self.algorithm).__name__
        if self.algorithm.needs_reference:
            raise ValueError(
                f"{own} hides models from the server, and {name} has the server train them on examples of its own: "
                "use it alone, or choose an algorithm whose server has no examples."
            )
        if self.algorithm.knows_layout:
            raise ValueError(
                f"{own} hides from the server which entry of a model is which, and {self.algorithm} has it look at "
                "layers or classes: use it alone, or without them."
            )
        if (inner := hiding(self.algorithm)) is not None:
            raise ValueError(f"{own} is around {type(inner).__name__}, and one transform hides all: take either.")

    @abstractmethod
    def hidden(self, vector: Vector) -> Vector:
        """P x: a model, or a change to one, as the server sees it."""

    @abstractmethod
    def revealed(self, vector: Vector) -> Vector:
        """P^-1 y: what the server sees, as a model or a change to one."""

    # Role: server, that of the algorithm

    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[Any, Set[int]]:
        """See `Algorithm`."""
        return self.algorithm.init(self.hidden(model), sizes)

    def step(self, state: Any, updates: Updates) -> tuple[Any, Set[int]]:
        """See `Algorithm`.  Models in the state are hidden."""
        return self.algorithm.step(state, updates)

    def download(self, state: Any, client: int) -> Vector:
        """See `Algorithm`."""
        return self.algorithm.download(state, client)

    def offers(self, state: Any, client: int) -> Mapping[int, Vector]:
        """See `Algorithm`."""
        return self.algorithm.offers(state, client)

    def join(self, state: Any, client: int, size: int) -> Any:
        """See `Algorithm`."""
        return self.algorithm.join(state, client, size)

    # Role: client

    def integrate(self, local: Local | None, download: Vector) -> Vector:
        """See `Algorithm`."""
        if local is not None:
            local = local._replace(delta=self.revealed(local.delta))
        return self.algorithm.integrate(local, self.revealed(download))

    def upload(self, delta: Vector, memory: Tensor | None) -> tuple[Vector, Tensor | None]:
        """See `Algorithm`."""
        sent, memory = self.algorithm.upload(delta, memory)
        return self.hidden(sent), memory


def hiding(algorithm: Algorithm) -> Hidden | None:
    """What hides models from the server in an algorithm, whatever is around it; None if nothing does."""
    while isinstance(algorithm, Wrapper) and not isinstance(algorithm, Hidden):
        algorithm = algorithm.algorithm
    return algorithm if isinstance(algorithm, Hidden) else None


def unhidden(algorithm: Algorithm) -> Algorithm:
    """The same for a server that is not to know how models are hidden from it: without `Permuted` and `Rotated`."""
    if isinstance(algorithm, Hidden):
        return algorithm.algorithm
    return replace(algorithm, algorithm=unhidden(algorithm.algorithm)) if isinstance(algorithm, Wrapper) else algorithm


@dataclass(frozen=True)
class Permuted(Hidden):
    """Clients permute the coordinates of what they send, in an order that they share; the server is not told it.

    Models come out to the last bit as without, wherever a permutation changes nothing for the algorithm: means,
    medians and trimmed means by coordinate, choices by norm, distance or cosine.  What weighs by norms or distances in
    floating point (clipping, geometric medians) agrees to rounding.  Algorithms that know the layers of a model do not
    fit in.

    The server still sees the value of every parameter and of every change, in one order for the whole run: their
    distribution, which parameters move together, and whose updates are alike.

    Args:
        algorithm: what is done otherwise.
        seed: of the permutation; known to the clients only.
    """

    def hidden(self, vector: Vector) -> Vector:
        """See `Hidden`."""
        return vector[permutation(self.seed, len(vector))[0].to(vector.device)]

    def revealed(self, vector: Vector) -> Vector:
        """See `Hidden`."""
        return vector[permutation(self.seed, len(vector))[1].to(vector.device)]


@dataclass(frozen=True)
class Rotated(Hidden):
    """Clients rotate what they send, by a random orthonormal transform that they share; the server is not told it.

    Every number that the server sees is a mixture of all parameters, so that single values and their distribution are
    hidden too; norms and angles are not, nor is whose updates are alike.  Models come out as without, to rounding,
    where an algorithm depends on norms, distances and cosines only: means, Krum, geometric medians, clipping,
    clustering.  Rules by coordinate (medians, trimmed means, signs) work on other coordinates then, and give other
    results.

    The transform is S3 H S2 H S1: S are random signs and a random permutation, H is the Hartley transform, which is
    orthonormal and its own inverse in any dimension.  O(d log d) time, O(d) memory; it is computed in float64.

    Args:
        algorithm: what is done otherwise.
        seed: of the transform; known to the clients only.
    """

    def hidden(self, vector: Vector) -> Vector:
        """See `Hidden`."""
        first, *others = self._mixers(vector)
        y = first.mix(vector.double())
        for mixer in others:
            y = mixer.mix(hartley(y))
        return y.to(vector.dtype)

    def revealed(self, vector: Vector) -> Vector:
        """See `Hidden`."""
        *others, last = self._mixers(vector)
        x = last.unmix(vector.double())
        for mixer in reversed(others):
            x = mixer.unmix(hartley(x))
        return x.to(vector.dtype)

    def _mixers(self, vector: Vector) -> list["Mixer"]:
        return [mixer.to(vector.device) for mixer in mixers(self.seed, len(vector))]


class Mixer(NamedTuple):
    """A permutation with signs."""

    order: Int[Tensor, "d"]
    signs: Float[Tensor, "d"]

    def mix(self, x: Float[Tensor, "d"]) -> Float[Tensor, "d"]:
        """S x."""
        return (x * self.signs)[self.order]

    def unmix(self, y: Float[Tensor, "d"]) -> Float[Tensor, "d"]:
        """S^-1 y."""
        x = torch.empty_like(y)
        x[self.order] = y
        return x * self.signs

    def to(self, device: torch.device) -> "Mixer":
        """The same on a device."""
        return Mixer(self.order.to(device), self.signs.to(device))


def hartley(x: Float[Tensor, "d"]) -> Float[Tensor, "d"]:
    """The orthonormal discrete Hartley transform, y_k = sum over n of x_n (cos + sin)(2 pi k n / d) / sqrt(d).

    Symmetric, and its own inverse.  O(d log d) for every d.
    """
    half = torch.fft.rfft(x, norm="ortho")
    rest = half[1 : (len(x) + 1) // 2].flip(0)  # the other half of the spectrum is the conjugate of this
    return torch.cat([half.real - half.imag, rest.real + rest.imag])


@lru_cache(maxsize=4)
def permutation(seed: int, d: int) -> tuple[Int[Tensor, "d"], Int[Tensor, "d"]]:
    """A random order of d coordinates, and its inverse."""
    order = torch.randperm(d, generator=generator(seed, "hidden order"))
    return order, order.argsort()


@lru_cache(maxsize=4)
def mixers(seed: int, d: int) -> tuple[Mixer, Mixer, Mixer]:
    """Three random permutations of d coordinates with random signs."""

    def one(number: int) -> Mixer:
        rng = generator(seed, "hidden rotation", number)
        signs = torch.randint(0, 2, (d,), generator=rng).double() * 2 - 1
        return Mixer(torch.randperm(d, generator=rng), signs)

    return one(0), one(1), one(2)


# Rounds of those who have arrived


class QuorumState(NamedTuple):
    """What the server of `Quorum` carries over; what it has not itself, such as clusters, is the algorithm's."""

    inner: Any  # the state of the algorithm
    waiting: Mapping[int, Updates]  # the arrivals that wait for others, by client
    served: frozenset[int]  # whom the algorithm has wanted to ask last, and who has joined since
    verdicts: Mapping[int, Verdict]

    @property
    def version(self) -> int:
        """The algorithm's: how often a quorum has come together."""
        version: int = self.inner.version
        return version

    @property
    def model(self) -> Vector:
        """The algorithm's."""
        model: Vector = self.inner.model
        return model

    @property
    def collected(self) -> int:
        """How many arrivals wait."""
        return len(self.waiting)

    def __getattr__(self, name: str) -> Any:
        """A field of the algorithm's state, for history and figures."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.inner, name)


@dataclass(frozen=True)
class Quorum(Wrapper):
    """Makes a synchronous algorithm asynchronous: its rounds are the next k arrivals, from k different clients.

    Who has arrived waits, and gets its next download with the others, when the algorithm has taken its step; who is
    still training is not disturbed, and is one of a later k.  So a round can hold updates of different ages.  They are
    used as changes to the present model, whatever they started from; `Guard(max_staleness=...)` keeps out the oldest.

    * Among the k each client is once: what a client sends while it waits takes the place of what it sent before.
    * If the algorithm asks fewer than k clients, because it has removed others, a round is all that are left.
    * k of n clients are the k fastest: f attackers who are fast are in every round, and the slowest clients are heard
      less often than others.  A rule has to stand f of k, not f of n.

    Args:
        algorithm: a synchronous one.
        k: the quorum, updates waited for, of as many clients. A median that is to stand f attackers needs 2f + 1.
    """

    synchronous: ClassVar[bool] = False

    k: int

    def __post_init__(self) -> None:
        if not self.algorithm.synchronous:
            name = type(self.algorithm).__name__
            raise ValueError(
                f"Quorum makes a synchronous algorithm asynchronous, and {name} is so already: use it alone."
            )
        if self.k < 1:
            raise ValueError(f"k must be at least 1, got {self.k}.")

    @property
    def observed(self) -> tuple[str, ...]:  # type: ignore[override]  # a class variable elsewhere
        """Those of the algorithm, and how many arrivals wait."""
        return (*self.algorithm.observed, "collected")

    @property
    def needs_reference(self) -> bool:  # type: ignore[override]  # a class variable elsewhere
        """Whether the algorithm does."""
        return self.algorithm.needs_reference

    @property
    def reference_every(self) -> int:
        """For how many server versions one reference serves the algorithm."""
        return self.algorithm.reference_every

    # Role: server

    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[QuorumState, Set[int]]:
        """See `Algorithm`."""
        if len(sizes) < self.k:
            raise Infeasible(f"A quorum of {self.k} clients needs as many, got {len(sizes)}. Lower k, or ask more.")
        self._check_quorum(len(sizes))
        inner, ready = self.algorithm.init(model, sizes)
        return QuorumState(inner, {}, frozenset(ready), {}), ready

    def _check_quorum(self, population: int) -> None:
        """Raises `Infeasible` if the algorithm, or its rule, needs larger rounds than the quorum."""
        try:
            self.algorithm.check_round(self.k, population)
        except Infeasible as error:
            raise Infeasible(f"k = {self.k} is too small: {error} Or raise k.") from error
        if isinstance(rule := self.aggregate, Aggregator):
            check_rows(rule, self.k, "k")

    def gathering(self, state: QuorumState) -> Gathering:
        """See `Algorithm`."""
        return Gathering(self._needed(state), state.collected, "Lower k")

    def _needed(self, state: QuorumState) -> int:
        """The quorum, or all that are left where the algorithm asks fewer."""
        return max(1, min(self.k, len(state.served)))

    def step(self, state: QuorumState, updates: Updates) -> tuple[QuorumState, Set[int]]:
        """See `Algorithm`."""
        verdicts, ready = dict[int, Verdict](), set[int]()
        for i in updates.clients:
            state, now = self._receive(state, i, alone(updates, i))
            verdicts |= state.verdicts
            ready |= now
        return state._replace(verdicts=verdicts), ready - state.waiting.keys()

    def _receive(self, state: QuorumState, client: int, update: Updates) -> tuple[QuorumState, Set[int]]:
        """One arrival: it waits, or is the last of a round."""
        waiting = {**state.waiting, client: update}
        needed = self._needed(state)
        if len(waiting) < needed:
            told = f"waits for a quorum, {len(waiting)} of {needed}"
            return state._replace(waiting=waiting, verdicts={client: Verdict(True, 0.0, None, told, waits=True)}), set()
        round_ = merged(waiting.values(), update.reference)
        before = state.inner.version
        inner, ready = self.algorithm.step(state.inner, round_)
        ages = {i: told_of_age(before - version) for i, version in zip(round_.clients, round_.versions, strict=True)}
        verdicts = {
            i: verdict._replace(reason="; ".join(filter(None, (verdict.reason, ages.get(i)))))
            for i, verdict in inner.verdicts.items()
        }
        return QuorumState(inner, {}, frozenset(ready), verdicts), ready

    def download(self, state: QuorumState, client: int) -> Vector:
        """See `Algorithm`."""
        return self.algorithm.download(state.inner, client)

    def offers(self, state: QuorumState, client: int) -> Mapping[int, Vector]:
        """See `Algorithm`."""
        return self.algorithm.offers(state.inner, client)

    def join(self, state: QuorumState, client: int, size: int) -> QuorumState:
        """See `Algorithm`."""
        inner = self.algorithm.join(state.inner, client, size)
        return state._replace(inner=inner, served=state.served | {client})

    # Role: client

    def integrate(self, local: Local | None, download: Vector) -> Vector:
        """See `Algorithm`."""
        return self.algorithm.integrate(local, download)

    def upload(self, delta: Vector, memory: Tensor | None) -> tuple[Vector, Tensor | None]:
        """See `Algorithm`."""
        return self.algorithm.upload(delta, memory)


def alone(updates: Updates, client: int) -> Updates:
    """The update of one client, in memory of its own: a row of a round would hold the memory of all of it."""
    one = updates.of({client})
    return replace(one, deltas=one.deltas.clone())


def merged(parts: Iterable[Updates], reference: Vector | None = None) -> Updates:
    """Updates of different clients as those of one round.

    Args:
        parts: of any number of clients each.
        reference: that of the round.
    """
    parts = list(parts)
    rows = sorted((c, k, row) for k, part in enumerate(parts) for row, c in enumerate(part.clients))
    starts = list(accumulate(map(len, parts), initial=0))
    order = [starts[k] + row for _, k, row in rows]
    return Updates(
        tuple(c for c, _, _ in rows),
        tuple(parts[k].versions[row] for _, k, row in rows),
        tuple(parts[k].bases[row] for _, k, row in rows),
        torch.cat([part.deltas for part in parts])[order],
        torch.cat([part.losses for part in parts])[order],
        reference,
    )
