"""A method that works, one that breaks."""

from dataclasses import replace

from phalanx.experiments.papers import Rendering, Table, compared
from phalanx.training.sgd import LocalSGD

from .figure1 import runs as runs_of_figure1
from .setting import base

TITLE = "A method that works, one that breaks"
CLAIM = "Steps that are too long ruin everything."
MINUTES = {"quick": 0.01, "paper": 0.02}


def runs(scale, seed):
    broken = replace(base(scale, seed), training=LocalSGD(lr=1e30))
    return {"works": runs_of_figure1(scale, seed)["mean, none"], "breaks": broken}


def render(records, context):
    rows = [[name, compared(records[name], context.published.of("table2", name))] for name in records]
    return Rendering(tables=[Table("Methods", ["method", "accuracy, %"], rows)])
