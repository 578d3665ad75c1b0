"""How far the head of a model moves that is trained by adapters."""

import json
import sys
from collections import OrderedDict

import torch
from torch import nn

from phalanx import Run, Until, simulate
from phalanx.data import Dataset, InMemory
from phalanx.models import GivenModule, LoRA

torch.manual_seed(0)  # of the initial weights
draw = torch.Generator().manual_seed(0)
x = torch.randn(60, 6, generator=draw)
y = (x[:, 0] > 0).long()
data = InMemory(Dataset(x[:40], y[:40], 2), Dataset(x[40:], y[40:], 2))
net = nn.Sequential(OrderedDict(query=nn.Linear(6, 8), act=nn.Tanh(), classifier=nn.Linear(8, 2)))
left = "no_heads" in sys.argv
model = LoRA(GivenModule(net), ("query",), rank=2, heads=not left, train=tuple(sys.argv[1 + left :]))
trained = dict(simulate(Run(data=data, clients=2, model=model, until=Until(3))).model().named_parameters())
(head,) = [each for name, each in trained.items() if name.endswith("classifier.weight")]
print(json.dumps({"moved": float((head - net.classifier.weight).norm().detach())}))
