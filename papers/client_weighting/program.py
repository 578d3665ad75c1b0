"""The settings of the authors' program, compared with those of the runs on MNIST."""

from papers.client_weighting import described, figure5, figure6, ties
from papers.programs import Program, Setting
from phalanx.experiments.papers.experiment import Scale
from phalanx.runs.plan import Run


def on_mnist(scale: Scale, seed: int) -> dict[str, Run]:
    """Return the runs of Figures 5 and 6, of `described` and of `ties`."""
    found = [module.runs(scale, seed) for module in (figure5, figure6, described, ties)]
    return {f"{k} {cell}": run for k, runs in enumerate(found) for cell, run in runs.items()}


PROGRAM = Program(
    "github.com/amitport/Towards-Federated-Learning-with-Byzantine-Robust-Client-Weighting at 33a44fc, of October 2021",
    "MNIST, Figures 5 and 6",
    "The network, its dropout, and one step on a tenth of a client's examples.",
    on_mnist,
    (
        Setting("scaling", "pixels in [0, 1]", "data.standardize", (False,)),
        Setting("padding", "none", "data.padding", (0,)),
        Setting("initialisation", "uniform by Glorot and Bengio, biases 0", "model.start", ("glorot",)),
        Setting("batch", "a tenth of the client's examples, at least one", "training.batch_size", (0.1,)),
        Setting("epochs", "a single minibatch", "training.steps", (1,)),
        Setting("rate", "0.05", "training.learning_rate(0)", (0.05,)),
        Setting("decay of the rate", "none", "training.learning_rate(2) / (0)", (1.0,)),
        Setting("momentum", "none", "training.momentum", (0.0,)),
        Setting("dropout", "0.2", "model.dropout", (0.2,)),
        Setting("rounds", "100", "until.steps", (100,)),
        Setting("evaluation", "all test images", "data.tests", ("all test images",)),
        Setting("norm limit", "none", "training.clip_norm", (None,)),
    ),
    ("Both scales are the same here: the paper's own size takes minutes.",),
)
EXPERIMENTS = {"program": PROGRAM.exhibit}
