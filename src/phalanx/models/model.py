"""Descriptions of models in a configuration, which build a module once the data are known."""

from abc import ABC, abstractmethod

from torch import nn

from phalanx.fields import CheckedFields


class Model(CheckedFields, ABC):
    """The description of a network.  Subclasses are frozen dataclasses; equal descriptions build equal architectures.

    Unless a model says otherwise, its parameters have the initial values of torch's layers (Kaiming-uniform with
    a = sqrt(5)), drawn from torch's global generator: use `phalanx.rng.borrowed` to seed it while `build` runs.
    """

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return a new network, in training mode, on the CPU.

        Args:
            shape: shape of one example, without the batch: (channels, height, width) for images, (t,) for a text.
            classes: number of classes, or of outputs for tasks without classes.

        Returns:
            A module that maps a batch (B, *shape) to logits, without a softmax: (B, classes), or (B, classes, t) if
            each example has t labels.

        Raises:
            ValueError: if the network is not defined for examples of this shape, or there is no output.
        """


def check_task(model: Model, shape: tuple[int, ...], classes: int, *suitable: tuple[int, ...]) -> None:
    """Raise `ValueError` unless `model` is defined for these examples and classes.

    Args:
        model: the model, named in the message.
        shape: shape of one example.
        classes: number of classes.
        suitable: the allowed shapes; any shape with at least one entry if none is given.

    Raises:
        ValueError: if the shape is not among the suitable ones, or there is no output.
    """
    if classes < 1:
        raise ValueError(f"{model} needs at least 1 output, got {classes}. Check the labels.")
    if not suitable and (not shape or min(shape) < 1):
        raise ValueError(f"{model} takes examples with at least one feature, got shape {shape}. Check the data.")
    if suitable and tuple(shape) not in suitable:
        expected = " or ".join(map(str, suitable))
        raise ValueError(
            f"{model} takes examples of shape {expected}, got {tuple(shape)}. "
            "Resize the images, or choose LeNet (images from 16x16 on) or MLP (anything)."
        )


def relu_and_pool() -> tuple[nn.Module, nn.Module]:
    """Return ReLU and the maximum over 2x2, in the faster order: after pooling, ReLU has a quarter of the work.

    The two operations commute, and the gradients are the same, so models and their training are equal to the bit.
    """
    return nn.MaxPool2d(2), nn.ReLU()
