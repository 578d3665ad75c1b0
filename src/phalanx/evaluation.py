"""What a model is worth: accuracy, loss, what each client gets of it, what an attacker got out of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (the name that everyone knows)
from jaxtyping import Float, Int
from torch import Tensor

from phalanx.core import Vector
from phalanx.data import Dataset
from phalanx.training import batches
from phalanx.vector import FlatModule

BATCH = 1000  # examples evaluated at once,
SCORES = 2**24  # or fewer, so that they have no more scores than this (64 MiB), though one example may


class Score(NamedTuple):
    """What a model does on a set of examples."""

    accuracy: float  # share of labels that are the most likely class
    loss: float  # mean cross-entropy, nats per label; its exponential is the perplexity
    by_class: Float[Tensor, "classes"]  # accuracy on the labels of each class; NaN where there are none


def evaluate(model: FlatModule, vector: Vector, data: Dataset) -> Score:
    """Loads `vector` into `model` and evaluates it on `data`.

    Every label counts alike: where examples have sequences of labels, a long one counts for more than a short one.  A
    model with NaN parameters predicts the first class, as the arg max of NaN does, and has a loss of NaN.
    """
    if not len(data):
        raise ValueError("There are no examples to evaluate on.")
    model.load(vector)
    model.module.eval()
    right = torch.zeros(data.classes, dtype=torch.float64, device=model.device)
    total = torch.zeros((), dtype=torch.float64, device=model.device)
    with torch.inference_mode():
        for x, y in batches(data, _at_once(data)):
            logits = model.module(x)
            total += F.cross_entropy(logits, y, reduction="sum").double()
            right += torch.bincount(y[logits.argmax(1) == y], minlength=data.classes)
    counts = data.label_counts().to(right)
    labels = int(counts.sum())
    return Score(float(right.sum()) / labels, float(total) / labels, (right / counts).cpu())


def _at_once(data: Dataset) -> int:
    """How many examples to evaluate at once: a vocabulary's scores at every position of a text are many."""
    return min(BATCH, max(1, SCORES // (data.classes * data.y[0].numel())))


def client_accuracy(score: Score, holdings: Int[Tensor, "classes"]) -> float:
    """The accuracy that a client sees whose labels are distributed over the classes as `holdings` are.

    The test accuracy of each class, weighted by how many labels of it the client holds: what a test set of its own,
    drawn from its own distribution of labels, would show on average.  Classes that are not in the test set are left
    out; NaN if the client holds no others.
    """
    held = (holdings > 0) & ~score.by_class.isnan()
    shares = holdings[held].double() / holdings[held].sum()
    return float((shares * score.by_class[held]).sum()) if bool(held.any()) else math.nan


@dataclass(frozen=True)
class Evaluation:
    """When models are evaluated.

    Args:
        every: steps between two evaluations. The first and the last state are always evaluated.
    """

    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every must be at least 1, got {self.every}.")


def figures(
    scores: Mapping[int, Score], holdings: Mapping[int, Int[Tensor, "classes"]], success: float | None
) -> dict[str, Any]:
    """The figures of one evaluation.

    Args:
        scores: of the model that each honest client is served.
        holdings: how many labels of each class each honest client holds.
        success: share of the attacker's wishes that the model fulfils; None if it has none.

    Returns:
        accuracy and loss: mean over honest clients of their model on the whole test set;
        client_accuracy: for each honest client, the accuracy under its own distribution of labels;
        worst_client_accuracy: the smallest of these, of clients that hold examples;
        attack_success, if there is one.
    """
    own = {i: client_accuracy(scores[i], holdings[i]) for i in scores}
    known = [accuracy for accuracy in own.values() if not math.isnan(accuracy)]
    out = {
        "accuracy": sum(s.accuracy for s in scores.values()) / len(scores),
        "loss": sum(s.loss for s in scores.values()) / len(scores),
        "worst_client_accuracy": min(known, default=math.nan),
        "client_accuracy": own,
    }
    return out if success is None else out | {"attack_success": success}
