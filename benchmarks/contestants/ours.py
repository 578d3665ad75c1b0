"""Phalanx's rules."""

from importlib.metadata import version
from typing import Any

import numpy as np
import torch

import phalanx.aggregators
from contestants.workloads import Form, Parameters

PACKAGES = ("phalanx-fl", "torch", "numpy")
PREAGGREGATORS = ("Clip", "AdaptiveClip", "NearestNeighborMixing", "Bucketing")
IN_PLACE = ("Clip", "AdaptiveClip")  # as ByzFL does it


def versions() -> dict[str, str]:
    return {package: version(package) for package in PACKAGES}


def forms(
    rule: str, parameters: Parameters, matrix: np.ndarray, weights: np.ndarray | None, threads: int
) -> dict[str, Form]:
    """Return the forms of a rule by name; none if Phalanx lacks it."""
    if (kind := getattr(phalanx.aggregators, rule, None)) is None:
        return {}
    instance = kind(**_arguments(rule, parameters, len(matrix)))
    deltas = torch.from_numpy(matrix)
    w = None if weights is None else torch.from_numpy(weights).double()
    if rule in IN_PLACE:
        return {"torch": Form(lambda rows: instance.rows(rows, out=rows), lambda: torch.from_numpy(matrix.copy()))}
    if rule in PREAGGREGATORS:
        return {"torch": Form(lambda _: instance.rows(deltas))}
    return {"torch": Form(lambda _: instance(deltas, w))}


def _arguments(rule: str, parameters: Parameters, m: int) -> dict[str, Any]:
    if rule == "TrimmedMean":
        return {"beta": parameters["f"] / m}
    return {name: value for name, value in parameters.items() if name != "steps"}  # as many as it needs


def array(result: torch.Tensor) -> np.ndarray:
    return result.numpy()
