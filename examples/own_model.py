"""A custom model, for images of any size.

phalanx run --model own_model.Softmax        (from the folder examples)
"""

import math
from dataclasses import dataclass

from torch import nn

from phalanx.models import Model


@dataclass(frozen=True)
class Softmax(Model):
    """Multinomial logistic regression.

    Args:
        bias: whether classes have an offset.
    """

    bias: bool = True

    def build(self, shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes, bias=self.bias))
