"""How far an unused layer moves in training with weight decay."""

import json
import sys

import torch
from torch import nn

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.data import Dataset, InMemory
from phalanx.training import LocalOptimizer

torch.manual_seed(0)  # of the initial weights
draw = torch.Generator().manual_seed(0)
x = torch.randn(60, 6, generator=draw)
y = (x[:, 0] > 0).long()
data = InMemory(Dataset(x[:40], y[:40], 2), Dataset(x[40:], y[40:], 2))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.odd = nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x):
        return self.used(x)


name, net = sys.argv[1], Net()
training = (
    LocalSGD(lr=0.1, weight_decay=0.1)
    if name == "LocalSGD"
    else LocalOptimizer(name, lr=0.01, options={"weight_decay": 0.1})
)
run = Run(
    data=data,
    clients=2,
    model=net,
    training=training,
    until=Until(6),
    accept=("gradient:odd.weight", "gradient:odd.bias"),
)
trained = dict(simulate(run).model().named_parameters())
moved = {name: float((trained[name] - each).norm().detach()) for name, each in net.named_parameters()}
print(json.dumps({"moved": moved["odd.weight"] + moved["odd.bias"], "others": moved["used.weight"]}))
