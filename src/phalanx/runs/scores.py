"""The scores of a run's models on examples, after the run."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor, nn

from phalanx.data import Dataset
from phalanx.runs.models import Models
from phalanx.training.evaluation import Score, evaluate, predictions
from phalanx.training.task import CLASSIFICATION, Task
from phalanx.training.vector import FlatModule


class Scored(NamedTuple):
    """What a model is worth on some examples, and what it predicts for each.

    Args:
        score: of the model.
        predicted: the class of each example; None if there is no such thing, see `predictions`.
    """

    score: Score
    predicted: Int[Tensor, "n"] | None


class Scores(NamedTuple):
    """The scores of models on examples.

    Args:
        model: of the global model.
        clients: by client, of the model that it is served; empty if only the global model was kept.
        predicted: the class that the global model predicts for each example, and by client that of its model.
    """

    model: Score
    clients: Mapping[int, Score]
    predicted: Mapping[int | None, Int[Tensor, "n"] | None]


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
    found = dict[tuple[str, int], Scored]()

    def scored(client: int | None, examples: Dataset) -> Scored:
        key = (models.index.file(client), id(examples))
        if key not in found:
            flat = FlatModule(models.module(client, module() if module else None), "freeze")
            fitting = examples.for_model(flat.dtype)
            found[key] = Scored(evaluate(flat, flat.read(), fitting, task), predictions(flat, fitting, task))
        return found[key]

    whole, each = scored(None, data), {i: scored(i, (tests or {}).get(i, data)) for i in models.index.clients}
    predicted = dict[int | None, Int[Tensor, "n"] | None]({i: one.predicted for i, one in each.items()})
    predicted[None] = whole.predicted
    return Scores(whole.score, {i: one.score for i, one in each.items()}, predicted)
