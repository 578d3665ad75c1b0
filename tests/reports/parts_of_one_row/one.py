"""The fingerprint of views of one row, and of copies of them."""

import json
import sys

import torch

from phalanx.data import Dataset

x, y = torch.arange(24.0).reshape(8, 3), torch.arange(16).reshape(8, 2) % 2
inputs, labels = {
    "column": (x[:1, 1:], y[:1, 1]),
    "stepped": (x[::8], y[::8, 0]),
    "transposed": (x.T[:1, :1], y.T[:1, 0]),
}[sys.argv[1]]
prints = [Dataset(a, b, 2).fingerprint() for a, b in ((inputs, labels), (inputs.clone(), labels.clone()))]
print(json.dumps({"same": prints[0] == prints[1]}))
