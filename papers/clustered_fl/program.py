"""The settings of the authors' notebook, compared with those of the runs on MNIST."""

from papers.clustered_fl import figure5, figure6, figure7
from papers.programs import Program, Setting
from phalanx.data import MNIST
from phalanx.experiments.papers.experiment import Scale
from phalanx.runs.plan import Run


def on_mnist(scale: Scale, seed: int) -> dict[str, Run]:
    """Return the runs on MNIST of Figures 5 to 7."""
    found = [module.runs(scale, seed) for module in (figure5, figure6, figure7)]
    named = {f"{k} {cell}": run for k, runs in enumerate(found) for cell, run in runs.items()}
    return {name: run for name, run in named.items() if isinstance(_innermost(run), MNIST)}


def _innermost(run: Run) -> object:
    source: object = run.data
    while hasattr(source, "source"):
        source = source.source
    return source


OTHER = "The paper has {}; the notebook shows another problem, rotated letters of EMNIST."
PROGRAM = Program(
    "github.com/felisat/clustered-federated-learning at 23a1c38, of June 2020, a notebook",
    "MNIST, Figures 5 to 7",
    "Batches of 100 and 3 epochs. No figure of the paper is in the notebook.",
    on_mnist,
    (
        Setting(
            "scaling", "pixels in [0, 1]", "data.standardize", (False,),
            "The paper is silent; standardised images are learned in fewer rounds.",),
        Setting("padding", "none", "data.padding", (0,)),
        Setting("initialisation", "torch's defaults, one model for all", "model.start", ("torch",)),
        Setting("batch", "128", "training.batch_size", (128,), OTHER.format(100)),
        Setting("epochs", "1", "training.epochs", (1,), OTHER.format(3)),
        Setting(
            "rate", "0.1", "training.learning_rate(0)", (0.1,),
            "0.01 for the two clients of Figure 7 with 1,000 rounds on all of MNIST; 0.1 elsewhere.",
            "",
        ),
        Setting(
            "decay of the rate", "0.99 a round", "training.learning_rate(2) / (0)", (0.9801,),
            "None: Figures 5 and 6 compare rounds, whose updates a falling rate shortens.",),
        Setting(
            "momentum", "0.9, kept between rounds", "training.momentum", ("0.9, kept",),
            "None: a direction kept from older rounds is no update of this one.",),
        Setting(
            "evaluation", "a fifth of a client's examples", "data.tests", ("a fifth of the client's",),
            "Test images, 2,000 of them where clients are many.",),
        Setting("norm limit", "none", "training.clip_norm", (None,)),
    ),
)  # fmt: skip
EXPERIMENTS = {"program": PROGRAM.exhibit}
