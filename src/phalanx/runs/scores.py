"""The scores of a run's models on examples, after the run."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import nn

from phalanx.data import Dataset
from phalanx.runs.models import Models
from phalanx.training.evaluation import Score, evaluate
from phalanx.training.task import CLASSIFICATION, Task
from phalanx.training.vector import FlatModule


class Scores(NamedTuple):
    """The scores of models on examples.

    Args:
        model: of the global model.
        clients: by client, of the model that it is served; empty if only the global model was kept.
    """

    model: Score
    clients: Mapping[int, Score]


def scores(
    models: Models,
    data: Dataset,
    tests: Mapping[int, Dataset] | None = None,
    module: Callable[[], nn.Module] | None = None,
    task: Task = CLASSIFICATION,
) -> Scores:
    """Return the scores of the models of a run, each model evaluated once on the same examples.

    Args:
        models: of the run.
        data: the examples.
        tests: by client, its own examples, where they are others; the same object for those that share them.
        module: returns the network, where the record does not know it.
        task: defines loss and accuracy.
    """
    found = dict[tuple[str, int], Score]()

    def score(client: int | None, examples: Dataset) -> Score:
        key = (models.index.file(client), id(examples))
        if key not in found:
            flat = FlatModule(models.module(client, module() if module else None), "freeze")
            found[key] = evaluate(flat, flat.read(), examples.for_model(flat.dtype), task)
        return found[key]

    whole = score(None, data)
    return Scores(whole, {i: score(i, (tests or {}).get(i, data)) for i in models.index.clients})
