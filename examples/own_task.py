"""A custom task: classification by the focal loss (Lin et al. 2017), which gives more weight to difficult examples.

phalanx run --task own_task.Focal --task.gamma 2        (from the folder examples)
"""

from dataclasses import dataclass

from torch.nn.functional import cross_entropy

from phalanx.training import Task


@dataclass(frozen=True)
class Focal(Task):
    """Args: gamma: the exponent, 0 for cross-entropy."""

    gamma: float = 2.0

    def loss(self, outputs, y):
        each = cross_entropy(outputs, y, reduction="none")
        return ((1 - (-each).exp()) ** self.gamma * each).mean()

    def outputs(self, data):
        return data.classes

    def correct(self, outputs, y):
        return y[outputs.argmax(1) == y]
