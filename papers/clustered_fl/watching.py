"""Clustered federated learning with an observer that knows the true groups."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from phalanx.algorithms import ClusteredFL
from phalanx.algorithms.clustered_fl import ClusteredFLState
from phalanx.clustering import bipartition, correct, separation_gap
from phalanx.core import Algorithm, Traits, Updates, Vector, Verdict
from phalanx.data import Groups, SwappedLabels
from phalanx.fields import PositiveFloat
from phalanx.numerics.linalg import cosine_similarity
from phalanx.training.sgd import Schedule

MEASURED = Verdict(True, 0.0, None, "gradient measured: nothing is learned in this round")


@dataclass(frozen=True)
class Alternating(Schedule):
    """The learning rate of `Watched(gradients=True)`: in every second round so small that updates are gradients.

    Args:
        lr: of the rounds that learn.
        least: of the rounds between them. An update is then -lr times the sum of gradients at nearly one point
            (Equations 40 to 43); a hundredth of it is lost to curvature and to the rounding of float32.
    """

    public_name: ClassVar[str] = "papers.clustered_fl.Alternating"

    lr: PositiveFloat = 0.1
    least: PositiveFloat = 3e-4

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least >= self.lr:
            raise ValueError(f"least must be below lr, got {self.least} and {self.lr}.")

    @override
    def __call__(self, version: int) -> float:
        return self.least if version % 2 else self.lr


class WatchedState(NamedTuple):
    """The server's state, and the observations of the last round, by the clusters at its beginning."""

    version: int  # rounds completed, those that measure gradients included
    inner: ClusteredFLState
    gaps: Mapping[int, float]  # separation gap g(alpha) of the updates
    correct: Mapping[int, bool]  # whether the bi-partition of the updates divides no group
    gradient_gaps: Mapping[int, float]  # the same of gradients, at the model after the last round that learned
    kinds: Mapping[int, int]  # number of groups in each current cluster
    divided: int  # groups whose clients are in more than one current cluster
    verdicts: Mapping[int, Verdict]

    @property
    def model(self) -> Vector:
        """See `ClusteredFLState`."""
        return self.inner.model

    @property
    def norms(self) -> dict[int, dict[str, float]]:
        """See `ClusteredFLState`."""
        return self.inner.norms


@dataclass(frozen=True)
class Watched(Algorithm[WatchedState]):
    """`ClusteredFL`, with the separation gap of its clusters, computed from the true groups.

    Nothing that is seen has a part in what is learned.

    Args:
        algorithm: what is watched.
        groups: the true groups.
        gradients: measure gradients in every second round, with the schedule `Alternating`. Models do not move then.
    """

    public_name: ClassVar[str] = "papers.clustered_fl.Watched"

    algorithm: ClusteredFL = ClusteredFL(memory=None)
    groups: Groups = SwappedLabels()
    gradients: bool = False

    @property
    @override
    def traits(self) -> Traits:
        observed = ("gaps", "correct", "gradient_gaps", "kinds", "divided", "norms")
        return super().traits._replace(observed=observed)

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[WatchedState, Set[int]]:
        inner, ready = self.algorithm.init(model, sizes)
        return WatchedState(0, inner, {}, {}, {}, {0: self.groups.number}, 0, {}), ready

    @override
    def download(self, state: WatchedState, client: int) -> Vector:
        return self.algorithm.download(state.inner, client)

    @override
    def candidate_models(self, state: WatchedState, client: int) -> Mapping[int, Vector]:
        return self.algorithm.candidate_models(state.inner, client)

    @override
    def step(self, state: WatchedState, updates: Updates) -> tuple[WatchedState, Set[int]]:
        seen = self._seen(state.inner, updates)
        gaps = {v: separation_gap(alpha, parts) for v, (alpha, parts) in seen.items()}
        if self.gradients and state.version % 2:
            verdicts = dict.fromkeys(updates.clients, MEASURED)
            measured = state._replace(version=state.version + 1, gradient_gaps=gaps, verdicts=verdicts)
            return measured, state.inner.sizes.keys()
        right = {v: correct(bipartition(alpha), parts) for v, (alpha, parts) in seen.items()}
        inner, ready = self.algorithm.step(state.inner, updates)
        clusters = [{self._group(state, i) for i in clients} for clients in inner.clusters.values()]
        divided = sum(sum(g in cluster for cluster in clusters) > 1 for g in range(self.groups.number))
        kinds = dict(zip(inner.clusters, map(len, clusters), strict=True))
        new = WatchedState(state.version + 1, inner, gaps, right, state.gradient_gaps, kinds, divided, inner.verdicts)
        return new, ready

    def _seen(
        self, state: ClusteredFLState, updates: Updates
    ) -> dict[int, tuple[Float[Tensor, "m m"], list[list[int]]]]:
        """Return for each cluster of two clients or more their similarities, and which rows are of one group."""
        out = {}
        for v, clients in state.clusters.items():
            report = updates.of(frozenset(clients))
            if len(report) > 1:
                of = [self.groups.of(len(state.sizes))[i] for i in report.clients]
                parts = [[k for k, g in enumerate(of) if g == group] for group in sorted(set(of))]
                out[v] = cosine_similarity(report.deltas).cpu(), parts
        return out

    def _group(self, state: WatchedState, client: int) -> int:
        return self.groups.of(len(state.inner.sizes))[client]
