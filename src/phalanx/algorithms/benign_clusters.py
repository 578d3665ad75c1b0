"""Clustered federated learning goes on within benign clusters.

Sattler, Müller, Wiegand and Samek, "On the Byzantine Robustness of Clustered Federated Learning", 2020, Algorithm 1.
Its lines 15 to 17, "regular CFL", and its line 18, "byzantine robust CFL", are alternatives.  `ByzantineCFL` is the
second one: one model, for the majority.  `BenignClusters` is both: clients that are like nobody else are excluded, and
those that stay are split into clusters by the criterion of 2019, that of `ClusteredFL`.

Deviations from the paper, which says nothing of the two together:

* The benign clients are no longer one cluster, so a majority does not tell them from attackers.  Here the number f of
  attackers is given, and a benign cluster has more than f clients: attackers alone cannot form one.
* Lines 12 to 14 compare the closest pair of two groups.  So two attackers that are alike are a group, and one that is
  similar both to another and to honest clients connects them.  Here a client needs f similar peers, at least one of
  whom is honest: what counts is its f-th largest cosine to the others of its cluster.  A client is left out of a round
  if that is below the threshold and clearly below the median client's, and excluded by `IfUnlike`, as are the clients
  of `ByzantineCFL`.
* A split by the criterion of 2019 that would leave a group of f clients or fewer excludes this group instead.
"""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

from jaxtyping import Float
from msgspec import Meta
from torch import Tensor
from typing_extensions import override

from phalanx.aggregators import Aggregator
from phalanx.algorithms.byzantine_cfl import AboveNoise, IfUnlike, resolved_threshold
from phalanx.algorithms.clustered_fl import ClusteredFL, ClusteredFLState, SplitCheck
from phalanx.algorithms.rounds import no_proof
from phalanx.clustering.tree import Node, Tree
from phalanx.core import Algorithm, InfeasibleError, Pool, Setting, Traits, Updates, Vector, Verdict
from phalanx.numerics.linalg import cosine_similarity
from phalanx.weighting import Preprocess
from phalanx.wording import plural


class BenignClustersState(NamedTuple):
    """The server's state of `BenignClusters`."""

    regular: ClusteredFLState  # of the clients that are not excluded
    excluded: Mapping[int, int]  # these clients, and the round in which each was excluded
    deficits: Mapping[int, tuple[float, ...]]  # how far below the median client of its cluster each was lately
    threshold: float  # the cosine below which a client has no peers
    verdicts: Mapping[int, Verdict]

    @property
    def version(self) -> int:
        """Rounds completed."""
        return self.regular.version

    @property
    def model(self) -> Vector:
        """The model of the root: that of all clients until they were first split."""
        return self.regular.model

    @property
    def clusters(self) -> dict[int, tuple[int, ...]]:
        """The clients of each leaf."""
        return self.regular.clusters

    @property
    def parents(self) -> dict[int, int | None]:
        """The tree: for each cluster that ever was, the one that it was split off."""
        return self.regular.parents

    @property
    def born(self) -> dict[int, int]:
        """For each cluster that ever was, the round in which it was split off."""
        return self.regular.born

    @property
    def norms(self) -> dict[int, dict[str, float]]:
        """For each cluster of the last round: mean and max of its updates, and what they are compared with."""
        return self.regular.norms

    @property
    def separation(self) -> dict[int, dict[str, Any]]:
        """For each cluster of the last round: its best bi-partition, how far apart the parts are, and the decision."""
        return self.regular.separation


@dataclass(frozen=True)
class BenignClusters(Algorithm[BenignClustersState]):
    """Excludes clients that have fewer than f peers, and trains a model for each cluster of the others.

    Assumes at most f attackers, that each benign cluster has more than f clients, and each of its clients f similar
    peers.  Sees directions only: attackers that move along with the honest ones stay, and `regular.aggregate` has to
    tolerate them.

    Args:
        f: the largest number of attackers, at least 1.
        regular: the algorithm within benign clients. No cluster of f clients or fewer is split off, whatever its
            `min_part_size`.
        threshold: the cosine below which clients are not similar, in [-1, 1).
        exclusion: which of the clients without peers are excluded, and not only left out of a round.
    """

    f: Annotated[int, Meta(ge=1, description="without attackers choose ClusteredFL")] = 2
    regular: ClusteredFL = ClusteredFL()
    threshold: Annotated[float, Meta(ge=-1, lt=1, description="it is compared with a cosine")] | AboveNoise = (
        AboveNoise()
    )
    exclusion: IfUnlike = IfUnlike(gap=0.25)

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(
            observed=("clusters", "parents", "born", "norms", "separation", "excluded", "threshold"), can_join=True
        )

    @property
    @override
    def rule(self) -> Aggregator:
        """See `Algorithm`: that within each cluster."""
        return self.regular.aggregate

    @property
    def within(self) -> ClusteredFL:
        """Regular CFL, which splits off no cluster that attackers could form."""
        return replace(self.regular, min_part_size=max(self.regular.min_part_size, self.f + 1))

    @property
    def preprocess(self) -> Preprocess:
        """Makes weights of the sizes within each cluster, as `regular` says."""
        return self.regular.preprocess

    # Role: server

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[BenignClustersState, Set[int]]:
        if why := self._too_few(len(sizes)):
            raise InfeasibleError(why)
        regular, ready = self.within.init(model, sizes)
        return BenignClustersState(
            regular, {}, {}, resolved_threshold(self.threshold, len(sizes), len(model)), {}
        ), ready

    @override
    def step(self, state: BenignClustersState, updates: Updates) -> tuple[BenignClustersState, Set[int]]:
        updates = updates.of(set(updates.clients) - state.excluded.keys())
        deficits, out = dict(state.deficits), dict[int, Verdict]()
        for leaf in state.regular.tree.leaves.values():
            found, verdicts = self._peers(state, updates.of(leaf.clients))
            out |= verdicts
            for i, deficit in found.items():
                deficits[i] = (*deficits.get(i, ()), deficit)[-self.exclusion.memory :]
        regular = self._regular_round(state.regular, updates, out)
        for v in state.regular.tree.leaves.keys() - regular.tree.leaves.keys():  # in a new cluster nothing is known
            deficits |= dict.fromkeys(state.regular.tree.nodes[v].clients, ())
        gone = {i for i, verdict in out.items() if verdict.final}
        for check in regular.checks.values():
            gone |= self._too_small(check, regular.version)
        verdicts = dict(regular.verdicts) | out
        for i in gone - out.keys():
            reason = f"{verdicts[i].reason}; excluded: a benign cluster has more than {plural(self.f, 'client')}"
            verdicts[i] = replace(verdicts[i], reason=reason, final=True)
        new = state._replace(
            regular=regular._replace(tree=_without(regular.tree, gone)),
            excluded={**state.excluded, **dict.fromkeys(sorted(gone), regular.version)},
            deficits=deficits,
            verdicts=dict(sorted(verdicts.items())),
        )
        return new, state.regular.sizes.keys() - new.excluded.keys()

    @override
    def download(self, state: BenignClustersState, client: int) -> Vector:
        """See `Algorithm`: the model of the client's cluster; the root's for excluded clients."""
        return state.model if client in state.excluded else self.within.download(state.regular, client)

    @override
    def candidate_models(self, state: BenignClustersState, client: int) -> Mapping[int, Vector]:
        """See `Algorithm`: the models on the client's path; the root's for excluded clients."""
        return {0: state.model} if client in state.excluded else self.within.candidate_models(state.regular, client)

    @override
    def weights(self, state: BenignClustersState, clients: Collection[int]) -> dict[int, float]:
        """See `Algorithm`: those within the cluster of each client; none for excluded clients."""
        used = self.within.weights(state.regular, [i for i in clients if i not in state.excluded])
        return {i: used.get(i, 0.0) for i in clients}

    @override
    def join(self, state: BenignClustersState, client: int, size: int) -> BenignClustersState:
        return state._replace(regular=self.within.join(state.regular, client, size))

    # Algorithm 1 of 2020

    def _peers(self, state: BenignClustersState, report: Updates) -> tuple[dict[int, float], dict[int, Verdict]]:
        """Return by lines 11 to 14 and 18 the deficits of a cluster's clients, and verdicts on those without peers."""
        if len(report) < 2 * self.f + 1:  # attackers may be the majority
            return {}, {}
        peer = nth_similarity(cosine_similarity(report.deltas).cpu(), self.f)
        deficits = dict(zip(report.clients, (peer.median() - peer).tolist(), strict=True))
        verdicts = {}
        for i, cosine in zip(report.clients, peer.tolist(), strict=True):
            if cosine < state.threshold and deficits[i] >= self.exclusion.gap:
                final = self.exclusion.excludes(deficits[i], state.deficits.get(i, ()))
                did = "excluded" if final else "left out of this round"
                reason = f"fewer than {self.f} peers, cosine {cosine:.3f}, gap {deficits[i]:.3f}: {did}"
                verdicts[i] = Verdict(False, 0.0, cosine, reason, final=final)
        return deficits, verdicts

    def _regular_round(
        self, before: ClusteredFLState, updates: Updates, out: Mapping[int, Verdict]
    ) -> ClusteredFLState:
        """Return the state after lines 15 to 17 and 22 to 25 without some clients, which are back in a leaf then."""
        kept = updates.of(set(updates.clients) - out.keys())
        after, _ = self.within.step(before._replace(tree=_without(before.tree, out.keys())), kept)
        tree = after.tree
        for row, i in enumerate(updates.clients):
            if i in out:
                v = before.tree.leaf_of(i)
                children = tree.nodes[v].children
                tree = tree.joined(i, v if children is None else tree.branch(v, updates.deltas[row]).node)
        return after._replace(tree=tree)

    def _too_small(self, check: SplitCheck, t: int) -> Set[int]:
        """Return the group that the criterion of 2019 would split off, if it is too small to be benign; else none."""
        regular = self.regular
        if check.split or check.parts is None or check.gap is None or t <= regular.min_round:
            return frozenset()
        smaller = min(check.parts, key=len)
        small = len(smaller) <= self.f and len(check.clients) >= 2 * self.f + 1
        return (
            frozenset(smaller)
            if small and check.asked >= regular.patience and check.gap >= regular.min_gap
            else frozenset()
        )

    @override
    def pools(self, setting: Setting, state: BenignClustersState | None = None) -> tuple[Pool, ...]:
        """See `Algorithm`: a cluster."""
        (pool,) = self.within.pools(setting)
        return (replace(pool, unproven=no_proof(self), refused=self._too_few(setting.asked)),)

    def _too_few(self, m: int) -> str:
        """Return why rounds of m updates are too few; "" if they are not."""
        least = 2 * self.f + 1
        return (
            ""
            if m >= least
            else (
                f"{plural(self.f, 'attacker')} can be half of {plural(m, 'client')}. Lower f, or have at least "
                f"2 f + 1 = {least} clients take part in each round."
            )
        )


def nth_similarity(similarity: Float[Tensor, "m m"], n: int) -> Float[Tensor, "m"]:
    """Return the n-th largest similarity of each item to another one.

    Args:
        similarity: (m, m); the diagonal does not count.
        n: from 1 to m - 1.
    """
    return similarity.clone().fill_diagonal_(-2.0).topk(n, dim=1).values[:, -1]


def _without(tree: Tree, clients: Collection[int]) -> Tree:
    """Return the tree with some clients in none of its leaves."""
    out = frozenset(clients)
    changed: dict[int, Node] = {
        v: leaf._replace(clients=leaf.clients - out) for v, leaf in tree.leaves.items() if leaf.clients & out
    }
    return tree.replaced(changed)
