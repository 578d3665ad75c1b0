"""Figure 3: the noise that the bi-partition of random gradients tolerates, and the guaranteed amount.

For each trial k gradients are drawn from N(0, I) in 100 dimensions, and their mean is taken from each, so that they sum
to zero as Theorem 1 assumes.  Three clients hold each of them, with noise of a random direction and of length gamma
times that of the gradient.  Where the paper is silent:

* It does not say that gradients sum to zero, without which the theorem says nothing.  If they do not, 95 % of the
  bi-partitions are correct up to gamma = 1.5 instead of 2.2 for k = 2; for k = 20 there is no difference.
* It draws noise from a normal distribution, so that gamma_max varies from trial to trial.  Here every client has
  gamma_i = gamma.
* It takes the bi-partition to be correct if and only if the separation gap is positive.  A gap is sufficient only
  (`phalanx.clustering.separation`).  Both probabilities are shown.
* Neither the number of trials nor the ranges of k and gamma can be read from it with certainty.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from phalanx.clustering import bipartition, max_noise_for_correct_clustering
from phalanx.experiments.papers.claims import Claim
from phalanx.experiments.papers.comparison import Table
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import COLOURS, INK
from phalanx.experiments.trace import Trace
from phalanx.rng import numpy_generator
from phalanx.runs.plan import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Clustering quality over the number of distributions k and the relative noise gamma"
CLAIM = "In practice the bi-partition is correct far beyond the noise up to which Theorem 1 guarantees it."
MINUTES = {"quick": 0.1, "paper": 1.0}
TRIALS: Mapping[Scale, int] = {"quick": 100, "paper": 1000}  # for each k and seed
D = 100  # dimensions
EACH = 3  # clients of a distribution
DISTRIBUTIONS = tuple(range(2, 21))
NOISE = tuple(round(0.1 * step, 1) for step in range(31))
CLOSE = 0.95  # a probability "close to 1"


class Shares(NamedTuple):
    """Shares of trials, (k, gamma)."""

    correct: NDArray[np.float64]  # the bi-partition divides no distribution
    gap: NDArray[np.float64]  # the separation gap is positive


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return no runs: nothing is trained."""
    return {}


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return the probabilities as a heat map with the theorem's curve, and the limits at which they fall below 95 %."""
    trials = TRIALS[context.scale]
    by_seed = [simulated(DISTRIBUTIONS, NOISE, trials, [seed]) for seed in context.seeds]
    shares = Shares(*(np.mean(parts, axis=0) for parts in zip(*by_seed, strict=True)))
    counted = f"{trials * len(context.seeds):,} trials for each k"
    caption = (
        f"Share of trials in which the bi-partition is correct: d = {D}, m = {EACH} k clients, {counted}. "
        f"Below the line of the theorem it always is."
    )
    plots = (Plot(heat_map(shares), caption=caption),)
    return Rendering((_table(shares, counted),), plots, claims=[_claim(by_seed)])


def _claim(by_seed: Sequence[Shares]) -> Claim:
    """Return the claim on the k whose limit in practice is the closest to the guaranteed one."""
    guaranteed = [max_noise_for_correct_clustering(k) for k in DISTRIBUTIONS]
    beyond = [
        min(borne(NOISE, row) / limit for row, limit in zip(shares.correct, guaranteed, strict=True))
        for shares in by_seed
    ]
    text = "noise up to which 95 % of bi-partitions are correct over the guaranteed one, the smallest ratio of any k"
    return Claim(text, beyond, 1.0, "times")


def simulated(distributions: Sequence[int], noise: Sequence[float], trials: int, seeds: Sequence[int]) -> Shares:
    """Return the shares over some trials for each seed; a seed's trials for one k do not depend on other arguments."""
    found = [
        np.mean([_trials(k, noise, trials, numpy_generator(seed, "figure3", k)) for seed in seeds], axis=0)
        for k in distributions
    ]
    correct, gap = np.stack(found, axis=1)
    return Shares(correct, gap)


def _trials(k: int, noise: Sequence[float], trials: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return for each gamma the shares of trials with a correct bi-partition, and with a gap, (2, gamma)."""
    v, x = gradients(k, trials, rng)
    shares = np.empty((2, len(noise)))
    vv, vx, xx = v @ v.mT, v @ x.mT, x @ x.mT
    for column, gamma in enumerate(noise):
        products = vv + gamma * (vx + vx.mT) + gamma**2 * xx
        lengths = np.sqrt(np.diagonal(products, axis1=1, axis2=2))
        alpha = products / (lengths[:, :, None] * lengths[:, None, :])
        shares[:, column] = np.mean(judged(alpha), axis=1)
    return shares


def gradients(k: int, trials: int, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return each client's true gradient, and noise of its length in a random direction; both (trial, m, d)."""
    v = rng.standard_normal((trials, k, D))
    v -= v.mean(axis=1, keepdims=True)
    v = v.repeat(EACH, axis=1)
    x = rng.standard_normal(v.shape)
    x *= np.linalg.norm(v, axis=2, keepdims=True) / np.linalg.norm(x, axis=2, keepdims=True)
    return v, x


def judged(alpha: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether the bi-partition is correct, and whether there is a gap, (2, trial).

    Args:
        alpha: (trial, m, m), similarities of clients in the order of their distributions, `EACH` of each.
    """
    m = alpha.shape[1]
    second = np.zeros(alpha.shape[:2], dtype=bool)
    for trial, similarity in enumerate(alpha):
        second[trial, list(bipartition(torch.from_numpy(similarity))[1])] = True
    parts = second.reshape(len(alpha), -1, EACH)
    correct = (parts == parts[:, :, :1]).all(axis=(1, 2))
    cross = np.where(second[:, :, None] != second[:, None, :], alpha, -np.inf).max(axis=(1, 2))
    owner = np.arange(m) // EACH
    intra = alpha[:, owner[:, None] == owner].min(axis=1)
    return np.stack([correct, intra > cross])


def borne(noise: Sequence[float], shares: NDArray[np.float64]) -> float:
    """Return the largest gamma up to which all shares are at least 95 %; 0 if the first one is not."""
    enough = shares >= CLOSE
    count = len(enough) if enough.all() else int(enough.argmin())
    return noise[count - 1] if count else 0.0


def _table(shares: Shares, counted: str) -> Table:
    columns = ("k", "clients m", "guaranteed below", "correct in 95 % up to", "gap > 0 in 95 % up to")
    rows = []
    for k, correct, gap in zip(DISTRIBUTIONS, shares.correct, shares.gap, strict=True):
        measured = [_text(borne(NOISE, share)) for share in (correct, gap)]
        rows.append([f"{k}", f"{EACH * k}", f"{max_noise_for_correct_clustering(k):.3f}", *measured])
    notes = (
        f"{counted}; gamma from 0 to {NOISE[-1]:g} in steps of {NOISE[1] - NOISE[0]:.1f}.",
        "Guaranteed: sin(pi / (4 (k - 1))), Theorem 1. A correct bi-partition divides no distribution; it can be "
        "correct without a gap.",
    )
    return Table("Relative noise gamma that the bi-partition bears", columns, rows, notes)


def _text(gamma: float) -> str:
    return f">= {gamma:.1f}" if gamma == NOISE[-1] else f"{gamma:.1f}"


def heat_map(shares: Shares) -> "Figure":
    """Draw the probability of a correct bi-partition, with lines for the guarantee and for 95 % of the trials."""
    from matplotlib.figure import Figure as Canvas  # noqa: PLC0415  (slow to import)
    from matplotlib.patheffects import withStroke  # noqa: PLC0415

    canvas = Canvas(figsize=(6.2, 4.2), layout="constrained")
    axes = canvas.subplots()
    axes.grid(visible=False)
    step = NOISE[1] - NOISE[0]
    k_edges = np.append(DISTRIBUTIONS, DISTRIBUTIONS[-1] + 1) - 0.5
    colours = axes.pcolormesh(
        k_edges, np.append(NOISE, NOISE[-1] + step) - step / 2, shares.correct.T, cmap="Blues", vmin=0, vmax=1
    )
    lines = {
        "correct in 95 % of trials": ([borne(NOISE, row) for row in shares.correct], INK, "-"),
        "separation gap in 95 % of trials": ([borne(NOISE, row) for row in shares.gap], INK, (0, (3, 2))),
        "guaranteed by Theorem 1": ([max_noise_for_correct_clustering(k) for k in DISTRIBUTIONS], COLOURS[3], "-"),
    }
    for label, (heights, colour, dashes) in lines.items():
        axes.stairs(
            heights, k_edges, baseline=None, color=colour, linestyle=dashes, linewidth=1.8, label=label,
            path_effects=[withStroke(linewidth=4, foreground="white")],
        )  # fmt: skip
    axes.set(xlabel="distributions k", ylabel="relative noise gamma", ylim=(0, NOISE[-1] + step / 2))
    axes.set_xticks(DISTRIBUTIONS[::2])
    bar = canvas.colorbar(colours, ax=axes, label="correct bi-partitions")
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    canvas.legend(loc="outside lower center", ncols=2)
    return canvas
