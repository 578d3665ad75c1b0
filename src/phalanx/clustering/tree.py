"""The parameter tree of Clustered Federated Learning.

Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under
Privacy Constraints", 2019, Section V-C, Figure 4 and Algorithm 4.

Every cluster, past or present, is a node.  The root holds all clients, a cluster that was split has two children, and
the leaves are the current clusters.  The edge to a child keeps the updates that its clients sent just before the split:
a new client is compared with them on its way from the root to a leaf.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from phalanx.core import Vector
from phalanx.numerics.linalg import cosine_similarity

Sent = tuple[tuple[int, ...], Float[Tensor, "_ d"]]  # some clients, and the update of each
Edges = tuple[Sent, Sent]  # the updates on the edges to two children


class Node(NamedTuple):
    """A cluster."""

    clients: frozenset[int]  # c_v: the current clients of a leaf, else those at the time of the split
    model: Vector  # theta_v: the current model of a leaf, else the one that the updates before the split started from
    parent: int | None = None  # number of the parent; None for the root
    children: tuple[int, int] | None = None  # numbers of the children; None for a leaf
    born: int = 0  # rounds completed when the cluster was formed
    senders: tuple[int, ...] = ()  # the clients whose updates are on the edge to this node
    updates: Float[Tensor, "k d"] | None = None  # Delta_e, (k, d), these updates; None for the root


class Branch(NamedTuple):
    """The child to which a new client goes from a node."""

    node: int  # number of the child
    similarity: float  # largest cosine between its update and one on the edge to this child
    other: float  # the same for the other child


class Tree(NamedTuple):
    """A parameter tree; the root is node 0, and children have larger numbers than their parents."""

    nodes: tuple[Node, ...]

    @classmethod
    def rooted(cls, clients: Iterable[int], model: Vector) -> "Tree":
        """Return a tree with one cluster of all clients."""
        return cls((Node(frozenset(clients), model),))

    @property
    def leaves(self) -> dict[int, Node]:
        """The current clusters, by number."""
        return {number: node for number, node in enumerate(self.nodes) if node.children is None}

    @property
    def parents(self) -> dict[int, int | None]:
        """The parent of each cluster that ever was."""
        return {number: node.parent for number, node in enumerate(self.nodes)}

    @property
    def born(self) -> dict[int, int]:
        """The number of rounds completed when each cluster was formed that ever was."""
        return {number: node.born for number, node in enumerate(self.nodes)}

    def leaf_of(self, client: int) -> int:
        """Return the number of the leaf that a client is in.

        Raises:
            KeyError: if it is in none.
        """
        for number, leaf in self.leaves.items():
            if client in leaf.clients:
                return number
        raise KeyError(f"Client {client} is in no cluster.")

    def path(self, node: int) -> tuple[int, ...]:
        """Return the numbers of the nodes from the root to this one, both included."""
        parent = self.nodes[node].parent
        return (*(self.path(parent) if parent is not None else ()), node)

    def replaced(self, nodes: Mapping[int, Node]) -> "Tree":
        """Return the tree with these nodes replaced."""
        return Tree(tuple(nodes.get(number, node) for number, node in enumerate(self.nodes)))

    def joined(self, client: int, leaf: int) -> "Tree":
        """Return the tree with a client added to a leaf."""
        return self.replaced({leaf: self.nodes[leaf]._replace(clients=self.nodes[leaf].clients | {client})})

    def split(self, node: int, parts: tuple[Set[int], Set[int]], model: Vector, edges: "Edges", born: int) -> "Tree":
        """Return the tree after a leaf was split in two.

        Args:
            node: the leaf. It keeps its model, from which the updates on the edges started.
            parts: the clients of the two children.
            model: the model that both children start from.
            edges: the updates on the edges to the children.
            born: number of rounds completed.
        """
        first = len(self.nodes)
        children = tuple(
            Node(frozenset(part), model, parent=node, born=born, senders=senders, updates=rows)
            for part, (senders, rows) in zip(parts, edges, strict=True)
        )
        parent = self.nodes[node]._replace(children=(first, first + 1))
        return Tree(self.replaced({node: parent}).nodes + children)

    def branch(self, node: int, delta: Vector) -> Branch:
        """Return the child whose clients have sent the most similar update (Algorithm 4, lines 6 to 12).

        Args:
            node: number of a node that is not a leaf.
            delta: (d,), the update of the new client, computed from the model of the node.
        """
        children = self.nodes[node].children
        if children is None:
            raise ValueError(f"Cluster {node} is a leaf: it has no children.")
        v0, v1 = children
        alpha0, alpha1 = (closest(self.nodes[child].updates, delta) for child in children)
        return Branch(v0, alpha0, alpha1) if alpha0 > alpha1 else Branch(v1, alpha1, alpha0)

    def assign(self, train: Callable[[Vector], Vector]) -> int:
        """Return the number of the leaf for a new client (Algorithm 4).

        Args:
            train: returns the update of the client for a given model.
        """
        node = 0
        while self.nodes[node].children is not None:
            node = self.branch(node, train(self.nodes[node].model)).node
        return node

    def best(self, leaf: int, score: Callable[[Vector], float]) -> int:
        """Return the node with the best model on the path from the root to a leaf; at a tie, the deepest one.

        With the client's own validation accuracy as `score`, the model of the chosen node is at least as good as that
        of the root, on those examples.

        Args:
            leaf: number of the client's leaf.
            score: returns the value of a model for the client; larger is better, never NaN.
        """
        return max(reversed(self.path(leaf)), key=lambda node: score(self.nodes[node].model))


def closest(updates: Float[Tensor, "k d"] | None, delta: Vector) -> float:
    """Return the largest cosine between an update and the updates on an edge."""
    if updates is None:
        raise ValueError("No edge leads to the root.")
    return float(cosine_similarity(torch.cat([delta[None].to(updates), updates]))[0, 1:].max())


def spread(similarity: Float[Tensor, "m m"], count: int) -> tuple[int, ...]:
    """Return representatives of m items: every item is similar to one of them.

    The first one has the largest sum of similarities; each next one is the item least similar to those chosen so far
    (farthest-first traversal).  All m items if m <= count.

    Args:
        similarity: (m, m), symmetric.
        count: number of representatives, at least 1.

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
