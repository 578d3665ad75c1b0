"""StoCFL: clusters that are merged as their clients are sampled, however few take part in a round.

Zeng, Hu, Liu, Yu, Wang and Xu, "Stochastic Clustered Federated Learning", 2023, as its authors' program has it; of its
text the abstract could be read here.  Each client is its own cluster at first.  When it is sampled for the first time,
it trains an anchor, the same model for all, and its direction is what that changed.  In each round, clusters of the
sampled clients whose directions have a cosine of tau or more are merged, the most similar first; the model of the
larger one goes on.  Each cluster trains its model with its sampled clients, with a penalty lambda / 2 |theta - omega|^2
that holds it near a global model omega.  Deviations:

* A client is sent one model a round here, not three (the anchor, its cluster's, the global one).  So its first answer
  is about the anchor, and is used for the clustering only; in the very first round, in which the anchor is every
  cluster's model, also for training.
* Nobody trains omega by itself: omega is what averaging all models that came back in a round makes of it.
* The penalty belongs to local training, in which `LocalSGD(proximal=...)` knows the downloaded model only.  `pull`
  moves a cluster's model that share of the way to omega after each of its rounds.  0.05, the default, is lambda there.
* The program's direction of a cluster is the mean over its clients that were sampled in this round.  Here it is that
  over all its clients that ever were, which the program has as a comment: it needs one vector a cluster, not one a
  client.
* Clients train after the merges of a round there, and before them here: an update of a cluster that is merged is added
  to the model of the union.
* A zero direction is orthogonal to all others; its client stays alone.
* A round in which no cluster can be trained, because each is too small for the rule or the weights, is not lost: its
  first answers count, and clusters are merged.
* `aggregate` and `preprocess` are ours; the program averages without weights.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from msgspec import Meta
from typing_extensions import override

from phalanx.aggregators import Aggregator, Mean
from phalanx.algorithms.several import NumberedClusters, cluster_pool, step_each, weights_within
from phalanx.core import Algorithm, InfeasibleError, Pool, Setting, Traits, Updates, Vector, Verdict
from phalanx.numerics.linalg import cosine_similarity
from phalanx.promises.promise_watch import combine
from phalanx.weighting import Ignore, Preprocess
from phalanx.wording import plural


class StoCFLCluster(NamedTuple):
    """Clients whose directions are alike."""

    clients: frozenset[int]
    direction: Vector  # the mean of what they made of the anchor
    model: Vector | None  # theta; None as long as nobody has trained one


class StoCFLState(NamedTuple):
    """The server's state of `StoCFL`."""

    version: int  # rounds completed
    model: Vector  # omega
    anchor: Vector
    sizes: Mapping[int, int]  # as reported
    found: Mapping[int, StoCFLCluster]  # by the lowest id of its clients
    aggregates: Mapping[int, Vector]  # what the rule returned last in each, for rules that start from there
    verdicts: Mapping[int, Verdict]

    @property
    def clusters(self) -> dict[int, tuple[int, ...]]:
        """The clients of each cluster, of those who were sampled so far."""
        return {v: tuple(sorted(cluster.clients)) for v, cluster in sorted(self.found.items())}

    def cluster_of(self, client: int) -> int | None:
        """Return the cluster of a client; None if it has not been sampled."""
        return next((v for v, cluster in self.found.items() if client in cluster.clients), None)


@dataclass(frozen=True)
class StoCFL(Algorithm[StoCFLState]):
    """Merges clusters whose clients change one model in like directions, and trains a model for each.

    Made for rounds in which a few of the clients take part; the number of clusters need not be known.  Clusters are
    merged and never split: one wrong merge lasts.  No defence by itself; robust rules compose.

    Args:
        tau: cosine of two clusters' directions from which on they are merged, in [-1, 1]. The more clients train in a
            round, the more alike are directions of any; 0.3 in the authors' program.
        pull: share of the way to the global model that a cluster's model goes after each of its rounds, in [0, 1).
        aggregate: the rule within a cluster; the mean in the paper.
        preprocess: makes weights of the reported sizes within a cluster; all are equal in the authors' program.
    """

    tau: Annotated[float, Meta(ge=-1, le=1, description="it is a cosine")] = 0.5
    pull: Annotated[float, Meta(ge=0, lt=1)] = 0.05
    aggregate: Aggregator = Mean()
    preprocess: Preprocess = Ignore()

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(observed=("clusters",), can_join=True)

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[StoCFLState, Set[int]]:
        self.preprocess.enrolled(sizes)  # raises if nothing can be made of them
        return StoCFLState(0, model, model, dict(sizes), {}, {}, {}), sizes.keys()

    @override
    def join(self, state: StoCFLState, client: int, size: int) -> StoCFLState:
        """See `Algorithm`: it is sent the anchor first."""
        return state._replace(sizes={**state.sizes, client: size})

    @override
    def download(self, state: StoCFLState, client: int) -> Vector:
        """See `Algorithm`: the anchor to a client that has not been sampled yet, else the model of its cluster."""
        v = state.cluster_of(client)
        return state.anchor if v is None else _served(state, state.found[v])

    @override
    def weights(self, state: StoCFLState, clients: Collection[int]) -> dict[int, float]:
        """See `Algorithm`: those within the cluster of each client; none before it is in one."""
        clusters = (cluster.clients for cluster in state.found.values())
        used = weights_within(self.preprocess, state.sizes, clusters, clients)
        return {i: used.get(i, 0.0 if state.version else 1.0) for i in clients}

    @override
    def step(self, state: StoCFLState, updates: Updates) -> tuple[StoCFLState, Set[int]]:
        new = {i for i in updates.clients if state.cluster_of(i) is None}
        state = self._merged(_observed(state, updates, new), updates)
        verdicts = {i: _first_answer(state, i) for i in sorted(new)} if state.version else {}
        state = self._trained(state, updates.of(set(updates.clients) - verdicts.keys()))
        both = dict(sorted({**verdicts, **state.verdicts}.items()))
        return state._replace(version=state.version + 1, verdicts=both), state.sizes.keys()

    def _merged(self, state: StoCFLState, updates: Updates) -> StoCFLState:
        """Return the state after the clusters of a round's clients are merged, the most similar pair first."""
        there = sorted({v for i in updates.clients if (v := state.cluster_of(i)) is not None})
        alpha = cosine_similarity(torch.stack([state.found[v].direction for v in there]))
        pairs = [(-float(alpha[a, b]), a, b) for a in range(len(there)) for b in range(a + 1, len(there))]
        now = {v: v for v in there}  # the cluster that each is part of by now
        found, aggregates = dict(state.found), dict(state.aggregates)
        for negative, a, b in sorted(pairs):
            if -negative < self.tau:
                break
            one, other = sorted((now[there[a]], now[there[b]]))
            if one == other:
                continue
            larger = other if len(found[other].clients) > len(found[one].clients) else one
            last = aggregates.get(larger)
            found[one] = _union(found[one], found.pop(other))
            aggregates = {v: of for v, of in aggregates.items() if v not in {one, other}}
            aggregates |= {} if last is None else {one: last}
            now = {v: one if at == other else at for v, at in now.items()}
        return state._replace(found=found, aggregates=aggregates)

    def _trained(self, state: StoCFLState, updates: Updates) -> StoCFLState:
        """Return the state after a round of training in each cluster that has updates, and of the global model."""
        if not len(updates):
            return state._replace(verdicts={})
        there = sorted({v for i in updates.clients if (v := state.cluster_of(i)) is not None})
        models = {v: _served(state, state.found[v]) for v in there}
        members = {v: state.found[v].clients for v in there}
        try:
            made = step_each(
                self, NumberedClusters(members, models, state.aggregates), state.sizes, updates, state.version
            )
        except InfeasibleError as error:
            return state._replace(verdicts=dict.fromkeys(updates.clients, Verdict(False, 0.0, None, str(error))))
        omega = self._global(state, updates)
        moved = {v for v in there if made.models[v] is not models[v]}
        found = {v: state.found[v]._replace(model=made.models[v] + self.pull * (omega - made.models[v])) for v in moved}
        return state._replace(
            model=omega, found={**state.found, **found}, aggregates=made.aggregates, verdicts=made.verdicts
        )

    def _global(self, state: StoCFLState, updates: Updates) -> Vector:
        """Return omega after a round: what the rule makes of the trained models, as changes to it."""
        changes = torch.stack(updates.bases) + updates.deltas - state.model
        return state.model + combine(self.aggregate, changes, None, updates.clients, "round", turn=state.version)[0]

    @override
    def pools(self, setting: Setting, state: StoCFLState | None = None) -> tuple[Pool, ...]:
        """See `Algorithm`: a cluster, which can be one client."""
        return (cluster_pool(self.rule, self.preprocess, setting), Pool.of_round(self.rule, None, setting))


def _served(state: StoCFLState, cluster: StoCFLCluster) -> Vector:
    """Return the model of a cluster, the global one if it has none yet."""
    return state.model if cluster.model is None else cluster.model


def _observed(state: StoCFLState, updates: Updates, new: Iterable[int]) -> StoCFLState:
    """Return the state with clusters of one for clients that are sampled for the first time."""
    rows = {i: row for row, i in enumerate(updates.clients)}
    alone = {i: StoCFLCluster(frozenset({i}), updates.deltas[rows[i]].clone(), None) for i in sorted(new)}
    return state._replace(found={**state.found, **alone})


def _union(one: StoCFLCluster, other: StoCFLCluster) -> StoCFLCluster:
    """Return two clusters as one, with the model of the larger; of equals, that of the first."""
    m, n = len(one.clients), len(other.clients)
    larger, smaller = (other, one) if n > m else (one, other)
    model = smaller.model if larger.model is None else larger.model
    return StoCFLCluster(one.clients | other.clients, (m * one.direction + n * other.direction) / (m + n), model)


def _first_answer(state: StoCFLState, client: int) -> Verdict:
    """Return the verdict on the first answer of a client, which is about the anchor."""
    v = state.cluster_of(client)
    assert v is not None
    n = plural(len(state.found[v].clients), "client")
    return Verdict(False, 0.0, None, f"first answer, about the anchor: in cluster {v} of {n}")
