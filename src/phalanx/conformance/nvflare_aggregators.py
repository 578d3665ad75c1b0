"""NVFlare's weighted mean, which all of its aggregators compute: it has no rule that tolerates attackers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.aggregators.dxo_aggregator import DXOAggregator
from nvflare.app_common.app_constant import AppConstants

from phalanx.conformance.rule_form import Forms, Parameters, RuleForm

PACKAGES = ("nvflare", "torch", "numpy")
NAME = "weights"  # of the only array of an update


def forms(rule: str, parameters: Parameters, matrix: np.ndarray, sizes: Sequence[int] | None = None) -> Forms:
    """Return the weighted mean of arrays and of tensors, by steps as reported; nothing for other rules."""
    if rule != "Mean":
        return {}
    counts = [100] * len(matrix) if sizes is None else sizes
    rows = {"numpy": [*matrix], "torch": [*torch.from_numpy(matrix)]}
    return {name: RuleForm(_call(given, counts)) for name, given in rows.items()}


def _call(rows: Sequence[Any], counts: Sequence[int]) -> Any:
    def call(_: None) -> Any:
        context, aggregator = FLContext(), DXOAggregator()
        context.set_prop(AppConstants.CURRENT_ROUND, 0)
        for client, (row, steps) in enumerate(zip(rows, counts, strict=True)):
            update = DXO(DataKind.WEIGHT_DIFF, {NAME: row}, {MetaKey.NUM_STEPS_CURRENT_ROUND: steps})
            if not aggregator.accept(update, f"site-{client}", 0, context):
                raise ValueError(f"the update of client {client} is not accepted")
        return aggregator.aggregate(context).data.get(NAME)

    return call


def array(result: Any) -> np.ndarray | None:
    """Return a result as an array; None if there is no aggregate."""
    return None if result is None else np.asarray(result)
