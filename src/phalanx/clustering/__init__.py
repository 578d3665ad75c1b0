"""Clustering of clients by the similarity of their updates, and its theoretical guarantees."""

from phalanx.clustering.agglomerative import agglomerate
from phalanx.clustering.bipartition import bipartition, cross_similarity
from phalanx.clustering.density import densest_majority
from phalanx.clustering.memory import Memory
from phalanx.clustering.peeling import Odd, Peel, odd_groups
from phalanx.clustering.profiles import profile_similarity
from phalanx.clustering.separation import correct, intra_similarity, separation_gap
from phalanx.clustering.theory import (
    cross_bound,
    guaranteed,
    intra_bound,
    max_noise_for_correct_clustering,
    max_noise_for_split,
    noise_ratios,
    similarity_under_noise,
)

__all__ = [
    "Memory",
    "Odd",
    "Peel",
    "agglomerate",
    "bipartition",
    "correct",
    "cross_bound",
    "cross_similarity",
    "densest_majority",
    "guaranteed",
    "intra_bound",
    "intra_similarity",
    "max_noise_for_correct_clustering",
    "max_noise_for_split",
    "noise_ratios",
    "odd_groups",
    "profile_similarity",
    "separation_gap",
    "similarity_under_noise",
]
