"""ByzFL's rules, on torch tensors and on NumPy arrays: it takes both, and which is faster depends on the rule."""

import numpy as np

from phalanx.conformance import byzfl_rules as library
from phalanx.conformance.byzfl_rules import PACKAGES, array
from phalanx.conformance.rule_form import Parameters, RuleForm

__all__ = ["PACKAGES", "array", "forms"]


def forms(
    rule: str, parameters: Parameters, matrix: np.ndarray, weights: np.ndarray | None, threads: int
) -> dict[str, RuleForm]:
    """Return the forms of a rule by name; none if ByzFL lacks it or weights are given: its rules take no weights."""
    return {} if weights is not None else library.forms(rule, parameters, matrix)
