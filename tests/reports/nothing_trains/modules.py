"""Modules of which nothing, or not everything, would be trained."""

import json
import sys

import torch
from torch import nn

from phalanx import Run, Until, simulate
from phalanx.data import Dataset, InMemory

torch.manual_seed(0)  # of the initial weights
draw = torch.Generator().manual_seed(0)
x = torch.randn(90, 6, generator=draw)
y = (x[:, 0] > 0).long()
data = InMemory(Dataset(x[:60], y[:60], 2), Dataset(x[60:], y[60:], 2))


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.used, self.odd = kind, nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x):
        if self.kind == "detached":
            return (self.used(x) + self.odd(x)).detach()
        if self.kind == "no_grad":
            with torch.no_grad():
                return self.used(x) + self.odd(x)
        return self.used(x) + (0 * self.odd(x) if self.kind == "times_zero" else 0)


plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
made = {"scripted": torch.jit.script, "traced": lambda net: torch.jit.trace(net, x[:2]), "plain": lambda net: net}
kind = sys.argv[1]
model = made[kind](plain) if kind in made else Net(kind)
before = torch.cat([each.detach().flatten() for each in plain.parameters()])
record = simulate(Run(data=data, clients=3, model=model, until=Until(60)))
after = torch.cat([each.detach().flatten() for each in record.model().parameters()])
moved = float((after - before).norm()) if len(after) == len(before) else None
print(json.dumps({"moved": moved, "accuracy": record.summary.final.accuracy}))
