"""Phalanx's rules."""

import numpy as np
import torch

from phalanx.aggregators import PreAggregator
from phalanx.conformance.phalanx_rules import PACKAGES, array, made
from phalanx.conformance.rule_form import Parameters, RuleForm

__all__ = ["PACKAGES", "array", "forms"]
IN_PLACE = ("Clip", "AdaptiveClip")  # timed as ByzFL does it


def forms(
    rule: str, parameters: Parameters, matrix: np.ndarray, weights: np.ndarray | None, threads: int
) -> dict[str, RuleForm]:
    """Return the forms of a rule by name; none if Phalanx lacks it."""
    if (instance := made(rule, parameters, len(matrix))) is None:
        return {}
    deltas = torch.from_numpy(matrix)
    w = None if weights is None else torch.from_numpy(weights).double()
    if rule in IN_PLACE:
        return {"torch": RuleForm(lambda rows: instance.rows(rows, out=rows), lambda: torch.from_numpy(matrix.copy()))}
    return {
        "torch": RuleForm(
            lambda _: instance.rows(deltas) if isinstance(instance, PreAggregator) else instance(deltas, w)
        )
    }
