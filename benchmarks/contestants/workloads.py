"""Workloads: a rule with its parameters on a matrix, in terms independent of any library."""

from dataclasses import dataclass, field

import numpy as np

from phalanx.conformance.rule_form import Parameters


@dataclass(frozen=True)
class Workload:
    """A rule on a matrix of random numbers.

    Args:
        name: label in the table.
        rule: Phalanx's name of the rule.
        parameters: parameters of the rule: f, radius, iterations, s, m, reference; the number of steps of a geometric
            median, for libraries with a fixed number.
        rows: number of clients.
        columns: number of parameters of a model.
        weighted: counts of examples as weights.
        seed: seed of the matrix and the weights.
    """

    name: str
    rule: str
    rows: int
    columns: int
    parameters: Parameters = field(default_factory=dict)
    weighted: bool = False
    seed: int = 0

    def matrix(self) -> np.ndarray:
        """Return standard normal float32 numbers, the worst case for rules that look for a tight group of rows."""
        return np.random.default_rng(self.seed).standard_normal((self.rows, self.columns), dtype=np.float32)

    def weights(self) -> np.ndarray | None:
        """Return numbers of examples between 1 and 100, or None."""
        return np.random.default_rng(self.seed + 1).integers(1, 101, self.rows) if self.weighted else None


WIDE = 65_536
STANDARD = (
    Workload("trimmed mean", "TrimmedMean", 64, WIDE, {"f": 8}),
    Workload("median", "Median", 64, WIDE),
    Workload("Krum", "Krum", 80, WIDE, {"f": 20}),
    Workload("Multi-Krum", "MultiKrum", 80, WIDE, {"f": 20, "m": 60}),
    Workload("MeaMed", "MeaMed", 64, WIDE, {"f": 8}),
    Workload("geometric median", "GeometricMedian", 64, WIDE),
    Workload("centred clipping", "CenteredClipping", 64, WIDE, {"radius": 100.0, "iterations": 10}),
    Workload("NNM", "NearestNeighborMixing", 196, 4_096, {"f": 32}),
    Workload("Bucketing", "Bucketing", 64, WIDE, {"s": 2}),
    Workload("clipping", "Clip", 256, WIDE, {"radius": 2.0}),
    Workload("ARC", "AdaptiveClip", 256, WIDE, {"f": 8}),
    Workload("MDA", "MDA", 30, 2_048, {"f": 10}),
    Workload("SMEA", "SMEA", 16, 4_096, {"f": 5}),
    Workload("CAF", "CAF", 64, WIDE, {"f": 8}),
    Workload("MoNNA", "MoNNA", 64, WIDE, {"f": 8, "reference": 0}),
)
LARGE = (
    Workload("mean, large", "Mean", 50, 1_000_000, weighted=True),
    Workload("median, large", "Median", 50, 1_000_000),
    Workload("trimmed mean, large", "TrimmedMean", 50, 1_000_000, {"f": 10}),
    Workload("Krum, large", "Krum", 50, 1_000_000, {"f": 10}),
    Workload("Multi-Krum, large", "MultiKrum", 50, 1_000_000, {"f": 10, "m": 40}),
    Workload("geometric median, large", "GeometricMedian", 50, 1_000_000, {"steps": 10}),
    Workload("weighted median, large", "Median", 50, 1_000_000, weighted=True),
    Workload("weighted trimmed mean, large", "TrimmedMean", 50, 1_000_000, {"f": 10}, weighted=True),
)
HUGE = (
    Workload("trimmed mean, huge", "TrimmedMean", 100, 10_000_000, {"f": 10}),
    Workload("median, huge", "Median", 100, 10_000_000),
    Workload("Krum, huge", "Krum", 100, 10_000_000, {"f": 10}),
)
