"""Early stopping, by a figure of the task."""

import json
import sys

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.data import CSV
from phalanx.observers import EarlyStopping
from phalanx.training import Regression

metric, steps = [*sys.argv[1:], None][0], 8
run = Run(
    data=CSV("targets.csv", "t"),
    clients=3,
    task=Regression(metrics=("R2Score",)),
    training=LocalSGD(lr=0.005),
    until=Until(steps),
)
record = simulate(run, observers=[EarlyStopping(3, *([metric] if metric else []))])
print(json.dumps({"status": record.summary.status, "steps": record.summary.steps}))
if record.summary.error:
    print(record.summary.error, file=sys.stderr)
