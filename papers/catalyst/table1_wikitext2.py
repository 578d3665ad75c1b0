"""Table 1, WikiText-2: perplexity; at quick scale of a small vocabulary."""

from dataclasses import replace

from papers.catalyst import grid, setting
from phalanx.core import Until
from phalanx.data import Uniform, WikiText2
from phalanx.models import WordLSTM
from phalanx.reproduce.experiment import Context, Scale
from phalanx.reproduce.results import Plot, Rendering
from phalanx.runs.plan import Run
from phalanx.training.evaluation import Evaluation

TITLE = "WikiText-2, perplexity: no attack, random perturbation, gradient inversion; four methods in two forms"
CLAIM = "BASGD and Catalyst are best without an attack; under attack Catalyst is ahead, and only they stand it."
MINUTES = {"quick": 6.0, "paper": 900.0}
QUICK = (
    "Quick scale: 20 clients (5 of them Byzantine under attack, f = 5) with 2,000 texts of 16 words in all, the 500 "
    "most frequent words, an LSTM of 32 units (40,948 parameters), batches of 10, learning rate 1, 750 s, 400 test "
    "texts. Fewer words are easier, and all others are one unknown word: perplexities are not to be "
    "compared with the published ones, but with each other; 500 is chance."
)
PAPER = "The paper tells of characters; the authors' program, and these runs, learn words (vocabulary of 23,654)."


def task(scale: Scale, seed: int) -> setting.Problem:
    """The federation; a client's texts are drawn at random."""
    run = replace(
        setting.MNIST_FULL.run,
        data=WikiText2(),
        partition=Uniform(),
        model=WordLSTM(),
        training=setting.recipe(1.0),
        until=Until(seconds=600.0),
    )
    if scale == "paper":
        return setting.Problem(run, honest=30, byzantine=10)
    small = replace(
        run,
        data=WikiText2(vocabulary=500, sequence=16, limit=2000, tests=400),
        clients=20,
        model=WordLSTM(32, 32, 1),
        training=setting.recipe(1.0, 10),
        until=Until(seconds=750.0),
        evaluation=Evaluation(every=20),
    )
    return setting.Problem(small, honest=15, byzantine=5)


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Attacks by methods by forms."""
    return setting.cells(task(scale, seed), seed)


def render(records: grid.Records, context: Context) -> Rendering:
    """The block beside the published one, in perplexity; curves of the loss, its logarithm."""
    quick = context.scale == "quick"
    shown = grid.Shown("WikiText-2", "loss", "perplexity", None if quick else 100.0)
    title = f"WikiText-2{', small' if quick else ''}: perplexity after {750 if quick else 600} s, lower is better"
    table = grid.block(shown, records, context, title, (QUICK if quick else PAPER,))
    caption = (
        "Loss on test texts over virtual seconds, the logarithm of perplexity; above the authors' form, below ours."
    )
    figure = grid.drawn(records, tuple(setting.ATTACKS), grid.LOSS, "loss")
    return Rendering((table,), (Plot(figure, caption=caption),))
