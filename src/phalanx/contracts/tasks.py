"""The properties of tasks, as `Task` states them."""

from collections.abc import Iterator

import torch
from torch import Tensor

from phalanx.contracts.breach import TRIED, Found, Make, Property, drawing, same, value
from phalanx.data import NO_LABEL, Dataset
from phalanx.rng import generator
from phalanx.training import Task

N = 12  # examples


def _data() -> dict[str, Dataset]:
    """Return examples with labels and targets of all kinds, by what they have."""
    draw = generator(0, "data")
    x = torch.rand(N, 4, generator=draw)
    tokens = torch.randint(0, 5, (N, 6), generator=draw)
    tokens[::3, :2] = NO_LABEL
    return {
        "one label of 5": Dataset(x, torch.arange(N) % 5, 5),
        "6 labels of 5": Dataset(x, tokens, 5),
        "a target": Dataset(x, torch.randn(N, generator=draw)),
        "3 targets": Dataset(x, torch.randn(N, 3, generator=draw)),
        "4 targets of 0 or 1": Dataset(x, torch.randint(0, 2, (N, 4), generator=draw).float()),
    }


def _made(make: Make) -> Task:
    task: Task = make(6, 0)
    return task


def _cases(task: Task) -> Iterator[tuple[str, Dataset, Tensor]]:
    """Yield the data that a task takes, with outputs of a model for them."""
    taken = 0
    for kind, data in _data().items():
        try:
            width, shape = task.outputs(data), task.output_shape(data)
        except ValueError:
            continue
        for each in (shape,) if shape is not None else ((width,), (width, *data.y.shape[1:])):
            outputs = torch.randn(N, *each, generator=generator(1, "outputs"), requires_grad=True)
            try:
                task.loss(outputs, data.y)
            except (RuntimeError, ValueError, IndexError, TypeError):
                if shape is not None:
                    raise
                continue
            taken += 1
            yield kind, data, outputs
            break
    if not taken:
        raise ValueError(f"It takes examples with none of these: {', '.join(_data())}.")


def _loss(make: Make) -> Iterator[Found]:
    task = _made(make)
    for kind, data, outputs in _cases(task):
        loss = task.loss(outputs, data.y)
        if loss.shape != () or not loss.is_floating_point() or not bool(loss.isfinite()):
            yield "The loss must be one finite number.", f"With {kind} it was {loss}."
        elif not loss.requires_grad:
            yield "The loss must be differentiable.", f"With {kind} it has no gradient."
        elif not bool(torch.autograd.grad(loss, outputs)[0].isfinite().all()):
            yield "The gradient of the loss must be finite.", f"With {kind} it is not."
        yield TRIED


def _mean(make: Make) -> Iterator[Found]:
    task = _made(make)
    for kind, data, outputs in _cases(task):
        loss = task.loss(outputs, data.y)
        twice = task.loss(torch.cat([outputs, outputs]), torch.cat([data.y, data.y]))
        if not torch.allclose(twice, loss, rtol=1e-4):
            yield "The loss must be a mean.", f"With {kind} it was {loss:.4g}, and {twice:.4g} with each example twice."
        yield TRIED
        if kind == "6 labels of 5":
            continue  # the mean over labels weighs examples by the number of theirs
        parts = torch.stack([task.loss(outputs[k : k + 1], data.y[k : k + 1]) for k in range(N)])
        if not torch.allclose(parts.mean(), loss, rtol=1e-3, atol=1e-6):
            yield "The loss must be the mean of those of examples.", f"{parts.mean():.4g} and {loss:.4g} with {kind}."


def _counts(make: Make) -> Iterator[Found]:
    task = _made(make)
    for kind, data, outputs in ((kind, data, each.detach()) for kind, data, each in _cases(task)):
        halves = (slice(0, N // 2), slice(N // 2, N))
        whole, count = float(task.total(outputs, data.y)), int(task.count(data.y))
        if count < 1:
            yield "`count` must be positive.", f"With {kind} it was {count}."
        if abs(sum(float(task.total(outputs[h], data.y[h])) for h in halves) - whole) > 1e-3 * max(1, abs(whole)):
            yield "`total` must be a sum over labels.", f"Two halves with {kind} give another total than the whole."
        if sum(int(task.count(data.y[h])) for h in halves) != count:
            yield "`count` must be a sum over examples.", f"Two halves with {kind} give another count than the whole."
        right, hits = task.correct(outputs, data.y), task.hits(outputs, data.y)
        if right is not None and len(right) > count:
            yield "`correct` must return no more labels than there are.", f"{len(right)} of {count} with {kind}."
        if right is not None and hits is not None and int(hits.sum()) != len(right):
            yield "`hits` must count what `correct` returns.", f"{int(hits.sum())} and {len(right)} with {kind}."
        yield TRIED


def _repetition(make: Make) -> Iterator[Found]:
    task = _made(make)
    for kind, data, outputs in _cases(task):
        drawn, kept, labels = drawing(), outputs.detach().clone(), data.y.clone()
        if not same(task.loss(outputs, data.y), task.loss(outputs, data.y)):
            yield "The same outputs and labels must give the same loss.", f"{kind}, twice."
        task.correct(outputs, data.y)
        if not same((outputs.detach(), data.y), (kept, labels)):
            yield "It must not change the outputs and labels that it is given.", f"With {kind} they changed."
        if not same(drawing(), drawn):
            yield "It must not draw from a global generator.", "The global generator has moved."
        yield TRIED


def _outputs(make: Make) -> Iterator[Found]:
    for kind, data, _ in _cases(_made(make)):
        width = _made(make).outputs(data)
        if not isinstance(width, int) or isinstance(width, bool) or width < 1:
            yield "`outputs` must return an integer of at least 1.", f"With {kind} it returned {width!r}."
        yield TRIED


PROPERTIES: dict[str, Property] = {
    "value": value,
    "outputs": _outputs,
    "loss": _loss,
    "mean": _mean,
    "counts": _counts,
    "repetition": _repetition,
}
