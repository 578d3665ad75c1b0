"""Predictions of a run's models for rows of a table: classes with their probabilities, or numbers in their own unit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from phalanx.core import InfeasibleError
from phalanx.data import Schema
from phalanx.data.tables import Name, TargetScale
from phalanx.runs.models import Models
from phalanx.training.task import Classification, Regression
from phalanx.training.vector import FlatModule
from phalanx.wording import plural

if TYPE_CHECKING:
    from pandas import DataFrame

PREDICTION, PROBABILITY = "prediction", "probability of "  # columns of predictions
ROWS = 1000  # that pass the network at once


@dataclass(frozen=True)
class Meaning:
    """What the outputs of a model mean.

    Args:
        labels: the classes whose scores they are; empty for targets.
        scale: of targets: an output times `deviation` plus `mean` is a prediction.
    """

    labels: tuple[Name, ...]
    scale: TargetScale = TargetScale(0.0, 1.0)


def meaning(schema: Schema, config: Mapping[str, Any]) -> Meaning:
    """Return what the outputs of the models of a run mean.

    Args:
        schema: of the table that it was trained on.
        config: of the run.

    Raises:
        InfeasibleError: its task is neither `Classification` nor `Regression`.
    """
    task = config.get("task") or {}
    name = str(task.get("class_path", "Classification" if schema.labels else "Regression")).rpartition(".")[2]
    if name != (Classification if schema.labels else Regression).__name__:
        raise InfeasibleError(
            f"The outputs of a model for the task {name} are no classes and no numbers to predict. Take its outputs in "
            "Python: record.model()(record.inputs(frame))."
        )
    if schema.labels:
        return Meaning(schema.labels)
    given = task.get("init_args") or {}
    own, known = TargetScale(float(given.get("mean", 0.0)), float(given.get("deviation", 1.0))), schema.reading.target
    return Meaning((), own if known is None or own != TargetScale(0.0, 1.0) else known)


def predictions(
    models: Models,
    schema: Schema,
    outputs: Meaning,
    frame: Any,
    *,
    client: int | None = None,
    module: nn.Module | None = None,
) -> "DataFrame":
    """Return a prediction for each row of a table, with its index.

    Args:
        models: of the run.
        schema: of the table that they were trained on.
        outputs: what their outputs mean.
        frame: a pandas `DataFrame`.
        client: whose model is used; None: the global one.
        module: receives the values, where the record does not know the network.

    Returns:
        Of classes, `prediction` and `probability of CLASS` for each, which are the softmax of the outputs; of targets,
        `prediction`, in their own unit.

    Raises:
        NotInRecordError: there is no such model.
        ValueError: the table does not fit the schema, or outputs of the model are no numbers.
    """
    import pandas as pd  # noqa: PLC0415  (optional)

    x = schema.inputs(frame)
    network = FlatModule(models.module(client, module), "freeze")
    with torch.inference_mode():
        found = torch.cat(
            [network.outputs(part.to(network.dtype)) for part in x.tensor_split([*range(ROWS, len(x), ROWS)])]
        )
    if (undefined := ~found.isfinite().flatten(1).all(1)).any():
        raise ValueError(
            f"The outputs of the model are NaN or infinite for {int(undefined.sum())} of {plural(len(x), 'row')} (the "
            f"first: row {int(undefined.int().argmax()) + 1}). Choose a model whose training did not diverge, or "
            "correct numbers that are too large."
        )
    if outputs.labels:
        shares = torch.softmax(found, 1)
        named = {f"{PROBABILITY}{label}": shares[:, k].numpy() for k, label in enumerate(outputs.labels)}
        return pd.DataFrame({PREDICTION: [outputs.labels[k] for k in found.argmax(1)], **named}, index=frame.index)
    targets = found.double().flatten() * outputs.scale.deviation + outputs.scale.mean
    return pd.DataFrame({PREDICTION: targets.numpy()}, index=frame.index)
