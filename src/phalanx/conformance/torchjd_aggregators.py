"""TorchJD's aggregators from robust federated learning; its others combine the gradients of several losses."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torchjd.aggregation as offered

from phalanx.conformance.rule_form import Forms, Parameters, RuleForm

PACKAGES = ("torchjd", "torch", "numpy")
MAKERS: dict[str, Callable[[Parameters], Any]] = {
    "Mean": lambda p: offered.Mean(),
    "TrimmedMean": lambda p: offered.TrimmedMean(trim_number=p["f"]),
    "Krum": lambda p: offered.Krum(n_byzantine=p["f"]),
    "MultiKrum": lambda p: offered.Krum(n_byzantine=p["f"], n_selected=p["m"]),
}


def forms(rule: str, parameters: Parameters, matrix: np.ndarray, sizes: Sequence[int] | None = None) -> Forms:
    """Return the form of a rule; none if TorchJD lacks it or sizes are given: its aggregators take rows only."""
    if rule not in MAKERS or sizes is not None:
        return {}
    made, rows = MAKERS[rule](parameters), torch.from_numpy(matrix)
    return {"torch": RuleForm(lambda _: made(rows))}


def array(result: torch.Tensor) -> np.ndarray:
    """Return a result as an array."""
    return result.numpy()
