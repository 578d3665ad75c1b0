"""Sattler, Müller, Wiegand and Samek, "On the Byzantine Robustness of Clustered Federated Learning", 2020."""

from phalanx.experiments.papers.experiment import Paper

PAPER = Paper(
    name="byzantine-cfl",
    title="On the Byzantine Robustness of Clustered Federated Learning",
    citation="F. Sattler, K.-R. Müller, T. Wiegand, W. Samek, ICASSP 2020",
)
