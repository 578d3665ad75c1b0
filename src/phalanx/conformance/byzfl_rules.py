"""ByzFL's rules, on torch tensors and on NumPy arrays: it takes both, and which is faster depends on the rule."""

from collections.abc import Callable, Sequence
from typing import Any

import byzfl
import numpy as np
import torch

from phalanx.conformance.rule_form import Forms, Parameters, RuleForm

PACKAGES = ("byzfl", "torch", "numpy", "scipy")
IN_PLACE = ("Clip", "AdaptiveClip")  # change the matrix that they are given
STATEFUL = ("CenteredClipping",)  # start from where the previous call ended
MAKERS: dict[str, Callable[[Parameters], Any]] = {
    "Mean": lambda p: byzfl.Average(),
    "Median": lambda p: byzfl.Median(),
    "TrimmedMean": lambda p: byzfl.TrMean(p["f"]),
    "Krum": lambda p: byzfl.Krum(p["f"]),
    "MultiKrum": lambda p: byzfl.MultiKrum(p["f"]),
    "GeometricMedian": lambda p: byzfl.GeometricMedian(T=p.get("steps", 3)),
    "CenteredClipping": lambda p: byzfl.CenteredClipping(L=p["iterations"], tau=p["radius"]),
    "MeaMed": lambda p: byzfl.Meamed(p["f"]),
    "MDA": lambda p: byzfl.MDA(p["f"]),
    "MoNNA": lambda p: byzfl.MoNNA(p["f"], p["reference"]),
    "CAF": lambda p: byzfl.CAF(p["f"]),
    "SMEA": lambda p: byzfl.SMEA(p["f"]),
    "Clip": lambda p: byzfl.Clipping(p["radius"]),
    "AdaptiveClip": lambda p: byzfl.ARC(p["f"]),
    "NearestNeighborMixing": lambda p: byzfl.NNM(p["f"]),
    "Bucketing": lambda p: byzfl.Bucketing(p["s"]),
}


def forms(rule: str, parameters: Parameters, matrix: np.ndarray, sizes: Sequence[int] | None = None) -> Forms:
    """Return the forms of a rule by name; none if ByzFL lacks it or sizes are given: its rules take rows only."""
    if rule not in MAKERS or sizes is not None:
        return {}
    if rule == "MultiKrum" and parameters["m"] != len(matrix) - parameters["f"]:
        return {}
    inputs = {"torch": torch.from_numpy(matrix), "numpy": matrix}
    return {name: _form(rule, parameters, vectors) for name, vectors in inputs.items()}


def _form(rule: str, parameters: Parameters, vectors: Any) -> RuleForm:
    make = MAKERS[rule]
    if rule in IN_PLACE:
        copy = vectors.clone if isinstance(vectors, torch.Tensor) else vectors.copy
        return RuleForm(make(parameters), copy)
    if rule in STATEFUL:
        return RuleForm(lambda instance: instance(vectors), lambda: make(parameters))
    instance = make(parameters)
    return RuleForm(lambda _: instance(vectors))


def array(result: Any) -> np.ndarray:
    """Return a result as an array."""
    return np.asarray(result)
