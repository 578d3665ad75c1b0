"""Outputs as models of the `transformers` library give them."""

import json
import sys
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from phalanx import Run, Until, simulate
from phalanx.data import Dataset, InMemory


@dataclass
class Scores:
    logits: Tensor
    loss: Tensor | None = None


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.layer = kind, nn.Linear(6, 3 if kind == "three" else 2)

    def forward(self, x, labels=None):
        scores = self.layer(x)
        if self.kind == "labelled":
            return Scores(scores, None if labels is None else nn.functional.cross_entropy(scores, labels))
        kinds = {
            "pair": (scores, (x,)),
            "auxiliary": (scores, 2 * scores),
            "mapping": {"loss": None, "logits": scores},
            "dictionary": {"answers": scores},
            "states": (x, scores),
            "three": scores,
            "logits": Scores(scores),
        }
        return kinds[self.kind]


torch.manual_seed(0)  # of the initial weights
draw = torch.Generator().manual_seed(0)
x = torch.randn(60, 6, generator=draw)
y = (x[:, 0] > 0).long()
data = InMemory(Dataset(x[:40], y[:40], 2), Dataset(x[40:], y[40:], 2))
run = Run(data=data, clients=2, model=Model(sys.argv[1]), until=Until(60))
print(json.dumps({"accuracy": simulate(run).summary.final.accuracy}))
