"""What a library makes of an input: a result or an error, for every form in which it has a rule."""

import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from phalanx.conformance.rule_form import Parameters, RuleForm


def outcomes(
    library: ModuleType, rule: str, parameters: Parameters, inputs: Sequence[Mapping[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Return the outcome of each form on each input; {} if the library has no such rule.

    Args:
        library: a module as `phalanx.conformance` describes it.
        rule: Phalanx's name of the rule.
        parameters: of the rule.
        inputs: each with `matrix`, `dtype`, `columns`, `sizes` (numbers of examples, or None) and `again`.

    Returns:
        For each form and input `result`, nested lists or None, and `changed`, whether the arguments are others after
        the call; or `error`, the class and the message.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for one in inputs:
        for form, outcome in _of(library, rule, parameters, one).items():
            found.setdefault(form, []).append(outcome)
    return found


def _of(library: ModuleType, rule: str, parameters: Parameters, one: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    matrix = np.array(one["matrix"], dtype=one["dtype"]).reshape(-1, one["columns"])
    before = matrix.copy()
    try:
        forms = library.forms(rule, parameters, matrix, one["sizes"])
    except Exception as error:  # some rules refuse their parameters when they are made
        return {"": _error(error)}
    found = {}
    for name, form in forms.items():
        matrix[...] = before
        if not one["again"]:
            _seed()
        try:
            found[name] = _called(library, form, matrix, before)
        except Exception as error:  # whatever a library raises is a result
            found[name] = _error(error)
    return found


def _called(library: ModuleType, form: RuleForm, matrix: np.ndarray, before: np.ndarray) -> dict[str, Any]:
    prepared = form.prepare()
    own = prepared if hasattr(prepared, "shape") else matrix  # a rule that works in place is given a copy
    result = library.array(form.call(prepared))
    changed = not np.array_equal(np.asarray(own), before, equal_nan=before.dtype.kind == "f")
    return {"result": None if result is None else np.asarray(result, dtype=np.float64).tolist(), "changed": changed}


def _seed() -> None:
    """Set the global generators, so that rules which draw from them draw the same on each input."""
    np.random.seed(0)  # noqa: NPY002
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def _error(error: Exception) -> dict[str, str]:
    return {"error": f"{type(error).__name__}: {error}"}
