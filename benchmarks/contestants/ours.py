"""Phalanx's rules."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

import phalanx.aggregators
from contestants.workloads import Form, Parameters
from phalanx.engine import Guard
from phalanx.weighting import AsReported, Truncate

PACKAGES = ("phalanx-fl", "torch", "numpy")
PREAGGREGATORS = ("Clip", "AdaptiveClip", "NearestNeighborMixing", "Bucketing")
IN_PLACE = ("Clip", "AdaptiveClip")  # timed as ByzFL does it


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
    return {"torch": Form(lambda _: instance.rows(deltas) if rule in PREAGGREGATORS else instance(deltas, w))}


def plain(rule: str, parameters: Parameters, matrix: np.ndarray) -> dict[str, Form]:
    """Return the forms of a rule as its documentation calls it: into a new matrix."""
    if rule in IN_PLACE:
        instance = getattr(phalanx.aggregators, rule)(**parameters)
        return {"torch": Form(lambda _: instance.rows(torch.from_numpy(matrix)))}
    return forms(rule, parameters, matrix, None, 1)


def declared(rule: str, parameters: Parameters, matrix: np.ndarray, sizes: Sequence[int]) -> dict[str, Form]:
    """Return the forms of a rule on the rows of clients that declare sizes: those that the guard enrolls, weighted."""
    found = {}
    for preprocess in (AsReported(), Truncate(alpha=0.1, alpha_star=0.25)):
        enrolled, _ = Guard().enroll(dict(enumerate(sizes)))
        weights = np.array([*preprocess(enrolled).values()])
        found[type(preprocess).__name__] = forms(rule, parameters, matrix[[*enrolled]], weights, 1)["torch"]
    return found


def _arguments(rule: str, parameters: Parameters, m: int) -> dict[str, Any]:
    if rule == "TrimmedMean":
        return {"beta": parameters["f"] / max(m, 1)}
    return {name: value for name, value in parameters.items() if name != "steps"}  # as many as it needs


def array(result: torch.Tensor) -> np.ndarray:
    return result.numpy()
