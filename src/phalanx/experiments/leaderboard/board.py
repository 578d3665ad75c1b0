"""The page of the leaderboard in Markdown, and its cells as CSV."""

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.attacks import Attack, ReportTimes, Rescale, Scheduled, Together
from phalanx.experiments.grid import name_of
from phalanx.experiments.leaderboard.defences import BASELINE
from phalanx.experiments.leaderboard.ranking import Contest, RankedDefence, Trial, mean_over
from phalanx.experiments.leaderboard.tiers import SERVER, TIERS, Tier
from phalanx.experiments.line_store import LineStore
from phalanx.experiments.shown.text import Flat, markdown_table
from phalanx.experiments.statistics import CONFIDENCE, Estimate, holm, paired
from phalanx.report.words import duration
from phalanx.runs.files import write as write_file
from phalanx.wording import plural

SHOWN = 8  # digits of a run's identity on the page
NO_RESULT = "no result"
NAMED = 10  # defences without a result that the page lists by name
CHANCE = 0.1  # accuracy of a guess among the ten classes that the data of each tier have


@dataclass(frozen=True)
class Board:
    """A tier with its results.

    Args:
        tier: the tier.
        ranked: its defences.
        store: of the records.
    """

    tier: Tier
    ranked: Sequence[RankedDefence]
    store: LineStore

    def average(self, one: RankedDefence, f: int) -> Estimate | None:
        """Return a defence's worst accuracy with f attackers, over all heterogeneity; None if a part is missing."""
        trials = self.trials(one, f)
        return mean_over(trials) if len(trials) == len(self.tier.heterogeneity) else None

    def trials(self, one: RankedDefence, f: int) -> list[Trial]:
        """Return a defence's worst trials with f attackers."""
        return [worst for cell in one.cells.values() if cell.f == f and (worst := cell.worst) is not None]

    def order(self, sort: "Sort") -> list[RankedDefence]:
        """Return the defences of one sort that have results, the best first, those without a rank last."""
        here = [one for one in self.ranked if one.cells and sort.fits(one)]
        return sorted(here, key=lambda one: (-self.rank_by(one), one.defence.name))

    @property
    def sorts(self) -> list[tuple["Sort", list["Rows"]]]:
        """The sorts that have defences, with these in order; defences of equal accuracies stand together."""
        found = [(sort, self.order(sort)) for sort in SORTS]
        return [(sort, self._together(order)) for sort, order in found if order]

    def _together(self, order: Sequence[RankedDefence]) -> list["Rows"]:
        out = list[Rows]()
        for one in order:
            scores = [(cell.where, cell.f, cell.worst and cell.worst.accuracies) for cell in one.cells.values()]
            same = next((rows for rows in out if rows.scores == scores and self.rank_by(one) >= 0), None)
            if same is None:
                out.append(Rows([one], scores))
            else:
                same.defences.append(one)
        return out

    def places(self, rows: Sequence["Rows"]) -> list[str]:
        """Return the ranks of rows in order, each with those that the seeds do not exclude: `4 (2 to 9)`.

        A row without an accuracy on each seed is compared with no other, and excludes no rank.
        """
        ranked = [one for one in rows if self.rank_by(one.defences[0]) >= 0]
        by_seed = [self._by_seed(one.defences[0]) for one in ranked]
        out = list[str]()
        for number, own in enumerate(by_seed, 1):
            others = [other for k, other in enumerate(by_seed, 1) if k != number and other and own]
            gaps = [[b - a for a, b in zip(own, other, strict=True)] for other in others]
            sure = [p < 1 - CONFIDENCE for p in holm([paired(gap) for gap in gaps])]
            means = [statistics.fmean(gap) for gap, known in zip(gaps, sure, strict=True) if known]
            first, last = 1 + sum(mean > 0 for mean in means), len(ranked) - sum(mean < 0 for mean in means)
            out.append(f"{number}" if first == last else f"{number} ({first} to {last})")
        return out + ["–"] * (len(rows) - len(ranked))

    def _by_seed(self, one: RankedDefence) -> list[float]:
        """Return what decides about the rank, for each seed; nothing if a run has no accuracy."""
        by_seed = [*zip(*(trial.accuracies for trial in self.trials(one, self.tier.tuned_for)), strict=True)]
        known = [[value for value in values if value is not None] for values in by_seed]
        whole = all(len(values) == len(self.tier.heterogeneity) for values in known)
        return [statistics.fmean(values) for values in known] if whole else []

    def better(self, f: int) -> Estimate | None:
        """Return the accuracy of the better of two baselines in each kind of heterogeneity; None if one is missing."""
        known = [one for one in self.order(BASELINES) if len(self.trials(one, f)) == len(self.tier.heterogeneity)]
        if len(known) < 2:
            return None
        kinds = zip(*(self.trials(one, f) for one in known), strict=True)
        return mean_over([max(trials, key=lambda trial: trial.accuracy.mean or 0.0) for trials in kinds])

    def rank_by(self, one: RankedDefence) -> float:
        """Return what decides about the rank; below 0 for none."""
        found = self.average(one, self.tier.tuned_for)
        return -1.0 if found is None or found.mean is None else found.mean

    def share(self, f: int) -> str:
        """Return a number of attackers as a share of the clients."""
        return f"{100 * f / self.tier.base.clients:.0f} %"


class Sort(NamedTuple):
    """Defences that are compared with each other."""

    title: str
    synchronous: bool
    trusts: bool
    baseline: bool = False

    def fits(self, one: RankedDefence) -> bool:
        """Return whether a defence is of this sort."""
        baseline = one.defence.kind == BASELINE
        trusts = one.defence.trusts and not baseline
        return (one.synchronous, trusts, baseline) == (self.synchronous, self.trusts, self.baseline)


BASELINES = Sort("Baselines", True, False, True)
SORTS = (
    BASELINES,
    Sort("Synchronous", True, False),
    Sort("Synchronous, trusting examples of the server or a client", True, True),
    Sort("Asynchronous", False, False),
    Sort("Asynchronous, trusting examples of the server", False, True),
)


@dataclass
class Rows:
    """Defences that have the same accuracy in each cell, on each seed: they are one row.

    Args:
        defences: the first of them by name gives what else is shown.
        scores: the accuracies, by heterogeneity and number of attackers.
    """

    defences: list[RankedDefence]
    scores: Sequence[Any]

    @property
    def name(self) -> str:
        """The names of all."""
        return " = ".join(one.defence.name for one in self.defences)


def short(attack: Attack | None) -> str:
    """Return an attack in few words, such as `ALIE × -3 + HoldBack`."""
    match attack:
        case None:
            return "none"
        case Together(first, Rescale(factor)):
            return f"{_inner(first)} × {factor:g}"
        case Together(first, ReportTimes(factor)):
            return f"{_inner(first)}, size × {factor:g}"
        case Together(first, second):
            return f"{short(first)} + {short(second)}"
        case Scheduled(inner, every=every):
            return f"{_inner(inner)} every {every} versions"
    return type(attack).__name__


def _inner(attack: Attack) -> str:
    return f"({text})" if " " in (text := short(attack)) else text


def page(boards: Sequence[Board]) -> str:
    """Return the page."""
    blocks = ["# Leaderboard", _START, markdown_table(_summary(boards[0])), *_protocol(boards[0].tier)]
    for board in boards:
        blocks += [f"## {board.tier.name}", f"{board.tier.title}.", *_board(board)]
    missing = [tier for name, tier in TIERS.items() if name not in {board.tier.name for board in boards}]
    for tier in missing:
        blocks += [f"## {tier.name}", f"{tier.title}.", f"Not computed yet: `phalanx leaderboard --tier {tier.name}`."]
    return "\n\n".join(blocks) + "\n"


_START = (
    "The accuracy of each defence under the worst attack that a search finds for it. `phalanx leaderboard` writes this "
    "page from the records in `results/leaderboard`, and carries out what is missing. "
    '`phalanx leaderboard --defence "examples/own_rule.py:ShortenedMean(factor=1)"` ranks a rule or an algorithm of '
    "your own."
)
FIRST = 5  # defences of each sort that the first table shows


def _summary(board: Board) -> Flat:
    """Return the first table: the best of each sort, without attackers and with some shares of them."""
    shares = [*dict.fromkeys((0, board.tier.tuned_for, max(board.tier.attackers)))]
    rows = [
        [sort.title, each.name, *(_average(board, each.defences[0], f) for f in shares)]
        for sort, found in board.sorts
        for each in found[:FIRST]
    ]
    columns = ["sort", "defence", *(f"{board.share(f)} attackers" for f in shares)]
    note = (
        "Accuracy in percent: mean over the kinds of heterogeneity and the seeds, and half of the 95 % interval. "
        "ServerAlone takes ten times as many steps. Asynchronous defences have a clock of their own: compare them with "
        "each other."
    )
    title = f"The first {FIRST} of each sort, {board.tier.name}"
    return Flat(title, columns, rows, [note], [False, False, *(True for _ in shares)])


def _protocol(tier: Tier) -> list[str]:
    """Return what was done, in paragraphs."""
    named, search = tier.search.attacks, tier.search
    factors = ", ".join(f"{factor:g}" for factor in search.factors if factor != 1)
    tuned_for = f"{100 * tier.tuned_for / tier.base.clients:.0f} %"
    searched = ", ".join(map(str, search.seeds))
    further = plural(len(search.seeds) - 1, "further seed")
    return [
        "**Accuracy** is that on the test examples at the end, in percent: the mean over the "
        "seeds of a tier, with half of its 95 % interval (Student's t). The rank is by the mean "
        f"over the kinds of heterogeneity with {tuned_for} attackers. In brackets are the ranks that the seeds do not "
        "exclude: others are counted as better or worse by paired t tests over the seeds, adjusted by Holm, at 5 %. "
        "Ranks may be others in another federation. Defences of the same accuracy on each seed of each cell are one "
        "row.",
        "**Heterogeneity**: examples are assigned at random (IID); by Dirichlet distributions with alpha 1 and 0.1; or "
        "to four groups of clients, each with the labels of two classes swapped. In groups, each client is tested on "
        "the data of its group. Elsewhere all are tested on the same examples, of all classes, even a model that a "
        "client has for itself.",
        "**Tuning**: each defence gets four settings, of the learning rate and at most one option of its own. The one "
        "of the highest mean accuracy is used everywhere. The mean is over the kinds of heterogeneity, without an "
        f"attack and under SignFlip and ALIE with {tuned_for} attackers, on a seed of its own ({tier.tuning_seed}) and "
        "on a fifth of the training examples, which are held out.",
        "**Search**, for each defence, kind of heterogeneity and share of attackers. First "
        f"{plural(len(named), 'named attack')} of published strength ({', '.join(named)}) on one seed. Then the "
        f"two worst of them with other factors on the update ({factors}). Then the worst one in every second version, "
        "with ten times the size if the defence weighs by sizes, and flooding, lingering or holding back if clients "
        f"need not wait for each other. Then {plural(search.budget, 'random composition')} of two attacks. "
        f"The two worst named attacks and the two worst of the others get {further}. The worst of each run on the "
        f"seeds of the tier, and the lower mean is shown. The search uses the seeds {searched} only, and the same test "
        "examples as the results. The true worst case may be lower; choosing the lower of two means lowers it a "
        "little.",
        "**Setting**: all clients take part in each round, with the same weight except where a name says otherwise. A "
        f"defence that needs the number of attackers knows it; without attackers it is made for {tuned_for}. "
        "A round of IFCA is four rounds, in each of which a client tries one of its four models. "
        f"MoNNA trusts an honest client; ServerAlone, FLTrust, ZenoPlusPlus and AFLGuard have {SERVER} clean examples. "
        "Clients of asynchronous defences have random speeds (lognormal, sigma 0.5). *Honest excluded* is the number "
        "of honest clients that are excluded for good, the mean of the runs behind the rank.",
    ]


def _board(board: Board) -> list[str]:
    done = [one for one in board.ranked if one.cells]
    made = dict[str, list[str]]()  # commits, by all else
    for p in board.store.origins:
        where = f"phalanx {p.phalanx}, numerics version {p.numerics}, torch {p.torch}, processor {p.processor}"
        where += f", engine {p.engine}" if p.engine else ""
        made.setdefault(where, []).append((p.commit or "none")[:10])
    blocks = [
        f"{plural(len(done), 'defence')} of {len(board.ranked)} on {plural(len(board.tier.seeds), 'seed')}, from "
        f"{len(board.store):,} runs that took {duration(board.store.seconds())} of one processor core in all. They "
        "were made with",
        "\n".join(f"- {where}, commits {', '.join(commits)}" for where, commits in made.items()),
        *_exceeded(board),
        *_beaten(board, [one for one in done if one.defence.kind != BASELINE]),
    ]
    blocks += [markdown_table(_ranking(board, rows, sort)) for sort, rows in board.sorts]
    blocks += [markdown_table(_cells(board, rows, sort)) for sort, rows in board.sorts]
    if done:
        digits = SHOWN * "0"
        blocks.append(
            "Each cell: accuracy, attack, and the first digits of the run of the first seed, which "
            f"`phalanx leaderboard --tier {board.tier.name} --alone {digits}` carries out alone, and writes its "
            f"configuration for `phalanx run --config`. The cells of all shares of attackers are in "
            f"`{board.tier.name}.csv`, next to the records."
        )
    blocks += _refused(board, done)
    if waiting := [one.defence.name for one in board.ranked if not one.cells and not one.error]:
        command = f"phalanx leaderboard --tier {board.tier.name}"
        which = "; ".join(waiting) if len(waiting) <= NAMED else f"{len(waiting)} others"
        blocks.append(f"**Not computed yet**: {which}. `{command}` goes on with them.")
    blocks += [f"**{one.defence.name}** has no result: {one.error}." for one in board.ranked if one.error]
    return blocks


def _exceeded(board: Board) -> list[str]:
    """Return in sentences what the baselines reach, and how many defences exceed them."""
    f = board.tier.tuned_for
    bars = {one.defence.name: board.rank_by(one) for one in board.order(BASELINES) if board.rank_by(one) >= 0}
    if not bars:
        return []
    if (better := board.better(f)) is not None and better.mean is not None:
        bars["the better of both in each kind of heterogeneity"] = better.mean
    others = [board.rank_by(rows.defences[0]) for sort, of in board.sorts if not sort.baseline for rows in of]
    found = [value for value in others if value >= 0]
    above = [f"{sum(value > bar for value in found)} exceed {name} ({100 * bar:.1f} %)" for name, bar in bars.items()]
    return [
        "**Baselines**: with Standalone each client trains alone, with ServerAlone the server on its examples. Of "
        f"{len(found)} rows with {board.share(f)} attackers {', '.join(above)}, by their means."
    ]


def _beaten(board: Board, done: Sequence[RankedDefence]) -> list[str]:
    """Return how often the search has beaten the named attacks, and where it has not."""
    both = {one.defence.name: [cell for cell in one.cells.values() if cell.beaten is not None] for one in done}
    compared = {name: Compared.of(cells) for name, cells in both.items() if cells}
    if not compared:
        return []
    every, found = Compared.of([cell for cells in both.values() for cell in cells]), list(compared.values())
    below, beaten = [one for one in found if one.mean > 0], sum(1 for cells in both.values() for c in cells if c.beaten)
    sure = sum(one.less.low is not None and one.less.low > 0 for one in found)
    surely_not = [name for name, one in compared.items() if one.less.high is not None and one.less.high < 0]
    untouched = [name for name, one in compared.items() if 2 * one.same > one.cells]
    left = [one for name, one in compared.items() if name not in untouched]
    there = [one for one in left if one.mean > 0]
    lines = [
        f"**The search** found a worse attack than the worst named one for {len(below)} of "
        f"{plural(len(found), 'defence')} ({_percent(len(below), len(found))}) in the mean over their cells, and in "
        f"{beaten} of {every.cells} single cells, on the seeds of the results. What it found leaves "
        f"{accuracy(every.less)} points less accuracy, in the mean over all cells. "
        "The 95 % interval of a defence's difference over the seeds lies above zero for "
        f"{plural(sure, 'defence')}, and below for {len(surely_not)}{_listed(surely_not)}."
    ]
    if len(below) < len(found):
        others = [
            [name, accuracy(one.less), f"{one.same} of {one.cells}"] for name, one in compared.items() if one.mean <= 0
        ]
        columns = ["defence", "less accuracy than under the worst named attack, points", "cells with no difference"]
        lines += [
            f"**Where it did not.** In {every.same} of {every.cells} cells the attack that it chose leaves the "
            f"accuracy of the named one on each seed. In {every.stronger} of them it is that attack with another "
            "factor on the update, which a rule that uses only signs or directions does not notice. These are more "
            f"than half of the cells of {plural(len(untouched), 'defence')}{_listed(untouched)}; of the {len(left)} "
            f"others, it found a worse attack for {len(there)} ({_percent(len(there), len(left))}). A floor is no "
            f"reason: the named attack leaves no more than chance, {100 * CHANCE:.0f} %, in "
            f"{plural(every.floor, 'cell')}, {sum(one.floor for one in found if one.mean <= 0)} of them of the "
            "defences below.",
            markdown_table(Flat("Not beaten", columns, others, [], [False, True, True])),
        ]
    return lines


class Compared(NamedTuple):
    """The found attacks compared with the named ones, over some cells.

    Args:
        cells: their number.
        same: number of cells where both leave the same accuracy on each seed.
        stronger: number of these where the found attack is the named one with a factor.
        floor: number of cells where the named one leaves no more than chance.
        mean: by how much found attacks leave less accuracy, in the mean over the cells.
        less: the same with the interval over seeds, from pairs of runs that have both accuracies.
    """

    cells: int
    same: int
    stronger: int
    floor: int
    mean: float
    less: Estimate

    @staticmethod
    def of(cells: Sequence[Contest]) -> "Compared":
        """Return the comparison over cells that have both attacks."""
        both = [(cell.named, cell.found) for cell in cells if cell.named is not None and cell.found is not None]
        alike = [(named, found) for named, found in both if named.accuracies == found.accuracies]
        seeds = zip(*(zip(named.accuracies, found.accuracies, strict=True) for named, found in both), strict=True)
        by_seed = [[n - f for n, f in pairs if n is not None and f is not None] for pairs in seeds]
        means = [(named.accuracy.mean or 0.0, found.accuracy.mean or 0.0) for named, found in both]
        return Compared(
            len(both),
            len(alike),
            sum(isinstance(f.attack, Together) and f.attack.first == n.attack for n, f in alike),
            sum(named <= CHANCE for named, _ in means),
            statistics.fmean(named for named, _ in means) - statistics.fmean(found for _, found in means),
            Estimate.of([statistics.fmean(values) for values in by_seed if values]),
        )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.0f} %"


def _listed(names: Sequence[str]) -> str:
    return f" ({'; '.join(names)})" if names else ""


def _ranking(board: Board, merged: Sequence[Rows], sort: Sort) -> Flat:
    tier, shares = board.tier, (0, *board.tier.attackers)
    columns = ["#", "defence", "kind", *(board.share(f) for f in shares), "honest excluded", "ms a round", "tuned"]
    rows = list[list[str]]()
    for place, together in zip(board.places(merged), merged, strict=True):
        one = together.defences[0]
        main = [trace for trial in board.trials(one, tier.tuned_for) for trace in trial.traces]
        every = [trace.wall_seconds for f in shares for trial in board.trials(one, f) for trace in trial.traces]
        rounds = tier.rounds if one.synchronous else tier.seconds
        rows.append(
            [
                place,
                together.name,
                ", ".join(dict.fromkeys(each.defence.kind for each in together.defences)),
                *(_average(board, one, f) for f in shares),
                f"{statistics.fmean(trace.honest_excluded for trace in main):.1f}" if main else "–",
                f"{1000 * statistics.fmean(every) / rounds:.1f}" if every else "–",
                one.defence.text(one.setting) if one.setting is not None else "",
            ]
        )
    if sort.baseline and len(rows) > 1:
        means = ["–" if (found := board.better(f)) is None else accuracy(found) for f in shares]
        rows.append(["", "the better of both, in each kind of heterogeneity", "", *means, "", "", ""])
    notes = [] if sort.synchronous else ["A round is one virtual second, in which a client trains about once."]
    return Flat(sort.title, columns, rows, notes, [False, False, False, *(True for _ in shares), True, True, False])


def _average(board: Board, one: RankedDefence, f: int) -> str:
    return NO_RESULT if (found := board.average(one, f)) is None else accuracy(found)


def accuracy(found: Estimate) -> str:
    """Return `84.1 ± 0.3`, in percent."""
    if found.mean is None:
        return NO_RESULT
    half = "" if found.high is None else f" ± {100 * (found.high - found.mean):.1f}"
    return f"{100 * found.mean:.1f}{half}" + (f" ({found.n} of {found.n + found.failed})" if found.failed else "")


def _cells(board: Board, merged: Sequence[Rows], sort: Sort) -> Flat:
    tier = board.tier
    rows = [
        [one.name, *(_cell(one.defences[0].cells[w, tier.tuned_for]) for w in tier.heterogeneity)] for one in merged
    ]
    columns = ["defence", *tier.heterogeneity]
    title = f"{board.share(tier.tuned_for)} attackers, {sort.title[0].lower()}{sort.title[1:]}"
    return Flat(title, columns, rows, [], [False for _ in columns])


def _cell(cell: Contest) -> str:
    if (worst := cell.worst) is None:
        return NO_RESULT
    return f"**{accuracy(worst.accuracy)}** {short(worst.attack)} `{worst.key[:SHOWN]}`"


def _refused(board: Board, done: Sequence[RankedDefence]) -> list[str]:
    """Return why cells have no result."""
    reasons = dict[tuple[str, str], dict[int, None]]()
    for one in done:
        for cell in one.cells.values():
            if why := cell.refused or ("" if cell.worst is not None else cell.error or "no attack gave a result"):
                reasons.setdefault((one.defence.name, why.partition(". ")[0].rstrip(".")), {})[cell.f] = None
    lines = [f"- {name}, {', '.join(map(board.share, shares))}: {why}." for (name, why), shares in reasons.items()]
    return (
        ["**No result**, as a defence refuses so many attackers, or its runs failed:\n\n" + "\n".join(lines)]
        if lines
        else []
    )


# The cells as CSV

HEADINGS = (
    "defence", "kind", "setting", "heterogeneity", "attackers", "refused", "named attack", "accuracy under it",
    "found attack", "accuracy under it or without attackers", "half interval", "identity", "honest excluded",
    "seconds a run",
)  # fmt: skip


def table(board: Board) -> str:
    """Return a line for each cell, as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADINGS)
    for one in board.ranked:
        for cell in one.cells.values():
            assert one.setting is not None
            head = [one.defence.name, one.defence.kind, one.defence.text(one.setting), cell.where, cell.f, cell.refused]
            named = [name_of(cell.named.attack), _number(cell.named.accuracy.mean)] if cell.named else ["", ""]
            found = [name_of(cell.found.attack), _number(cell.found.accuracy.mean)] if cell.found else ["", ""]
            tail: list[object] = ["", "", "", ""]
            if worst := cell.worst:
                estimate = worst.accuracy
                half = None if estimate.high is None or estimate.mean is None else estimate.high - estimate.mean
                excluded = statistics.fmean(trace.honest_excluded for trace in worst.traces)
                seconds = statistics.fmean(trace.wall_seconds for trace in worst.traces)
                tail = [_number(half), worst.plan.identity, f"{excluded:g}", f"{seconds:.3f}"]
            writer.writerow([*head, *named, *found, *tail])
    return out.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def write(boards: Sequence[Board], path: Path, folder: Path) -> list[Path]:
    """Write the page, and the cells next to the records of each tier.

    Args:
        boards: the tiers.
        path: of the page.
        folder: of the records.

    Returns:
        The files.
    """
    files = {path: page(boards)} | {folder / f"{board.tier.name}.csv": table(board) for board in boards}
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, text.encode())
    return list(files)
