"""Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under
Privacy Constraints", 2019.
"""

from phalanx.experiments.papers.experiment import Paper

PAPER = Paper(
    name="clustered-fl",
    title="Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under Privacy Constraints",
    citation="F. Sattler, K.-R. Müller, W. Samek, 2019, arXiv:1910.01991",
)
