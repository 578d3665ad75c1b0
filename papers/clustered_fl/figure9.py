"""Figure 9: next words of news of four topics, separated in three splits."""

import math
from collections.abc import Mapping, Sequence

from papers.clustered_fl.setting import BATCH, CLIENTS, EPOCHS
from papers.clustered_fl.stages import CFL, FL, Stages, by_group, clusters, drawn, found
from phalanx.data import AGNews, Natural, Topics
from phalanx.experiments.papers.claims import Claim
from phalanx.experiments.papers.comparison import Cell, Sample, Table
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.trace import Trace
from phalanx.models import WordLSTM
from phalanx.runs.plan import Run
from phalanx.training.evaluation import Evaluation
from phalanx.training.sgd import LocalSGD

TITLE = "AG-News: perplexity of four topics, and separation gaps, over three splits"
CLAIM = (
    "Federated learning stagnates at a perplexity of 42 to 43; splits after 30, 60 and 90 rounds find the topics, and "
    "after 100 rounds every client is below 36."
)
MINUTES = {"quick": 5.0, "paper": 20000.0}
NAMES = (FL, CFL)


def stages(scale: Scale) -> Stages:
    """Return the federation; at quick scale few clients with short texts and a small network."""
    quick = scale == "quick"
    clients = 8 if quick else CLIENTS
    base = Run(
        data=AGNews(corpora=8, vocabulary=500, sequence=20, limit=400, tests=400) if quick else AGNews(tests=2000),
        clients=clients,
        partition=Natural(),
        groups=Topics(),
        model=WordLSTM(embedding=16, hidden=32) if quick else WordLSTM(),
        training=LocalSGD(epochs=EPOCHS, batch_size=50 if quick else BATCH, lr=1.0, clip_norm=1.0),
        evaluation=Evaluation(every=3 if quick else 5),
    )
    return Stages(base, 24, (6, 12, 18)) if quick else Stages(base, 100, (30, 60, 90))


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return runs of federated learning and CFL."""
    return stages(scale).runs(NAMES, seed)


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return perplexities, the claims seed by seed, and the picture."""
    plan = stages(context.scale)
    caption = (
        "Above: perplexity of each topic on held-out articles, first seed. Below: separation gap of each cluster, by "
        "its number in the tree. Dashed: the rounds of the splits."
    )
    notes = [
        "The paper tells neither the vocabulary nor the sizes of the network. A perplexity depends on the vocabulary: "
        "ours are to be compared with each other, not with the published ones.",
    ]
    if context.scale == "quick":
        notes.append(
            "At quick scale: 8 clients with 8,000 words each instead of 20 with all, the 500 most frequent words, an "
            "LSTM of 32 units, batches of 50, splits after 6, 12 and 18 of 24 rounds, before federated learning has "
            "come to rest: with so little text larger networks learn it by heart, and a cluster of two clients then "
            "does worse than all eight together."
        )
    figure = drawn(records, plan, "group_loss", "test perplexity", shares=False)
    return Rendering((_table(records),), (Plot(figure, caption=caption),), notes, _claims(records))


def perplexities(trace: Trace) -> list[float]:
    """Return the perplexity of each topic after the last round."""
    return [math.exp(curve[-1]) for _, curve in sorted(by_group(trace, "group_loss").items())]


def _table(records: Mapping[str, Sequence[Trace]]) -> Table:
    rows = list[list[Cell]]()
    for name in NAMES:
        found_ = [perplexities(t) for t in records.get(name, ()) if not t.failed]
        by_topic = [Sample.of(values).text() for values in zip(*found_, strict=True)] if found_ else ["-"] * 4
        mean = Sample.of(sum(values) / len(values) for values in found_).text()
        counts = ", ".join(f"{clusters(t)[0]}" for t in records.get(name, ()) if not t.failed)
        rows.append([name, mean, *by_topic, counts])
    columns = ("method", "mean", "World", "Sports", "Business", "Sci/Tech", "clusters at the end, by seed")
    return Table("Perplexity after the last round; less is better", columns, rows)


def _claims(records: Mapping[str, Sequence[Trace]]) -> list[Claim]:
    """Return the claims on topics; none on a perplexity as such, which depends on the vocabulary."""
    by_seed = {name: {t.seed: t for t in records.get(name, ()) if not t.failed} for name in NAMES}
    fl, cfl = by_seed[FL], by_seed[CFL]
    both = sorted(fl.keys() & cfl.keys())
    least = [min(a / b for a, b in zip(perplexities(fl[s]), perplexities(cfl[s]), strict=True)) for s in both]
    return [
        Claim("three splits find the four topics", [found(t, 4) for _, t in sorted(cfl.items())], None),
        Claim("perplexity with FL over that with CFL, the smallest ratio of a topic", least, 1.0, "times", decimals=3),
    ]
