"""Tasks: how the outputs of a model and the labels of a batch become a loss and metrics.

A task of your own is a frozen dataclass with `loss` and `outputs`; `examples/own_task.py` is one.
"""

import inspect
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812  (the usual name)
from torch import Tensor
from typing_extensions import override

from phalanx.data import NO_LABEL, Dataset
from phalanx.fields import CheckedFields, FiniteFloat, PositiveFloat
from phalanx.installation import installation
from phalanx.trust import UntrustedError, named
from phalanx.wording import shown


class Task(CheckedFields, ABC):
    """The meaning of outputs and labels.  A subclass is a frozen dataclass.

    Metrics are names of classes of torchmetrics, such as "F1Score", "AUROC" or "MeanAbsoluteError", or import paths of
    others, such as "my_file.Balanced", a subclass of `torchmetrics.Metric`: records, tables and observers name it so.
    Where a metric has an average over classes, it is "macro". They need the extra `tasks`.
    """

    metrics: tuple[str, ...] = ()

    @abstractmethod
    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss over the labels of a batch, differentiable.

        Args:
            outputs: what the model returned for the batch.
            y: labels or targets of the batch, (B,) or (B, ...).
        """

    @abstractmethod
    def outputs(self, data: Dataset) -> int:
        """Return the number of outputs that the model must have for these data: the argument of `Model.build`.

        Raises:
            ValueError: if the data do not have the labels, or the targets, that the task needs.
        """

    def output_shape(self, data: Dataset) -> tuple[int, ...] | None:
        """Return the shape of the outputs for one example; None: it is not checked."""
        return None

    def count(self, y: Tensor) -> int | Tensor:
        """Return the number of labels over which `loss` is the mean; a tensor where only the device knows it."""
        return len(y)

    def total(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the sum of the loss over the labels of a batch."""
        return self.loss(outputs, y).double() * self.count(y)

    def correct(self, outputs: Tensor, y: Tensor) -> Tensor | None:
        """Return the labels of the batch that are predicted correctly, (c,), int64; None if there is no accuracy."""
        return None

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor | None:
        """Return the number of labels of each example that are predicted correctly, (B,); None if it is not known."""
        return None

    def scores(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the predictions and labels as torchmetrics takes them."""
        return outputs, y

    def options(self, data: Dataset) -> Mapping[str, object]:
        """Return the arguments of torchmetrics' classes; a class gets those that it knows."""
        return {}

    def derived(self, loss: float) -> dict[str, float]:
        """Return metrics that follow from the mean loss."""
        return {}

    def fitted(self, data: Dataset) -> "Task":
        """Return the task with what it takes from how the table of these examples was read."""
        return self


@dataclass(frozen=True)
class Classification(Task):
    """One class of several for each example, or at each position or pixel; cross-entropy, in nats per label.

    Labels are int64 of shape (n,); or (n, t) for sequences and (n, h, w) for images, where -100 marks positions without
    a label. The model gives (B, classes), (B, classes, t) or (B, classes, h, w).

    Args:
        metrics: more metrics; see `Task`.
    """

    metrics: tuple[str, ...] = ()

    @override
    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y)

    @override
    def outputs(self, data: Dataset) -> int:
        if not data.classes:
            raise ValueError(
                "Classification needs labels of classes (int64), and these data have targets. Choose a task for them, "
                "such as Regression or MultiLabel, or make the labels integers or text: 0, not 0.0; of arrays, convert "
                "y to int64 and give the number of classes."
            )
        if data.classes < 2:
            raise ValueError(f"Classification needs at least 2 classes, got {data.classes}. Check the labels.")
        return data.classes

    @override
    def output_shape(self, data: Dataset) -> tuple[int, ...] | None:
        return (data.classes, *data.y.shape[1:])

    @override
    def count(self, y: Tensor) -> int | Tensor:
        """See `Task`; for several labels a tensor on its device, so that no step waits for a GPU."""
        return len(y) if y.ndim == 1 else (y != NO_LABEL).sum()

    @override
    def total(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y, reduction="sum").double()

    @override
    def correct(self, outputs: Tensor, y: Tensor) -> Tensor | None:
        return y[outputs.argmax(1) == y]

    @override
    def hits(self, outputs: Tensor, y: Tensor) -> Tensor | None:
        right = outputs.argmax(1) == y
        return right.long() if y.ndim == 1 else right.flatten(1).sum(1)

    @override
    def options(self, data: Dataset) -> Mapping[str, object]:
        return {"task": "multiclass", "num_classes": data.classes, "ignore_index": NO_LABEL}


CLASSIFICATION = Classification()


@dataclass(frozen=True)
class NextToken(Classification):
    """The next token of a text at each position: `Classification` of sequences, by models that give tokens last.

    The model gives (B, t, tokens), as those of the `transformers` library do, instead of (B, tokens, t). `perplexity`,
    the exponential of the loss, is among the metrics.
    """

    @override
    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return super().loss(outputs.movedim(-1, 1), y)

    @override
    def output_shape(self, data: Dataset) -> tuple[int, ...] | None:
        return (*data.y.shape[1:], data.classes)

    @override
    def total(self, outputs: Tensor, y: Tensor) -> Tensor:
        return super().total(outputs.movedim(-1, 1), y)

    @override
    def correct(self, outputs: Tensor, y: Tensor) -> Tensor | None:
        return super().correct(outputs.movedim(-1, 1), y)

    @override
    def hits(self, outputs: Tensor, y: Tensor) -> Tensor | None:
        return super().hits(outputs.movedim(-1, 1), y)

    @override
    def scores(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return outputs.movedim(-1, 1), y

    @override
    def derived(self, loss: float) -> dict[str, float]:
        return {"perplexity": math.exp(min(loss, 700.0))}  # more is beyond a float


@dataclass(frozen=True)
class Regression(Task):
    """Targets that are numbers, float of shape (n,) or (n, k).  There is no accuracy.

    A model is trained on (target - mean) / deviation, and predicts its outputs times `deviation` plus `mean`.
    Evaluations are in the unit of the targets.

    Args:
        error: "squared", "absolute", or "huber" (squared up to 1, linear from there); the mean over all targets.
        metrics: more metrics; see `Task`.
        mean: what is subtracted from targets; of a table file that of its train part, if it is standardized.
        deviation: what they are divided by then, above 0; likewise.
    """

    error: Literal["squared", "absolute", "huber"] = "squared"
    metrics: tuple[str, ...] = ()
    mean: FiniteFloat = 0.0
    deviation: PositiveFloat = 1.0

    @property
    def unscaled(self) -> bool:
        """Whether targets are taken as they are."""
        return (self.mean, self.deviation) == (0.0, 1.0)

    @override
    def fitted(self, data: Dataset) -> "Task":
        scale = None if data.reading is None else data.reading.target
        return replace(self, mean=scale.mean, deviation=scale.deviation) if scale and self.unscaled else self

    @override
    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        scaled = y if self.unscaled else ((y.double() - self.mean) / self.deviation).to(y.dtype)
        return self._error(*_like(outputs, scaled))

    @override
    def total(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self._error(*self.scores(outputs, y)).double() * self.count(y)

    def _error(self, outputs: Tensor, y: Tensor) -> Tensor:
        if self.error == "squared":
            return F.mse_loss(outputs, y)
        return F.l1_loss(outputs, y) if self.error == "absolute" else F.huber_loss(outputs, y)

    @override
    def outputs(self, data: Dataset) -> int:
        return _targets(data, "Regression")

    @override
    def output_shape(self, data: Dataset) -> tuple[int, ...] | None:
        return (self.outputs(data),)

    @override
    def count(self, y: Tensor) -> int | Tensor:
        return y.numel()

    @override
    def scores(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """See `Task`; (B, 1) is as good as (B,)."""
        outputs, y = _like(outputs, y)
        return outputs if self.unscaled else outputs * self.deviation + self.mean, y


@dataclass(frozen=True)
class MultiLabel(Task):
    """Any number of labels for each example: targets 0 or 1, float of shape (n, k), by k binary cross-entropies.

    There is no accuracy, which is high where most labels are rare; choose metrics such as "F1Score" or "AUROC".

    Args:
        metrics: more metrics; see `Task`.
    """

    metrics: tuple[str, ...] = ()

    @override
    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype))

    @override
    def outputs(self, data: Dataset) -> int:
        found = _targets(data, "MultiLabel")
        if data.y.ndim != 2 or bool(((data.y < 0) | (data.y > 1)).any()):
            raise ValueError(
                f"MultiLabel needs targets in 0..1 of shape (n, k), a column for each label, got {tuple(data.y.shape)} "
                f"with values from {float(data.y.min()):g} to {float(data.y.max()):g}."
            )
        return found

    @override
    def output_shape(self, data: Dataset) -> tuple[int, ...] | None:
        return (self.outputs(data),)

    @override
    def count(self, y: Tensor) -> int | Tensor:
        return y.numel()

    @override
    def scores(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return outputs, (y > 0.5).long()

    @override
    def options(self, data: Dataset) -> Mapping[str, object]:
        return {"task": "multilabel", "num_labels": self.outputs(data)}


def _like(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs in the shape of the targets, and these in the type of the outputs."""
    outputs = outputs.float() if outputs.dtype == torch.bfloat16 else outputs  # which rounds 1001 to 1000
    return outputs.reshape(y.shape), y.to(outputs.dtype)


def _targets(data: Dataset, task: str) -> int:
    """Return the number of targets of an example; raise `ValueError` if it has labels of classes."""
    if data.classes:
        raise ValueError(
            f"{task} needs targets (floating point), and these data have labels of {data.classes} classes. Convert "
            "them: Dataset(x, y.float()), or targets=True of a table; or choose the task Classification."
        )
    return data.y.shape[1] if data.y.ndim == 2 else 1


class Measures:
    """The metrics of a task beyond loss and accuracy, over the batches of one evaluation.

    Args:
        task: the task.
        data: the examples that are evaluated.

    Raises:
        ValueError: if a metric is not found, or does not fit the data.
    """

    def __init__(self, task: Task, data: Dataset) -> None:
        self.task = task
        self.absent = undefined(task, data)
        made = {name: _metric(name, task.options(data), each=name in self.absent) for name in task.metrics}
        self.known = {name: metric.to(data.y.device) for name, metric in made.items()}

    def add(self, outputs: Tensor, y: Tensor) -> None:
        """Add a batch."""
        if self.known:
            predicted, labels = self.task.scores(outputs, y)
            for metric in self.known.values():
                metric.update(predicted, labels)

    def results(self, loss: float) -> dict[str, float]:
        """Return the metrics by name; NaN if the loss is."""
        if not math.isfinite(loss):
            return dict.fromkeys((*self.known, *self.task.derived(0.0)), math.nan)
        return {name: self._result(name, metric) for name, metric in self.known.items()} | self.task.derived(loss)

    def _result(self, name: str, metric: Any) -> float:
        """Return a metric; the mean over the classes for which it is defined, if it is not for some; NaN for none."""
        with warnings.catch_warnings():  # what is undefined is left out, and said before the run
            warnings.simplefilter("ignore", UserWarning)
            found = metric.compute()
        if name in self.absent:
            kept = torch.ones(len(found), dtype=torch.bool, device=found.device)
            kept[[*self.absent[name]]] = False
            found = found[kept].mean()
        return float(found)


BOTH, PRESENT = ("AUROC",), ("AveragePrecision", "Recall", "Accuracy", "Specificity")  # what a class needs


def undefined(task: Task, data: Dataset) -> dict[str, tuple[int, ...]]:
    """Return, by metric of a task, the classes or labels for which it is undefined on some examples.

    A curve of the rates of true and false positives needs examples with and without a label; a rate of true positives
    needs some with it.  torchmetrics has 0 there.
    """
    if not task.metrics or not len(data):
        return {}
    if data.classes:
        counts, n = data.label_counts(), len(data.labels)
    elif isinstance(task, MultiLabel):
        counts, n = (data.y > 0.5).sum(0), len(data)
    else:
        return {}
    empty, full = (counts == 0).tolist(), (counts == n).tolist()
    found = dict[str, tuple[int, ...]]()
    for name in task.metrics:
        last = name.rpartition(".")[2]
        both = last.endswith(BOTH)
        if not both and not last.endswith(PRESENT):
            continue
        lacking = (
            full if last.endswith("Specificity") else [e or (both and f) for e, f in zip(empty, full, strict=True)]
        )
        if any(lacking):
            found[name] = tuple(c for c, lacks in enumerate(lacking) if lacks)
    return found


def _metric(name: str, options: Mapping[str, object], *, each: bool = False) -> Any:
    """Return a metric of torchmetrics by the name of its class, or any by its import path.

    Args:
        name: of the class.
        options: of torchmetrics' classes; a class gets those that it knows.
        each: whether it is measured for each class, where it has an average over classes.
    """
    module, _, last = name.rpartition(".")
    try:
        kind: Any = named(name, "torchmetrics")
    except ModuleNotFoundError as error:
        if error.name != "torchmetrics":
            raise ValueError(f"The metric {name!r} cannot be imported: {error}.") from error
        raise ValueError(f"The metric {name!r} needs torchmetrics: {installation('tasks')}.") from error
    except AttributeError as error:
        raise ValueError(f"{module or 'torchmetrics'} has no metric {last!r}. Give the name of a class.") from error
    except UntrustedError:
        raise
    except Exception as error:  # an installed package that does not import
        said = shown(f"{type(error).__name__}: {error}", 200)
        raise ValueError(
            f"The metric {name!r} needs {module or 'torchmetrics'}, which is there and cannot be imported: {said}. "
            "Reinstall it. If torchvision is named here, it was built for another torch: reinstall or remove it."
        ) from error
    if not (isinstance(kind, type) and hasattr(kind, "update") and hasattr(kind, "compute")):
        raise ValueError(f"{shown(name)} is no class of metrics, with update and compute. Give the name of one.")
    offered = {**options, "average": "none" if each else "macro"}
    taken = inspect.signature(kind.__new__ if "task" in inspect.signature(kind.__new__).parameters else kind).parameters
    try:
        return kind(**{key: value for key, value in offered.items() if key in taken})
    except (TypeError, ValueError) as error:
        raise ValueError(f"The metric {name!r} cannot be made for these data: {error}") from error


def check_metrics(task: Task, outputs: Tensor, data: Dataset) -> None:
    """Raise `ValueError` if a metric of a task does not take the outputs of a model, or is no single number.

    Args:
        task: the task.
        outputs: of a model for these examples.
        data: a few examples.
    """
    predicted, labels = task.scores(outputs, data.y)
    for name in task.metrics:
        metric = _metric(name, task.options(data)).to(data.y.device)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                metric.update(predicted, labels)
                found = metric.compute()
            single = isinstance(found, Tensor) and found.numel() == 1
            why = "" if single else "it is no single number"
        except Exception as error:  # of somebody's class
            why = shown(str(error).strip().rstrip("."), 200) or type(error).__name__
        if why:
            binary = " For two classes, take its multiclass form, such as F1Score." if "Binary" in name else ""
            raise ValueError(
                f"The metric {name!r} does not fit outputs of shape {tuple(predicted.shape)} and labels of shape "
                f"{tuple(labels.shape)}: {why}.{binary} Choose another metric."
            )
