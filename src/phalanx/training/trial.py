"""Trials of a model before training: which parameters get no gradient, and whether one example can be trained on."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from phalanx.data import Dataset
from phalanx.data.findings import Finding
from phalanx.rng import borrowed
from phalanx.training.evaluation import evaluate
from phalanx.training.local import LocalTask, LocalTraining
from phalanx.training.sgd import in_pairs
from phalanx.training.task import Task
from phalanx.training.vector import FlatModule
from phalanx.wording import plural, shown

EXAMPLES = 16  # that a trial passes through the model
LARGE = 2_000_000  # parameters from which on it takes a quarter of them
RAISED = 1.5  # factor by which local training may raise the loss on its own examples
STREAM = "trial"


def gradients(model: FlatModule, task: Task, data: Dataset, seed: int) -> Iterator[Finding]:
    """Yield the parameters that get no gradient, or none but zeros; the model is left as it was.

    A gradient can be zero at the initial values alone, as of LoRA's first factor: zeros count where they are there at
    random other values as well.

    Args:
        model: the module, bound to its vector.
        task: defines the loss.
        data: examples, on the device of the model.
        seed: of the run, for dropout and the other values.
    """
    parameters = {name: p for name, p in model.module.named_parameters() if p.requires_grad}
    some = _spread(data, EXAMPLES if model.size < LARGE else EXAMPLES // 4)
    buffers = [(buffer, buffer.clone()) for buffer in model.module.buffers()]
    values, training = model.values.clone(), model.module.training
    try:
        with borrowed(seed, STREAM):
            model.module.train()
            found = _zeros(model, task, some, parameters)
            if zeros := {name for name, missing in found.items() if not missing}:
                scale = float(values.abs().mean()) or 0.01
                with torch.no_grad():
                    model.values.add_(torch.randn_like(model.values), alpha=scale)
                again = _zeros(model, task, some, parameters)
                found = {name: missing for name, missing in found.items() if name not in zeros or name in again}
    except Exception:  # the trial of the trainer says what is wrong with training itself
        return
    finally:
        with torch.no_grad():
            model.values.copy_(values)
            for buffer, value in buffers:
                buffer.copy_(value)
        model.module.train(training)
    if len(found) == len(parameters):
        yield Finding(
            "gradient",
            "*",
            f"No parameter of {type(model.module).__name__} gets a gradient, so nothing would be trained. Compiled "
            "modules (torch.jit.script, torch.jit.trace) cannot be trained here: give the module that they were made "
            "of. Otherwise check that the loss depends on the parameters.",
        )
        return
    for name, missing in found.items():
        what = "gets no gradient" if missing else "gets a gradient of zeros"
        yield Finding(
            "gradient",
            name,
            f"Parameter {shown(name)!r} {what}, so it is not trained. Freeze it (requires_grad_(False)), remove it, or "
            "use it.",
            error=missing,
        )


def _zeros(model: FlatModule, task: Task, some: Dataset, parameters: Mapping[str, Tensor]) -> dict[str, bool]:
    """Return the parameters without a gradient (True), or with one of zeros (False)."""
    with torch.enable_grad():
        loss = task.loss(model.outputs(some.x), some.y)
        if not loss.requires_grad:
            return dict.fromkeys(parameters, True)
        found = torch.autograd.grad(loss, [*parameters.values()], allow_unused=True)
    missing = {  # the parameters of a compiled module are views, whose gradients go nowhere
        name: gradient is None or not parameters[name].is_leaf
        for name, gradient in zip(parameters, found, strict=True)
        if gradient is None or not parameters[name].is_leaf or (gradient.numel() and not bool(gradient.any()))
    }
    return missing


def trains_on_one(model: FlatModule, data: Dataset, seed: int) -> bool:
    """Return whether a model can be trained on a single example: not if it takes statistics of a batch of one value.

    Args:
        model: the module, bound to its vector; it is left as it was.
        data: examples, at least one.
        seed: of the run.
    """
    if not in_pairs(model.module):
        return True
    buffers = [(buffer, buffer.clone()) for buffer in model.module.buffers()]
    training = model.module.training
    try:
        with borrowed(seed, STREAM), torch.no_grad():
            model.module.train()
            model.outputs(_spread(data, 1).x)
    except ValueError as error:
        return "more than 1 value per channel" not in str(error)
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        model.module.train(training)
    return True


def diverges(model: FlatModule, training: LocalTraining, task: Task, data: Dataset, seed: int) -> Iterator[Finding]:
    """Yield that local training raises the loss on its own examples, if it does; the model is left as it was.

    Args:
        model: the module, bound to its vector.
        training: the local training of a client.
        task: whose loss it should lower.
        data: examples, on the device of the model.
        seed: of the run.
    """
    rate = getattr(training, "lr", None)
    if not isinstance(rate, float) or training.remembers:
        return
    some, start = _spread(data, 4 * EXAMPLES), model.read()
    before = evaluate(model, start, some, task).loss

    def after(lr: float) -> float:
        row = torch.empty_like(start)
        tried: LocalTraining = replace(training, lr=lr)  # type: ignore[type-var]
        tried.trainer(model, task, seed).train(LocalTask(0, 0, 0, start, row), some)
        return evaluate(model, start + row, some, task).loss

    try:
        if not (reached := after(rate)) <= RAISED * before:
            better = next((lr for k in range(1, 5) if after(lr := float(f"{rate / 10**k:.3g}")) <= before), None)
            remedy = "Scale the inputs" if better is None else f"Set training.lr to {better:g}"
            yield Finding(
                "rate",
                "lr",
                f"Local training with a learning rate of {rate:g} raises the loss from {before:.3g} to {reached:.3g}. "
                f"{remedy}.",
            )
    finally:
        model.load(start)


def targets_apart(y: Tensor) -> Iterator[Finding]:
    """Yield that targets are far from mean 0 and deviation 1, which a model starts with, if they are.

    Args:
        y: (n,) or (n, k), targets.
    """
    deviation, mean = torch.std_mean(y.double(), dim=0, correction=0)
    apart = ((mean.abs() > 5) | (deviation > 5) | ((deviation > 0) & (deviation < 0.05))).flatten()
    for k in torch.nonzero(apart).flatten().tolist():
        m, s = float(mean.flatten()[k]), float(deviation.flatten()[k])
        yield Finding(
            "target",
            str(k),
            f"{plural(int(apart.sum()), 'target')} far from unit scale: target {k} has mean {m:.4g}, deviation "
            f"{s:.4g}. Set mean and deviation of the task to these: Regression(mean={m:.4g}, deviation={s:.4g}).",
            error=False,
        )
        return


def _spread(data: Dataset, count: int) -> Dataset:
    """Return some examples, spread over all."""
    n = min(count, len(data))
    return data.of((torch.arange(n) * len(data) // max(n, 1)).to(data.y.device))
