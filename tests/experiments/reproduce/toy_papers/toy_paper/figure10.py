"""A figure that needs no training."""

from matplotlib.figure import Figure

from phalanx.experiments.papers import Plot, Rendering

TITLE = "A line"
CLAIM = "Lines are straight."
MINUTES = {"quick": 0, "paper": 0}


def runs(scale, seed):
    return {}


def render(records, context):
    figure = Figure(figsize=(3, 2))
    figure.subplots().plot([0, 1], [0, 1])
    return Rendering(plots=[Plot(figure, part="line", caption="A line.")])
