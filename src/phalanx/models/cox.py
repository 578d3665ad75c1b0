"""The MNIST network of Cox, Malan, Chen and Decouchant, *Asynchronous Byzantine Federated Learning* (Catalyst)."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta
from torch import nn
from typing_extensions import override

from phalanx.models.model import Model, check_task


@dataclass(frozen=True)
class CoxCNN(Model):
    """The network for MNIST: 21,840 parameters with 10 classes.

    Conv 1->10 5x5, pool, ReLU, conv 10->20 5x5, dropout of channels, pool, ReLU, fully connected 320->50, ReLU,
    dropout, 50->classes; pooling is the maximum over 2x2.  The paper (arXiv:2406.01438) says two convolutional and two
    fully connected layers, the sizes are from the authors' repository.  Its final log-softmax is left out: the
    cross-entropy loss applies one, and a second log-softmax changes nothing.

    Args:
        dropout: probability that training drops a unit of the hidden fully connected layer.
        channel_dropout: probability that training drops a whole channel of the second convolution.

    Raises:
        ValueError: if a probability is outside [0, 1).
    """

    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.5
    channel_dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.5

    @override
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """See `Model.build`; shape is (1, 28, 28)."""
        check_task(self, shape, classes, (1, 28, 28))
        return nn.Sequential(
            nn.Conv2d(1, 10, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(10, 20, 5),
            nn.Dropout2d(self.channel_dropout),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(20 * 4 * 4, 50),
            nn.ReLU(),
            nn.Dropout(self.dropout),
            nn.Linear(50, classes),
        )
