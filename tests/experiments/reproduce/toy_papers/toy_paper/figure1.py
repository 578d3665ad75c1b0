"""Two rules, with and without noise."""

from dataclasses import replace

from phalanx.aggregators import Mean, Median
from phalanx.algorithms import FedAvg
from phalanx.experiments.papers import Plot, Rendering, Table, compared
from phalanx.experiments.shown.plotting import curves

from .setting import Noise, base

TITLE = "Accuracy over rounds, two rules without and with noise"
CLAIM = "The median withstands noise that ruins the mean."
MINUTES = {"quick": 0.02, "paper": 0.05}
RULES = {"mean": Mean(), "median": Median()}
ATTACKS = ("none", "noise")


def runs(scale, seed):
    out = {}
    for rule, aggregate in RULES.items():
        clean = replace(base(scale, seed), algorithm=FedAvg(aggregate=aggregate))
        out[f"{rule}, none"] = clean
        out[f"{rule}, noise"] = replace(clean, attack=Noise(), byzantine=1)
    return out


def render(records, context):
    rows = [
        [rule, attack, compared(records[f"{rule}, {attack}"], context.published.of("figure1", rule, attack))]
        for rule in RULES
        for attack in ATTACKS
    ]
    wide = [[rule, *(row[2] for row in rows if row[0] == rule)] for rule in RULES]
    panels = {("", attack): {rule: records[f"{rule}, {attack}"] for rule in RULES} for attack in ATTACKS}
    return Rendering(
        tables=[
            Table("Accuracy at the end", ["rule", "attack", "accuracy, %"], rows),
            Table("The same, side by side", ["rule", "no attack, %", "noise, %"], wide),
        ],
        plots=[Plot(curves(panels), caption="Test accuracy over rounds.")],
        notes=["Digits are no toys."],
    )
