"""ByzPy's rules, with the sizes of chunks of its benchmarks."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from byzpy.aggregators.coordinate_wise import CoordinateWiseMedian, CoordinateWiseTrimmedMean, MeanOfMedians
from byzpy.aggregators.geometric_wise import SMEA, GeometricMedian, Krum, MinimumDiameterAveraging, MoNNA, MultiKrum
from byzpy.aggregators.norm_wise import CAF, CenteredClipping
from byzpy.pre_aggregators import ARC, Bucketing, Clipping, NearestNeighborMixing

from phalanx.conformance.rule_form import Forms, Parameters, RuleForm

PACKAGES = ("byzpy", "torch", "numpy")
MAKERS: dict[str, Callable[[Parameters], Any]] = {
    "Median": lambda p: CoordinateWiseMedian(chunk_size=8192),
    "TrimmedMean": lambda p: CoordinateWiseTrimmedMean(f=p["f"], chunk_size=8192),
    "Krum": lambda p: Krum(f=p["f"], chunk_size=20),
    "MultiKrum": lambda p: MultiKrum(f=p["f"], q=p["m"], chunk_size=20),
    "GeometricMedian": lambda p: GeometricMedian(chunk_size=8),
    "CenteredClipping": lambda p: CenteredClipping(c_tau=p["radius"], M=p["iterations"], chunk_size=32),
    "MeaMed": lambda p: MeanOfMedians(f=p["f"], chunk_size=8192),
    "MDA": lambda p: MinimumDiameterAveraging(f=p["f"], chunk_size=256),
    "MoNNA": lambda p: MoNNA(f=p["f"], reference_index=p["reference"], chunk_size=32),
    "CAF": lambda p: CAF(f=p["f"], chunk_size=32),
    "SMEA": lambda p: SMEA(f=p["f"], chunk_size=256),
    "Clip": lambda p: Clipping(threshold=p["radius"]),
    "AdaptiveClip": lambda p: ARC(f=p["f"], chunk_size=256),
    "NearestNeighborMixing": lambda p: NearestNeighborMixing(f=p["f"], feature_chunk_size=2048),
    "Bucketing": lambda p: Bucketing(bucket_size=p["s"], perm=p.get("permutation")),
}


def forms(rule: str, parameters: Parameters, matrix: np.ndarray, sizes: Sequence[int] | None = None) -> Forms:
    """Return the form of a rule; none if ByzPy lacks it or sizes are given: its rules take rows only."""
    if rule not in MAKERS or sizes is not None:
        return {}
    rows, made = list(torch.from_numpy(matrix)), MAKERS[rule](parameters)
    call = made.pre_aggregate if hasattr(made, "pre_aggregate") else made.aggregate
    return {"direct": RuleForm(lambda _: call(rows))}


def array(result: Any) -> np.ndarray:
    """Return a result, of a rule or of one before it, as an array."""
    return np.stack([np.asarray(row) for row in result]) if isinstance(result, list) else np.asarray(result)
