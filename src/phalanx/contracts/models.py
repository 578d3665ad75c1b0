"""The properties of models, as `Model` states them."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from phalanx.contracts.breach import TRIED, Found, Make, Property, same, value
from phalanx.models import Model
from phalanx.rng import borrowed, generator

CLASSES = 10
BATCH = 3
# of an example; those of one entry may be text
SHAPES = ((64,), (1, 8, 8), (1, 28, 28), (3, 32, 32), (12,), (3, 24, 24))


def _made(make: Make) -> Model:
    model: Model = make(6, 0)
    return model


def _built(model: Model, shape: tuple[int, ...]) -> nn.Module | None:
    """Return the network; None if it is not defined for examples of this shape."""
    with borrowed(0, "model"):
        try:
            return model.build(shape, CLASSES)
        except ValueError:
            return None


def _networks(model: Model) -> Iterator[tuple[nn.Module, Tensor]]:
    """Yield a network and a batch for the first shape that it takes: numbers, or else signs of a text."""
    for shape in SHAPES:
        for numbers in (True, False)[: 2 if len(shape) == 1 else 1]:
            if (module := _built(model, shape)) is None:
                break
            draw = generator(0, "batch")
            words = torch.randint(0, CLASSES, (BATCH, *shape), generator=draw)
            x = torch.rand(BATCH, *shape, generator=draw) if numbers else words
            try:
                with borrowed(0, "dropout"):
                    module(x)
            except (RuntimeError, ValueError, TypeError):  # a module that exists takes one shape, and refuses no other
                continue
            yield module, x
            return
    raise ValueError(f"It takes examples of none of the shapes {', '.join(map(str, SHAPES))}.")


def _form(make: Make) -> Iterator[Found]:
    for module, x in _networks(_made(make)):
        if not module.training:
            yield "`build` must return a network in training mode.", "Call its `train()`."
        with borrowed(0, "dropout"):
            logits = module(x)
        if not isinstance(logits, Tensor) or logits.shape[0] != BATCH or CLASSES not in logits.shape[1:]:
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            yield f"A batch of {BATCH} must give logits for {CLASSES} classes.", f"Of {tuple(x.shape)} it made {shape}."
        elif not bool(logits.isfinite().all()):
            yield "Logits must be finite.", f"Of a batch {tuple(x.shape)} it made NaN or infinity."
        elif bool((logits >= 0).all()) and torch.allclose(logits.sum(1), torch.ones_like(logits.sum(1)), atol=1e-4):
            yield "It must return logits, without a softmax.", "The outputs of an example sum to 1."
        yield TRIED


def _start(make: Make) -> Iterator[Found]:
    for module, x in _networks(_made(make)):
        one, other = (_built(_made(make), tuple(x.shape[1:])) for _ in range(2))
        assert one is not None
        assert other is not None
        if not same(one.state_dict(), other.state_dict()):
            yield "The same seed must give the same values. Draw from torch's global generator.", "They differ."
        if {id(each) for each in one.parameters()} & {id(each) for each in other.parameters()}:
            yield "`build` must return a new network.", "Two networks share parameters."
        if not any(each.requires_grad for each in module.parameters()):
            yield "It must have parameters to train.", "None has `requires_grad`."
        yield TRIED


def _training(make: Make) -> Iterator[Found]:
    for module, x in _networks(_made(make)):
        names, values = zip(*((n, p) for n, p in module.named_parameters() if p.requires_grad), strict=True)
        found = torch.autograd.grad(module.eval()(x).square().sum(), values, allow_unused=True)
        for name, gradient in zip(names, found, strict=True):
            if gradient is not None and not bool(gradient.isfinite().all()):
                yield "Gradients must be finite.", f"That of {name} is not."
            if gradient is None:
                yield "Every parameter must change the outputs.", f"{name} does not: it has no gradient."
        yield TRIED


def _repetition(make: Make) -> Iterator[Found]:
    for module, x in _networks(_made(make)):
        module.eval()
        kept = x.clone()
        if not same(module(x), module(x)):
            yield "In evaluation the same batch must give the same logits.", f"A batch {tuple(x.shape)}, twice."
        if not same(x, kept):
            yield "It must not change the batch that it is given.", f"A batch {tuple(x.shape)} changed."
        alone, together = module(x[:1]), module(x)[:1]
        if not torch.allclose(alone, together, rtol=1e-3, atol=1e-4):
            yield "In evaluation an example must not depend on others of its batch.", "The first of 3, and alone."
        yield TRIED


PROPERTIES: dict[str, Property] = {
    "value": value,
    "form": _form,
    "start": _start,
    "training": _training,
    "repetition": _repetition,
}
