"""The reason why the published trimmed mean tolerates model negation by 10 % of the clients."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from papers.client_weighting import mnist
from phalanx.algorithms import FedAvg
from phalanx.attacks import Gaussian, ModelNegation, Together
from phalanx.experiments.papers.comparison import Cell, Table, compared
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import curves
from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run

TITLE = "Model negation by 10 %, the attackers' numbers all the same, and with a little noise"
CLAIM = "None: the paper's trimmed mean is drawn as stable, though truncation leaves attackers four times beta."
MINUTES = {"quick": 1.0, "paper": 1.0}
NOISE = 1e-4  # standard deviation; the first weights of the model have 0.05
SHOWN = ("median", "trimmed mean", mnist.STRICT)


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return the runs: three rules with truncated sizes, against exact copies and against noisy ones."""
    exact = Together(ModelNegation(), mnist.TENTH)
    noisy = Together(Together(ModelNegation(), Gaussian(std=NOISE, add=True)), mnist.TENTH)
    return {
        f"{how} / {rule}": replace(
            mnist.PROGRAM,
            algorithm=FedAvg(aggregate=mnist.RULES[rule], preprocess=mnist.WEIGHTS["truncated"]),
            attack=attack,
            byzantine=0.1,
            seed=seed,
        )
        for how, attack in (("exact", exact), ("noisy", noisy))
        for rule in SHOWN
    }


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return a table of the accuracies after round 100, and the curves."""
    body: list[list[Cell]] = [
        [rule, *(compared(records.get(f"{how} / {rule}", ())) for how in ("exact", "noisy"))] for rule in SHOWN
    ]
    columns = ["rule", "exact copies, %", f"copies with noise of {NOISE:g}, %"]
    notes = (
        "The strict form keeps what lies strictly between two quantiles. Seven attackers with 44 % of the weight send "
        "one number, which is then the quantile, and goes with all its weight.",
        "The proper trimmed mean removes a tenth of the weight at either end, so that most of the attackers stay: it "
        "promises nothing beyond beta. Set alpha_star to beta, or take the median.",
    )
    table = Table("Accuracy after round 100, model negation by 10 %, sizes truncated", columns, body, notes)
    shown = {("", how): {rule: records.get(f"{how} / {rule}", ()) for rule in SHOWN} for how in ("exact", "noisy")}
    titles = {"exact": "exact copies", "noisy": f"copies with noise of {NOISE:g}"}
    drawn = {("", titles[how]): panel for (_, how), panel in shown.items()}
    return Rendering((table,), (Plot(curves(drawn), caption="Accuracy by round, sizes truncated."),))
