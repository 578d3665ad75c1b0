"""Figure 3, which is also Figure 1 of the paper of 2019: two toy problems that no single model of the kind solves.

The paper draws points and trains nothing.  Here both problems are trained as well, by federated learning and by CFL,
with softmax regression on the two coordinates; how many clients, points and rounds is ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import numpy as np
import torch
from typing_extensions import override

from papers.clustered_fl.setting import leaves
from phalanx.algorithms import ClusteredFL, FedAvg
from phalanx.core import Algorithm, Until
from phalanx.data import Dataset, Natural, Source, Topics
from phalanx.experiments.papers.claims import Claim, finals
from phalanx.experiments.papers.comparison import Cell, Table, compared
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import COLOURS, INK, MUTED
from phalanx.experiments.trace import Trace
from phalanx.models import MLP
from phalanx.rng import generator
from phalanx.runs.plan import Run
from phalanx.training.evaluation import Evaluation
from phalanx.training.sgd import LocalSGD

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Two toy problems in which no linear model fits all clients"
CLAIM = (
    "A federated XOR problem is too much for a simple model, and contradictory labels are for every model; the data of "
    "the clients of each cluster are separated easily."
)
MINUTES = {"quick": 0.1, "paper": 0.1}
CLIENTS, EACH, TESTS, CLUSTERS = 20, 40, 400, 2
ROUNDS = 60
SPREAD = 0.25  # standard deviation of the points around their centre
METHODS: Mapping[str, Algorithm] = {"FL": FedAvg(), "CFL": ClusteredFL(memory=None)}
EASY, POOR = 95.0, 80.0  # percent: the clusters' models reach the first, the common model stays below the second

Problem = Literal["XOR", "contradiction"]


@dataclass(frozen=True)
class Toy(Source):
    """Points in the plane of two classes, of clients that alternate between two clusters.

    Args:
        problem: "XOR": around (x, y) = (+-1, +-1), of class 1 if xy < 0; the first cluster has those with y > 0.
            "contradiction": around (+-1, 0); the first cluster calls those with x > 0 class 1, the other class 0.
        seed: of the points.
    """

    public_name: ClassVar[str] = "papers.byzantine_cfl.Toy"

    problem: Problem = "XOR"
    seed: int = 0

    @override
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        return self._points("train", CLIENTS * EACH), self._points("test", TESTS)

    def _points(self, part: str, count: int) -> Dataset:
        owners = torch.arange(count) % CLIENTS
        first = owners % CLUSTERS == 0
        rng = generator(self.seed, "toy", self.problem, part)
        right = torch.rand(count, generator=rng) < 0.5
        noise = SPREAD * torch.randn(count, 2, generator=rng)
        across = torch.where(right, 1.0, -1.0)
        up = torch.where(first, 1.0, -1.0) if self.problem == "XOR" else torch.zeros(count)
        y = (right != first).long()  # above, and among the first, the left ones are of class 1 in XOR
        return Dataset(torch.stack([across, up], 1) + noise, y if self.problem == "XOR" else 1 - y, 2, owners)


def name(problem: str, method: str) -> str:
    """Return the name of a cell."""
    return f"{problem} / {method}"


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return the runs: both methods on both problems; the same on both scales."""
    return {
        name(problem, method): Run(
            algorithm=algorithm,
            data=Toy(problem, seed),
            clients=CLIENTS,
            partition=Natural(),
            groups=Topics(CLUSTERS),
            model=MLP(()),
            training=LocalSGD(batch_size=EACH, lr=0.5),
            until=Until(steps=ROUNDS),
            evaluation=Evaluation(every=5),
            seed=seed,
        )
        for problem in get_args(Problem)
        for method, algorithm in METHODS.items()
    }


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return the points with the best common line and those of the clusters, and the accuracies after training."""
    rows = list[list[Cell]]()
    for problem in get_args(Problem):
        for method in METHODS:
            traces = [t for t in records.get(name(problem, method), ()) if not t.failed]
            clusters = ", ".join(str(leaves(t)) for t in traces) if method == "CFL" else "-"
            rows.append([problem, method, compared(traces), clusters])
    columns = ("problem", "method", "accuracy, %", "clusters at the end, by seed")
    table = Table("What one model and two come to", columns, rows)
    caption = (
        "The points of the two clusters (blue, orange) by class (discs, crosses). Dashed: the best line for all; in "
        "colour: the best for each cluster."
    )
    return Rendering((table,), (Plot(drawn(), caption=caption),), claims=_claims(records))


def _claims(records: Mapping[str, Sequence[Trace]]) -> list[Claim]:
    """Return the claims, with limits of ours."""
    out = []
    for problem in get_args(Problem):
        common, own = ([v for _, v in finals(records.get(name(problem, method), ()))] for method in METHODS)
        out += [
            Claim(f"{problem}: a common model, points below {POOR:g} %", [POOR - value for value in common]),
            Claim(f"{problem}: the models of the clusters", own, EASY, "%"),
        ]
    return out


def drawn() -> "Figure":
    """Draw a panel for each problem."""
    from matplotlib.figure import Figure as Canvas  # noqa: PLC0415  (slow to import)

    canvas = Canvas(figsize=(8, 3.8), layout="constrained")
    for axes, problem in zip(canvas.subplots(1, 2), get_args(Problem), strict=True):
        train, _ = Toy(problem).load()
        assert train.owners is not None
        for cluster in range(CLUSTERS):
            of = train.owners % CLUSTERS == cluster
            for label, marker in ((0, "o"), (1, "x")):
                points = train.tensor[of & (train.y == label)]
                axes.scatter(points[:, 0], points[:, 1], s=10, marker=marker, color=COLOURS[cluster], linewidths=0.8)
            _line(axes, train.of(of), COLOURS[cluster], "-")
        _line(axes, train, INK, (0, (4, 2)))
        axes.set(title=problem, xlim=(-2, 2), ylim=(-2, 2), aspect="equal")
        axes.tick_params(colors=MUTED)
    return canvas


def _line(axes: "Axes", data: Dataset, colour: str, dashes: object) -> None:
    """Draw the line between the classes by logistic regression."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415  (slow to import)

    fitted = LogisticRegression().fit(data.tensor.numpy(), data.y.numpy())
    (a, b), c = fitted.coef_[0], fitted.intercept_[0]
    normal = np.array([a, b]) / np.hypot(a, b)
    foot, along = -c / np.hypot(a, b) * normal, np.array([-normal[1], normal[0]])
    ends = np.stack([foot - 4 * along, foot + 4 * along])
    axes.plot(ends[:, 0], ends[:, 1], color=colour, linestyle=dashes, linewidth=1.5)
