"""The tables without attackers: fairness, and the accuracy of the best participant."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from papers.rffl.measured import Records, best, compared_by, honest_removed, interval, mean, pairs, signed, traces
from papers.rffl.setting import FAIR, OURS, SMALLER, SMALLER_MNIST, STANDALONE, Federation, cells
from phalanx.experiments.papers.comparison import Cell, ComparedCell, Sample, Table
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.published import Published
from phalanx.experiments.papers.rendering import Rendering
from phalanx.runs.plan import Run

WITHOUT = tuple(method for method in FAIR if method != STANDALONE)
COLLAPSED = "q-FFL: where some 10 % are published, the runs have collapsed; a model that always says the same has that."
NOT_OF_USE = (
    "Models that nobody ever helped correlate perfectly with themselves, so that fairness is nothing without gains."
)
FEW = "Interval: of 95 %, by Fisher's transformation, of what all seeds have in common."
SMALLER_OTHERS = SMALLER.format(
    what="participants hold 200 examples, networks are small (a perceptron with 64 hidden units for CIFAR-10; 1,000 "
    "words, embeddings of 32 numbers and 16 filters for texts), and there are 20 rounds"
)
TEXTS = (
    "Embeddings of texts are the model's own and start at random; no pretrained ones are used. The paper's learning "
    "rate of 0.0001 belongs to Adam; ours for plain SGD is 1, in minibatches of 16 (32 at the paper's scale)."
)


@dataclass(frozen=True)
class WithoutAttackers:
    """Tables of fairness and of accuracies that share their runs.

    Args:
        federations: in the order of the rows.
        labels: how the published tables name a federation after the method.
    """

    federations: Sequence[Federation]
    labels: Callable[[Federation], tuple[str, ...]]

    def runs(self, scale: Scale, seed: int) -> dict[str, Run]:
        """Return the runs of all methods."""
        return cells(self.federations, FAIR, scale, seed)

    def fairness(self, entry: str, records: Records, context: Context) -> Rendering:
        """Return the correlation of standalone with received accuracy, and gains or losses."""
        rows = [
            self._fair(f, method, records, self._published(entry, f, method, context))
            for f in self.federations
            for method in WITHOUT
        ]
        columns = ("federation", "method", "fairness, %", "95 % interval", "mean gain, points", "honest excluded")
        table = Table("Fairness, and the gain over standalone", columns, rows, (NOT_OF_USE, FEW))
        return Rendering((table,), (), self._notes(context))

    def accuracy(self, entry: str, records: Records, context: Context) -> Rendering:
        """Return the accuracy of the best participant, that of all, and gains."""
        rows = [
            self._accurate(f, method, records, self._published(entry, f, method, context))
            for f in self.federations
            for method in FAIR
        ]
        columns = (
            "federation", "method", "max accuracy, %", "mean accuracy, %", "best over best, points", "mean gain, points"
        )  # fmt: skip
        notes = ("Best over best: the best model over the best standalone one. All at the end of training.", COLLAPSED)
        table = Table("Accuracy of the best participant", columns, rows, notes)
        return Rendering((table,), (), self._notes(context))

    def _published(self, entry: str, federation: Federation, method: str, context: Context) -> Published | None:
        if method == OURS:
            return None
        return context.published.of(entry, method, *self.labels(federation), federation.split)

    def _fair(self, f: Federation, method: str, records: Records, published: Published | None) -> list[Cell]:
        both = pairs(records, f, method)
        found = [pair.fairness for pair in both]
        values = [100 * c.coefficient for c in found if c.coefficient is not None]
        failed = len(traces(records, f, method)) - len(values)
        fairness = ComparedCell(Sample.of(values), None, published, "", failed, decimals=2)
        gained = signed(pair.gain for pair in both)
        return [label(f), method, fairness, interval(found), gained, honest_removed([p.run for p in both], method)]

    def _accurate(self, f: Federation, method: str, records: Records, published: Published | None) -> list[Cell]:
        all_, both = traces(records, f, method), pairs(records, f, method)
        highest = compared_by(all_, best, published)
        over = ["", ""] if method == STANDALONE else [
            signed(pair.best_over_best for pair in both), signed(pair.gain for pair in both)
        ]  # fmt: skip
        return [label(f), method, highest, compared_by(all_, mean).text, *over]

    def _notes(self, context: Context) -> list[str]:
        notes = []
        data = {f.data for f in self.federations}
        if context.scale == "quick":
            notes += [SMALLER_MNIST] if "MNIST" in data else []
            notes += [f"{'On other data than MNIST, too: ' if 'MNIST' in data else ''}{SMALLER_OTHERS}"] * (
                data != {"MNIST"}
            )
        return notes + ([TEXTS] if data & {"MR", "SST"} else [])


def label(federation: Federation) -> str:
    """Return a label such as `MNIST, 10, uniform`."""
    return f"{federation.data}, {federation.clients}, {federation.split}"


def grid(data: Mapping[str, Sequence[int]], splits: Sequence[str]) -> tuple[Federation, ...]:
    """Return a federation for each data set, number of participants and split."""
    return tuple(Federation(d, n, split) for d, numbers in data.items() for n in numbers for split in splits)
