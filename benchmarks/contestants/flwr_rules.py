"""Flower's rules, as functions on lists of arrays, and as its message API runs them, if that code is different."""

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.server.strategy import aggregate as functions
from flwr.serverapp.strategy.multikrum import select_multikrum
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from phalanx.conformance.rule_form import Parameters, RuleForm

PACKAGES = ("flwr", "numpy")
Results = list[tuple[list[np.ndarray], int]]
FUNCTIONS: dict[str, Callable[[Results, Parameters], list[np.ndarray]]] = {
    "Mean": lambda results, p: functions.aggregate(results),
    "Median": lambda results, p: functions.aggregate_median(results),
    "TrimmedMean": lambda results, p: functions.aggregate_trimmed_avg(results, p["f"] / len(results)),
    "Krum": lambda results, p: functions.aggregate_krum(results, p["f"], 0),
    "MultiKrum": lambda results, p: functions.aggregate_krum(results, p["f"], p["m"]),
    "Bulyan": lambda results, p: functions.aggregate_bulyan(list(results), p["f"], functions.aggregate_krum, to_keep=0),
}
MESSAGES: dict[str, Callable[[list[RecordDict], Parameters], list[RecordDict]]] = {
    "Mean": lambda contents, p: contents,
    "Krum": lambda contents, p: select_multikrum(contents, p["f"], 1),
    "MultiKrum": lambda contents, p: select_multikrum(contents, p["f"], p["m"]),
}


def forms(
    rule: str, parameters: Parameters, matrix: np.ndarray, weights: np.ndarray | None, threads: int
) -> dict[str, RuleForm]:
    """Return the forms of a rule by name; none if Flower lacks it: only its mean takes weights."""
    if rule not in FUNCTIONS or (weights is not None and rule != "Mean"):
        return {}
    counts = [1] * len(matrix) if weights is None else [int(w) for w in weights]
    results = [([row], count) for row, count in zip(matrix, counts, strict=True)]
    found = {"functions": RuleForm(lambda _: FUNCTIONS[rule](results, parameters)[0])}
    if rule in MESSAGES:
        found["messages"] = _messages(rule, results, parameters)
    return found


def _messages(rule: str, results: Results, parameters: Parameters) -> RuleForm:
    """Aggregate like the strategies of the message API: reading messages is timed, making them is not."""
    contents = [
        RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": count})})
        for arrays, count in results
    ]
    return RuleForm(lambda _: aggregate_arrayrecords(MESSAGES[rule](contents, parameters), "num-examples"))


def array(result: Any) -> np.ndarray:
    return result.to_numpy_ndarrays()[0] if isinstance(result, ArrayRecord) else np.asarray(result)
