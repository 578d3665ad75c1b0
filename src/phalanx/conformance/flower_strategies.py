"""Flower's strategies of the message API, called as a server calls them: `aggregate_train` on clients' replies."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Bulyan, FedAvg, FedMedian, FedTrimmedAvg, Krum, MultiKrum
from flwr.supercore.task_identity import TaskIdentity

from phalanx.conformance.rule_form import Forms, Parameters, RuleForm

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as in a server's process

PACKAGES = ("flwr", "numpy")
MAKERS: dict[str, Callable[[Parameters, int], FedAvg]] = {  # for n replies
    "Mean": lambda p, n: FedAvg(),
    "Median": lambda p, n: FedMedian(),
    "TrimmedMean": lambda p, n: FedTrimmedAvg(beta=p["f"] / max(n, 1)),
    "Krum": lambda p, n: Krum(num_malicious_nodes=p["f"]),
    "MultiKrum": lambda p, n: MultiKrum(num_malicious_nodes=p["f"], num_nodes_to_select=p["m"]),
    "Bulyan": lambda p, n: Bulyan(num_malicious_nodes=p["f"]),
}


def forms(rule: str, parameters: Parameters, matrix: np.ndarray, sizes: Sequence[int] | None = None) -> Forms:
    """Return the strategy of a rule on replies that report numbers of examples; none if Flower lacks it."""
    if rule not in MAKERS:
        return {}
    counts = [100] * len(matrix) if sizes is None else sizes

    def replies() -> list[Message]:  # strategies take arrays out of the messages that they are given
        return [
            Message(
                RecordDict({"arrays": ArrayRecord([row]), "metrics": MetricRecord({"num-examples": size})}), 1, "train"
            )
            for row, size in zip(matrix, counts, strict=True)
        ]

    return {"strategy": RuleForm(lambda made: MAKERS[rule](parameters, len(made)).aggregate_train(1, made)[0], replies)}


def array(result: ArrayRecord | None) -> Any:
    """Return a result as an array; None if the strategy leaves the round without one."""
    return None if result is None else result.to_numpy_ndarrays()[0]
