"""A custom data set: any source of inputs and labels.

phalanx run --data own_dataset.Moons --data.noise 0.2        (from the folder examples)

In Python, tensors, torch data sets and Hugging Face data sets go without a class:
`InMemory(Dataset(x, y, classes), ...)`, `Dataset.from_torch(...)`, `Dataset.from_huggingface(...)`.
"""

from dataclasses import dataclass

import torch
from sklearn.datasets import make_moons

from phalanx.data import Dataset, Source


@dataclass(frozen=True)
class Moons(Source):
    """Two interleaved half circles.

    Args:
        examples: number of examples; a fifth of them is for testing.
        noise: standard deviation of the points about their half circle.
    """

    examples: int = 2000
    noise: float = 0.1

    def load(self, data_dir=None):
        x, y = make_moons(self.examples, noise=self.noise, random_state=0)
        data = Dataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y), classes=2)
        test = torch.arange(self.examples) % 5 == 0
        return data.of(~test), data.of(test)
