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


class Answers(NamedTuple):
    """What a model predicts for each example.

    Args:
        true: the class of each example, as the model's client sees it.
        predicted: the class that the model gives.
    """

    true: Int[Tensor, "n"]
    predicted: Int[Tensor, "n"]


class Scored(NamedTuple):
    """What a model is worth on some examples, and its answers; None if it has none, see `predictions`."""

    score: Score
    answers: Answers | None


class Scores(NamedTuple):
    """The scores of models on examples.

    Args:
        model: of the global model.
        clients: by client, of the model that it is served; empty if only the global model was kept.
        answers: of the global model, and by client of its model.
    """

    model: Score
    clients: Mapping[int, Score]
    answers: Mapping[int | None, Answers | None]


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
            predicted = predictions(flat, fitting, task)
            answers = None if predicted is None else Answers(fitting.y.cpu(), predicted)
            found[key] = Scored(evaluate(flat, flat.read(), fitting, task), answers)
        return found[key]

    whole, each = scored(None, data), {i: scored(i, (tests or {}).get(i, data)) for i in models.index.clients}
    answers = dict[int | None, Answers | None]({i: one.answers for i, one in each.items()})
    answers[None] = whole.answers
    return Scores(whole.score, {i: one.score for i, one in each.items()}, answers)
