"""The small convolutional network of the Clustered Federated Learning code."""

from dataclasses import dataclass

from torch import nn
from typing_extensions import override

from phalanx.models.model import Model, check_task, relu_and_pool


@dataclass(frozen=True)
class LeNet(Model):
    """Two 5x5 convolutions (6 and 16 channels), each with ReLU and 2x2 max-pooling, then one layer to the logits.

    The first two stages of LeCun's LeNet-5 without its hidden layers, as in the code of Sattler, Mueller and Samek,
    *Clustered Federated Learning* (arXiv:1910.01991; the paper gives no sizes).  On 28x28 grey images the last layer
    has 256 inputs: 18,506 parameters for the 62 classes of that notebook, 5,142 for 10.  On 3x32x32 images it has 400
    inputs: 6,882 parameters for 10 classes.  Any number of channels and any image of at least 16x16 pixels is allowed.
    """

    @override
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """See `Model.build`; shape is (channels, height, width) with both sides at least 16 pixels."""
        check_task(self, shape, classes)
        if len(shape) != 3 or min(shape[1:]) < 16:
            raise ValueError(
                f"{self} takes images of shape (channels, height, width), both sides at least 16 pixels, got {shape}. "
                "Resize or pad the images, or choose MLP (anything)."
            )
        channels, height, width = shape
        return nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            *relu_and_pool(),
            nn.Conv2d(6, 16, 5),
            *relu_and_pool(),
            nn.Flatten(),
            nn.Linear(16 * _left(height) * _left(width), classes),
        )


def _left(side: int) -> int:
    """Return the length of a side, in pixels, after two rounds of a 5x5 convolution and 2x2 pooling."""
    return ((side - 4) // 2 - 4) // 2
