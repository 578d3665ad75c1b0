"""The tables with attackers: honest participants' accuracies, their standalone ones, and the exclusions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from papers.rffl.measured import (
    Records,
    attackers_removed,
    best,
    compared_by,
    honest_removed,
    mean,
    pairs,
    signed,
    traces,
)
from papers.rffl.remarks import remark
from papers.rffl.setting import (
    CLIPPED,
    FEW,
    FIXED,
    FLIP,
    FLIPPED,
    MANY,
    OURS,
    ROBUST,
    SMALLER_MNIST,
    STANDALONE,
    Enemy,
    Federation,
    cells,
)
from phalanx.experiments.papers.claims import Claim
from phalanx.experiments.papers.comparison import Cell, Table
from phalanx.experiments.papers.experiment import Context, Exhibit, Scale
from phalanx.experiments.papers.published import Published
from phalanx.experiments.papers.rendering import Rendering
from phalanx.experiments.trace import Trace
from phalanx.fairness import detection
from phalanx.runs.plan import Run

HONEST = 10
FAILED = 1.0  # percent of flips that may succeed where none should
MINUTES: Mapping[int, Mapping[Scale, float]] = {  # by number of attackers
    FEW: {"quick": 0.5, "paper": 150.0},
    MANY: {"quick": 0.8, "paper": 260.0},
}
PUBLISHED_AS = {FIXED: "RFFL"}  # methods that are compared with the published numbers of another form
UNPUBLISHED = (OURS, CLIPPED)
TARGETED: Mapping[str, Callable[[Trace], float | None]] = {
    "max accuracy": best,
    "attack success": lambda trace: _percent(trace.final("attack_success")),
    "target accuracy": lambda trace: _percent(trace.final(f"class_accuracy {FLIPPED}")),
}
PUBLISHED = "Published, mean over participants: RFFL {rffl:.1f} %, Standalone {alone:.1f} %. "
ALIKE = "A table in which the two are alike cannot tell a robust federation from none."
SMALL_ONES = "Most of the difference is that of the two smallest participants."
COUNTED = (
    "Gain: the mean over honest participants of their accuracy minus that of their standalone model. Excluded: by the "
    "methods that exclude anybody; honest of ten."
)
MEANT = (
    "Max accuracy: of the best participant. Attack success: how many 1s are taken for 7s; target accuracy: how many "
    "for 1s; both the mean over honest participants' models (the paper: the best participant's)."
)


@dataclass(frozen=True)
class WithAttackers:
    """One such table: its runs, and its rendering.

    Args:
        entry: of the published numbers.
        split: of the data.
        attack: its name.
        attackers: number of attackers, in addition to ten honest participants.
    """

    entry: str
    split: str
    attack: str
    attackers: int

    @property
    def federation(self) -> Federation:
        """The honest participants."""
        return Federation("MNIST", HONEST, self.split)

    @property
    def enemy(self) -> Enemy:
        """The attackers."""
        return Enemy(self.attack, self.attackers)

    @property
    def title(self) -> str:
        """The title of the table."""
        what = "Accuracy, attack success and target accuracy" if self.attack == FLIP else "Accuracy of each participant"
        return f"{what} with {self.attackers} {self.attack} adversaries in addition to ten, MNIST, {self.split} split"

    @property
    def exhibit(self) -> Exhibit:
        """The table as an experiment."""
        minutes = MINUTES[self.attackers]
        return Exhibit(self.title, claim(self.attack, self.attackers), minutes, self.runs, self.render)

    def runs(self, scale: Scale, seed: int) -> dict[str, Run]:
        """Return the runs: all methods under the attack, and all participants alone."""
        return cells((self.federation,), ROBUST, scale, seed, self.enemy)

    def render(self, records: Records, context: Context) -> Rendering:
        """Return the table, with gains over standalone and the share of excluded attackers."""
        table = self._targeted(records, context) if self.attack == FLIP else self._individual(records, context)
        notes = [SMALLER_MNIST] if context.scale == "quick" else []
        return Rendering((table,), (), notes, self._claims(records))

    def _claims(self, records: Records) -> list[Claim]:
        """Return the claims on RFFL; flippers are not claimed to be excluded, but not to succeed."""
        who = f"{self.attackers} {self.attack}, {self.split}"
        found = [trace for trace in self._traces(records, "RFFL") if trace.steps]
        both = pairs(records, self.federation, "RFFL", self.enemy)
        out = [Claim(f"{who}: the mean gain of RFFL over standalone models", [pair.gain for pair in both])]
        if self.attack == FLIP:
            success = [value for trace in found if (value := TARGETED["attack success"](trace)) is not None]
            return [*out, Claim(f"{who}: flips that succeed, below {FAILED:g} %", [v < FAILED for v in success], None)]
        seen = [detection(trace) for trace in found]
        good = [None not in one.after.values() and not one.honest for one in seen]
        return [*out, Claim(f"{who}: RFFL excludes all of them, and no other", good, None)]

    def _individual(self, records: Records, context: Context) -> Table:
        rows = list[list[Cell]]()
        for method in ROBUST:
            found = self._traces(records, method)
            published = self._published(method, context)
            accuracy = compared_by(found, mean, self._mean(published))
            theirs = [each_published(published)] if context.own_size else []
            rows.append([method, each(found), accuracy, *theirs, *self._ours(records, method)])
        heading = ["published for each, %"] if context.own_size else []
        columns = ("method", "participants 1 to 10, %", "mean accuracy, %", *heading, *COLUMNS)
        return Table(self.title, columns, rows, (COUNTED, *self._alike(context), *self._reasons()))

    def _targeted(self, records: Records, context: Context) -> Table:
        rows = list[list[Cell]]()
        for method in ROBUST:
            found, row = self._traces(records, method), list[Cell]([method])
            for figure, read in TARGETED.items():
                if method == STANDALONE and figure != "max accuracy":
                    row.append("")  # a run without attackers has no target of theirs
                    continue
                row.append(compared_by(found, read, self._published_figure(method, figure, context)))
            rows.append([*row, *self._ours(records, method)])
        columns = ("method", *(f"{figure}, %" for figure in TARGETED), *COLUMNS)
        return Table(self.title, columns, rows, (MEANT, COUNTED, *self._reasons()))

    def _ours(self, records: Records, method: str) -> list[Cell]:
        """Return the columns that the paper lacks."""
        if method == STANDALONE:
            return ["", "", ""]
        gained = signed(pair.gain for pair in pairs(records, self.federation, method, self.enemy))
        begun = [trace for trace in self._traces(records, method) if trace.steps]  # a run can fail as all are excluded
        return [gained, attackers_removed(begun, method), honest_removed(begun, method)]

    def _traces(self, records: Records, method: str) -> Sequence[Trace]:
        return traces(records, self.federation, method, self.enemy)

    def _reasons(self) -> list[str]:
        """Return reasons why some published numbers do not come from the named methods."""
        reasons = {method: remark(method, self.attack, self.split, self.attackers) for method in ROBUST}
        return [f"{method}: {why}" for method, why in reasons.items() if why]

    def _published(self, method: str, context: Context) -> list[Published]:
        """Return the published numbers for each participant; none for a method that is not in the paper."""
        if method in UNPUBLISHED:
            return []
        name = PUBLISHED_AS.get(method, method)
        return [context.published.of(self.entry, name, str(k)) for k in range(1, HONEST + 1)]

    def _published_figure(self, method: str, figure: str, context: Context) -> Published | None:
        name = PUBLISHED_AS.get(method, method)
        return None if method in (*UNPUBLISHED, STANDALONE) else context.published.of(self.entry, name, figure)

    def _mean(self, published: Sequence[Published]) -> Published | None:
        if not published:
            return None
        first = published[0]
        value = round(fmean(p.value for p in published if p.value is not None), 1)
        return Published(value, where=first.where, kind=first.kind, whose=first.whose, note="Mean of its ten figures.")

    def _alike(self, context: Context) -> list[str]:
        """Return a note on the published rows of RFFL and Standalone."""
        rffl, alone = (self._mean(self._published(name, context)) for name in ("RFFL", STANDALONE))
        if rffl is None or alone is None or rffl.value is None or alone.value is None:
            return []
        note = PUBLISHED.format(rffl=rffl.value, alone=alone.value)
        return [note + (ALIKE if rffl.value - alone.value < 1 else SMALL_ONES)]


COLUMNS = ("gain, points", "adversaries excluded", "honest excluded")


def each(found: Sequence[Trace]) -> str:
    """Return the accuracy of each participant's model in the first seed, rounded, in percent: once if all are equal."""
    done = [trace for trace in found if not trace.failed and trace.received_accuracy]
    return _listed([100 * value for _, value in sorted(done[0].received_accuracy.items())]) if done else "-"


def each_published(numbers: Sequence[Published]) -> str:
    """Return the same of published numbers."""
    return _listed([number.value for number in numbers if number.value is not None]) if numbers else ""


def _listed(values: Sequence[float]) -> str:
    """Return `92 93 91`; `10 each` if all are equal."""
    if len(values) > 1 and len(set(values)) == 1:
        return f"{values[0]:.0f} each"
    return " ".join(f"{value:.0f}" for value in values)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def claim(attack: str, attackers: int) -> str:
    """Return the claim of the paper."""
    if attackers == MANY:
        return "RFFL performs as well where adversaries are the majority, whatever they do."
    known: Mapping[str, str] = {
        FLIP: "RFFL, FedAvg and Multi-Krum tolerate label flippers and keep accuracy; no flip succeeds with RFFL.",
    }
    return known.get(
        attack, "RFFL is robust, and honest participants gain over their standalone models; adversaries are excluded."
    )
