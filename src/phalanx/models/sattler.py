"""The networks of Sattler, Mueller, Wiegand and Samek, *On the Byzantine Robustness of Clustered Federated Learning*.

ICASSP 2020, supplement, section 7.2 (experiments, datasets and models).  Also a network for Sattler, Mueller and Samek,
*Clustered Federated Learning* (arXiv:1910.01991), which gives no sizes.
"""

from dataclasses import dataclass
from itertools import pairwise

from torch import nn
from typing_extensions import override

from phalanx.models.model import Model, check_task, relu_and_pool


@dataclass(frozen=True)
class SattlerCNN(Model):
    """The network for MNIST and Fashion-MNIST: 234,090 parameters with 10 classes.

    Conv 1->32 5x5, ReLU, pool, conv 32->32 5x5, ReLU, pool, fully connected 800->256, ReLU, 256->classes; pooling is
    the maximum over 2x2.  The paper prints 800 = 32 * 5 * 5 inputs, which valid convolutions make of 32x32 images and
    not of MNIST's 28x28.  So 28x28 images are padded with two rows or columns of zeros on every side, which is
    `padding=2` of the first convolution; 32x32 images are not padded.  The zeros are black for images in [0, 1], and
    the mean grey for standardised ones.
    """

    @override
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """See `Model.build`; shape is (1, 28, 28) or (1, 32, 32)."""
        check_task(self, shape, classes, (1, 28, 28), (1, 32, 32))
        return nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=(32 - shape[1]) // 2),
            *relu_and_pool(),
            nn.Conv2d(32, 32, 5),
            *relu_and_pool(),
            nn.Flatten(),
            nn.Linear(32 * 5 * 5, 256),
            nn.ReLU(),
            nn.Linear(256, classes),
        )


VGG_BLOCKS = ((3, 32), (32, 64), (64, 128, 128), (128, 128, 128), (128, 128, 128))  # channels, pooled after each block


@dataclass(frozen=True)
class SattlerVGG(Model):
    """The network for CIFAR-10: 865,482 parameters with 10 classes.

    Five blocks of 3x3 convolutions with padding 1, eight in all (32 | 64 | 128, 128 | 128, 128 | 128, 128 channels),
    each block followed by 2x2 max-pooling, so that 32x32 pixels become one; then fully connected 128->128->128 and
    128->classes.  Every layer is followed by ReLU except the last: the paper says "every convolutional and fully
    connected layer", but non-negative logits are hardly intended.  There is no batch normalisation.
    """

    @override
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """See `Model.build`; shape is (3, 32, 32)."""
        check_task(self, shape, classes, (3, 32, 32))
        layers: list[nn.Module] = []
        for block in VGG_BLOCKS:
            for inputs, outputs in pairwise(block):
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
            layers[-1:] = relu_and_pool()
        layers += [nn.Flatten(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(128, classes))


@dataclass(frozen=True)
class SattlerCifarCNN(Model):
    """A network of five layers for CIFAR-10: 188,810 parameters with 10 classes.

    *Clustered Federated Learning* (Figure 8) says only "5-layer convolutional neural network"; the sizes are our
    choice.  Three 3x3 convolutions with padding 1 (32, 64 and 64 channels), each followed by ReLU and 2x2 max-pooling,
    then fully connected 1024->128, ReLU, 128->classes.  It takes a third of the arithmetic of `SattlerVGG`, the network
    of the same authors' later paper.
    """

    @override
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """See `Model.build`; shape is (3, 32, 32)."""
        check_task(self, shape, classes, (3, 32, 32))
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((3, 32, 64, 64)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), *relu_and_pool()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Linear(128, classes))
