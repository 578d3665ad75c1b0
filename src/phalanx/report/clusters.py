"""A run of clustered federated learning: its tree of clusters, the splits, and the figures of each cluster."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from phalanx.report.client_ledger import BYZANTINE, ClientLedger
from phalanx.report.figures.series import Series, number
from phalanx.runs.observed import observed, observed_tree

if TYPE_CHECKING:
    from phalanx.runs.schema import StepRecord


class ClusterNode(NamedTuple):
    """A present or former cluster.

    Args:
        parent: the cluster from which it was split off; None for the first.
        born: the step of that split; 0 for the first.
        ended: the step in which it was split itself; None if it was not.
        clients: its clients, or its last ones, without those that joined later; in order.
        accuracy: mean over those of its clients whose accuracy is known, by the last evaluation before its split, or of
            the run; None if there is none.
    """

    parent: int | None
    born: int
    ended: int | None
    clients: tuple[int, ...]
    accuracy: float | None


class Split(NamedTuple):
    """One split.

    Args:
        step: of the split.
        cluster: that was split.
        alpha: largest cosine across the parts; NaN if there is none.
        smaller: clients of the smallest part.
        torn: whether honest clients of one true group were separated; None if the truth is unknown.
    """

    step: int
    cluster: int
    alpha: float
    smaller: int
    torn: bool | None


class Clusters:
    """The clusters of a run.

    Attributes:
        nodes: by number, parents before children.
        splits: in order.
        steps: those of the history whose state holds clusters.
    """

    def __init__(self, ledger: ClientLedger) -> None:
        self.ledger = ledger
        self.steps = measured(ledger.record.history)
        self._figures = dict[str, list[tuple[int, dict[int, Any]]]]()
        self.nodes: dict[int, ClusterNode] = self._nodes() if self.steps else {}
        self.splits = sorted(self._splits(), key=lambda split: (split.step, split.cluster))

    @property
    def leaves(self) -> tuple[int, ...]:
        """The clusters at the end, ordered so that those from the last split are adjacent."""
        return tuple(self._below(0)) if self.nodes else ()

    def children(self, node: int) -> tuple[int, ...]:
        """Return the clusters into which one was split."""
        return tuple(v for v, other in self.nodes.items() if other.parent == node)

    def curve(self, cluster: int, part: str, field: str) -> Series:
        """Return a figure of a cluster in the state, such as ("norms", "mean"), over the steps that have it."""
        if part not in self._figures:
            self._figures[part] = [(step.step, observed(step, part) or {}) for step in self.steps]
        figures = [(step, of.get(cluster)) for step, of in self._figures[part]]
        known = [(float(step), number(about.get(field))) for step, about in figures if about is not None]
        return Series([step for step, _ in known], [value for _, value in known])

    def _below(self, node: int) -> Iterator[int]:
        children = self.children(node)
        if not children:
            yield node
        for child in children:
            yield from self._below(child)

    def _nodes(self) -> dict[int, ClusterNode]:
        tree = observed_tree(self.steps[-1])
        assert tree is not None, "these steps have one"
        clients, parents, born = tree
        out = dict[int, ClusterNode]()
        for v in sorted(parents, reverse=True):  # children have larger numbers
            children = [child for child, parent in parents.items() if parent == v]
            ended = min((born[child] for child in children), default=None)
            who = clients.get(v) or tuple(sorted(c for child in children for c in out[child].clients))
            out[v] = ClusterNode(parents[v], born[v], ended, who, self._accuracy(who, ended))
        return dict(sorted(out.items()))

    def _accuracy(self, who: tuple[int, ...], ended: int | None) -> float | None:
        steps = [step for step in self.ledger.record.history if ended is None or step.step < ended]
        measured = [m.received_accuracy for step in steps if (m := step.metrics) and m.received_accuracy]
        known = [value for c in who if measured and (value := measured[-1].get(c)) is not None]
        return sum(known) / len(known) if known else None

    def _splits(self) -> Iterator[Split]:
        for v, node in self.nodes.items():
            parts = [self.nodes[child].clients for child in self.children(v)]
            if node.ended is None or len(parts) < 2:  # a clustering can find one cluster
                continue
            alpha = self.curve(v, "separation", "alpha_cross")
            at = {int(x): y for x, y in zip(*alpha, strict=True)}
            smaller = min(map(len, parts))
            yield Split(node.ended, v, at.get(node.ended, float("nan")), smaller, self._torn(parts))

    def _torn(self, parts: list[tuple[int, ...]]) -> bool | None:
        about = self.ledger.clients
        groups = [{about[c].group for c in part if c in about and self.ledger.truth[c] != BYZANTINE} for part in parts]
        if any(None in of for of in groups):
            return None
        return sum(map(len, groups)) > len(set().union(*groups))


def measured(history: "Sequence[StepRecord]") -> "list[StepRecord]":
    """Return the steps whose state holds clusters."""
    return [step for step in history if observed_tree(step) is not None]


def colour(cluster: int) -> str:
    """Return the name of a cluster's colour: the same in all pictures; ink for the first, then six in turn."""
    return "s6" if cluster == 0 else f"s{(cluster - 1) % 6}"
