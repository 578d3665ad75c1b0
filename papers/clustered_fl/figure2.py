"""Figure 2: the path of federated learning with two clients, where their risks can be minimised together and where not.

The paper draws contours and paths, and gives no functions.  Here the risk of a client is half the squared distance to
an ellipse of least risk, in the metric of the ellipse; of the congruent pair the ellipses overlap.  `ClusteredFL`
itself takes the steps, in the form of Algorithm 5, and so what follows from the criteria (32) and (33) is drawn as
well: the split, and the paths of the two clusters.  Each seed has another start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from phalanx.algorithms import ClusteredFL
from phalanx.core import Updates
from phalanx.experiments.papers.claims import Claim
from phalanx.experiments.papers.comparison import Table
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import COLOURS, INK, MUTED
from phalanx.experiments.trace import Trace
from phalanx.rng import generator
from phalanx.runs.plan import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Paths of federated learning on two toy problems, with incongruent and with congruent risks"
CLAIM = (
    "At the end the updates of two clients with incongruent risks are long and opposed, and those of clients with "
    "congruent risks vanish, so that their norms tell the two cases apart."
)
MINUTES = {"quick": 0.1, "paper": 0.1}
LR, ROUNDS, FIRST = 0.1, 800, 600  # learning rate; rounds in all, and before the first split
START = 3.0  # the start is in a square of twice this length
SHORT, LONG = 1e-3, 1e-2  # epsilon1 and epsilon2, of updates
CFL = replace(ClusteredFL.as_published(), eps1=SHORT, eps2=LONG, min_round=FIRST, min_cluster_size=2)


class Ellipse(NamedTuple):
    """Where the risk of a client is zero."""

    centre: tuple[float, float]
    axes: tuple[float, float]  # half of each

    def risk(self, points: Tensor) -> Tensor:
        """Return half the squared distance of points, (..., 2), in units of the half axes."""
        return 0.5 * (self.reach(points) - 1).clamp(min=0) ** 2

    def gradient(self, point: Tensor) -> Tensor:
        """Return the gradient of the risk at a point."""
        reach = float(self.reach(point))
        return torch.zeros(2) if reach <= 1 else (1 - 1 / reach) * (point - self._at()) / torch.tensor(self.axes) ** 2

    def reach(self, points: Tensor) -> Tensor:
        """Return the distance of points from the centre, (...), in units of the half axes."""
        found: Tensor = torch.linalg.vector_norm((points - self._at()) / torch.tensor(self.axes), dim=-1)
        return found

    def _at(self) -> Tensor:
        return torch.tensor(self.centre)


PROBLEMS: Mapping[str, tuple[Ellipse, Ellipse]] = {
    "incongruent": (Ellipse((-1.8, 0.6), (1.2, 0.7)), Ellipse((1.6, -0.8), (0.8, 1.1))),
    "congruent": (Ellipse((-0.8, 0.3), (1.7, 0.9)), Ellipse((0.9, -0.2), (0.9, 1.6))),
}


class Path(NamedTuple):
    """The course of a training."""

    models: Tensor  # that each client downloads, (rounds, 2 clients, 2)
    updates: Tensor  # of each client, (rounds, 2, 2)
    clusters: int  # at the end


def trained(problem: tuple[Ellipse, Ellipse], seed: int) -> Path:
    """Return the path from a random start."""
    start = START * (2 * torch.rand(2, generator=generator(seed, "figure2")) - 1)
    state, _ = CFL.init(start, {0: 1, 1: 1})
    models, updates = list[Tensor](), list[Tensor]()
    for version in range(ROUNDS):
        downloads = tuple(CFL.download(state, i) for i in range(2))
        deltas = torch.stack([-LR * risk.gradient(w) for risk, w in zip(problem, downloads, strict=True)])
        models.append(torch.stack(downloads))
        updates.append(deltas)
        state, _ = CFL.step(state, Updates((0, 1), (version,) * 2, downloads, deltas, torch.zeros(2)))
    return Path(torch.stack(models), torch.stack(updates), len(state.clusters))


class Ending(NamedTuple):
    """What the updates say before the first split could be."""

    mean: float  # norm of the mean update
    longest: float
    shortest: float
    cosine: float | None  # of the two updates; None if one is zero

    @classmethod
    def of(cls, path: Path) -> "Ending":
        """Return that of a path."""
        deltas = path.updates[FIRST - 1]
        lengths = deltas.norm(dim=1)
        cosine = float(deltas[0] @ deltas[1] / lengths.prod()) if bool((lengths > 0).all()) else None
        return cls(float(deltas.mean(0).norm()), float(lengths.max()), float(lengths.min()), cosine)


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return no runs: there are no data."""
    return {}


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return the paths of the first seed over the contours of the risks, and the norms of all seeds."""
    paths = {name: [trained(pair, seed) for seed in context.seeds] for name, pair in PROBLEMS.items()}
    endings = {name: [Ending.of(path) for path in some] for name, some in paths.items()}
    rows = [
        [name, str(seed), f"{end.mean:.1e}", f"{end.longest:.1e}", "-" if end.cosine is None else f"{end.cosine:.3f}",
         str(path.clusters)]
        for name in PROBLEMS
        for seed, end, path in zip(context.seeds, endings[name], paths[name], strict=True)
    ]  # fmt: skip
    columns = ("risks", "seed", "norm of the mean update", "of the longest", "cosine of the two", "clusters at the end")
    notes = (
        f"In round {FIRST}. A split needs a mean update below {SHORT:g} and one above {LONG:g} (criteria 32 and 33).",
        "The cosine is left out where an update is zero: it has no direction.",
    )
    apart, together = endings["incongruent"], endings["congruent"]
    opposed = [-(end.cosine or 0.0) for end in apart]
    claims = [
        Claim("incongruent risks: the cosine of the two updates, times -1", opposed, 0.99, "", decimals=3),
        Claim(f"incongruent risks: both updates stay longer than {LONG:g}", [e.shortest > LONG for e in apart], None),
        Claim(f"congruent risks: both updates fall below {SHORT:g}", [e.longest < SHORT for e in together], None),
        Claim("ours: the clients are divided where risks are incongruent, and not where they are congruent",
              [(a.clusters, b.clusters) == (2, 1) for a, b in zip(*paths.values(), strict=True)], None),
    ]  # fmt: skip
    caption = (
        "Contours: the two risks, blue and orange; grey: where both are zero. Black: the path of federated learning; "
        "in colour: of the clusters after the split. Arrows: the updates before it, of length one."
    )
    return Rendering(
        (Table("What updates say", columns, rows, notes),), (Plot(drawn(paths), caption=caption),), claims=claims
    )


def drawn(paths: Mapping[str, Sequence[Path]]) -> "Figure":
    """Draw a panel for each problem, of the first path."""
    from matplotlib.figure import Figure as Canvas  # noqa: PLC0415  (slow to import)

    canvas = Canvas(figsize=(8.4, 4.0), layout="constrained")
    for axes, (name, some) in zip(canvas.subplots(1, 2), paths.items(), strict=True):
        _contours(axes, PROBLEMS[name])
        models, first = some[0].models, min(FIRST + 1, ROUNDS)
        axes.plot(*models[:first, 0].T, color=INK, linewidth=1.8)
        axes.plot(*models[0, 0], marker="o", color=INK, markersize=5)
        for i in range(2):
            if some[0].clusters > 1:
                axes.plot(*models[first - 1 :, i].T, color=COLOURS[i], linewidth=1.8)
            delta = some[0].updates[FIRST - 1, i]
            if float(delta.norm()) > SHORT:
                tip = models[FIRST - 1, i] + delta / delta.norm()
                axes.annotate(
                    "", tip.tolist(), models[FIRST - 1, i].tolist(), arrowprops={"color": COLOURS[i], "width": 1}
                )
        axes.set(title=name, xlim=(-3.2, 3.2), ylim=(-3.2, 3.2), aspect="equal")
        axes.tick_params(colors=MUTED)
    return canvas


def _contours(axes: "Axes", problem: tuple[Ellipse, Ellipse]) -> None:
    """Draw lines of equal risk, and the area in which both risks are zero."""
    side = torch.linspace(-3.2, 3.2, 200)
    points = torch.stack(torch.meshgrid(side, side, indexing="xy"), -1)
    risks = [ellipse.risk(points) for ellipse in problem]
    axes.contourf(side, side, ((risks[0] == 0) & (risks[1] == 0)).float(), levels=[0.5, 1.5], colors=[MUTED], alpha=0.5)
    for i, ellipse in enumerate(problem):
        axes.contour(
            side, side, ellipse.reach(points), levels=[1, 1.5, 2, 2.6, 3.2, 4.2], colors=COLOURS[i], linewidths=0.7
        )
