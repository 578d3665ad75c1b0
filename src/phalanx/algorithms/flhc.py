"""FL+HC: federated averaging, one hierarchical clustering of the clients, and averaging within each cluster.

Briggs, Fan and Andras, "Federated learning with hierarchical clustering of local updates to improve training on non-IID
data", 2020.  `FLHC` is the method as it is generally described; neither the paper nor its program was read: n
rounds of federated averaging; then all clients train the joint model, and their updates are clustered by an
agglomerative method with a distance, a linkage and a threshold; from then on each cluster trains by itself, from the
joint model.  Deviations:

* The clustering needs an update of every client, of one and the same model.  Where rounds bring only some of them, the
  joint model rests until all have answered it, or at least half of them and `patience` rounds are over.  Who answers
  later, or joins later, is sent the joint model first, and put into the cluster whose mean update is nearest.
* The updates that are clustered are the first step of their clusters, too.
* `clusters` sets the number of clusters instead of the threshold, where it is known.
* The paper's threshold depends on data, distance and linkage.  The default, 1 with cosines and average linkage, keeps
  clusters apart whose updates point away from each other on average; the paper tunes it.
* "ward" takes Euclidean distances only, as in the paper's libraries.
* Clusters that are too small for the rule are merged on, until none is.
* A zero update is at the cosine distance 1 from all others.
* `aggregate` is the rule in all rounds, and `preprocess` makes its weights, of the sizes of one cluster's clients.
"""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from typing_extensions import override

from phalanx.aggregators import Aggregator, Mean
from phalanx.aggregators.aggregator import too_few
from phalanx.algorithms.arrivals import alone, merged
from phalanx.algorithms.several import NumberedClusters, cluster_pool, step_each, weights_within
from phalanx.clustering.agglomerative import AgglomerativeLinkage, agglomerate, check_stop
from phalanx.core import Algorithm, InfeasibleError, Matrix, Pool, Setting, Traits, Updates, Vector, Verdict
from phalanx.fields import NonNegativeFloat, NonNegativeInt, PositiveInt
from phalanx.numerics.linalg import Square, cosine_similarity, root, squared_distances
from phalanx.weighting import AsReported, Preprocess

Distance = Literal["cosine", "euclidean", "manhattan"]
JOINT = 0  # the number of the joint model; clusters count from 1


class FLHCState(NamedTuple):
    """The server's state of `FLHC`."""

    version: int  # rounds completed
    models: Mapping[int, Vector]  # the joint one, and that of each cluster
    sizes: Mapping[int, int]  # as reported
    members: Mapping[int, frozenset[int]]  # of each cluster; of the joint model who is in none
    means: Mapping[int, Vector]  # mean of the updates that were clustered, by cluster
    collected: Mapping[int, Updates]  # updates that are to be clustered, by client
    born: Mapping[int, int]  # the round in which each model came to be
    aggregates: Mapping[int, Vector]  # what the rule returned last for each, for rules that start from there
    verdicts: Mapping[int, Verdict]

    @property
    def model(self) -> Vector:
        """The joint model."""
        return self.models[JOINT]

    @property
    def clustered(self) -> bool:
        """Return whether the clients have been clustered."""
        return len(self.models) > 1

    @property
    def clusters(self) -> dict[int, tuple[int, ...]]:
        """The clients of each model that has some."""
        return {v: tuple(sorted(who)) for v, who in self.members.items() if who}

    @property
    def parents(self) -> dict[int, int | None]:
        """For each model the one that it began as."""
        return {v: None if v == JOINT else JOINT for v in self.models}

    def cluster_of(self, client: int) -> int:
        """Return the number of the model that a client trains; the joint one before it is in a cluster."""
        return next((v for v, who in self.members.items() if client in who), JOINT)


@dataclass(frozen=True)
class FLHC(Algorithm[FLHCState]):
    """Clusters the clients once, by what they make of a model that all have trained together.

    A client stays where the one clustering puts it.  No defence by itself: an attacker can be a cluster of its own, or
    join one; robust rules compose.

    Args:
        rounds: rounds of federated averaging before the clustering, n in the paper.
        clusters: number of clusters, if it is known; null if `max_distance` decides.
        max_distance: largest distance at which two clusters are merged; not used if `clusters` is given.
        distance: of two updates: "cosine" (1 minus the cosine), "euclidean" or "manhattan".
        linkage: of two clusters: "single", "complete", "average", or "ward" (Euclidean distances only).
        patience: rounds after which the clustering no longer waits for the last clients, if half of them have answered.
        aggregate: the rule in each round; the mean in the paper.
        preprocess: makes weights of the reported sizes; the sizes themselves in the paper.
    """

    rounds: NonNegativeInt = 10
    clusters: PositiveInt | None = None
    max_distance: NonNegativeFloat = 1.0
    distance: Distance = "cosine"
    linkage: AgglomerativeLinkage = "average"
    patience: PositiveInt = 10
    aggregate: Aggregator = Mean()
    preprocess: Preprocess = AsReported()

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(observed=("clusters", "parents", "born"), can_join=True)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.linkage == "ward" and self.distance != "euclidean":
            raise ValueError(f'linkage "ward" needs the distance "euclidean", got {self.distance!r}.')
        check_stop(self.clusters, None if self.clusters is not None else self.max_distance)

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[FLHCState, Set[int]]:
        self.preprocess.enrolled(sizes)  # raises if nothing can be made of them
        members = {JOINT: frozenset(sizes)}
        return FLHCState(0, {JOINT: model}, dict(sizes), members, {}, {}, {JOINT: 0}, {}, {}), sizes.keys()

    @override
    def join(self, state: FLHCState, client: int, size: int) -> FLHCState:
        members = {**state.members, JOINT: state.members[JOINT] | {client}}
        return state._replace(sizes={**state.sizes, client: size}, members=members)

    @override
    def download(self, state: FLHCState, client: int) -> Vector:
        """See `Algorithm`: the model of the client's cluster; the joint one before it is in any."""
        return state.models[state.cluster_of(client)]

    @override
    def candidate_models(self, state: FLHCState, client: int) -> Mapping[int, Vector]:
        """See `Algorithm`: the joint model, and that of the client's cluster."""
        return {v: state.models[v] for v in sorted({JOINT, state.cluster_of(client)})}

    @override
    def weights(self, state: FLHCState, clients: Collection[int]) -> dict[int, float]:
        """See `Algorithm`: those within the cluster of each client."""
        return weights_within(self.preprocess, state.sizes, state.members.values(), clients)

    @override
    def step(self, state: FLHCState, updates: Updates) -> tuple[FLHCState, Set[int]]:
        """See `Algorithm`.

        Raises:
            InfeasibleError: of no cluster are there enough clients for the rule.
        """
        if state.clustered:
            state = self._placed(self._stepped(state, updates), updates)
        elif state.version < self.rounds:
            state = self._stepped(state, updates)
        else:
            state = self._collected(state, updates)
        return state._replace(version=state.version + 1), state.sizes.keys() - state.collected.keys()

    def _stepped(self, state: FLHCState, updates: Updates) -> FLHCState:
        """Return the state after a round in each cluster, or of all clients before the clustering."""
        members = {v: who for v, who in state.members.items() if v != JOINT or not state.clustered}
        there = {i for who in members.values() for i in who}
        report = updates.of(there)
        if not len(report):
            return state._replace(verdicts={})
        clusters = NumberedClusters(members, state.models, state.aggregates)
        made = step_each(self, clusters, state.sizes, report, state.version)
        return state._replace(models=made.models, aggregates=made.aggregates, verdicts=made.verdicts)

    def _collected(self, state: FLHCState, updates: Updates) -> FLHCState:
        """Return the state with more updates of the joint model at rest, clustered when there are enough."""
        collected, verdicts = dict(state.collected), dict[int, Verdict]()
        for i, version in zip(updates.clients, updates.versions, strict=True):
            if version < self.rounds:
                verdicts[i] = Verdict(False, 0.0, None, "made from a joint model before the last; asked again")
                continue
            collected[i] = alone(updates, i)
            reason = f"waits for the clustering, {len(collected)} of {len(state.sizes)} clients"
            verdicts[i] = Verdict(True, 0.0, None, reason, waits=True)
        state = state._replace(collected=collected, verdicts=verdicts)
        late = state.version + 1 >= self.rounds + self.patience and 2 * len(collected) >= len(state.sizes)
        return self._clustered(state) if late or collected.keys() == state.sizes.keys() else state

    def _clustered(self, state: FLHCState) -> FLHCState:
        """Return the state after the clustering, and the first step of each cluster."""
        updates = merged(state.collected.values())
        stop = None if self.clusters is not None else self.max_distance
        far = distances(self.distance, updates.deltas)
        parts = agglomerate(far, self.linkage, clusters=self.clusters, max_distance=stop)
        while len(parts) > 1 and any(too_few(self.aggregate, len(part)) for part in parts):
            parts = agglomerate(far, self.linkage, clusters=len(parts) - 1)
        members = {v: frozenset(updates.clients[row] for row in part) for v, part in enumerate(parts, JOINT + 1)}
        means = {v: updates.deltas[list(part)].mean(0) for v, part in enumerate(parts, JOINT + 1)}
        last = dict.fromkeys(members, state.aggregates[JOINT]) if JOINT in state.aggregates else {}
        clustered = state._replace(
            models={JOINT: state.model, **dict.fromkeys(members, state.model)},
            members={JOINT: state.members[JOINT] - frozenset(updates.clients), **members},
            means=means,
            collected={},
            born={**state.born, **dict.fromkeys(members, state.version + 1)},
            aggregates={**state.aggregates, **last},
        )
        stepped = self._stepped(clustered, updates)
        return stepped._replace(verdicts=dict(sorted({**state.verdicts, **stepped.verdicts}.items())))

    def _placed(self, state: FLHCState, updates: Updates) -> FLHCState:
        """Return the state with clients that answered the joint model in the nearest cluster."""
        members, verdicts = dict(state.members), dict(state.verdicts)
        for i, delta in zip(updates.clients, updates.deltas, strict=True):
            if i not in state.members[JOINT]:
                continue
            far = {v: float(distances(self.distance, torch.stack([delta, c]))[0, 1]) for v, c in state.means.items()}
            nearest = min(far, key=lambda v: (far[v], v))
            if why := self._cannot_join(state, i, members[nearest]):
                verdicts[i] = Verdict(False, 0.0, far[nearest], f"stays with the joint model: {why}")
                continue
            members |= {JOINT: members[JOINT] - {i}, nearest: members[nearest] | {i}}
            reason = f"joins cluster {nearest}, the nearest, at distance {far[nearest]:.3f}"
            verdicts[i] = Verdict(False, 0.0, far[nearest], reason)
        return state._replace(members=members, verdicts=dict(sorted(verdicts.items())))

    def _cannot_join(self, state: FLHCState, client: int, members: frozenset[int]) -> str:
        """Return why the sizes of a cluster's clients and a new one have no weights; empty if they have."""
        try:
            self.preprocess.enrolled({i: state.sizes[i] for i in members | {client}})
        except InfeasibleError as error:
            return str(error)
        return ""

    @override
    def pools(self, setting: Setting, state: FLHCState | None = None) -> tuple[Pool, ...]:
        """See `Algorithm`: a cluster, which can be one client."""
        return (cluster_pool(self.rule, self.preprocess, setting),)


def distances(distance: Distance, updates: Matrix) -> Square:
    """Return the distances of all pairs of updates, float64, on the CPU."""
    if distance == "cosine":
        return (1 - cosine_similarity(updates)).cpu()
    if distance == "euclidean":
        return root(squared_distances(updates).cpu())
    return torch.stack([(updates - row).abs().sum(1, dtype=torch.float64) for row in updates]).cpu()
