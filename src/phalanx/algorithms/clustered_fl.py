"""Clustered federated learning.

Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under
Privacy Constraints", 2019.  `ClusteredFL` is Algorithm 5, with the parameter tree of Section V-C as its state, and new
clients by Algorithm 4.  Its permutation P is `phalanx.algorithms.Permuted`.

Where the paper is silent or ambiguous:

* epsilon1 and epsilon2 are given for no figure, and depend on model, data and learning rate.  Numbers are compared as
  they are; `Relative`, the default, is a share of the length of updates in the same run.
* After a split the children start from their parent's averaged model: the pseudo-code leaves their first Delta theta_c
  open.  The parent keeps the model that the updates started from, as Equation 47 has it, so that a new client's update
  and those on the edges have one origin.
* All clients take part in every round of the paper.  Here rounds may be a part of them: `memory` applies line 14 to 17
  to what is remembered of each client's updates, which is those of the round where all take part.  Without it a cluster
  is split only in a round in which all its clients reported, so that one silent client prevents every split.  With
  `min_reported` below 1 whoever reported, or is remembered, is split, if that is at least this share of the cluster;
  the others begin at the node that was split, and go down the tree by Algorithm 4 when they come back, as new clients
  do.  With `leave_after` a client that has been silent for so many rounds counts neither in that share nor in the scale
  of `Relative`.
* Attackers gain nothing by staying away on purpose.  Up to 1 - `min_reported` of a cluster cannot prevent a split by
  it, more can for `leave_after` rounds only, and then have to report to count at all.  Who is away in the round of a
  split has no part in it, is in no average until it has come down the tree, and is in one leaf then, which it chooses
  by its updates, as it could have in the split.  But who is there decides: f attackers of n who all report are f of
  `min_reported` n in the worst case, and the rule has to tolerate that many.
* Line 13 averages the updates of the round, and those of absent clients that are no older than `memory.reuse` rounds;
  else clients that report more often decide where the average becomes short.  A client counts once in a step, whether
  it reports or is remembered.  What was sent before a cluster was formed is not remembered of it.
* `peel` is not in the paper, but what Sattler et al. 2020 do with attackers, by other statistics: small groups that are
  like nobody else are left out of lines 13 to 18, and become clusters of their own if that lasts.  The maximum of line
  14 is then the largest norm but f, and `min_gap` is asked of all clients but f, so that one update cannot force or
  prevent a split.
* Where clients hold few examples, cosines within a group are hardly larger than across.  `compare="profiles"` puts the
  correlation of the rows of alpha in the place of alpha; as the longest of many noisy updates is always long, the
  median norm takes the place of the maximum of line 14.
* The paper does not consider updates that are mostly noise, as those of congruent clients become when little is left to
  learn.  Their cosines are near zero and always satisfy line 18 with gamma_max < 0.7.  `min_gap` requires real groups:
  similarities within them must exceed those across.  The paper's Definition 2 requires the same, but of the true
  groups, which no server knows.  0 leaves the condition out, as the paper does.
* The criteria hold at a stationary point, and the paper does not say when one is reached.  Congruent clients that hold
  different classes forget what the others know and learn it again; for many rounds their longest update exceeds
  epsilon2 now and then.  `patience` requires this in several consecutive rounds.  1, the default, is the paper.
* Figures 8 and 9 split at fixed rounds, one cluster each time.  `split_rounds` does so: the cluster with the smallest
  alpha_cross, whatever the norms.
* `min_round` and `min_cluster_size` are not in the paper but in the authors' published code, which splits after round
  20 only, and clusters of three clients or more only.
* Line 13 averages without weights, Equation 2 by |D_i|.  `preprocess` chooses, among the sizes of a cluster's clients
  alone, so that truncation bounds the attackers' share of each cluster; the norms of line 14 are those of the result of
  `aggregate`, and of single updates.
* If too few of a cluster's clients report for the rule, on which the paper is silent, the cluster does not change, and
  the others go on; if no cluster can, the round is an error.
* A zero update has no direction: it counts as orthogonal to all others, and as equal to other zero updates.  A new
  client that sends one stays where it is.
"""

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Annotated, Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from msgspec import Meta
from torch import Tensor
from typing_extensions import override

from phalanx.aggregators import Aggregator, Choice, Mean
from phalanx.algorithms.rounds import UNBOUNDED, drift, verdicts_of, weights_of
from phalanx.clustering import Memory, Peel, bipartition, cross_similarity, odd_groups, profile_similarity
from phalanx.clustering.memory import Remembered, recalled
from phalanx.clustering.tree import Edges, Sent, Tree, spread
from phalanx.core import (
    Algorithm,
    GroupSearch,
    InfeasibleError,
    Matrix,
    Pool,
    Setting,
    Traits,
    Updates,
    Vector,
    Verdict,
    Weights,
)
from phalanx.fields import INFINITE, CheckedFields, NonNegativeInt, PositiveInt
from phalanx.numerics.linalg import cosines_of, gram, norms
from phalanx.promises.promise_watch import combine
from phalanx.weighting import Ignore, Preprocess
from phalanx.wording import plural

Compared = Literal["cosines", "profiles"]

MUCH = 4e9  # bytes of remembered updates above which `init` says so
SHOWN = 64  # number of clients of a cluster up to which its similarities are kept in every round
SHOWN_SPLIT = 1024  # and up to which they are kept in the round of a split: a history holds them as text

FOUND = (  # benchmarks/groups_found.py, with 90 to 180 examples a client, 48 to 72, and 24
    "14 to 20 of 20 seeds with 90 examples a client or more, in 7 to 20 with 48 to 72, in none with 24"
)


@dataclass(frozen=True)
class Relative(CheckedFields):
    """A threshold relative to the task: a share of the scale of its updates.

    The scale is the largest median, in any round so far, of the norms of the last updates of all clients, zero for
    those that have sent none.  So half of the clients would have to lie in order to change it, also if few of them
    report in a round.

    Args:
        share: of the scale, positive.
    """

    share: Annotated[float, Meta(gt=0), INFINITE]


class SplitCheck(NamedTuple):
    """The observations of one cluster in a round."""

    clients: tuple[int, ...]  # whose updates were compared: who reported or is remembered, and is not odd
    mean_norm: float  # |Delta theta_c|
    max_norm: float  # largest |Delta theta_i|
    epsilon1: float  # the upper limit of mean_norm for a split
    epsilon2: float  # the lower limit of max_norm for a split
    asked: int  # consecutive rounds, up to this one, in which both limits were met
    parts: tuple[tuple[int, ...], tuple[int, ...]] | None  # c1 and c2, clients; None unless enough reported
    alpha_cross: float | None  # largest cosine between c1 and c2
    gap: float | None  # the smallest cosine to the nearest client of the own part, minus alpha_cross
    similarity: Float[Tensor, "m m"] | None  # alpha, in the order of `clients`
    split: bool
    decision: str  # "split in 3 and 4 clients", or why it was not
    present: int = 0  # members that have not left
    covered: int = 0  # of whom an update of the round, or a remembered one, was compared
    reported: int = 0  # of whom an update came in the round
    peeled: bool = False  # whether the second part is an odd group


class Evidence(NamedTuple):
    """Updates of clients of one cluster that are compared: those of a round, or those that are remembered."""

    clients: tuple[int, ...]
    deltas: Matrix
    products: Float[Tensor, "m m"]  # their inner products

    def of(self, members: Set[int]) -> "Evidence":
        """Return those of some clients; `self`, without a copy, where that is all."""
        rows = [row for row, client in enumerate(self.clients) if client in members]
        if len(rows) == len(self.clients):
            return self
        return Evidence(tuple(self.clients[r] for r in rows), self.deltas[rows], self.products[rows][:, rows])


class Round(NamedTuple):
    """One round of one cluster."""

    report: Updates  # of its clients, without odd ones
    weights: Weights  # n_k, of each
    delta: Vector  # Delta theta_c
    choice: Choice | None  # the rule's decision on each update
    reused: int  # number of absent clients whose remembered updates are in delta
    lengths: Mapping[int, float]  # the norm of each update of the round, odd ones included
    compared: Evidence  # what is known of the cluster's clients
    groups: tuple[frozenset[int], ...]  # those of them that are odd
    odd: Mapping[int, str]  # why each client of these is odd

    @property
    def evidence(self) -> Evidence:
        """The updates that decide on a split: without those of odd clients."""
        return self.compared.of(set(self.compared.clients) - self.odd.keys())


class ClusteredFLState(NamedTuple):
    """The server's state of `ClusteredFL`."""

    version: int  # rounds completed
    tree: Tree  # all clusters that ever were, with their models
    sizes: Mapping[int, int]  # reported by all clients that take part
    lengths: Mapping[int, float]  # norms of the last updates of the members of clusters
    newcomers: Mapping[int, int]  # clients on their way down the tree, and the node that each has reached
    scale: float  # the largest median of these norms so far
    aggregates: Mapping[int, Vector]  # what the rule returned last in each leaf, for rules that start from there
    checks: Mapping[int, SplitCheck]  # of each cluster of which a client reported in the last round, by its number then
    verdicts: Mapping[int, Verdict]
    heard: Mapping[int, int] = {}  # the round in which each client reported last, or joined
    memory: Mapping[int, Remembered] = {}  # of members of clusters, where updates are remembered
    odd: Mapping[int, int] = {}  # in how many of its rounds in a row each client that was odd in its last one has been
    isolated: frozenset[int] = frozenset()  # clusters that were peeled off

    @property
    def model(self) -> Vector:
        """The model of the root: that of all clients until the first split, and not trained since."""
        return self.tree.nodes[0].model

    @property
    def clusters(self) -> dict[int, tuple[int, ...]]:
        """The clients of each leaf."""
        return {v: tuple(sorted(leaf.clients)) for v, leaf in self.tree.leaves.items()}

    @property
    def parents(self) -> dict[int, int | None]:
        """The tree: the parent of each cluster that ever was."""
        return self.tree.parents

    @property
    def born(self) -> dict[int, int]:
        """The round of the split from which each cluster that ever was comes."""
        return self.tree.born

    @property
    def norms(self) -> dict[int, dict[str, float]]:
        """For each cluster of the last round: mean and max of line 14, and their limits."""
        names = {"mean": "mean_norm", "max": "max_norm", "epsilon1": "epsilon1", "epsilon2": "epsilon2"}
        return {v: {name: getattr(check, field) for name, field in names.items()} for v, check in self.checks.items()}

    @property
    def separation(self) -> dict[int, dict[str, Any]]:
        """For each cluster of the last round: its best bi-partition, the similarity of the parts, and the decision."""
        names = ("parts", "alpha_cross", "gap", "decision")
        return {v: {name: getattr(check, name) for name in names} for v, check in self.checks.items()}

    @property
    def similarity(self) -> dict[int, dict[str, Any]]:
        """For each cluster of the last round: alpha to four digits, and the clients of its rows."""
        known = {v: check for v, check in self.checks.items() if check.similarity is not None}
        return {v: {"clients": check.clients, "alpha": _rounded(check.similarity)} for v, check in known.items()}

    def node_of(self, client: int) -> int:
        """Return the cluster of a client, or the node that it has reached; the root if it does not take part."""
        if client not in self.sizes:
            return 0
        return self.newcomers[client] if client in self.newcomers else self.tree.leaf_of(client)

    def candidate_models(self, client: int) -> dict[int, Vector]:
        """Return all models that a client can be served, from the most general one at the root to its cluster's."""
        return {v: self.tree.nodes[v].model for v in self.tree.path(self.node_of(client))}


@dataclass(frozen=True)
class ClusteredFL(Algorithm[ClusteredFLState]):
    """A split of clients whose data contradict each other, with a model for each group.

    A cluster is split in two when its clients have reached a stationary point together (the average of their updates is
    short) but not each alone (some update is long).  Clients need not take part in one round for that: an update of
    each is remembered, a vector as long as the model.  No defence by default: an attacker can keep its cluster from
    converging, or split it; combine `peel` with a robust rule.

    The default thresholds are meant for unknown tasks.  To set them in numbers, plot `norms` of a run that does not
    split (`min_round` above its length): epsilon1 goes above the final level of the mean, epsilon2 between that and the
    level of the maximum.

    Args:
        eps1: epsilon1, the norm of the averaged update below which a cluster counts as stationary.
        eps2: epsilon2, the norm that the longest update must exceed for a cluster to be split.
        gamma_max: assumed bound in [0, 1) on the relative noise of updates; a split needs
            sqrt((1 - alpha_cross) / 2) > gamma_max. 0: no condition.
        min_gap: how much more similar to its nearest peer in its group a client must be than any two clients of the
            two groups, as a difference of cosines. Not for clients that are alone in a group. 0: no condition.
        min_round: rounds before the first split.
        min_reported: share in (0, 1] of a cluster's clients that must have reported in the round of a split, or whose
            updates must be remembered; the others go down the tree by Algorithm 4 when they come back.
        leave_after: rounds without a report after which a client counts as having left, and is not waited for; null:
            never, or, with `memory`, after its rounds. It takes part again when it reports.
        memory: remembers an update of each client from round to round, and compares these; null, as in the paper: a
            round is compared.
        peel: filters the updates of small odd groups, and makes clusters of those that stay odd; null: nobody is odd.
        compare: "cosines" of updates, as in the paper, or "profiles", by whom else clients are similar to, for 10
            clients or more that hold few examples; these want a smaller `min_gap`, such as 0.1, and a `min_part_size`.
        patience: consecutive rounds in which the conditions of `eps1` and `eps2` must hold; ours, for congruent clients
            that hold different classes, whose updates are long now and then. 1 is Algorithm 5.
        min_cluster_size: clusters of fewer clients are not split.
        min_part_size: smallest group that a split may leave.
        split_rounds: rounds, counted from 1, in each of which one cluster is split, and in no others, if any meets the
            other conditions; `eps1`, `eps2`, `min_round` and `patience` are ignored then. None: whenever all
            conditions hold.
        cached: largest number of updates kept on an edge for new clients, those that represent all of them best.
        aggregate: the rule within each cluster; the mean in the paper.
        preprocess: makes weights of the reported sizes within each cluster; all are equal in Algorithm 5.
    """

    eps1: Annotated[float, Meta(gt=0), INFINITE] | Relative = Relative(0.4)
    eps2: Annotated[float, Meta(ge=0), INFINITE] | Relative = Relative(0.6)
    gamma_max: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    min_gap: Annotated[float, Meta(ge=0, lt=2, description="it is a difference of cosines")] = 0.3
    min_round: NonNegativeInt = 20
    min_cluster_size: Annotated[int, Meta(ge=2)] = 3
    min_part_size: PositiveInt = 1
    split_rounds: tuple[PositiveInt, ...] | None = None
    cached: Annotated[int, Meta(ge=1, description="new clients are compared with it")] = 20
    aggregate: Aggregator = Mean()
    preprocess: Preprocess = Ignore()
    patience: PositiveInt = 1
    min_reported: Annotated[float, Meta(gt=0, le=1)] = 1.0
    leave_after: PositiveInt | None = None
    memory: Memory | None = Memory()
    peel: Peel | None = None
    compare: Compared = "cosines"

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(
            observed=("clusters", "parents", "born", "newcomers", "norms", "scale", "separation", "similarity"),
            can_join=True,
            groups=GroupSearch("ClusteredFL", self.min_part_size, 0, FOUND),
        )

    @classmethod
    def as_published(cls) -> "ClusteredFL":
        """Return Algorithm 5: a round is compared, and any split will do; its thresholds are to be set for a task."""
        return cls(memory=None, min_gap=0.0)

    # Role: server

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[ClusteredFLState, Set[int]]:
        self.preprocess.enrolled(sizes)  # raises if nothing can be made of them
        held = len(sizes) * model.numel() * model.element_size()
        if self.memory is not None and held > MUCH:
            warnings.warn(
                f"ClusteredFL remembers an update of each of {plural(len(sizes), 'client')}: {held / 1e9:.1f} GB once "
                "all have reported. With memory=None a cluster is split only in rounds of all its clients.",
                stacklevel=2,
            )
        tree = Tree.rooted(sizes, model)  # line 3
        return ClusteredFLState(0, tree, dict(sizes), {}, {}, 0.0, {}, {}, {}), sizes.keys()

    @override
    def download(self, state: ClusteredFLState, client: int) -> Vector:
        """See `Algorithm`: the model of the client's cluster, or of the node that a new client has reached."""
        return state.tree.nodes[state.node_of(client)].model

    @override
    def candidate_models(self, state: ClusteredFLState, client: int) -> Mapping[int, Vector]:
        """See `Algorithm`: the models on the client's path, from the root's to that of its cluster, by cluster."""
        return state.candidate_models(client)

    @override
    def step(self, state: ClusteredFLState, updates: Updates) -> tuple[ClusteredFLState, Set[int]]:
        """See `Algorithm`.

        Raises:
            InfeasibleError: too few clients of every cluster reported for the rule.
        """
        leaves = state.tree.leaves
        reports = {v: report for v, leaf in leaves.items() if len(report := updates.of(leaf.clients))}  # line 12
        state = self._noted(state, updates, reports)
        rounds, verdicts = self._rounds(state, reports)
        odd = self._counted(state, rounds)
        lengths = dict(state.lengths) | {i: norm for c in rounds.values() for i, norm in c.lengths.items()}
        scale = max(state.scale, _scale((self._present(state, leaf.clients) for leaf in leaves.values()), lengths))
        state = state._replace(odd=odd, lengths=lengths, scale=scale)
        checks = {v: self._check_split(state, leaves[v].clients, c, state.checks.get(v)) for v, c in rounds.items()}
        checks = self._decided(state, rounds, checks)

        grown = state._replace(aggregates=dict(state.aggregates) | {v: c.delta for v, c in rounds.items()})
        for v, c in rounds.items():
            averaged = leaves[v].model + c.delta  # line 7
            if checks[v].split:
                grown = self._grown(grown, v, averaged, c, checks[v])
            else:
                grown = grown._replace(tree=grown.tree.replaced({v: leaves[v]._replace(model=averaged)}))

        verdicts |= {i: verdict for v, c in rounds.items() for i, verdict in _judged(v, c, checks[v], grown).items()}
        tree, newcomers = self._guide(state, grown.tree, updates, verdicts)
        astray = {i: v for i, v in grown.newcomers.items() if i not in state.newcomers}
        new = grown._replace(
            version=state.version + 1,
            tree=tree,
            newcomers=newcomers | astray,
            checks={v: self._shown(check) for v, check in checks.items()},
            verdicts=dict(sorted(verdicts.items())),
        )
        return new, state.sizes.keys()

    @override
    def join(self, state: ClusteredFLState, client: int, size: int) -> ClusteredFLState:
        """See `Algorithm`.

        If there is one cluster only, the client belongs there; else it starts at the root, and goes down by one node in
        each round in which it reports (Algorithm 4).  Its updates have no weight until it reaches a leaf.
        """
        heard = {**state.heard, client: state.version}
        state = state._replace(sizes={**state.sizes, client: size}, heard=heard)
        if state.tree.nodes[0].children is None:
            self.preprocess.enrolled(state.sizes)  # raises if nothing can be made of them
            return state._replace(tree=state.tree.joined(client, 0))
        return state._replace(newcomers={**state.newcomers, client: 0})

    # Algorithm 5, line by line

    def _rounds(
        self, state: ClusteredFLState, reports: Mapping[int, Updates]
    ) -> tuple[dict[int, Round], dict[int, Verdict]]:
        """Return the rounds of those clusters that can take one, and the verdicts on the clients of the others."""
        rounds, errors = dict[int, Round](), dict[int, InfeasibleError]()
        for v, report in reports.items():
            try:
                rounds[v] = self._round(state, v, report)
            except InfeasibleError as error:
                errors[v] = error
        if not rounds and (others := {v: why for v, why in errors.items() if v not in state.isolated}):
            v, why = next(iter(others.items()))
            raise InfeasibleError(str(why) if v == 0 else f"No cluster can go on. Of cluster {v}: {why}") from why
        skipped = {v: Verdict(False, 0.0, None, f"cluster {v} stays as it is: {why}") for v, why in errors.items()}
        return rounds, {i: verdict for v, verdict in skipped.items() for i in reports[v].clients}

    def _round(self, state: ClusteredFLState, cluster: int, report: Updates) -> Round:
        """Return the results of line 13, and the inner products of lines 14 and 15."""
        compared = self._compared(state, cluster, report)
        groups, odd = self._odd_groups(compared)
        kept = report.of(set(report.clients) - odd.keys())
        delta, choice, n = torch.zeros_like(report.deltas[0]), None, torch.ones(0, dtype=torch.float64)
        older = self._reused(state, report, compared.of(set(compared.clients) - odd.keys()))
        if len(kept):
            members, previous = state.tree.nodes[cluster].clients, state.aggregates.get(cluster)
            used = self._within(state, members, (*kept.clients, *older.clients))
            n = weights_of(used, kept)
            rows = torch.cat([kept.deltas, older.deltas]) if older.clients else kept.deltas
            every = torch.cat([n, n.new_tensor([used[i] for i in older.clients])])
            delta, choice = combine(
                self.aggregate,
                rows,
                every,
                (*kept.clients, *older.clients),
                "cluster",
                turn=state.version,
                previous=previous,
            )
            if older.clients:
                choice = (choice or Choice(every / every.sum())).first(len(kept))
        lengths = compared.products.diagonal().sqrt() if self.memory is None else norms(report.deltas)
        by_client = dict(zip(report.clients, lengths.tolist(), strict=True))
        return Round(kept, n, delta, choice, len(older.clients), by_client, compared, groups, odd)

    def _reused(self, state: ClusteredFLState, report: Updates, known: Evidence) -> Evidence:
        """Return the remembered updates of absent clients that count in a step."""
        t, reuse = state.version + 1, self.memory.reuse if self.memory else 0
        absent = set(known.clients) - set(report.clients) if reuse else set()
        return known.of({i for i in absent if t - state.memory[i].round <= reuse})

    def _compared(self, state: ClusteredFLState, cluster: int, report: Updates) -> Evidence:
        """Return the updates of a round, or those of all members that are remembered."""
        clients, deltas = report.clients, report.deltas
        if self.memory is not None:
            members = state.tree.nodes[cluster].clients
            held = {i: e.update for i, e in sorted(state.memory.items()) if i in members and e.cluster == cluster}
            clients, deltas = tuple(held), torch.stack(list(held.values()))
        return Evidence(clients, deltas, gram(deltas).cpu())

    def _odd_groups(self, compared: Evidence) -> tuple[tuple[frozenset[int], ...], dict[int, str]]:
        """Return the groups of clients that are like nobody else, and why each client is odd."""
        if self.peel is None:
            return (), {}
        found = odd_groups(cosines_of(compared.products), self.peel.at_most, self.peel.gap)
        words = {
            compared.clients[k]: f"odd, closest cosine {found.nearest[k]:.3f} to the others is below {found.level:.3f}"
            for group in found.groups
            for k in group
        }
        return tuple(frozenset(compared.clients[k] for k in group) for group in found.groups), words

    # Present and absent clients

    def _noted(self, state: ClusteredFLState, updates: Updates, reports: Mapping[int, Updates]) -> ClusteredFLState:
        """Return the state with the last round in which each client reported, and with what is remembered."""
        t = state.version + 1
        state = state._replace(heard=dict(state.heard) | dict.fromkeys(updates.clients, t))
        if self.memory is None:
            return state
        held = state.memory
        for v, report in reports.items():
            held = recalled(self.memory, held, v, report, t)
        return state._replace(memory=held)

    def _present(self, state: ClusteredFLState, members: Iterable[int]) -> frozenset[int]:
        """Return the members that have not left: those that reported in one of the last `leave_after` rounds."""
        limit = self.leave_after if self.memory is None else min(self.leave_after or inf, self.memory.rounds)
        t = state.version + 1
        return frozenset(i for i in members if limit is None or t - state.heard.get(i, 0) < limit)

    def _counted(self, state: ClusteredFLState, rounds: Mapping[int, Round]) -> dict[int, int]:
        """Return the number of consecutive reports in which each client has been odd, up to its last one."""
        odd = dict(state.odd)
        for c in rounds.values():
            for i in c.lengths:
                odd[i] = odd.get(i, 0) + 1 if i in c.odd else 0
        return {i: count for i, count in odd.items() if count}

    def _weights_of(self, state: ClusteredFLState, members: Set[int], e: Evidence) -> Weights:
        """Return the weights of some members of a cluster, in the order of the evidence, float64."""
        n = self._within(state, members, e.clients)
        return torch.tensor([n[i] for i in e.clients], dtype=torch.float64, device=e.deltas.device)

    @override
    def weights(self, state: ClusteredFLState, clients: Collection[int]) -> dict[int, float]:
        """See `Algorithm`: those within the cluster of each client; none for new clients on their way to one."""
        used = dict[int, float]()
        for v, leaf in state.tree.leaves.items():
            with suppress(*(InfeasibleError,) * (v in state.isolated)):  # it stays as it is then
                used |= self._within(state, leaf.clients, [i for i in clients if i in leaf.clients])
        return {i: used.get(i, 0.0) for i in clients}

    def _within(self, state: ClusteredFLState, members: Set[int], clients: Iterable[int]) -> dict[int, float]:
        """Return n_k of some members of a cluster."""
        return self.preprocess.within(state.sizes, members, clients)

    def _check_split(self, state: ClusteredFLState, members: Set[int], c: Round, last: SplitCheck | None) -> SplitCheck:
        """Return the results of lines 14 to 17; `last` are those of the round before."""
        e = c.evidence
        mean, longest = self._mean(state, members, c, e), self._longest(c, e)
        eps1, eps2 = _resolved(self.eps1, state.scale), _resolved(self.eps2, state.scale)
        asked = (last.asked if last else 0) + 1 if mean < eps1 and longest > eps2 else 0
        present, covered = self._present(state, members), len(c.compared.clients)
        check = SplitCheck(e.clients, mean, longest, eps1, eps2, asked, None, None, None, None, False, "")
        check = check._replace(present=len(present), covered=covered, reported=len(c.lengths))
        if len(e.clients) < 2 or not self._covers(check):
            return check
        alpha = self._alpha(e.products)  # line 15
        groups = bipartition(alpha)  # line 16
        cross = cross_similarity(alpha, groups)  # line 17
        parts = tuple(e.clients[k] for k in groups[0]), tuple(e.clients[k] for k in groups[1])
        gap = _gap(alpha, groups, cross, self._spare(len(e.clients)))
        return check._replace(parts=parts, alpha_cross=cross, gap=gap, similarity=alpha)

    def _alpha(self, products: Float[Tensor, "m m"]) -> Float[Tensor, "m m"]:
        """Return the similarities of line 15, or those of their rows."""
        alpha = cosines_of(products)
        return profile_similarity(alpha) if self.compare == "profiles" else alpha

    def _mean(self, state: ClusteredFLState, members: Set[int], c: Round, e: Evidence) -> float:
        """Return |Delta theta_c|: of the step, or of the aggregate of all updates that are remembered."""
        delta = c.delta
        if self.memory is not None and e.clients:
            delta = self.aggregate(e.deltas, self._weights_of(state, members, e), turn=state.version)
        return float(torch.linalg.vector_norm(delta.double()))

    def _longest(self, c: Round, e: Evidence) -> float:
        """Return the largest norm without f, or the median with profiles: the smaller one of memory and round.

        A cluster that has just become stationary has clients whose remembered update is older, and still long.
        """
        remembered = self._long(e.products.diagonal().sqrt())
        if self.memory is None or not len(c.report):
            return remembered
        lengths = torch.tensor([c.lengths[i] for i in c.report.clients], dtype=torch.float64)
        return min(remembered, self._long(lengths))

    def _long(self, lengths: Float[Tensor, "m"]) -> float:
        """Return the norm that is compared with epsilon2."""
        spare = len(lengths) // 2 if self.compare == "profiles" else self._spare(len(lengths))
        return float(lengths.sort(descending=True).values[spare])

    def _spare(self, m: int) -> int:
        """Return how many of m clients cannot decide a condition of lines 14 and 18 alone: f, but fewer than half."""
        return min(self.peel.at_most, max(m - 1, 0) // 2) if self.peel else 0

    def _covers(self, check: SplitCheck) -> bool:
        """Return whether enough of the present members reported, or are remembered."""
        return check.covered >= ceil(self.min_reported * check.present - 1e-9)

    def _decided(
        self, state: ClusteredFLState, rounds: Mapping[int, Round], checks: Mapping[int, SplitCheck]
    ) -> dict[int, SplitCheck]:
        """Return the observations with the decisions of lines 14 and 18."""
        leaves = state.tree.leaves
        checks = {v: self._peeled(state, leaves[v].clients, rounds[v], check) for v, check in checks.items()}
        peeled = {v: x for v, x in checks.items() if x.peeled}
        checks = {v: x for v, x in checks.items() if not x.peeled}
        why = {v: next(self._objections(state, leaves[v].clients, rounds[v], check), "") for v, check in checks.items()}
        if self.split_rounds is not None:
            able = {v: check.alpha_cross for v, check in checks.items() if not why[v] and check.alpha_cross is not None}
            first = min(able, key=lambda v: (able[v], v), default=None)
            why |= {v: f"not split: cluster {first} is farther apart" for v in able if v != first}
        decided = {v: check._replace(split=not why[v], decision=why[v] or _split(check)) for v, check in checks.items()}
        return dict(sorted((peeled | decided).items()))

    def _peeled(self, state: ClusteredFLState, members: Set[int], c: Round, check: SplitCheck) -> SplitCheck:
        """Return the observations, with an odd group to be split off if there has been one for long enough."""
        if self.peel is None or not self._covers(check):
            return check
        for group in c.groups:
            if all(state.odd.get(i, 0) >= self.peel.rounds for i in group):
                parts = tuple(sorted(members - group)), tuple(sorted(group))
                decision = f"peeled off {plural(len(group), 'client')}, odd in {plural(self.peel.rounds, 'round')}"
                return check._replace(parts=parts, peeled=True, split=True, decision=decision)
        return check

    def _objections(self, state: ClusteredFLState, members: Set[int], c: Round, check: SplitCheck) -> Iterator[str]:
        """Yield the reasons why a cluster is not split in this round; none if it is."""
        yield from self._too_early(state.version + 1, check)
        if check.present < self.min_cluster_size:
            yield f"not split: {plural(check.present, 'client')}, min_cluster_size {self.min_cluster_size}"
        if check.parts is None or check.alpha_cross is None:
            yield self._uncovered(check)
            return
        noise = ((1 - check.alpha_cross) / 2) ** 0.5
        if not noise > self.gamma_max:  # line 18
            yield (
                f"not split: sqrt((1 - alpha_cross) / 2) = {noise:.3f}, gamma_max {self.gamma_max:g}, "
                f"alpha_cross {check.alpha_cross:.3f}"
            )
        if self.min_gap and check.gap is not None and check.gap < self.min_gap:
            yield f"not split: no groups, gap {check.gap:.3f}, min_gap {self.min_gap:g}"
        if (smallest := min(map(len, check.parts))) < self.min_part_size:
            yield f"not split: a group would have {plural(smallest, 'client')}, min_part_size {self.min_part_size}"
        if self.peel and smallest <= self.peel.at_most:
            yield f"not split: a group would have {plural(smallest, 'client')}, peel.at_most {self.peel.at_most}"
        for part in check.parts:
            yield from self._cannot_serve(state, c, part)

    def _uncovered(self, check: SplitCheck) -> str:
        """Return the reason why there is nothing to compare."""
        share = f", min_reported {self.min_reported:g}" if self.min_reported < 1 else ""
        if self.memory is not None:
            return f"not split: updates of {check.covered} of {plural(check.present, 'client')} remembered{share}"
        if check.covered == check.present:
            return f"not split: updates of {plural(len(check.clients), 'client')} to compare"
        return f"not split: {check.present - check.covered} of {check.present} clients did not report{share}"

    def _too_early(self, t: int, check: SplitCheck) -> Iterator[str]:
        """Yield the reasons against a split in round t by its number or by the lengths of updates."""
        if self.split_rounds is not None:
            if t not in self.split_rounds:
                yield f"not split: {t} is not one of split_rounds"
            return
        if t <= self.min_round:
            yield f"not split: only after round {self.min_round}"
        if not check.mean_norm < check.epsilon1:
            yield f"not split: still moving, mean update {check.mean_norm:.3g}, eps1 {check.epsilon1:.3g}"
        if not check.max_norm > check.epsilon2:
            yield f"not split: congruent, longest update {check.max_norm:.3g}, eps2 {check.epsilon2:.3g}"
        if check.asked < self.patience:
            yield f"not split: lengths have asked for it in {check.asked} of {self.patience} rounds in a row"

    def _cannot_serve(self, state: ClusteredFLState, c: Round, part: tuple[int, ...]) -> Iterator[str]:
        """Yield the reason why the rule could not aggregate a part of a cluster, if it could not."""
        members, e = frozenset(part), c.evidence.of(frozenset(part))
        try:
            self.aggregate(e.deltas, self._weights_of(state, members, e))
        except InfeasibleError as error:
            yield f"not split: with {plural(len(part), 'client')}, {error}"

    def _grown(
        self, state: ClusteredFLState, cluster: int, averaged: Vector, c: Round, check: SplitCheck
    ) -> ClusteredFLState:
        """Return the state after a split (line 19); absent members start at the node that was split (Algorithm 4)."""
        parts, first = _parts(check), len(state.tree.nodes)
        tree = state.tree.split(cluster, parts, averaged, self._edges(c, parts), state.version + 1)
        aggregates = dict(state.aggregates)
        aggregates |= dict.fromkeys((first, first + 1), aggregates.pop(cluster))
        members, memory = state.tree.nodes[cluster].clients, dict(state.memory)
        for i in members & memory.keys():
            if check.peeled:  # nothing has changed for the others: their updates are still of the same model
                memory[i] = memory[i]._replace(cluster=tree.leaf_of(i))
            else:
                del memory[i]
        astray = dict.fromkeys(sorted(members - parts[0] - parts[1]), cluster)
        isolated = state.isolated | {first + 1} if check.peeled else state.isolated
        return state._replace(
            tree=tree, aggregates=aggregates, memory=memory, newcomers={**state.newcomers, **astray}, isolated=isolated
        )

    def _edges(self, c: Round, parts: tuple[Set[int], Set[int]]) -> Edges:
        """Return the updates cached on the edges to the two children: Equation 47, limited by `cached`."""

        def edge(part: Set[int]) -> Sent:
            e = c.compared.of(part)
            rows = list(spread(cosines_of(e.products), self.cached))
            return tuple(e.clients[k] for k in rows), e.deltas[rows]

        return edge(parts[0]), edge(parts[1])

    def _guide(
        self, state: ClusteredFLState, tree: Tree, updates: Updates, verdicts: dict[int, Verdict]
    ) -> tuple[Tree, dict[int, int]]:
        """Move new clients that reported one node down; add their verdicts."""
        newcomers = dict(state.newcomers)
        for i, delta in zip(updates.clients, updates.deltas, strict=True):
            if i not in newcomers:
                continue
            to = tree.branch(newcomers[i], delta)
            there = tree.nodes[to.node].children is None
            why = "" if bool(delta.any()) else "a zero update has no direction"
            if why := why or (self._cannot_join(state, i, to.node, tree) if there else ""):
                verdicts[i] = Verdict(False, 0.0, None, f"new client stays at cluster {newcomers[i]}: {why}")
                continue
            if there:
                tree = tree.joined(i, to.node)
                del newcomers[i]
            else:
                newcomers[i] = to.node
            did = "joins" if there else "on its way to"
            reason = f"new client {did} cluster {to.node}: cosine {to.similarity:.3f}, to its sibling {to.other:.3f}"
            verdicts[i] = Verdict(False, 0.0, to.similarity, reason)
        return tree, newcomers

    def _cannot_join(self, state: ClusteredFLState, client: int, leaf: int, tree: Tree) -> str:
        """Return why the sizes of a leaf's clients and a new one give no weights; empty if they do."""
        try:
            self.preprocess.enrolled({i: state.sizes[i] for i in tree.nodes[leaf].clients | {client}})
        except InfeasibleError as error:
            return f"with it in cluster {leaf}, {error}"
        return ""

    def _shown(self, check: SplitCheck) -> SplitCheck:
        """Return the observations without the similarities of many clients."""
        keep = len(check.clients) <= (SHOWN_SPLIT if check.split else SHOWN)
        return check if keep else check._replace(similarity=None)

    @override
    def pools(self, setting: Setting, state: ClusteredFLState | None = None) -> tuple[Pool, ...]:
        """See `Algorithm`: a cluster, of whose clients any number can report."""
        part = setting.lossy or setting.drawn  # of the clients can report
        sure = not (part or self.peel)
        reuse = self.memory.reuse if self.memory and part else 0
        old = f"Updates count that are up to {plural(reuse, 'round')} old. " if reuse else ""
        return (
            Pool(
                "cluster",
                self.rule,
                min(self.min_part_size, setting.asked) if sure else 1,
                setting.asked,
                self.preprocess,
                "raise min_part_size" if sure else "have all clients take part in each round",
                chosen="updates",
                parted=True,
                versions=1 + reuse,
                beyond=drift(f"{old}{UNBOUNDED}", self.rule),
            ),
        )


def _scale(members: Iterable[Iterable[int]], lengths: Mapping[int, float]) -> float:
    """Return the median of the norms of the last updates of all present members of clusters."""
    last = [lengths.get(i, 0.0) for cluster in members for i in cluster]
    return float(torch.tensor(last, dtype=torch.float64).median()) if last else 0.0


def _resolved(threshold: float | Relative, scale: float) -> float:
    return threshold.share * scale if isinstance(threshold, Relative) else threshold


def _gap(alpha: Float[Tensor, "m m"], groups: tuple[tuple[int, ...], ...], cross: float, spare: int) -> float | None:
    """Return the smallest similarity to a nearest peer minus that across groups; None if all clients are alone.

    The `spare` clients that are least similar to their peers do not count.
    """
    others = alpha.clone().fill_diagonal_(-torch.inf)
    nearest = [others[list(group)][:, list(group)].max(1).values for group in groups if len(group) > 1]
    return float(torch.cat(nearest).sort().values[spare]) - cross if nearest else None


def _split(check: SplitCheck) -> str:
    assert check.parts is not None
    one, other = map(len, check.parts)
    away = check.present - one - other
    rest = f"; {plural(away, 'client')} to follow" if away > 0 else ""
    return f"split in {one} and {plural(other, 'client')}, alpha_cross {check.alpha_cross:.3f}{rest}"


def _parts(check: SplitCheck) -> tuple[Set[int], Set[int]]:
    assert check.parts is not None
    return frozenset(check.parts[0]), frozenset(check.parts[1])


def _judged(cluster: int, c: Round, check: SplitCheck, state: ClusteredFLState) -> dict[int, Verdict]:
    """Return the verdicts on the members of a cluster; weights are shares of its average, scores norms of updates."""
    whole = check.reported == check.present and not c.odd
    there = (
        f" of {plural(check.reported, 'client')}"
        if whole
        else f", {check.reported} of {check.present} clients reported"
    )
    there += f", averaged with {plural(c.reused, 'remembered update')}" if c.reused and len(c.report) else ""
    verdicts = verdicts_of(c.report, c.weights, c.choice)
    verdicts |= {i: Verdict(False, 0.0, None, f"filtered: {why}") for i, why in c.odd.items() if i in c.lengths}
    for i, verdict in verdicts.items():
        words = [verdict.reason] if verdict.reason else []
        words += [f"cluster {cluster}{there}", check.decision]
        words += [f"now in cluster {state.tree.leaf_of(i)}"] if check.split and i not in state.newcomers else []
        verdicts[i] = replace(verdict, score=c.lengths[i], reason="; ".join(words))
    return verdicts


def _rounded(alpha: Tensor | None) -> list[list[float]]:
    return [] if alpha is None else [[round(a, 4) for a in row] for row in alpha.tolist()]
