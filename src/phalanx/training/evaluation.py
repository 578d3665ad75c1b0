"""What a model is worth: accuracy, loss, what each client gets of it, what an attacker got out of it."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
import torch
import torch.nn.functional as F  # noqa: N812  (the name that everyone knows)
from jaxtyping import Float, Int
from torch import Tensor

from phalanx.core import Vector
from phalanx.data import Dataset
from phalanx.rng import stream
from phalanx.training.sgd import LocalSGD, Trainer, batches
from phalanx.training.vector import FlatModule

BATCH = 1000  # examples evaluated at once,
SCORES = 2**24  # or fewer, so that they have no more scores than this (64 MiB), though one example may
CLASSES = 100  # at most, for their accuracies to be told one by one


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


def least_loss(model: FlatModule, offers: Mapping[int, Vector], data: Dataset) -> int:
    """The number of the model with the least loss on some examples; of equals the last one.

    Args:
        model: overwritten.
        offers: models by number.
        data: the examples.
    """
    losses = {number: evaluate(model, vector, data).loss for number, vector in reversed([*offers.items()])}
    return min(losses, key=lambda number: math.inf if math.isnan(losses[number]) else losses[number])


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
    """When models are evaluated, and in which form.

    Args:
        every: steps between two evaluations. The first and the last state are always evaluated.
        local_epochs: how many epochs each client trains the model that it is served on its own data before that is
            tested; the training itself goes on without them. One is what Xu and Lyu, "Towards Building a Robust and
            Fair Federated Learning System", 2020, grant algorithms that serve everybody the same. 0 tests models as
            they are served.
    """

    every: int = 1
    local_epochs: int = 0

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every must be at least 1, got {self.every}.")
        if self.local_epochs < 0:
            raise ValueError(f"local_epochs must be at least 0, got {self.local_epochs}.")


class FineTuning:
    """Trains what clients are served a little further on their own data, for evaluation only.

    Minibatches and dropout come from streams of their own, so that nothing of the run's training changes.

    Args:
        model: the module, bound to its vector.
        recipe: how clients train; its epochs and steps are replaced.
        epochs: passes over the client's data, at least 1.
        seed: the run's.
    """

    def __init__(self, model: FlatModule, recipe: LocalSGD, epochs: int, seed: int) -> None:
        self._trainer = Trainer(model, replace(recipe, epochs=epochs, steps=None), stream(seed, "fine-tuning"))

    def __call__(self, vector: Vector, data: Dataset, *, client: int, version: int) -> Vector:
        """The vector after training; itself if there are no examples.

        Args:
            vector: what the client is served.
            data: the client's, on the model's device.
            client: names the random streams.
            version: of the state that is evaluated; names the random streams, and tells a schedule the learning rate.
        """
        if not len(data):
            return vector
        change = torch.empty_like(vector)
        self._trainer.train(vector, data, client=client, turn=version, version=version, out=change)
        return vector + change


class Metrics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The figures of one evaluation.  None: not measured, or not finite.

    Args:
        accuracy: share of the test labels that the served model predicts; mean over honest clients.
        loss: cross-entropy of the same, nats per label.
        worst_client_accuracy: the smallest of `client_accuracy`, of clients that hold examples.
        attack_success: accuracy on the attack's goal, of the models that honest clients are served.
        received_accuracy: by honest client, the accuracy of its model on the whole test set.
        client_accuracy: by honest client, the accuracy of its model under its own distribution of labels.
        class_accuracy: by class, the mean over honest clients, where an attack has a goal and classes are few.
        group_accuracy: by group of clients, the mean accuracy over its honest ones.
        group_loss: by group of clients, the mean loss over its honest ones.
        chosen: by client that chooses among several models, the number of the one that it took.
    """

    accuracy: float | None = None
    loss: float | None = None
    worst_client_accuracy: float | None = None
    attack_success: float | None = None
    received_accuracy: Mapping[int, float | None] = {}
    client_accuracy: Mapping[int, float | None] = {}
    class_accuracy: Mapping[int, float] = {}
    group_accuracy: Mapping[int, float | None] = {}
    group_loss: Mapping[int, float | None] = {}
    chosen: Mapping[int, int] = {}


def metrics_of(
    scores: Mapping[int, Score], holdings: Mapping[int, Int[Tensor, "classes"]], success: float | None
) -> Metrics:
    """Return the figures of one evaluation; those of groups and choices are left out.

    Args:
        scores: of the model that each honest client is served.
        holdings: number of labels of each class that each honest client holds.
        success: accuracy on the attack's goal; None if it has none.
    """
    own = {i: client_accuracy(scores[i], holdings[i]) for i in scores}
    known = [accuracy for accuracy in own.values() if not math.isnan(accuracy)]
    return Metrics(
        accuracy=sum(s.accuracy for s in scores.values()) / len(scores),
        loss=sum(s.loss for s in scores.values()) / len(scores),
        worst_client_accuracy=min(known, default=math.nan),
        attack_success=success,
        received_accuracy={i: score.accuracy for i, score in scores.items()},
        client_accuracy=own,
        class_accuracy={} if success is None else _by_class(scores.values()),
    )


def _by_class(scores: Collection[Score]) -> dict[int, float]:
    """Return the mean accuracy on each class that is tested; nothing if there are more than CLASSES."""
    means = torch.stack([score.by_class for score in scores]).mean(0).tolist()
    known = {label: accuracy for label, accuracy in enumerate(means) if not math.isnan(accuracy)}
    return known if len(means) <= CLASSES else {}
