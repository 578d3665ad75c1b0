"""Labels of one example each, with an axis too many."""

import json
import sys

import numpy as np
import torch

from phalanx import Run, Until, simulate
from phalanx.data import Dataset, InMemory

x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
made = {
    "column": lambda: Dataset.from_numpy(x, y[:, None]),
    "tensor": lambda: Dataset(torch.from_numpy(x).float(), torch.from_numpy(y[:, None]), 2),
    "two": lambda: Dataset.from_numpy(x, np.eye(2, dtype=int)[y]),
    "three": lambda: Dataset.from_numpy(x, np.eye(3, dtype=int)[np.arange(40) % 3]),
    "flat": lambda: Dataset.from_numpy(x, y),
}
data = made[sys.argv[1]]()
print(json.dumps({"status": simulate(Run(data=InMemory(data, data), clients=2, until=Until(2))).summary.status}))
