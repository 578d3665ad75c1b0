"""Table 1, CIFAR-10: at quick scale a small federation with a small network."""

from dataclasses import replace

from papers.catalyst import grid, setting
from papers.catalyst.populations import Subset
from phalanx.core import Until
from phalanx.data import CIFAR10
from phalanx.models import ResNet18, XuLyuCifarCNN
from phalanx.reproduce.experiment import Context, Scale
from phalanx.reproduce.results import Plot, Rendering
from phalanx.runs.plan import Run
from phalanx.training.evaluation import Evaluation

TITLE = "CIFAR-10: no attack, random perturbation, gradient inversion; four methods in two forms"
CLAIM = "Catalyst is level with Kardam without an attack, and 7 to 29 points ahead of BASGD under attack."
MINUTES = {"quick": 8.0, "paper": 6000.0}
QUICK = (
    "Quick scale: 20 clients (5 of them Byzantine under attack, f = 5) with 2,000 images in all, batches of 10, "
    "learning rate 0.05, a network of three convolutional and two fully connected layers (122,570 parameters), 750 s, "
    "1,000 test images. So the numbers are not to be compared with the published ones, but with each other; 10 % is "
    "chance."
)
PAPER = "The network is the ResNet-18 of the authors' program; the paper tells of three convolutional layers."


def task(scale: Scale, seed: int) -> setting.Problem:
    """The federation."""
    run = replace(
        setting.MNIST_FULL.run,
        data=CIFAR10(standardize=True),
        model=ResNet18(),
        buffers="average",
        training=setting.recipe(0.25),
        until=Until(seconds=7000.0),
        evaluation=Evaluation(every=20),
    )
    if scale == "paper":
        return setting.Problem(run, honest=30, byzantine=10)
    small = replace(
        run,
        data=Subset(CIFAR10(standardize=True), 2000, 1000, seed),
        clients=20,
        model=XuLyuCifarCNN(),
        buffers="refuse",
        training=setting.recipe(0.05, 10),
        until=Until(seconds=750.0),
    )
    return setting.Problem(small, honest=15, byzantine=5)


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Attacks by methods by forms."""
    return setting.cells(task(scale, seed), seed)


def render(records: grid.Records, context: Context) -> Rendering:
    """The block beside the published one."""
    quick = context.scale == "quick"
    shown = grid.Shown("CIFAR-10", tolerance=None if quick else grid.TOLERANCE)
    title = f"CIFAR-10{', small' if quick else ''}: accuracy after {750 if quick else 7000} s"
    table = grid.block(shown, records, context, title, (QUICK if quick else PAPER,))
    caption = "Accuracy on test images over virtual seconds; above the authors' form, below ours."
    return Rendering((table,), (Plot(grid.drawn(records, tuple(setting.ATTACKS)), caption=caption),))
