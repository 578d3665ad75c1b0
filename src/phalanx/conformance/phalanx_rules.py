"""Phalanx's rules, as its documentation calls them: into a new matrix."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import phalanx.aggregators
from phalanx.aggregators import PreAggregator
from phalanx.conformance.rule_form import Forms, Parameters, RuleForm
from phalanx.engine.guard import Guard
from phalanx.weighting import AsReported, Truncate

PACKAGES = ("phalanx-fl", "torch", "numpy")


def made(rule: str, parameters: Parameters, m: int) -> Any:
    """Return a rule for m rows; None if there is none of that name."""
    if (kind := getattr(phalanx.aggregators, rule, None)) is None:
        return None
    if rule == "TrimmedMean":
        return kind(beta=parameters["f"] / max(m, 1))
    return kind(**{name: value for name, value in parameters.items() if name != "steps"})  # as many as it needs


def forms(rule: str, parameters: Parameters, matrix: np.ndarray, sizes: Sequence[int] | None = None) -> Forms:
    """Return the form of a rule, or with sizes one for each weighting of the clients that the guard enrols."""
    if sizes is None:
        return _form("torch", made(rule, parameters, len(matrix)), matrix, None)
    found = dict[str, RuleForm]()
    for preprocess in (AsReported(), Truncate(alpha=0.1, alpha_star=0.25)):
        enrolled, _ = Guard().enroll(dict(enumerate(sizes)))
        rows, weights = matrix[[*enrolled]], np.array([*preprocess(enrolled).values()])
        found |= _form(type(preprocess).__name__, made(rule, parameters, len(rows)), rows, weights)
    return found


def _form(name: str, instance: Any, matrix: np.ndarray, weights: np.ndarray | None) -> Forms:
    if instance is None:
        return {}
    deltas, w = torch.from_numpy(matrix), None if weights is None else torch.from_numpy(weights).double()
    return {
        name: RuleForm(lambda _: instance.rows(deltas) if isinstance(instance, PreAggregator) else instance(deltas, w))
    }


def array(result: torch.Tensor) -> np.ndarray:
    """Return a result as an array."""
    return result.numpy()
