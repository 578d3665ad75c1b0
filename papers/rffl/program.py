"""The settings of the authors' program, compared with those of the runs on MNIST."""

from papers.programs import Program, Setting
from papers.rffl import tables
from papers.rffl.claims import runs as claims
from phalanx.experiments.papers.experiment import Scale
from phalanx.runs.plan import Run

FIRST = "The first version of the paper, whose tables these are, prints {}."
TABLES = ("table1", "table3", *(f"table{k}" for k in tables.ATTACKED))


def on_mnist(scale: Scale, seed: int) -> dict[str, Run]:
    """Return the runs of all tables with MNIST and ten or twenty participants, and of the claims."""
    found = [tables.EXPERIMENTS[name].runs(scale, seed) for name in TABLES]
    return {cell: run for runs in (*found, claims(scale, seed)) for cell, run in runs.items()}


PROGRAM = Program(
    "github.com/XinyiYS/Robust-and-Fair-Federated-Learning at 1bd73d7, of July 2021",
    "MNIST, Tables 1, 3, 5 to 9 and 13 to 22, and the claims",
    "None of them as the program has them; the first version prints batch, epochs, rate, decay and rounds.",
    on_mnist,
    (
        Setting(
            "scaling", "(x - mean) / deviation", "data.standardize", (True,),
            quick="pixels lie in [0, 1], which the perceptron learns from as well.",
        ),
        Setting(
            "padding", "2 pixels, before the scaling", "data.padding", (2,),
            quick="none, which a perceptron does not need.",
        ),
        Setting("initialisation", "torch's defaults, the same for all", "model.start", ("torch",)),
        Setting("batch", "32", "training.batch_size", (32,), FIRST.format(16)),
        Setting("epochs", "3", "training.epochs", (3,), FIRST.format("one")),
        Setting(
            "rate", "0.15", "training.learning_rate(0)", (0.15,),
            FIRST.format("0.25 for ten and twenty participants"),),
        Setting(
            "decay of the rate", "0.977 a round", "training.learning_rate(2) / (0)", (0.9545,),
            quick="0.93 a round, as that of three rounds: there are 20 instead of 60.",
        ),
        Setting("rounds", "100", "until.steps", (100,), FIRST.format(60), "20, to take minutes."),
        Setting(
            "evaluation", "a tenth of the training images", "data.tests", ("a tenth of the training images",),
            "Test images measure what the tables are about; participants do not train on them.",),
        Setting(
            "norm limit", "0.5, for updates in client and server", "algorithm.clip", (0.5,),
            'The paper has none. "RFFL" takes the median norm, "RFFL, Gamma" and "FedAvg, Gamma" 0.5, others none.',),
        Setting(
            "weight of the past", "0.95", "algorithm.fade", (0.95,), FIRST.format("0.8")),
        Setting(
            "rounds without exclusion", "10", "algorithm.warmup", (10,),
            'None, since Figure 2 has exclusions "within 5 rounds".',),
        Setting("largest entries", "of each layer", "algorithm.allocation", ("PerLayer",),
            "The paper takes them of the whole vector.",),
    ),
    (
        "`RFFL.authors(layers, clip)` has the program's form of the algorithm.",
        "Without the first two rows (pixels in [0, 1], not padded) four to six of ten CNNs stay at 10 % with the rate "
        "of 0.25.",
    ),
)  # fmt: skip
EXPERIMENTS = {"program": PROGRAM.exhibit}
