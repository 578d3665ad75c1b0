"""A model that fails in the second round of training."""

import json

import torch
from torch import nn

from phalanx import Run, Until, simulate
from phalanx.data import Dataset, InMemory

calls = []


class Failing(nn.Linear):
    def forward(self, x):
        calls.append(self.training)
        if sum(calls) > 9:
            raise ValueError("no more")
        return super().forward(x)


torch.manual_seed(0)  # of the initial weights
draw = torch.Generator().manual_seed(0)
x = torch.randn(60, 6, generator=draw)
y = (x[:, 0] > 0).long()
record = simulate(
    Run(data=InMemory(Dataset(x, y, 2), Dataset(x, y, 2)), clients=2, model=Failing(6, 2), until=Until(8))
)
final = record.summary.final
print(json.dumps({"status": record.summary.status, "accuracy": final.accuracy, "loss": final.loss}))
