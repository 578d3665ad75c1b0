"""An algorithm of its own in every cluster: asynchronous, reputation-based or robust learning for clustered clients.

Ours.  It joins Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
Optimization under Privacy Constraints", 2019, with any algorithm here: `Catalyst` within clusters has its quorum, its
late path and its truncation within each cluster, and judges an answer with those of its cluster and version; `RFFL`
and `AsyncRFFL` have their reputations and their rewards within each.

What differs from `ClusteredFL`, and why:

* *Who is compared.*  Clients of an asynchronous algorithm never report together.  The server remembers for each client
  a moving average of the directions of its updates, and compares those.  The average also takes out the noise of single
  updates, which have little in common near the end of a training.
* *When.*  A cluster is looked at whenever a stated share of its clients has sent one more update, so attackers who
  are fast do not hasten it, and fewer than the rest who stay away do not prevent it.  Norms are not asked: a length is
  an attacker's to choose, a direction has length one.
* *How.*  `phalanx.clustering.division`: average linkage, groups of a least size, a gap of medians.  The
  paper's bi-partition can be forced or hindered by one client.  A part can hold several groups, and is split again.
* *Where a split goes on.*  Each part goes on with what the algorithm makes of its state for some of the clients,
  `Algorithm.part`: reputations and received models stay; a quorum begins again, so those who wait for one are asked
  again.  An answer to a model from before the split is used for the comparison only.
* *Versions* are those of a client's cluster for the algorithm within; for the transport, and so for learning rates and
  attacks on schedule, they count the rounds or arrivals that changed something, in however many clusters.

As in the paper, clients that come later go down the tree by Algorithm 4, and so do clients of whom nothing was
heard before the split of their cluster.
"""

import math
import warnings
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Float
from msgspec import Meta
from torch import Tensor
from typing_extensions import override

from phalanx.aggregators.aggregator import too_few
from phalanx.algorithms.centrally_private import check_not_central
from phalanx.algorithms.rounds import UNBOUNDED, drift
from phalanx.algorithms.wrapper import Wrapper
from phalanx.clustering.division import Division, Indices, divide
from phalanx.clustering.tree import Tree
from phalanx.core import (
    Algorithm,
    Download,
    GroupSearch,
    InfeasibleError,
    Pool,
    Setting,
    Traits,
    Updates,
    Vector,
    Verdict,
)
from phalanx.fields import PositiveInt
from phalanx.numerics.linalg import cosine_similarity, direction
from phalanx.promises.remarks import innermost, with_attackers
from phalanx.wording import plural

OLDEST = 1024  # steps of a cluster in which a late answer is recognised as late; older ones are as old as that

FOUND = (  # benchmarks/groups_found.py, with 90 to 180 examples a client, 48 to 72, and 24
    "all of 20 seeds with 90 examples a client or more, in 18 to 20 with 48 to 72, in none with 24"
)
FOUND_IN_PART = (  # benchmarks/clustered_absence.py --only digits
    "with a fifth of 60 in each, on MNIST in groups of digits, it found all of them in 4 of 20 seeds, ClusteredFL in 19"
)


class Cluster(NamedTuple):
    """A cluster that is trained."""

    inner: Any  # the state of the algorithm
    served: frozenset[int]  # clients that the algorithm has last wanted to ask
    since: int  # version of the whole at which the cluster began
    advanced: tuple[int, ...]  # versions of the whole with which the algorithm's own version grew, the last `OLDEST`
    counts: Mapping[int, int]  # updates that each client has sent since then
    looked: int  # updates of the share of its clients that is asked for, when it was looked at last
    separation: Mapping[str, Any]  # what was seen then


class PerClusterState(NamedTuple):
    """The server's state of `PerCluster`."""

    version: int  # rounds or arrivals so far after which some cluster had another model, or was split
    tree: Tree  # all clusters that ever were; the models of leaves are those of `clusters`
    trained: Mapping[int, Cluster]  # those that are trained, by number
    sizes: Mapping[int, int]  # as reported
    directions: Mapping[int, Vector]  # moving average of the directions of what each client sent
    newcomers: Mapping[int, int]  # clients on their way down the tree, and the node that each has come to
    idle: frozenset[int]  # clients whose answer has come, and who wait for the next download
    excluded: frozenset[int]  # by the algorithm, for good
    steps: int  # rounds or arrivals so far
    verdicts: Mapping[int, Verdict]

    @property
    def model(self) -> Vector:
        """The model of the root: that of all clients until they were first split, and not trained since."""
        root = self.trained.get(0)
        return self.tree.nodes[0].model if root is None else _model(root)

    @property
    def clusters(self) -> dict[int, tuple[int, ...]]:
        """The clients of each cluster that is trained."""
        return {v: tuple(sorted(self.tree.nodes[v].clients)) for v in self.trained}

    @property
    def parents(self) -> dict[int, int | None]:
        """The tree: for each cluster that ever was, the one that it was split off."""
        return self.tree.parents

    @property
    def born(self) -> dict[int, int]:
        """For each cluster that ever was, the step in which it was split off."""
        return self.tree.born

    @property
    def separation(self) -> dict[int, Mapping[str, Any]]:
        """For each cluster that was looked at: its best division, how far apart the parts are, and the decision."""
        return {v: cluster.separation for v, cluster in self.trained.items() if cluster.separation}

    @property
    def reputation(self) -> dict[int, float]:
        """The reputation of each client within its cluster, where the algorithm has some."""
        return {i: r for c in self.trained.values() for i, r in getattr(c.inner, "reputation", {}).items()}

    @property
    def quota(self) -> dict[int, float]:
        """The quota of each client within its cluster, where the algorithm has some."""
        return {i: q for c in self.trained.values() for i, q in getattr(c.inner, "quota", {}).items()}

    def node_of(self, client: int) -> int:
        """Return the cluster that a client is in, or has come to on its way."""
        return self.newcomers[client] if client in self.newcomers else self.tree.leaf_of(client)


@dataclass(frozen=True)
class PerCluster(Wrapper):
    """Runs an algorithm in each cluster of clients, and finds the clusters from the directions of their updates.

    What the algorithm tolerates, it must tolerate in every cluster: all f attackers can be in one of them.  A
    cluster is not split if a part would be too small for the algorithm, smaller than its quorum for example.

    Args:
        algorithm: what runs in each cluster; of rounds or of arrivals, but without a reference of the server's own.
        min_gap: how much more similar to its own group than to the nearest other one the median client of each group
            must be, as a difference of cosines.
        min_reported: share of a cluster's clients, above 1/2, that must have sent something for each look at it. The
            others may stay away without effect.
        min_turns: updates that each of these must have sent before the first split of their cluster.
        min_part_size: smallest group that a split may leave, at least 2. Set it above twice the number of attackers, or
            they may take honest clients into a cluster of their own.
        memory: share in [0, 1) of the past in a remembered direction.
        cached: largest number of directions that is kept on an edge of the tree for clients that come later.
    """

    min_gap: Annotated[float, Meta(gt=0, lt=2, description="it is a difference of cosines")] = 0.3
    min_reported: Annotated[float, Meta(gt=0.5, le=1)] = 0.75
    min_turns: PositiveInt = 5
    min_part_size: Annotated[int, Meta(ge=2)] = 3
    memory: Annotated[float, Meta(ge=0, lt=1)] = 0.8
    cached: Annotated[int, Meta(ge=1, description="new clients are compared with it")] = 20

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.algorithm.traits.needs_reference:
            raise ValueError(
                f"{self.algorithm.title} needs a training of the server's own, which has one set of "
                "examples and cannot say what is right in each cluster. Choose another algorithm, such as Catalyst."
            )
        check_not_central("PerCluster", self.algorithm)

    @property
    @override
    def traits(self) -> Traits:
        """See `Algorithm`: it shows the tree, what was seen of each cluster, and reputations where there are some."""
        own, inner = ("clusters", "parents", "born", "newcomers", "separation"), super().traits
        shown = (*own, *(name for name in ("reputation", "quota") if name in inner.observed))
        search = GroupSearch("PerCluster", self.min_part_size, self.min_turns, FOUND, FOUND_IN_PART)
        return inner._replace(observed=shown, groups=search)

    # Role: server

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[PerClusterState, Set[int]]:
        inner, ready = self.algorithm.init(model, sizes)
        root = Cluster(inner, frozenset(ready), 0, (), {}, 0, {})
        tree, nobody = Tree.rooted(sizes, model), frozenset[int]()
        return PerClusterState(0, tree, {0: root}, dict(sizes), {}, {}, nobody, nobody, 0, {}), ready

    @override
    def download(self, state: PerClusterState, client: int) -> Download:
        """See `Algorithm`: what the client's cluster sends it, or the model of the node that it has come to."""
        if client in state.newcomers:
            return self._uncorrected(state.tree.nodes[state.newcomers[client]].model)
        return self.algorithm.download(state.trained[state.tree.leaf_of(client)].inner, client)

    @override
    def candidate_models(self, state: PerClusterState, client: int) -> Mapping[int, Download]:
        """See `Algorithm`: the models on the client's path, from the root's to what its cluster sends it."""
        path = state.tree.path(state.node_of(client))
        models = {v: self._uncorrected(state.tree.nodes[v].model) for v in path[:-1]}
        return {**models, path[-1]: self._served(state, client)}

    def _served(self, state: PerClusterState, client: int) -> Download:
        """Return the last of the client's candidate models."""
        if client in state.newcomers:
            return self.download(state, client)
        inner = state.trained[state.tree.leaf_of(client)].inner
        return [*self.algorithm.candidate_models(inner, client).values()][-1]

    def _uncorrected(self, model: Vector) -> Download:
        """Return the download of a model alone; what else a download holds is zero."""
        size = self.algorithm.traits.vectors * len(model)
        return model if size == len(model) else torch.cat((model, model.new_zeros(size - len(model))))

    @override
    def weights(self, state: PerClusterState, clients: Collection[int]) -> dict[int, float]:
        """See `Algorithm`: those within the cluster of each client; none for new clients on their way to one."""
        used = dict.fromkeys(clients, 0.0)
        for v, cluster in state.trained.items():
            members = [i for i in clients if i in state.tree.nodes[v].clients]
            used |= self._within(state).weights(cluster.inner, members) if members else {}
        return used

    @override
    def carried(self, state: PerClusterState) -> tuple[int, Vector | None]:
        """See `Algorithm`: clusters have results of their own."""
        return state.version, None

    @override
    def lose_round(self, state: PerClusterState, updates: Updates, why: str) -> tuple[PerClusterState, Set[int]]:
        """See `Algorithm`: in each cluster that reported."""
        state, ready = state._replace(verdicts={}), set[int]()
        for v in state.trained:
            state, now = self._lost(state, v, updates.of(state.tree.nodes[v].clients), why)
            ready |= now
        return state._replace(idle=state.idle - ready), ready - state.excluded

    def _lost(self, state: PerClusterState, v: int, report: Updates, why: str) -> tuple[PerClusterState, Set[int]]:
        """Return the state after a cluster has lost a round, and who of it is ready."""
        if not len(report):
            return state, frozenset()
        inner, ready = self.algorithm.lose_round(state.trained[v].inner, report, f"cluster {v}: {why}")
        trained = {**state.trained, v: state.trained[v]._replace(inner=inner)}
        return state._replace(trained=trained, verdicts={**state.verdicts, **inner.verdicts}), ready

    @override
    def part(self, state: PerClusterState, clients: Mapping[int, int]) -> tuple[PerClusterState, Set[int]]:
        return self.init(state.model, clients)

    @override
    def join(self, state: PerClusterState, client: int, size: int) -> PerClusterState:
        """See `Algorithm`: into the only cluster, or down the tree, by one node whenever it reports (Algorithm 4)."""
        state = state._replace(sizes={**state.sizes, client: size})
        if 0 in state.trained:
            return self._joined(state, 0, client)
        return state._replace(newcomers={**state.newcomers, client: 0})

    @override
    def step(self, state: PerClusterState, updates: Updates) -> tuple[PerClusterState, Set[int]]:
        """See `Algorithm`.

        Raises:
            InfeasibleError: no cluster that reported can take a step.
        """
        version = state.version + 1  # if something changes
        state = state._replace(
            steps=state.steps + 1,
            directions={**state.directions, **self._directions(state, updates)},
            idle=state.idle.union(updates.clients),
            verdicts={},
        )
        leaves = {v: updates.of(state.tree.nodes[v].clients) for v in state.trained}
        ready, errors = set[int](), dict[int, InfeasibleError]()
        reported = {v: report for v, report in leaves.items() if len(report)}
        for v, report in reported.items():
            try:
                state, now = self._cluster_step(state, v, report, version)
                ready |= now
            except InfeasibleError as error:
                errors[v] = error
        if errors and errors.keys() == reported.keys() and not state.newcomers.keys() & set(updates.clients):
            raise next(iter(errors.values()))
        for v, problem in errors.items():
            state, now = self._lost(state, v, reported[v], str(problem))
            ready |= now
        for v in reported.keys() - errors.keys():
            state, now = self._look(state, v, version)
            ready |= now
        state, now = self._guide(state, updates)
        ready |= now
        if self.traits.synchronous:
            ready = {i for c in state.trained.values() for i in c.served} | state.newcomers.keys()
        state = state._replace(idle=state.idle - ready - state.excluded, verdicts=dict(sorted(state.verdicts.items())))
        return state, frozenset(ready - state.excluded)

    def _directions(self, state: PerClusterState, updates: Updates) -> dict[int, Vector]:
        """Return the moving average of each client that reported; a zero update has no direction, and changes none."""
        found = dict[int, Vector]()
        for i, delta in zip(updates.clients, updates.deltas, strict=True):
            if (unit := direction(delta)) is not None:
                past = state.directions.get(i)
                found[i] = unit if past is None else self.memory * past + (1 - self.memory) * unit
        return found

    def _cluster_step(
        self, state: PerClusterState, v: int, report: Updates, version: int
    ) -> tuple[PerClusterState, Set[int]]:
        """Return the state after the step of one cluster, of a version if it changed the model, and who is ready."""
        cluster = state.trained[v]
        counts = {**cluster.counts, **{i: cluster.counts.get(i, 0) + 1 for i in report.clients}}
        early = {i for i, old in zip(report.clients, report.versions, strict=True) if old < cluster.since}
        why = Verdict(False, 0.0, None, f"was trained before cluster {v} was split off")
        verdicts, ready = {**state.verdicts, **dict.fromkeys(early, why)}, set(early)
        fresh = report.of(set(report.clients) - early)
        if len(fresh):
            inner, now = self._within(state).step(cluster.inner, self._of_cluster(cluster, fresh))
            grew = inner.version - cluster.inner.version
            advanced = (*cluster.advanced, *(version,) * grew)[-OLDEST:]
            cluster = cluster._replace(inner=inner, served=frozenset(now), advanced=advanced)
            verdicts |= inner.verdicts
            state = state._replace(version=version if grew else state.version)
            ready |= now
        excluded = state.excluded | {i for i, verdict in verdicts.items() if verdict.final}
        clusters = {**state.trained, v: cluster._replace(counts=counts)}
        return state._replace(trained=clusters, verdicts=verdicts, excluded=excluded), ready

    def _of_cluster(self, cluster: Cluster, report: Updates) -> Updates:
        """Return updates with the versions of their cluster's own algorithm."""
        now = cluster.inner.version
        versions = (now - sum(at > version for at in cluster.advanced) for version in report.versions)
        return replace(report, versions=tuple(versions))

    def _within(self, state: PerClusterState) -> Algorithm[Any]:
        """Return the algorithm of each cluster: all attackers, not a share of them, can be in one."""
        return with_attackers(self.algorithm, len(state.sizes))

    # Clusters

    def _look(self, state: PerClusterState, v: int, version: int) -> tuple[PerClusterState, Set[int]]:
        """Return the state after a look at a cluster, if it is time for one, and who is ready because of a split.

        Args:
            state: after the steps of all clusters.
            v: number of the cluster.
            version: of the state after a split.
        """
        cluster, members = state.trained[v], state.tree.nodes[v].clients - state.excluded
        turns = self._turns(cluster, members)
        if turns <= cluster.looked:
            return state, frozenset()
        known = tuple(sorted(i for i in members if i in state.directions))
        if not known:
            return state, frozenset()
        absent = members - set(known)
        rows = torch.stack([state.directions[i] for i in known])
        alpha = cosine_similarity(rows).cpu()
        division = divide(alpha, self.min_part_size)
        why = self._objection(turns, division, absent) or self._unserved(state, cluster, known, division)
        seen = _seen(known, division, why)
        state = state._replace(trained={**state.trained, v: cluster._replace(looked=turns, separation=seen)})
        if why or division is None:
            return state, frozenset()
        return self._split(state._replace(version=version), v, known, rows, division)

    def _turns(self, cluster: Cluster, members: Set[int]) -> int:
        """Return how many updates the share of a cluster's clients that is asked for has sent, each of them."""
        counts = sorted((cluster.counts.get(i, 0) for i in members), reverse=True)
        return counts[max(1, math.ceil(self.min_reported * len(counts) - 1e-9)) - 1] if counts else 0

    def _objection(self, turns: int, division: Division | None, absent: Set[int]) -> str:
        """Return why a cluster is not split, in words; empty if it is."""
        if division is None:
            return f"not split: no two groups of {self.min_part_size} clients or more"
        if division.gap < self.min_gap:
            return f"not split: no groups, gap {division.gap:.3f}, min_gap {self.min_gap:g}"
        if turns < self.min_turns:
            return f"not split: {plural(turns, 'update')} of each client, min_turns {self.min_turns}"
        if absent and not self.algorithm.traits.can_join:
            never = f"nothing came of {plural(len(absent), 'client')} yet"
            return f"not split: {never}, and {self.algorithm.title} cannot take in clients later"
        return ""

    def _unserved(self, state: PerClusterState, cluster: Cluster, known: Indices, division: Division | None) -> str:
        """Return why the algorithm could not go on with one of the parts, in words; empty if it could with both."""
        for group in division.groups if division else ():
            with warnings.catch_warnings(action="ignore"):  # a split warns
                try:
                    self._within(state).part(cluster.inner, {known[k]: state.sizes[known[k]] for k in group})
                except InfeasibleError as error:
                    return f"not split: with {plural(len(group), 'client')}, {error}"
            of_round = self.rule if self.traits.synchronous else None
            if of_round is not None and (why := too_few(of_round, len(group))):
                return f"not split: with {plural(len(group), 'client')}, {why}"
        return ""

    def _split(
        self, state: PerClusterState, v: int, known: Indices, rows: Float[Tensor, "m d"], division: Division
    ) -> tuple[PerClusterState, Set[int]]:
        """Return the state after a split, and who is ready: of the two parts, those who do not work on something."""
        cluster, tree = state.trained[v], state.tree
        parts = tuple(frozenset(known[k] for k in group) for group in division.groups)
        absent = tree.nodes[v].clients - state.excluded - parts[0] - parts[1]
        core = [[k for k in group if k not in division.aside][: self.cached] for group in division.groups]
        edges = tuple((tuple(known[k] for k in group), rows[group]) for group in core)
        model = _model(cluster)
        tree = tree.replaced({v: tree.nodes[v]._replace(model=model)})
        tree = tree.split(v, (parts[0], parts[1]), model, (edges[0], edges[1]), state.steps)
        first = len(tree.nodes) - 2
        clusters = {u: c for u, c in state.trained.items() if u != v}
        for u, part in zip((first, first + 1), parts, strict=True):
            inner, served = self._within(state).part(cluster.inner, {i: state.sizes[i] for i in sorted(part)})
            clusters[u] = Cluster(inner, frozenset(served), state.version, (), {}, 0, {})
        verdicts = {i: _moved(verdict, tree, i) for i, verdict in state.verdicts.items() if i in parts[0] | parts[1]}
        state = state._replace(
            tree=tree,
            trained=clusters,
            newcomers={**state.newcomers, **dict.fromkeys(sorted(absent), v)},
            verdicts={**state.verdicts, **verdicts},
        )
        return state, state.idle & tree.nodes[v].clients

    def _guide(self, state: PerClusterState, updates: Updates) -> tuple[PerClusterState, Set[int]]:
        """Return the state with clients that reported on their way one node farther down, and who they are."""
        ready = set[int]()
        for i, delta in zip(updates.clients, updates.deltas, strict=True):
            if i not in state.newcomers or i in state.verdicts:
                continue
            ready.add(i)
            at = state.newcomers[i]
            to = state.tree.branch(at, delta)
            branch = f"cluster {to.node}: cosine {to.similarity:.3f}, to its sibling {to.other:.3f}"
            verdict = Verdict(False, 0.0, to.similarity, f"new client goes to {branch}")
            if not bool(delta.any()):
                verdict = Verdict(False, 0.0, None, f"new client stays at cluster {at}: a zero update has no direction")
            elif to.node not in state.trained:
                state = state._replace(newcomers={**state.newcomers, i: to.node})
            else:
                try:
                    state = self._joined(state, to.node, i)
                except InfeasibleError as error:
                    verdict = Verdict(False, 0.0, to.similarity, f"new client stays at cluster {at}: {error}")
            state = state._replace(verdicts={**state.verdicts, i: verdict})
        return state, ready

    def _joined(self, state: PerClusterState, v: int, client: int) -> PerClusterState:
        """Return the state with a client in a cluster."""
        cluster = state.trained[v]
        inner = self._within(state).join(cluster.inner, client, state.sizes[client])
        clusters = {**state.trained, v: cluster._replace(inner=inner, served=cluster.served | {client})}
        newcomers = {i: at for i, at in state.newcomers.items() if i != client}
        return state._replace(tree=state.tree.joined(client, v), trained=clusters, newcomers=newcomers)

    @override
    def pools(self, setting: Setting, state: PerClusterState | None = None) -> tuple[Pool, ...] | None:
        """See `Algorithm`: those of each cluster; of a smallest one, of whose clients one can be drawn."""
        if state is not None:
            inner = [self.algorithm.pools(setting, cluster.inner) for cluster in state.trained.values()]
            return tuple(pool for pools in inner for pool in pools or ())
        whole = self.algorithm.pools(setting)
        least = 1 if setting.lossy or setting.drawn else min(self.min_part_size, setting.clients)
        part = self.algorithm.pools(replace(setting, clients=least, sizes=None, drawn=None))
        if not whole or not part:
            return whole and part
        beyond = UNBOUNDED
        if all(pool.bounds == "result" and not pool.beyond for pool in whole):
            beyond = drift(UNBOUNDED, self.rule, getattr(innermost(self), "server_lr", 1.0))
        whole = tuple(
            pool if UNBOUNDED in pool.beyond else replace(pool, beyond=f"{beyond} {pool.beyond}".strip())
            for pool in whole
        )
        return tuple(self._cluster(*pair) for pair in zip(whole, part, strict=True))

    @staticmethod
    def _cluster(whole: Pool, part: Pool) -> Pool:
        """Return what is combined in a cluster, given what would be of all clients, and of a smallest cluster."""
        if part.smallest >= whole.smallest and whole.name != "round":  # it is the same in every cluster: a quorum
            return replace(whole, parted=True)
        larger = "raise min_part_size, and have all clients take part in each round"
        smallest = min(part.smallest, whole.smallest)
        return replace(
            whole, name="cluster", smallest=smallest, larger=larger, chosen="updates", refused="", parted=True
        )


def _model(cluster: Cluster) -> Vector:
    model: Vector = cluster.inner.model
    return model


def _seen(known: Indices, division: Division | None, why: str) -> dict[str, Any]:
    """Return what a look has shown, for the history."""
    if division is None:
        return {"parts": None, "alpha_cross": None, "gap": None, "decision": why}
    parts = tuple(tuple(known[k] for k in group) for group in division.groups)
    decision = why or f"split in {len(parts[0])} and {plural(len(parts[1]), 'client')}"
    return {"parts": parts, "alpha_cross": division.across, "gap": division.gap, "decision": decision}


def _moved(verdict: Verdict, tree: Tree, client: int) -> Verdict:
    """Return a verdict that says where its client is now."""
    return replace(verdict, reason="; ".join(filter(None, (verdict.reason, f"now in cluster {tree.leaf_of(client)}"))))
