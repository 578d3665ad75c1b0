"""Grouping of clients by the similarity of their updates."""

from phalanx.clustering.bipartition import bipartition, cross_similarity
from phalanx.clustering.density import densest_majority

__all__ = ["bipartition", "cross_similarity", "densest_majority"]
