"""ResNet-18 for small images, of He, Zhang, Ren and Sun, *Deep Residual Learning for Image Recognition* (CVPR 2016)."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from phalanx.models.model import Model, check_task

Normalisation = Literal["batch", "group"]

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # channels, and stride of the first block; two blocks each
GROUPS = 32


@dataclass(frozen=True)
class ResNet18(Model):
    """The network for CIFAR-10: 11,173,962 parameters with 10 classes.

    A 3x3 convolution to 64 channels without pooling, since the images are small; four stages of two blocks of two 3x3
    convolutions, with 64, 128, 256 and 512 channels, each stage but the first at half the resolution; the mean over the
    image, and one layer to the logits.  If a block changes the shape, its shortcut is a 1x1 convolution.

    The code of Cox, Malan, Chen and Decouchant, *Asynchronous Byzantine Federated Learning* (arXiv:2406.01438), trains
    a ResNet-18 on CIFAR-10; their paper describes three convolutional and two fully connected layers, as in
    `XuLyuCifarCNN`.

    Batch normalisation has 9,600 running means and variances in buffers, which are not trained: a run refuses the model
    until `buffers` is set.  With `buffers="average"` they are sent and aggregated with the updates, so robust rules,
    norms and cosines include them.  Group normalisation has no buffers and needs no setting.

    Args:
        normalisation: "batch", as published; or "group", in 32 groups of channels (Wu and He 2018), with as many
            parameters.
    """

    normalisation: Normalisation = "batch"

    @override
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """See `Model.build`; shape is (channels, height, width) with both sides at least 8 pixels."""
        check_task(self, shape, classes)
        if len(shape) != 3 or min(shape[1:]) < 8:
            raise ValueError(
                f"{self} takes images of shape (channels, height, width), both sides at least 8 pixels, got {shape}. "
                "Resize or pad the images, or choose MLP (anything)."
            )
        first = STAGES[0][0]
        layers: list[nn.Module] = [nn.Conv2d(shape[0], first, 3, padding=1, bias=False), self._norm(first), nn.ReLU()]
        for (inputs, _), (outputs, stride) in pairwise(((first, 1), *STAGES)):
            layers += [self._block(inputs, outputs, stride), self._block(outputs, outputs, 1)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(STAGES[-1][0], classes))

    def _block(self, inputs: int, outputs: int, stride: int) -> nn.Module:
        through = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            self._norm(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            self._norm(outputs),
        )
        if inputs == outputs and stride == 1:
            return _Residual(through, nn.Identity())
        return _Residual(through, nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), self._norm(outputs)))

    def _norm(self, channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels) if self.normalisation == "batch" else nn.GroupNorm(GROUPS, channels)


class _Residual(nn.Module):
    """The sum of a block's layers and its shortcut, followed by ReLU."""

    def __init__(self, through: nn.Module, around: nn.Module) -> None:
        super().__init__()
        self.through, self.around = through, around

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return images of the block's output channels, at its stride."""
        return torch.relu(self.through(x) + self.around(x))
