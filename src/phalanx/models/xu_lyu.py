"""The networks of Xu and Lyu, *Towards Building a Robust and Fair Federated Learning System* (arXiv:2011.10464).

The paper describes "a standard 2-layer CNN" and "a standard 3-layer CNN"; the sizes are those of the authors'
repository.  Its final log-softmax is left out: the cross-entropy loss applies one, and a second log-softmax changes
nothing.
"""

from dataclasses import dataclass

from torch import nn
from typing_extensions import override

from phalanx.models.model import Model, check_task


@dataclass(frozen=True)
class XuLyuMnistCNN(Model):
    """The network for MNIST: 104,242 parameters with 10 classes.

    Conv 1->64 3x3, tanh, pool, conv 64->16 7x7, tanh, pool, fully connected 256->200, tanh, 200->classes; pooling is
    the maximum over 2x2.  It is defined for 32x32 images: 28x28 ones are padded with two rows or columns of zeros on
    every side, which is `padding=2` of the first convolution.  The authors pad first and standardise afterwards, so
    that the border is as black as the ground: `MNIST(standardize=True, padding=2)`.  On images in [0, 1] at the paper's
    learning rate, most hidden units saturate, and about half of the models never learn.
    """

    @override
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """See `Model.build`; shape is (1, 28, 28) or (1, 32, 32)."""
        check_task(self, shape, classes, (1, 28, 28), (1, 32, 32))
        return nn.Sequential(
            nn.Conv2d(1, 64, 3, padding=(32 - shape[1]) // 2),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 16, 7),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * 4 * 4, 200),
            nn.Tanh(),
            nn.Linear(200, classes),
        )


@dataclass(frozen=True)
class XuLyuCifarCNN(Model):
    """The network for CIFAR-10: 122,570 parameters with 10 classes.

    Three valid 3x3 convolutions with ReLU (32, 64 and 64 channels), 2x2 max-pooling after the first two, then fully
    connected 1024->64, ReLU, 64->classes.
    """

    @override
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """See `Model.build`; shape is (3, 32, 32)."""
        check_task(self, shape, classes, (3, 32, 32))
        return nn.Sequential(
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 64),
            nn.ReLU(),
            nn.Linear(64, classes),
        )
