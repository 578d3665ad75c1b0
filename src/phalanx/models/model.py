"""What a model is in a configuration: a value that builds a module once the data are known."""

from abc import ABC, abstractmethod

from torch import nn


class Model(ABC):
    """The description of a network.  Subclasses are frozen dataclasses; equal descriptions build equal architectures.

    Parameters start where torch's own layers put them (Kaiming-uniform with a = sqrt(5)) unless a model says otherwise,
    drawn from torch's global generator: lend it a stream with `phalanx.rng.borrowed` while `build` runs.
    """

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """A new network, in training mode, on the CPU.

        Args:
            shape: of one example, without the batch: (channels, height, width) for images, (t,) for a text.
            classes: number of classes.

        Returns:
            A module that maps a batch (B, *shape) to logits, without a softmax: (B, classes), or (B, classes, t) if
            each example has t labels.

        Raises:
            ValueError: this network is not defined for such examples or so few classes.
        """


def check_task(model: Model, shape: tuple[int, ...], classes: int, *suitable: tuple[int, ...]) -> None:
    """Refuses examples and classes that `model` is not defined for.

    Args:
        model: whose name and values the message gives.
        shape: of one example.
        classes: number of classes.
        suitable: the shapes that do; any that holds a number if none is given.

    Raises:
        ValueError: the shape is not among the suitable ones, or there are fewer than two classes.
    """
    if classes < 2:
        raise ValueError(f"{model} needs at least 2 classes to tell apart, got {classes}. Look at the labels.")
    if not suitable and (not shape or min(shape) < 1):
        raise ValueError(f"{model} takes examples with at least one feature, got shape {shape}. Look at the data.")
    if suitable and tuple(shape) not in suitable:
        expected = " or ".join(map(str, suitable))
        raise ValueError(
            f"{model} takes examples of shape {expected}, got {tuple(shape)}. "
            "Resize the images, or choose LeNet (images from 16x16 on) or MLP (anything)."
        )


def check_dropout(name: str, rate: float) -> None:
    """Refuses a dropout rate outside [0, 1).

    Raises:
        ValueError: the rate is below 0, is not a number, or leaves nothing.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"{name} is the probability of being dropped, at least 0 and below 1, got {rate}.")


def relu_and_pool() -> tuple[nn.Module, nn.Module]:
    """ReLU and the maximum over 2x2, in the order that is faster: pooled first, ReLU has a quarter of the work.

    The largest of four entries is the same before ReLU and after it, and gets the same gradient, so models and their
    training are equal to the bit.
    """
    return nn.MaxPool2d(2), nn.ReLU()
