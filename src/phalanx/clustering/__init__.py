"""Grouping of clients by the similarity of their updates."""

from phalanx.clustering.bipartition import bipartition, cross_similarity

__all__ = ["bipartition", "cross_similarity"]
