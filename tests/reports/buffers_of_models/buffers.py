"""Modules with buffers and parameters of unusual shapes and types."""

import json
import sys

import torch
from torch import nn

from phalanx import Run, Until, simulate
from phalanx.data import Dataset, InMemory


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer, self.kind = nn.Linear(6, 2), kind
        self.norm = nn.BatchNorm1d(6) if kind == "batch_norm" else nn.Identity()
        self.scale = nn.Parameter(torch.tensor(1.0)) if kind == "scalar" else 1.0
        if kind == "empty":
            self.none = nn.Parameter(torch.zeros(0))
        if kind == "positions":
            self.register_buffer("positions", torch.arange(6))

    def forward(self, x):
        x = x[:, self.positions] if self.kind == "positions" else x
        more = self.none.sum() if self.kind == "empty" else 0
        return self.layer(self.norm(x)) * self.scale + more


torch.manual_seed(0)  # of the initial weights
draw = torch.Generator().manual_seed(0)
x = torch.randn(60, 6, generator=draw)
y = (x[:, 0] > 0).long()
data = InMemory(Dataset(x[:40], y[:40], 2), Dataset(x[40:], y[40:], 2))
net = Net(sys.argv[1])
accept = ("gradient:none",) if sys.argv[1] == "empty" else ()
record = simulate(Run(data=data, clients=2, model=net, buffers="average", until=Until(3), accept=accept))
kinds = [each.dtype for each in net.buffers()]
same = [each.dtype for each in record.model().buffers()] == kinds
print(json.dumps({"status": record.summary.status, "integers": same}))
