"""Modules that hold what cannot be copied."""

import json
import sys
import threading

import torch
from torch import nn

from phalanx import Run, Until, simulate
from phalanx.data import Dataset, InMemory


class Holding(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer = nn.Linear(6, 2)
        if kind == "generator":
            self.held = (each for each in range(3))
        elif kind == "lock":
            self.held = threading.Lock()
        else:
            self.held = self.layer(torch.zeros(1, 6))

    def forward(self, x):
        return self.layer(x)


torch.manual_seed(0)  # of the initial weights
kind = sys.argv[1]
norms = {"weight_norm": nn.utils.weight_norm, "parametrized": nn.utils.parametrizations.weight_norm}
model = nn.Sequential(norms[kind](nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 2)) if kind in norms else Holding(kind)
draw = torch.Generator().manual_seed(0)
x = torch.randn(60, 6, generator=draw)
y = (x[:, 0] > 0).long()
data = InMemory(Dataset(x[:40], y[:40], 2), Dataset(x[40:], y[40:], 2))
print(
    json.dumps({"accuracy": simulate(Run(data=data, clients=2, model=model, until=Until(60))).summary.final.accuracy})
)
