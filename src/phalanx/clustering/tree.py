"""The parameter tree of Clustered Federated Learning.

Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under
Privacy Constraints", 2019, Section V-C, Figure 4 and Algorithm 4.

Every cluster that ever was is a node.  The root holds all clients, a cluster that was split has two children, and the
leaves are the clusters of today.  On the edge to a child lie the updates that its clients sent just before the split:
by them a new client finds its way from the root to a leaf.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from phalanx.core import Vector
from phalanx.numerics.linalg import cosine_similarity

Sent = tuple[tuple[int, ...], Float[Tensor, "_ d"]]  # some senders, and the update of each
Edges = tuple[Sent, Sent]  # what lies on the edges to two children


class Node(NamedTuple):
    """A cluster."""

    clients: frozenset[int]  # c_v: of a leaf all that are there now, else all that were there when it was split
    model: Vector  # theta_v: of a leaf what it has come to, else what the updates before the split started from
    parent: int | None = None  # its number; None for the root
    children: tuple[int, int] | None = None  # their numbers; None for a leaf
    born: int = 0  # rounds completed when it came to be
    senders: tuple[int, ...] = ()  # whose updates lie on the edge that leads here
    updates: Float[Tensor, "k d"] | None = None  # Delta_e, those updates, (k, d); None for the root


class Branch(NamedTuple):
    """Where a new client goes from a node."""

    node: int  # the number of the child
    similarity: float  # largest cosine between its update and one on the edge to this child
    other: float  # the same for the other child


class Tree(NamedTuple):
    """Nodes by number; the root is 0, and children have larger numbers than their parents."""

    nodes: tuple[Node, ...]

    @classmethod
    def rooted(cls, clients: Iterable[int], model: Vector) -> "Tree":
        """One cluster of all clients."""
        return cls((Node(frozenset(clients), model),))

    @property
    def leaves(self) -> dict[int, Node]:
        """The clusters of today, by number."""
        return {number: node for number, node in enumerate(self.nodes) if node.children is None}

    def leaf_of(self, client: int) -> int:
        """The number of the leaf that a client is in.

        Raises:
            KeyError: it is in none.
        """
        for number, leaf in self.leaves.items():
            if client in leaf.clients:
                return number
        raise KeyError(f"Client {client} is in no cluster.")

    def path(self, node: int) -> tuple[int, ...]:
        """The numbers of the nodes from the root to this one, both included."""
        parent = self.nodes[node].parent
        return (*(self.path(parent) if parent is not None else ()), node)

    def replaced(self, nodes: Mapping[int, Node]) -> "Tree":
        """The tree with other nodes under these numbers."""
        return Tree(tuple(nodes.get(number, node) for number, node in enumerate(self.nodes)))

    def joined(self, client: int, leaf: int) -> "Tree":
        """The tree with one client more in a leaf."""
        return self.replaced({leaf: self.nodes[leaf]._replace(clients=self.nodes[leaf].clients | {client})})

    def split(self, node: int, parts: tuple[Set[int], Set[int]], model: Vector, edges: "Edges", born: int) -> "Tree":
        """The tree after a leaf was split in two.

        Args:
            node: the leaf. It keeps its model: this is what the updates on the edges started from.
            parts: the clients of the two children.
            model: what both children start from.
            edges: what lies on the edges to them.
            born: rounds completed.
        """
        first = len(self.nodes)
        children = tuple(
            Node(frozenset(part), model, parent=node, born=born, senders=senders, updates=rows)
            for part, (senders, rows) in zip(parts, edges, strict=True)
        )
        parent = self.nodes[node]._replace(children=(first, first + 1))
        return Tree(self.replaced({node: parent}).nodes + children)

    def branch(self, node: int, delta: Vector) -> Branch:
        """Lines 6 to 12 of Algorithm 4: the child whose clients have sent the more similar update.

        Args:
            node: not a leaf.
            delta: what the new client makes of the node's model.
        """
        children = self.nodes[node].children
        if children is None:
            raise ValueError(f"Cluster {node} is a leaf: there is nowhere to go from there.")
        v0, v1 = children
        alpha0, alpha1 = (closest(self.nodes[child].updates, delta) for child in children)
        return Branch(v0, alpha0, alpha1) if alpha0 > alpha1 else Branch(v1, alpha1, alpha0)

    def assign(self, train: Callable[[Vector], Vector]) -> int:
        """Algorithm 4: the number of the leaf for a new client.

        Args:
            train: the change that the client makes to a model that it is given.
        """
        node = 0
        while self.nodes[node].children is not None:
            node = self.branch(node, train(self.nodes[node].model)).node
        return node

    def best(self, leaf: int, worth: Callable[[Vector], float]) -> int:
        """The node on the way from the root to a leaf whose model is worth most; of equals the most specific one.

        With the client's own validation accuracy as `worth`, no client is worse off than with the model of the root, on
        those examples.

        Args:
            leaf: the client's.
            worth: of a model for the client; the more the better, never NaN.
        """
        return max(reversed(self.path(leaf)), key=lambda node: worth(self.nodes[node].model))


def closest(updates: Float[Tensor, "k d"] | None, delta: Vector) -> float:
    """The largest cosine between an update and those on an edge."""
    if updates is None:
        raise ValueError("No edge leads to the root.")
    return float(cosine_similarity(torch.cat([delta[None].to(updates), updates]))[0, 1:].max())


def spread(similarity: Float[Tensor, "m m"], count: int) -> tuple[int, ...]:
    """Some of m items that stand for all: to each item, one of them is similar.

    The first is the one that is most similar to all; each that follows is the one to which the chosen ones are least
    similar.  All m, where no more are there than asked for.

    Args:
        similarity: (m, m), symmetric.
        count: how many, at least 1.

    Returns:
        Increasing indices.
    """
    m = len(similarity)
    if m <= count:
        return tuple(range(m))
    chosen = [int(similarity.sum(1).argmax())]
    nearest = similarity[chosen[0]].clone()
    while len(chosen) < count:
        nearest[chosen] = torch.inf
        chosen.append(int(nearest.argmin()))
        nearest = torch.maximum(nearest, similarity[chosen[-1]])
    return tuple(sorted(chosen))
