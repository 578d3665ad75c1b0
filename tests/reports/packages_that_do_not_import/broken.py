"""Optional packages whose import fails."""

import sys
from importlib.abc import MetaPathFinder

from torch import nn

from phalanx import Run, Until, simulate
from phalanx.cli.main import main
from phalanx.data import CSV, Digits, HeldOut, HuggingFace
from phalanx.models import GivenModule, LoRA
from phalanx.training import Classification

broken = sys.argv[1]


class Broken(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == broken:
            raise RuntimeError("operator torchvision::nms does not exist")


def export():
    simulate(Run(until=Until(1), clients=2, data=HeldOut(Digits(), 0.9)), folder="run")
    main(["export", "run", "--format", "onnx", "-o", "model.onnx"])


uses = {
    "torchmetrics": lambda: simulate(Run(task=Classification(metrics=("F1Score",)))),
    "pandas": lambda: CSV("table.csv", "y").load(),
    "datasets": lambda: HuggingFace("no/such").load(),
    "peft": lambda: LoRA(GivenModule(nn.Sequential(nn.Linear(6, 2))), ("0",)).build((6,), 2),
    "onnx": export,
}
kept = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] == broken}
finder = Broken()
sys.meta_path.insert(0, finder)
try:
    uses[broken]()
finally:
    sys.meta_path.remove(finder)
    sys.modules.update(kept)
