"""Deliberate differences between a peer's rule and ours, reported by `rules.py --check` but not errors."""

ONE_NEIGHBOUR_MORE = "sums the n - f - 1 nearest distances, the paper n - f - 2"
LOWER_MEDIAN = "of an even number of entries takes the lower middle one (torch.median), not the mid-point"
ONE_POWER_STEP = "takes the length of one power step from a random start for the eigenvalue: another result each time"
RANDOM_BUCKETS = "draws its own permutation: only the mean of the buckets is compared"
SINGLE_PRECISION_DISTANCES = (
    "distances from float32 norms and products without centring: a common offset of the rows spoils them"
)

CONVENTIONS: dict[tuple[str, str], str] = {
    ("byzfl", "Krum"): ONE_NEIGHBOUR_MORE,
    ("byzfl", "MultiKrum"): f"{ONE_NEIGHBOUR_MORE}; m is always n - f",
    ("byzfl", "GeometricMedian"): "3 or 10 steps of Weiszfeld from zero, smoothed at 0.1: no test of convergence",
    ("byzfl", "CenteredClipping"): "starts from zero, and each further call from the previous result",
    ("byzfl", "CAF"): ONE_POWER_STEP,
    ("byzfl", "SMEA"): ONE_POWER_STEP,
    ("byzfl", "Bucketing"): RANDOM_BUCKETS,
    ("byzpy", "Median"): LOWER_MEDIAN,
    ("byzpy", "MeaMed"): f"nearest to the median, which {LOWER_MEDIAN}",
    ("byzpy", "Krum"): f"{ONE_NEIGHBOUR_MORE}; {SINGLE_PRECISION_DISTANCES}",
    ("byzpy", "MultiKrum"): f"{ONE_NEIGHBOUR_MORE}; {SINGLE_PRECISION_DISTANCES}",
    ("byzpy", "GeometricMedian"): "stops at a step below 1e-6, and at once if the coordinate-wise median is a row",
    ("byzpy", "MDA"): "of several sets with the least diameter the first, not that of the least squared distances",
    ("byzpy", "NearestNeighborMixing"): SINGLE_PRECISION_DISTANCES,
    ("byzpy", "CenteredClipping"): "starts from the mean",
    ("byzpy", "CAF"): "3 steps of the power method from a fixed random start, in float32",
    ("byzpy", "Bucketing"): RANDOM_BUCKETS,
    ("flwr", "Krum"): f"at least one neighbour, however small n is; as messages, {SINGLE_PRECISION_DISTANCES}",
    ("flwr", "MultiKrum"): "at least one neighbour; the chosen are weighted by their numbers of examples",
    ("flwr", "TrimmedMean"): "drops int(beta n) entries at each end: a share of an entry is kept whole",
}
RANDOM_ROWS = ("Bucketing",)  # rules whose rows are random, with a mean that is not
