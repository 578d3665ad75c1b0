"""Multi-layer perceptrons."""

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Annotated, Literal

from msgspec import Meta
from torch import nn
from typing_extensions import override

from phalanx.fields import PositiveInt
from phalanx.models.model import Model, check_task


@dataclass(frozen=True)
class MLP(Model):
    """Fully connected layers with ReLU on the flattened example, dropout after each ReLU, then one layer to the logits.

    With one hidden layer of 64 units an MNIST image makes 50,890 parameters: the perceptron of Portnoy, Tirosh and
    Hendler, *Towards Federated Learning with Byzantine-Robust Client Weighting* (arXiv:2004.04986), who state a dropout
    of 0.2 and start from Keras' Glorot-uniform weights, not torch's.  `MLP((128, 64))` on 32x32 images has 140,106
    parameters: the perceptron in the repository of Xu and Lyu, *Towards Building a Robust and Fair Federated Learning
    System* (arXiv:2011.10464).  `MLP(())` is softmax regression.

    Args:
        hidden: number of units of each hidden layer, from input to output.
        dropout: probability that training drops a hidden unit.
        start: distribution of the initial weights: "torch", uniform in +-1 / sqrt(inputs), biases too; or "glorot",
            uniform in +-sqrt(6 / (inputs + outputs)) with biases of zero, as in Keras (Glorot and Bengio 2010).

    Raises:
        ValueError: if a width is not positive, or the dropout is outside [0, 1).
    """

    hidden: tuple[PositiveInt, ...] = (64,)
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    start: Literal["torch", "glorot"] = "torch"

    @override
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Sequential:
        """See `Model.build`; any shape is allowed."""
        check_task(self, shape, classes)
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise((prod(shape), *self.hidden)):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
            if self.dropout > 0:
                layers.append(nn.Dropout(self.dropout))
        layers.append(nn.Linear((prod(shape), *self.hidden)[-1], classes))
        if self.start == "glorot":
            for layer in layers:
                if isinstance(layer, nn.Linear):
                    nn.init.xavier_uniform_(layer.weight)
                    nn.init.zeros_(layer.bias)
        return nn.Sequential(*layers)
