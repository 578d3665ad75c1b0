"""The settings of the authors' program, compared with those of the runs on MNIST."""

from papers.catalyst import figure2, figure3, shares, table1, table2
from papers.programs import Program, Setting
from phalanx.experiments.papers.experiment import Scale
from phalanx.runs.plan import Run


def on_mnist(scale: Scale, seed: int) -> dict[str, Run]:
    """Return the runs on MNIST of Tables 1 and 2 and of Figures 2 to 4, 7 and 8."""
    found = [table1.EXPERIMENTS[name].runs for name in ("table1-mnist", "figure4")]
    found += [figure2.runs, figure3.runs, table2.runs, *(exhibit.runs for exhibit in shares.EXPERIMENTS.values())]
    return {f"{k} {cell}": run for k, runs in enumerate(found) for cell, run in runs(scale, seed).items()}


PROGRAM = Program(
    "github.com/bacox/Catalyst at 63f5584, of January 2026",
    "MNIST, Tables 1 and 2, Figures 2 to 4, 7 and 8",
    "Learning rates, clients and their times.",
    on_mnist,
    (
        Setting(
            "scaling", "(x - mean) / deviation", "data.standardize", (True,),
            "Table 2 has pixels in [0, 1]: its trigger is a pixel of 1, which is white only there.",),
        Setting("padding", "none", "data.padding", (0,)),
        Setting("initialisation", "torch's defaults", "model.start", ("torch",)),
        Setting("batch", "50", "training.batch_size", (50,), quick="10, of a tenth of the examples."),
        Setting("epochs", "1", "training.epochs", (1,)),
        Setting("rate", "0.05; 0.1 with the backdoor", "training.learning_rate(0)", (0.05, 0.1)),
        Setting("decay of the rate", "none", "training.learning_rate(2) / (0)", (1.0,)),
        Setting("momentum", "0.5, kept between downloads", "training.momentum", ("0.5, kept",),
            "0.5, and zero after each download: a client that waits has no stale direction."),
        Setting(
            "evaluation", "all test images", "data.tests", ("all test images",),
            quick="2,000 test images, except for Figure 3: time.",
        ),
        Setting("norm limit", "5, for the gradient of a minibatch", "training.clip_norm", (5.0,)),
    ),
    ("The methods have the program's form in the rows \"authors\".",),
)  # fmt: skip
EXPERIMENTS = {"program": PROGRAM.exhibit}
