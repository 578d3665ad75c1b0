"""Evaluation of models: accuracy, loss, accuracy for each client, success of an attack."""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import torch
from jaxtyping import Float, Int
from torch import Tensor

from phalanx.core import ClientReport, Vector
from phalanx.data.dataset import NO_LABEL, Dataset, Inputs
from phalanx.fields import CheckedFields, NonNegativeInt, PositiveInt
from phalanx.rng import stream
from phalanx.training.gradient import same_bits
from phalanx.training.local import LocalTask, LocalTraining
from phalanx.training.sgd import batches
from phalanx.training.task import CLASSIFICATION, Classification, Measures, Task
from phalanx.training.vector import FlatModule

BATCH = 1000  # examples evaluated at once, at most
# Examples that pass a convolutional network at once on a processor, at least, and less than twice as many: few enough
# for its caches, and for memory that is kept, where larger tensors are mapped and cleared again in each layer.
PART = 40
SCORES = 2**24  # scores computed at once, at most (64 MiB), unless a single example has more
CLASSES = 100  # largest number of classes whose accuracies are recorded one by one


class Score(NamedTuple):
    """The performance of a model on a set of examples."""

    accuracy: float  # share of labels that are predicted correctly; NaN if the task has none, or loss is NaN
    loss: float  # mean per label; of cross-entropy in nats, and its exponential is the perplexity
    by_class: Float[Tensor, "classes"]  # accuracy on the labels of each class; NaN for a class without labels
    extra: Mapping[str, float] = {}  # the other metrics of the task, by name
    by_owner: Mapping[int, float] = {}  # accuracy on the examples of each owner; empty if there are none


def evaluate(model: FlatModule, vector: Vector, data: Dataset, task: Task = CLASSIFICATION) -> Score:
    """Load `vector` into `model` and evaluate it on `data`.

    Every label has the same weight, so a long sequence of labels has more weight than a short one.  If an output is NaN
    or infinite that is no prediction: the loss is NaN then, and with it every accuracy.  (The arg max of NaN would be
    the first class, and of minus infinity and 0 the second one, with a loss of 0.)  Where there is no label, outputs do
    not matter.
    """
    return evaluate_each(model, [vector], data, task)[0]


def evaluate_each(
    model: FlatModule,
    vectors: Iterable[Vector],
    data: Dataset,
    task: Task = CLASSIFICATION,
    network: Callable[[Inputs], Tensor] | None = None,
) -> list[Score]:
    """Load each vector into `model` and evaluate it on `data`, to the bits of `evaluate`.

    What does not depend on the parameters is made once.  The matrix products of several models are not joined: one
    product of 20 models of 38,410 parameters takes twice as long as 20, whose results stay in the cache.

    Args:
        model: the module, bound to its vector.
        vectors: parameters of the models.
        data: the examples.
        task: defines the loss.
        network: computes the outputs of `model` in place of it, as a compiled loop does; its bits may differ.
    """
    if not len(data):
        raise ValueError("There are no examples to evaluate on.")
    parts = [*batches(data, _at_once(data), last=network is None)]
    labels, counts = int(task.count(data.y)), data.label_counts().cpu().double()
    unknown = torch.full((data.classes,), math.nan, dtype=torch.float64)
    model.module.eval()
    found = list[Score]()
    for vector in vectors:
        model.load(vector)
        measures, total, right, hits = Measures(task, data), list[Tensor](), list[Tensor](), list[Tensor]()
        finite = list[Tensor | bool]()
        with torch.inference_mode():
            for x, y in parts:
                outputs = _outputs(model, x) if network is None else network(x)
                total.append(task.total(outputs, y).double())
                finite.append(_finite(task, outputs, y, several=_several(data)))
                measures.add(outputs, y)
                if data.classes and (correct := task.correct(outputs, y)) is not None:
                    right.append(torch.bincount(correct, minlength=data.classes))
                if data.owners is not None and (found_right := task.hits(outputs, y)) is not None:
                    hits.append(found_right)
        loss = float(sum(total)) / labels if all(map(bool, finite)) else math.nan
        known = len(right) == len(parts) and not math.isnan(loss)
        of_class = sum(right[1:], right[0]).cpu() if known else unknown
        accuracy = int(of_class.sum()) / labels if known else math.nan
        by_owner = _by_owner(hits, data) if len(hits) == len(parts) else {}
        if math.isnan(loss):
            by_owner = dict.fromkeys(by_owner, math.nan)
        found.append(Score(accuracy, loss, of_class / counts, measures.results(loss), by_owner))
    return found


def predictions(model: FlatModule, data: Dataset, task: Task = CLASSIFICATION) -> Int[Tensor, "n"] | None:
    """Return the class that the module predicts for each example, int64.

    None where examples have several labels, or none; and if an output is NaN or infinite, which is no prediction.

    Args:
        model: the module.
        data: the examples.
        task: gives the outputs their meaning.
    """
    if not isinstance(task, Classification) or not data.classes or data.y.ndim > 1:
        return None
    model.module.eval()
    found = list[Tensor]()
    with torch.inference_mode():
        for x, y in batches(data, _at_once(data), last=True):
            scores, _ = task.scores(_outputs(model, x), y)
            if not bool(scores.isfinite().all()):
                return None
            found.append(scores.argmax(1).cpu())
    return torch.cat(found)


def confusion(true: Int[Tensor, "n"], predicted: Int[Tensor, "n"], classes: int) -> Int[Tensor, "classes classes"]:
    """Return the number of examples of each class (rows) for which each class is predicted (columns)."""
    known = true != NO_LABEL
    return torch.bincount(true[known] * classes + predicted[known], minlength=classes**2).view(classes, classes)


def _several(data: Dataset) -> bool:
    """Return whether examples have several labels of classes each, some of which may be missing."""
    return data.classes > 0 and data.y.ndim > 1


def _finite(task: Task, outputs: Any, y: Tensor, *, several: bool) -> Tensor | bool:
    """Return whether the outputs for a batch are finite, apart from those at positions without a label.

    Args:
        task: says where the outputs for a position are.
        outputs: of the model; what is no tensor is not looked at.
        y: labels or targets.
        several: whether there are several labels for each example.
    """
    if not isinstance(outputs, Tensor) or not outputs.numel():
        return True
    predicted, labels = task.scores(outputs, y) if several else (outputs, y)
    if not several or predicted.ndim != labels.ndim + 1:
        return torch.stack(outputs.aminmax()).isfinite().all()  # one pass, and no copies of the outputs
    least, most = predicted.aminmax(dim=1)
    return ((least.isfinite() & most.isfinite()) | (labels == NO_LABEL)).all()


def _by_owner(hits: list[Tensor], data: Dataset) -> dict[int, float]:
    """Return the accuracy on the examples of each owner; one without labels is left out.

    Args:
        hits: number of labels of each example that are predicted correctly, batch by batch.
        data: the examples.
    """
    labels = labels_of_owners(data)
    assert data.owners is not None
    right = torch.bincount(data.owners.cpu(), torch.cat(hits).cpu().double(), minlength=len(labels))
    return {o: r / n for o, (r, n) in enumerate(zip(right.tolist(), labels.tolist(), strict=True)) if n}


def labels_of_owners(data: Dataset) -> Int[Tensor, "owners"]:
    """Return the number of labels of each owner's examples; of targets, the number of examples."""
    assert data.owners is not None
    labels = (data.y != NO_LABEL).flatten(1).sum(1) if _several(data) else torch.ones(len(data), dtype=torch.int64)
    return torch.bincount(data.owners.cpu(), labels.cpu().double()).long()


def _outputs(model: FlatModule, x: Inputs) -> Any:
    """Return the outputs for a batch: of a convolutional network on a processor in parts.

    The first batch of each size passes it whole as well, and all others do where the bits differ.
    """
    if not isinstance(x, Tensor) or not model.convolutional or model.device.type != "cpu" or len(x) < 2 * PART:
        return model.outputs(x)
    known = model.separable.get(len(x))
    whole = None if known else model.outputs(x)
    if known is False:
        return whole
    found = [model.outputs(part) for part in x.tensor_split([*range(PART, len(x) - PART + 1, PART)])]
    if known:
        return torch.cat(found)
    model.separable[len(x)] = _make_up(found, whole)
    return whole


def _make_up(parts: list[Any], whole: Any) -> bool:
    """Return whether the outputs of parts of a batch are those of the whole, to the bit."""
    tensors = all(isinstance(one, Tensor) and one.ndim for one in (*parts, whole))
    return tensors and {one.shape[1:] for one in parts} == {whole.shape[1:]} and same_bits(torch.cat(parts), whole)


def report(model: FlatModule, vector: Vector, data: Dataset, task: Task = CLASSIFICATION) -> ClientReport:
    """Return what a client reports of a model that it evaluates on `data`."""
    score = evaluate(model, vector, data, task)
    loss, accuracy = (value if math.isfinite(value) else None for value in (score.loss, score.accuracy))
    return ClientReport(len(data), loss, accuracy)


def least_loss(model: FlatModule, candidates: Mapping[int, Vector], data: Dataset, task: Task = CLASSIFICATION) -> int:
    """Return the number of the model with the smallest loss on some examples; at a tie the last one.

    Args:
        model: the module for the evaluation; its parameters are overwritten.
        candidates: parameters of the models, by number.
        data: the examples.
        task: defines the loss.
    """
    # Reversed, since `min` returns the first of equals and the last one is wanted.
    numbers = [*candidates][::-1]
    scores = evaluate_each(model, [candidates[number] for number in numbers], data, task)
    losses = {number: score.loss for number, score in zip(numbers, scores, strict=True)}
    return min(losses, key=lambda number: math.inf if math.isnan(losses[number]) else losses[number])


def _at_once(data: Dataset) -> int:
    """Return the number of examples to evaluate at once, fewer if they have many scores, such as texts."""
    return min(BATCH, max(1, SCORES // (max(data.classes, 1) * data.y[0].numel())))


def pooled(scores: Mapping[Hashable, Score], labels: Mapping[Hashable, int]) -> Score:
    """Return the score of several models on all of their examples together.

    Metrics other than accuracy and loss are means, weighted by the number of labels.

    Args:
        scores: of each model, on its own examples.
        labels: their number, by model.
    """
    whole = sum(labels[key] for key in scores)

    def mean(values: Mapping[Hashable, float]) -> float:
        return sum(value * labels[key] for key, value in values.items()) / whole

    names = next(iter(scores.values())).extra
    extra = {name: mean({key: score.extra[name] for key, score in scores.items()}) for name in names}
    accuracy, loss = ({key: getattr(s, name) for key, s in scores.items()} for name in ("accuracy", "loss"))
    return Score(mean(accuracy), mean(loss), torch.empty(0, dtype=torch.float64), extra)


def client_accuracy(by_class: Float[Tensor, "m classes"], holdings: Int[Tensor, "m classes"]) -> list[float]:
    """Return the accuracy of each model under the label distribution of its client.

    It is the test accuracy of each class, weighted by the number of labels of that class that the client holds: the
    expected accuracy on a test set with the client's distribution of labels.  Classes without test labels are left out;
    NaN if the client holds no other classes.

    Args:
        by_class: `Score.by_class` of each model.
        holdings: number of labels of each class that its client holds.
    """
    held, rows_of = (holdings > 0) & ~by_class.isnan(), dict[int, list[int]]()
    for row, classes in enumerate(held.sum(1).tolist()):
        rows_of.setdefault(classes, []).append(row)
    found = [math.nan] * len(held)
    # Only what is held is added up, as zeros in between would change the order of a sum: by the number of classes.
    for classes, rows in rows_of.items():
        if classes:
            part = held[rows]
            labels, right = (values[rows][part].view(-1, classes) for values in (holdings, by_class))
            sums = (labels.double() / labels.sum(1, keepdim=True) * right).sum(1)
            for row, accuracy in zip(rows, sums.tolist(), strict=True):
                found[row] = accuracy
    return found


@dataclass(frozen=True)
class Evaluation(CheckedFields):
    """The schedule and the form of evaluations.

    Args:
        every: number of steps between two evaluations. The first and the last state are always evaluated. One can take
            as long as a step where clients have models of their own, with local_epochs, and in asynchronous runs:
            there, choose 10, say.
        local_epochs: number of epochs for which each client fine-tunes its model on its own data before the test, for
            the evaluation only. 0 tests models without fine-tuning. Xu and Lyu, "Towards Building a Robust and Fair
            Federated Learning System", 2020, use 1 for algorithms that send all clients the same model.
        by_clients: whether each client measures the model that it uses at a download, on the examples that it keeps
            from training (`validation` of the run), and reports that with its update.
    """

    every: PositiveInt = 1
    local_epochs: NonNegativeInt = 0
    by_clients: bool = False


class FineTuning:
    """Fine-tuning of models on the data of each client, for evaluation only.

    Minibatches and dropout come from separate random streams, so the training of the run does not change.

    Args:
        model: the module, bound to its vector.
        recipe: the local training of clients; its epochs and steps are replaced.
        epochs: number of passes over the data of the client, at least 1.
        seed: seed of the run.
        task: the task that is trained.
    """

    def __init__(
        self, model: FlatModule, recipe: LocalTraining, epochs: int, seed: int, task: Task = CLASSIFICATION
    ) -> None:
        self._trainer = recipe.fine_tuning(epochs).trainer(model, task, stream(seed, "fine-tuning"))

    def __call__(self, vector: Vector, data: Dataset, *, client: int, version: int) -> Vector:
        """Return the parameters after fine-tuning, unchanged if there are no examples.

        Args:
            vector: parameters of the client's model.
            data: data of the client, on the device of the model.
            client: id of the client, which names the random streams.
            version: version of the evaluated state; names the random streams and sets the learning rate of a schedule.
        """
        if not len(data):
            return vector
        change = torch.empty_like(vector)
        self._trainer.train(LocalTask(client, version, version, vector, change), data)
        return vector + change


class Metrics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The figures of one evaluation.  None: not measured, or not finite.

    Args:
        accuracy: share of the test labels that the served model predicts; mean over honest clients. Where clients are
            served different models and own test examples, each model is tested on those of its clients alone.
        loss: mean loss of the same; cross-entropy is in nats per label.
        worst_client_accuracy: the smallest of `client_accuracy`; None if outputs of some client's model are NaN or
            infinite.
        attack_success: accuracy on the attack's goal, of the models that honest clients are served.
        received_accuracy: by honest client, the accuracy of its model on the whole test set.
        client_accuracy: by honest client, the accuracy of its model on its own test examples, where each client is the
            owner of some (`DataRecord.client_tests` is "own"). Elsewhere it is label-reweighted: that on all test
            examples, each class weighted by the client's number of its labels.
        class_accuracy: by class, the mean over honest clients, where an attack has a goal and classes are few.
        group_accuracy: by group of clients, the mean accuracy over its honest ones.
        group_loss: by group of clients, the mean loss over its honest ones.
        chosen: by client that chooses among several models, the number of the one that it took.
        extra: other metrics of the run's task, by name; mean over honest clients.
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
    extra: Mapping[str, float | None] = {}


def metrics_of(
    scores: Mapping[int, Score],
    holdings: Int[Tensor, "clients classes"],
    success: float | None,
    owner: Mapping[int, int] | None = None,
) -> Metrics:
    """Return the metrics of one evaluation, without those of groups and choices.

    Args:
        scores: score of the model of each honest client.
        holdings: number of labels of each class that each client holds, a row for each id.
        success: accuracy on the goal of the attack; None if it has none.
        owner: by client, the owner of its examples; None if clients are not owners of test examples.
    """
    ranked = {i: score for i, score in scores.items() if not math.isnan(score.accuracy)}
    if owner is not None:
        own = {i: score.by_owner.get(owner[i], math.nan) for i, score in ranked.items()}
    else:
        own = _own(ranked, holdings) if ranked else {}
    names = next(iter(scores.values())).extra
    known = [accuracy for accuracy in own.values() if not math.isnan(accuracy)]
    return Metrics(
        accuracy=sum(s.accuracy for s in scores.values()) / len(scores),
        loss=sum(s.loss for s in scores.values()) / len(scores),
        worst_client_accuracy=min(known, default=math.nan) if len(ranked) == len(scores) else math.nan,
        attack_success=success,
        received_accuracy={i: score.accuracy for i, score in ranked.items()},
        client_accuracy=own,
        class_accuracy={} if success is None else _by_class(scores.values()),
        extra={name: sum(s.extra[name] for s in scores.values()) / len(scores) for name in names},
    )


def _own(scores: Mapping[int, Score], holdings: Int[Tensor, "clients classes"]) -> dict[int, float]:
    """Return the accuracy of each client's model under its own distribution of labels."""
    by_class = torch.stack([score.by_class for score in scores.values()])
    return dict(zip(scores, client_accuracy(by_class, holdings[[*scores]]), strict=True))


def _by_class(scores: Collection[Score]) -> dict[int, float]:
    """Return the mean accuracy on each class of the test set; nothing if there are more than `CLASSES`."""
    means = torch.stack([score.by_class for score in scores]).mean(0).tolist()
    known = {label: accuracy for label, accuracy in enumerate(means) if not math.isnan(accuracy)}
    return known if len(means) <= CLASSES else {}
