"""Clustered federated learning.

Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under
Privacy Constraints", 2019.  `ClusteredFL` is Algorithm 5, with the parameter tree of Section V-C as its state, and new
clients by Algorithm 4.  Its permutation P is `phalanx.algorithms.Permuted`.

Where the paper is silent or ambiguous:

* epsilon1 and epsilon2 are given for no figure, and depend on model, data and learning rate.  Numbers are compared as
  they are; `Relative`, the default, is a share of how long updates have been in this very run.
* After a split the children start from their parent's averaged model: the pseudo-code leaves their first Delta theta_c
  open.  The parent keeps the model that the updates started from, as Equation 47 has it, so that a new client's update
  and those on the edges have one origin.
* A cluster is split only in a round in which all its clients reported: a client that did not would belong nowhere.
* Nothing is said of updates that are mostly noise, as those of congruent clients become when little is left to learn.
  Their cosines are near zero and always satisfy line 18 with gamma_max < 0.7.  `min_gap` asks that groups be groups:
  that similarities within them exceed those across.  The paper's Definition 2 asks the same, but of the true
  groups, which no server knows.  0 leaves the condition out, as the paper does.
* The criteria hold at a stationary point, and nothing is said of when one is reached.  Congruent clients that hold
  different classes forget what the others know and learn it again; for many rounds their longest update exceeds
  epsilon2 now and then.  `patience` asks that it does so in each of some rounds.  1, the default, is the paper.
* Figures 8 and 9 split at fixed rounds, one cluster each time.  `split_rounds` does so: the cluster with the smallest
  alpha_cross, whatever the norms.
* `min_round` and `min_cluster_size` are not in the paper but in the authors' published code, which splits after round
  20 only, and clusters of three clients or more only.
* Line 13 averages without weights, Equation 2 by |D_i|.  `preprocess` chooses, among the sizes of a cluster's clients
  alone, so that truncation bounds what attackers hold of each cluster; the norms of line 14 are those of what
  `aggregate` returns, and of single updates.
* Nothing is said of rounds in which a cluster's clients are too few for the rule.  The cluster stays as it is then,
  and the others go on; if no cluster can, the round is an error.
* A zero update has no direction: it counts as orthogonal to all others, and as equal to other zero updates.  A new
  client that sends one stays where it is.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from phalanx.aggregators import Aggregator, Choice, Mean
from phalanx.algorithms.rounds import verdicts_of, warn_of_weights, weights_of
from phalanx.clustering import bipartition, cross_similarity
from phalanx.clustering.tree import Edges, Node, Sent, Tree, spread
from phalanx.core import Algorithm, InfeasibleError, Updates, Vector, Verdict, Weights
from phalanx.numerics.linalg import cosines_of, gram
from phalanx.weighting import Ignore, Preprocess
from phalanx.wording import plural

SHOWN = 64  # clients of a cluster up to which its similarities are kept in every round
SHOWN_SPLIT = 1024  # and up to which they are kept in that of a split: a history holds them as text


@dataclass(frozen=True)
class Relative:
    """A threshold that grows and shrinks with a task: a share of the scale of its updates.

    The scale is the largest median, in any round so far, of the norms of the updates that all clients have sent last,
    zero for those that have sent none.  So half of the clients would have to lie in order to move it, also where few of
    them report in a round.

    Args:
        share: of the scale, positive.
    """

    share: float

    def __post_init__(self) -> None:
        if not self.share > 0:
            raise ValueError(f"share must be positive, got {self.share}.")


class Look(NamedTuple):
    """What a round showed of one cluster."""

    clients: tuple[int, ...]  # who reported
    mean_norm: float  # |Delta theta_c|
    max_norm: float  # largest |Delta theta_i|
    epsilon1: float  # what mean_norm must be below
    epsilon2: float  # what max_norm must be above
    asked: int  # rounds in a row, up to this one, in which both were so
    parts: tuple[tuple[int, ...], tuple[int, ...]] | None  # c1 and c2, clients; None unless two or more all reported
    alpha_cross: float | None  # largest cosine between c1 and c2
    gap: float | None  # the smallest cosine to the nearest client of the own part, minus alpha_cross
    similarity: Float[Tensor, "m m"] | None  # alpha, in the order of `clients`
    split: bool
    decision: str  # "split in 3 and 4 clients", or why it was not


class Round(NamedTuple):
    """One round of one cluster."""

    report: Updates  # of its clients
    weights: Weights  # n_k, of each
    delta: Vector  # Delta theta_c
    choice: Choice | None  # what the rule made of each update
    products: Float[Tensor, "m m"]  # inner products of the updates


class ClusteredFLState(NamedTuple):
    """What the server of `ClusteredFL` carries over."""

    version: int  # rounds completed
    tree: Tree  # all clusters that ever were, with their models
    sizes: Mapping[int, int]  # declared by all who take part
    lengths: Mapping[int, float]  # the norms of what the members of clusters have sent last
    newcomers: Mapping[int, int]  # clients on their way down the tree, and the node that each has come to
    scale: float  # the largest median of these norms so far
    aggregates: Mapping[int, Vector]  # what the rule returned last in each leaf, for rules that start from there
    looks: Mapping[int, Look]  # at each cluster of which somebody reported in the last round, by its number then
    verdicts: Mapping[int, Verdict]

    @property
    def model(self) -> Vector:
        """The model of the root: that of all clients until they were first split, and not trained since."""
        return self.tree.nodes[0].model

    @property
    def clusters(self) -> dict[int, tuple[int, ...]]:
        """The clients of each leaf."""
        return {v: tuple(sorted(leaf.clients)) for v, leaf in self.tree.leaves.items()}

    @property
    def parents(self) -> dict[int, int | None]:
        """The tree: for each cluster that ever was, the one that it was split off."""
        return {v: node.parent for v, node in enumerate(self.tree.nodes)}

    @property
    def born(self) -> dict[int, int]:
        """For each cluster that ever was, the round in which it was split off."""
        return {v: node.born for v, node in enumerate(self.tree.nodes)}

    @property
    def norms(self) -> dict[int, dict[str, float]]:
        """For each cluster of the last round: mean and max of line 14, and what they are compared with."""
        names = {"mean": "mean_norm", "max": "max_norm", "epsilon1": "epsilon1", "epsilon2": "epsilon2"}
        return {v: {name: getattr(look, field) for name, field in names.items()} for v, look in self.looks.items()}

    @property
    def separation(self) -> dict[int, dict[str, Any]]:
        """For each cluster of the last round: its best bi-partition, how far apart the parts are, and the decision."""
        names = ("parts", "alpha_cross", "gap", "decision")
        return {v: {name: getattr(look, name) for name in names} for v, look in self.looks.items()}

    @property
    def similarity(self) -> dict[int, dict[str, Any]]:
        """For each cluster of the last round: alpha to four digits, and who its rows are."""
        known = {v: look for v, look in self.looks.items() if look.similarity is not None}
        return {v: {"clients": look.clients, "alpha": _rounded(look.similarity)} for v, look in known.items()}

    def node_of(self, client: int) -> int:
        """The cluster that a client is in, or has come to on its way; the root's number if it does not take part."""
        if client not in self.sizes:
            return 0
        return self.newcomers[client] if client in self.newcomers else self.tree.leaf_of(client)

    def candidate_models(self, client: int) -> dict[int, Vector]:
        """All models that a client can be given, from the root's, the most general one, to that of its cluster."""
        return {v: self.tree.nodes[v].model for v in self.tree.path(self.node_of(client))}


@dataclass(frozen=True)
class ClusteredFL(Algorithm[ClusteredFLState]):
    """Splits clients whose data contradict each other, and goes on with a model for each group.

    A cluster is split in two when its clients have come to a standstill together (the average of their updates is
    short) but would each go on alone (some update is long).  All clients must take part from time to time in one round.
    No defence by itself: an attacker can keep its cluster from standing still, or split it; robust rules compose.

    The default thresholds are meant to work unseen.  To set them in numbers, plot `norms` of a run that does not split
    (`min_round` above its length): epsilon1 goes above the level at which the mean comes to rest, epsilon2 between
    that and the level of the maximum.

    Args:
        eps1: epsilon1, the norm of the averaged update below which a cluster stands still.
        eps2: epsilon2, the norm that the longest update must exceed for a cluster to be split.
        gamma_max: assumed bound in [0, 1) on the relative noise of updates; a split needs
            sqrt((1 - alpha_cross) / 2) > gamma_max. 0 asks nothing.
        min_gap: how much more similar to its nearest peer in its group a client must be than any two clients of the
            two groups, as a difference of cosines. Clients that are alone in a group are not asked. 0 asks nothing.
        min_round: rounds before the first split.
        patience: rounds in a row in which `eps1` and `eps2` must ask for a split; ours, for congruent clients that hold
            different classes, whose updates are long now and then. 1 is Algorithm 5.
        min_cluster_size: clusters of fewer clients are not split.
        min_part_size: smallest group that a split may leave.
        split_rounds: rounds, counted from 1, in each of which one cluster is split, and in no others, if any meets the
            other conditions; `eps1`, `eps2`, `min_round` and `patience` are not looked at then. None: whenever all
            conditions hold.
        cached: largest number of updates kept on an edge for new clients, those that stand best for all.
        aggregate: the rule within each cluster; the mean in the paper.
        preprocess: what declared sizes count for within each cluster; nothing in Algorithm 5.
    """

    observed: ClassVar[tuple[str, ...]] = (
        "clusters", "parents", "born", "newcomers", "norms", "scale", "separation", "similarity",
    )  # fmt: skip
    can_join: ClassVar[bool] = True

    eps1: float | Relative = Relative(0.4)
    eps2: float | Relative = Relative(0.6)
    gamma_max: float = 0.0
    min_gap: float = 0.3
    min_round: int = 20
    min_cluster_size: int = 3
    min_part_size: int = 1
    split_rounds: tuple[int, ...] | None = None
    cached: int = 20
    aggregate: Aggregator = Mean()
    preprocess: Preprocess = Ignore()
    patience: int = 1

    def __post_init__(self) -> None:
        checks = (
            (isinstance(self.eps1, Relative) or self.eps1 > 0, f"eps1 must be positive, got {self.eps1}"),
            (isinstance(self.eps2, Relative) or self.eps2 >= 0, f"eps2 must be at least 0, got {self.eps2}"),
            (0 <= self.gamma_max < 1, f"gamma_max must lie in [0, 1), got {self.gamma_max}"),
            (0 <= self.min_gap < 2, f"min_gap must lie in [0, 2), got {self.min_gap}: it is a difference of cosines"),
            (self.min_round >= 0, f"min_round must be at least 0, got {self.min_round}"),
            (self.patience >= 1, f"patience must be at least 1 round, got {self.patience}"),
            (self.min_cluster_size >= 2, f"min_cluster_size must be at least 2, got {self.min_cluster_size}"),
            (self.min_part_size >= 1, f"min_part_size must be at least 1, got {self.min_part_size}"),
            (min(self.split_rounds or (1,)) >= 1, f"split_rounds count from 1, got {self.split_rounds}"),
            (self.cached >= 1, f"cached must be at least 1, got {self.cached}: new clients are compared with it"),
        )
        if problems := [message for fine, message in checks if not fine]:
            raise ValueError("; ".join(problems) + ".")

    # Role: server

    @property
    def rule(self) -> Aggregator:
        """See `Algorithm`."""
        return self.aggregate

    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[ClusteredFLState, Set[int]]:
        """See `Algorithm`."""
        self.preprocess.enrolled(sizes)  # raises if nothing can be made of them
        warn_of_weights(self.preprocess, self.aggregate)
        tree = Tree.rooted(sizes, model)  # line 3
        return ClusteredFLState(0, tree, dict(sizes), {}, {}, 0.0, {}, {}, {}), sizes.keys()

    def download(self, state: ClusteredFLState, client: int) -> Vector:
        """See `Algorithm`: the model of the client's cluster, or of the node that a new client has come to."""
        return state.tree.nodes[state.node_of(client)].model

    def candidate_models(self, state: ClusteredFLState, client: int) -> Mapping[int, Vector]:
        """See `Algorithm`: the models on the client's path, from the root's to that of its cluster, by cluster."""
        return state.candidate_models(client)

    def step(self, state: ClusteredFLState, updates: Updates) -> tuple[ClusteredFLState, Set[int]]:
        """See `Algorithm`.

        Raises:
            InfeasibleError: of no cluster that reported are there enough clients for the rule.
        """
        leaves = state.tree.leaves
        reports = {v: updates.of(leaf.clients) for v, leaf in leaves.items()}  # line 12
        rounds, verdicts = self._rounds(state, {v: report for v, report in reports.items() if len(report)})
        lengths = dict(state.lengths) | {i: norm for c in rounds.values() for i, norm in _lengths(c).items()}
        scale = max(state.scale, _scale(leaves.values(), lengths))
        looks = {v: self._look(leaves[v].clients, c, scale, state.looks.get(v)) for v, c in rounds.items()}
        looks = self._decided(state, rounds, looks)

        tree = state.tree
        aggregates = dict(state.aggregates) | {v: c.delta for v, c in rounds.items()}
        for v, c in rounds.items():
            averaged = leaves[v].model + c.delta  # line 7
            if not looks[v].split:
                tree = tree.replaced({v: leaves[v]._replace(model=averaged)})
                continue
            tree = tree.split(v, _parts(looks[v]), averaged, self._edges(c, looks[v]), state.version + 1)  # line 19
            aggregates |= dict.fromkeys((len(tree.nodes) - 2, len(tree.nodes) - 1), aggregates.pop(v))

        verdicts |= {i: verdict for v, c in rounds.items() for i, verdict in _told(v, c, looks[v], tree).items()}
        tree, newcomers = self._guide(state, tree, updates, verdicts)
        new = state._replace(
            version=state.version + 1,
            tree=tree,
            newcomers=newcomers,
            lengths=lengths,
            scale=scale,
            aggregates=aggregates,
            looks={v: self._shown(look) for v, look in looks.items()},
            verdicts=dict(sorted(verdicts.items())),
        )
        return new, state.sizes.keys()

    def join(self, state: ClusteredFLState, client: int, size: int) -> ClusteredFLState:
        """See `Algorithm`.

        If there is one cluster only, the client belongs there; else it starts on its way at the root, and goes down by
        one node in each round in which it reports (Algorithm 4).  Until it has come to a leaf its updates count for
        nothing.
        """
        state = state._replace(sizes={**state.sizes, client: size})
        if state.tree.nodes[0].children is None:
            self.preprocess.enrolled(state.sizes)  # raises if nothing can be made of them
            return state._replace(tree=state.tree.joined(client, 0))
        return state._replace(newcomers={**state.newcomers, client: 0})

    # Algorithm 5, line by line

    def _rounds(
        self, state: ClusteredFLState, reports: Mapping[int, Updates]
    ) -> tuple[dict[int, Round], dict[int, Verdict]]:
        """The rounds of those clusters that can take one, and the verdicts on the clients of the others."""
        rounds, errors = dict[int, Round](), dict[int, InfeasibleError]()
        for v, report in reports.items():
            try:
                rounds[v] = self._round(state, v, report)
            except InfeasibleError as error:
                errors[v] = error
        if errors and not rounds:
            v, why = next(iter(errors.items()))
            raise InfeasibleError(str(why) if v == 0 else f"No cluster can go on. Of cluster {v}: {why}") from why
        told = {v: Verdict(False, 0.0, None, f"cluster {v} stays as it is: {why}") for v, why in errors.items()}
        return rounds, {i: verdict for v, verdict in told.items() for i in reports[v].clients}

    def _round(self, state: ClusteredFLState, cluster: int, report: Updates) -> Round:
        """Line 13, and the inner products of lines 14 and 15."""
        n = weights_of(self._within(state, state.tree.nodes[cluster].clients, report.clients), report)
        previous = state.aggregates.get(cluster)
        delta, choice = self.aggregate.explained(report.deltas, n, turn=state.version, previous=previous)
        return Round(report, n, delta, choice, gram(report.deltas).cpu())

    def weights(self, state: ClusteredFLState, clients: Collection[int]) -> dict[int, float]:
        """See `Algorithm`: those within the cluster of each client; none for new clients on their way to one."""
        used = dict[int, float]()
        for leaf in state.tree.leaves.values():
            used |= self._within(state, leaf.clients, [i for i in clients if i in leaf.clients])
        return {i: used.get(i, 0.0) for i in clients}

    def _within(self, state: ClusteredFLState, members: Set[int], clients: Iterable[int]) -> dict[int, float]:
        """n_k, of some members of a cluster."""
        return self.preprocess.among(self.preprocess.enrolled({i: state.sizes[i] for i in members}), clients)

    def _look(self, members: Set[int], c: Round, scale: float, last: Look | None) -> Look:
        """Lines 14 to 17; `last` is what the round before showed."""
        ids = c.report.clients
        lengths = c.products.diagonal().sqrt()
        mean = float(torch.linalg.vector_norm(c.delta.double()))
        longest, eps1, eps2 = float(lengths.max()), _resolved(self.eps1, scale), _resolved(self.eps2, scale)
        asked = (last.asked if last else 0) + 1 if mean < eps1 and longest > eps2 else 0
        look = Look(ids, mean, longest, eps1, eps2, asked, None, None, None, None, False, "")
        if len(ids) < 2 or len(ids) < len(members):
            return look
        alpha = cosines_of(c.products)  # line 15
        groups = bipartition(alpha)  # line 16
        cross = cross_similarity(alpha, groups)  # line 17
        parts = tuple(ids[k] for k in groups[0]), tuple(ids[k] for k in groups[1])
        return look._replace(parts=parts, alpha_cross=cross, gap=_gap(alpha, groups, cross), similarity=alpha)

    def _decided(
        self, state: ClusteredFLState, rounds: Mapping[int, Round], looks: Mapping[int, Look]
    ) -> dict[int, Look]:
        """The looks, with what is decided: lines 14 and 18."""
        leaves = state.tree.leaves
        why = {v: next(self._objections(state, leaves[v].clients, rounds[v], look), "") for v, look in looks.items()}
        if self.split_rounds is not None:
            able = {v: look.alpha_cross for v, look in looks.items() if not why[v] and look.alpha_cross is not None}
            first = min(able, key=lambda v: (able[v], v), default=None)
            why |= {v: f"not split: cluster {first} is farther apart" for v in able if v != first}
        return {v: look._replace(split=not why[v], decision=why[v] or _split(look)) for v, look in looks.items()}

    def _objections(self, state: ClusteredFLState, members: Set[int], c: Round, look: Look) -> Iterator[str]:
        """Why a cluster is not split in this round, in words; none if it is."""
        yield from self._too_early(state.version + 1, look)
        if len(members) < self.min_cluster_size:
            yield f"not split: {plural(len(members), 'client')}, min_cluster_size {self.min_cluster_size}"
        if look.parts is None or look.alpha_cross is None:
            yield f"not split: {len(members) - len(look.clients)} of {len(members)} clients did not report"
            return
        noise = ((1 - look.alpha_cross) / 2) ** 0.5
        if not noise > self.gamma_max:  # line 18
            yield (
                f"not split: sqrt((1 - alpha_cross) / 2) = {noise:.3f}, gamma_max {self.gamma_max:g}, "
                f"alpha_cross {look.alpha_cross:.3f}"
            )
        if self.min_gap and look.gap is not None and look.gap < self.min_gap:
            yield f"not split: no groups, gap {look.gap:.3f}, min_gap {self.min_gap:g}"
        if (smallest := min(map(len, look.parts))) < self.min_part_size:
            yield f"not split: a group would have {plural(smallest, 'client')}, min_part_size {self.min_part_size}"
        for part in look.parts:
            yield from self._cannot_serve(state, c, part)

    def _too_early(self, t: int, look: Look) -> Iterator[str]:
        """Why round t is none to split in, by its number or by the lengths of updates."""
        if self.split_rounds is not None:
            if t not in self.split_rounds:
                yield f"not split: {t} is not one of split_rounds"
            return
        if t <= self.min_round:
            yield f"not split: only after round {self.min_round}"
        if not look.mean_norm < look.epsilon1:
            yield f"not split: still moving, mean update {look.mean_norm:.3g}, eps1 {look.epsilon1:.3g}"
        if not look.max_norm > look.epsilon2:
            yield f"not split: congruent, longest update {look.max_norm:.3g}, eps2 {look.epsilon2:.3g}"
        if look.asked < self.patience:
            yield f"not split: lengths have asked for it in {look.asked} of {self.patience} rounds in a row"

    def _cannot_serve(self, state: ClusteredFLState, c: Round, part: tuple[int, ...]) -> Iterator[str]:
        """Why the rule could not go on with a part of a cluster, if it could not."""
        members = frozenset(part)
        report = c.report.of(members)
        try:
            self.aggregate(report.deltas, weights_of(self._within(state, members, part), report))
        except InfeasibleError as error:
            yield f"not split: with {plural(len(part), 'client')}, {error}"

    def _edges(self, c: Round, look: Look) -> Edges:
        """What is cached on the edges to the two children: Equation 47, or as much of it as `cached` allows."""
        parts, alpha = _parts(look), cosines_of(c.products)

        def edge(part: Set[int]) -> Sent:
            rows = [k for k, i in enumerate(c.report.clients) if i in part]
            rows = [rows[k] for k in spread(alpha[rows][:, rows], self.cached)]
            return tuple(c.report.clients[k] for k in rows), c.report.deltas[rows]

        return edge(parts[0]), edge(parts[1])

    def _guide(
        self, state: ClusteredFLState, tree: Tree, updates: Updates, verdicts: dict[int, Verdict]
    ) -> tuple[Tree, dict[int, int]]:
        """Takes new clients that reported one node down; notes their verdicts."""
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
        """Why nothing can be made of the sizes of a leaf's clients and a new one; empty if it can."""
        try:
            self.preprocess.enrolled({i: state.sizes[i] for i in tree.nodes[leaf].clients | {client}})
        except InfeasibleError as error:
            return f"with it in cluster {leaf}, {error}"
        return ""

    def _shown(self, look: Look) -> Look:
        """The look without the similarities of many clients."""
        keep = len(look.clients) <= (SHOWN_SPLIT if look.split else SHOWN)
        return look if keep else look._replace(similarity=None)


def _lengths(c: Round) -> dict[int, float]:
    """The norm of each update of a round."""
    return dict(zip(c.report.clients, c.products.diagonal().sqrt().tolist(), strict=True))


def _scale(leaves: Iterable[Node], lengths: Mapping[int, float]) -> float:
    """The median of the norms of what all members of clusters have sent last."""
    norms = [lengths.get(i, 0.0) for leaf in leaves for i in leaf.clients]
    return float(torch.tensor(norms, dtype=torch.float64).median())


def _resolved(threshold: float | Relative, scale: float) -> float:
    return threshold.share * scale if isinstance(threshold, Relative) else threshold


def _gap(alpha: Float[Tensor, "m m"], groups: tuple[tuple[int, ...], ...], cross: float) -> float | None:
    """How much more similar clients are to their nearest peer than groups are to each other; None if all are alone."""
    others = alpha.clone().fill_diagonal_(-torch.inf)
    nearest = [float(others[list(group)][:, list(group)].max(1).values.min()) for group in groups if len(group) > 1]
    return min(nearest) - cross if nearest else None


def _split(look: Look) -> str:
    assert look.parts is not None
    one, other = map(len, look.parts)
    return f"split in {one} and {plural(other, 'client')}, alpha_cross {look.alpha_cross:.3f}"


def _parts(look: Look) -> tuple[Set[int], Set[int]]:
    assert look.parts is not None
    return frozenset(look.parts[0]), frozenset(look.parts[1])


def _told(cluster: int, c: Round, look: Look, tree: Tree) -> dict[int, Verdict]:
    """The verdicts on the members of a cluster; weights are shares of its own average, scores norms of updates."""
    lengths, verdicts = _lengths(c), {}
    for i, verdict in verdicts_of(c.report, c.weights, c.choice).items():
        words = [verdict.reason] if verdict.reason else []
        words += [f"cluster {cluster} of {plural(len(c.report), 'client')}", look.decision]
        words += [f"now in cluster {tree.leaf_of(i)}"] if look.split else []
        verdicts[i] = replace(verdict, score=lengths[i], reason="; ".join(words))
    return verdicts


def _rounded(alpha: Tensor | None) -> list[list[float]]:
    return [] if alpha is None else [[round(a, 4) for a in row] for row in alpha.tolist()]
