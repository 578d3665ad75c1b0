"""Arrays of NumPy with a mask."""

import json
import sys

import numpy as np

from phalanx.data import Dataset

x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
masked = np.ma.masked_greater(x, 1.5)
masked.data[masked.mask] = 9.97e36
parts = {
    "inputs": lambda: Dataset.from_numpy(masked, y),
    "labels": lambda: Dataset.from_numpy(x, np.ma.masked_equal(y, 1)),
    "owners": lambda: Dataset.from_numpy(x, y, owners=np.ma.masked_equal(y, 1)),
    "listed": lambda: Dataset.from_torch([(row, int(label)) for row, label in zip(masked, y, strict=True)], classes=2),
    "nothing": lambda: Dataset.from_numpy(np.ma.array(x), y),
}
data = parts[sys.argv[1]]()
print(json.dumps({"examples": len(data), "largest": float(data.x.max())}))
