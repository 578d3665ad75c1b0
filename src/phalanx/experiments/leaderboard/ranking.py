"""The search for the worst attack on each defence, and the results.

A defence is tuned first, on held-out training examples.  Then, for each kind of heterogeneity and number of attackers:

1. every named attack at its published strength, on the first seed of the search;
2. the worst of them with other strengths and signs; the worst one with a schedule, with false sizes if the defence
   weighs by sizes, and with bad timing if clients need not wait for each other; and random compositions;
3. the two worst named attacks, and the two worst of the others, on the other seeds as well;
4. the worst named attack and the worst of the others on the seeds of the results.

The lower mean of the last two is the result.  No seed of the search is a seed of the results.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from phalanx.attacks import Attack
from phalanx.experiments.grid import name_of
from phalanx.experiments.leaderboard.defences import Defence, Setting
from phalanx.experiments.leaderboard.scores import Score, key_of, mean
from phalanx.experiments.leaderboard.tiers import Conditions, Tier
from phalanx.experiments.statistics import Estimate
from phalanx.experiments.study import check_round
from phalanx.promises import preprocess_of
from phalanx.runs.plan import Run
from phalanx.weighting import Ignore

CONFIRMED = 2  # attacks of each sort that get the other seeds
Carried = Callable[[Mapping[str, Run]], Mapping[str, Score]]  # carries out runs, by key, or finds their scores


class Trial(NamedTuple):
    """A defence under one attack, on the seeds of the results.

    Args:
        attack: the attack; None for none.
        key: of the first run.
        plan: the first run.
        scores: one for each seed.
    """

    attack: Attack | None
    key: str
    plan: Run
    scores: tuple[Score, ...]

    @property
    def accuracy(self) -> Estimate:
        """The mean accuracy over the seeds."""
        known = [score.accuracy for score in self.scores if score.accuracy is not None]
        return Estimate.of(known, len(self.scores) - len(known))


@dataclass
class Cell:
    """A defence in one kind of heterogeneity, with one number of attackers.

    Args:
        where: the kind of heterogeneity.
        f: number of attackers.
        refused: why it cannot be carried out; "" if it can.
        named: under the worst of the named attacks; None if it is not known, or without attackers.
        found: under the worst of the others; without attackers, under none.
        error: of the last run of the search that failed; "" if none did.
        tried: what the search has tried, by name: the attack, whether it is a named one, and an accuracy for each seed.
    """

    where: str
    f: int
    refused: str = ""
    named: Trial | None = None
    found: Trial | None = None
    error: str = ""
    tried: dict[str, tuple[Attack, bool, list[float]]] = field(default_factory=dict)

    @property
    def trials(self) -> list[Trial]:
        """The trials that have a result."""
        return [one for one in (self.named, self.found) if one is not None and one.accuracy.mean is not None]

    @property
    def worst(self) -> Trial | None:
        """The trial of the lowest accuracy; None if there is none."""
        return min(self.trials, key=lambda one: one.accuracy.mean or 0.0, default=None)

    @property
    def beaten(self) -> bool | None:
        """Whether the search has found a worse attack than the named ones; None if there is nothing to compare."""
        if self.f == 0 or len(self.trials) < 2 or self.named is None or self.found is None:
            return None
        return (self.found.accuracy.mean or 0.0) < (self.named.accuracy.mean or 0.0)


@dataclass(frozen=True)
class Ranked:
    """A defence with its results.

    Args:
        defence: the defence.
        setting: chosen for it; None if tuning is not complete.
        cells: its results, by heterogeneity and number of attackers; none if they are not complete.
        synchronous: whether it has rounds; None if it is not known.
        error: why it has no results although all runs are there; "" otherwise.
    """

    defence: Defence
    setting: Setting | None = None
    cells: Mapping[tuple[str, int], Cell] = field(default_factory=dict)
    synchronous: bool | None = None
    error: str = ""


class Missing(Exception):
    """A score is not there, and runs are not to be carried out."""


class Contest:
    """All runs of one defence.

    Args:
        tier: the tier.
        defence: the defence.
        carried: carries out runs; may leave some out, which ends the contest.
    """

    def __init__(self, tier: Tier, defence: Defence, carried: Carried) -> None:
        self.tier, self.defence, self.carried = tier, defence, carried

    def ranked(self) -> Ranked:
        """Return the results, as far as the runs are there."""
        try:
            setting = self._tuned()
        except Missing:
            return Ranked(self.defence)
        if isinstance(setting, str):
            return Ranked(self.defence, error=f"no setting gave a result in the tuning runs{setting}")
        cells = [Cell(where, f) for where in self.tier.heterogeneity for f in (0, *self.tier.attackers)]
        synchronous = None
        for cell in cells:
            try:
                first = self._plan(cell, setting, None if not cell.f else self._named[0], self.tier.seeds[0])
                check_round(first)
                synchronous = first.algorithm.synchronous
            except ValueError as error:
                cell.refused = str(error)
        try:
            self._search([cell for cell in cells if cell.f and not cell.refused], setting)
            self._results([cell for cell in cells if not cell.refused], setting)
        except Missing:
            return Ranked(self.defence, setting)
        return Ranked(self.defence, setting, {(cell.where, cell.f): cell for cell in cells}, synchronous)

    @property
    def _named(self) -> list[Attack]:
        return list(self.tier.search.attacks.values())

    def _plan(self, cell: Cell, setting: Setting, attack: Attack | None, seed: int) -> Run:
        return self.tier.plan(self.defence, setting, Conditions(cell.where, cell.f, attack, seed))

    def _scores(self, plans: Sequence[Run]) -> list[Score]:
        """Return the scores of runs.

        Raises:
            Missing: one is not there.
        """
        keys = [key_of(plan) for plan in plans]
        known = self.carried(dict(zip(keys, plans, strict=True)))
        if any(key not in known for key in keys):
            raise Missing
        return [known[key] for key in keys]

    def _tuned(self) -> Setting | str:
        """Return the setting of the highest mean accuracy on held-out examples; a run without a result counts as 0.

        If all are 0, return why the last run failed.
        """
        tier, defence = self.tier, self.defence
        runs = dict[tuple[Setting, int], Run]()
        for setting in defence.settings:
            for number, (where, attack) in enumerate((w, a) for w in tier.heterogeneity for a in tier.tuning_attacks):
                f = tier.made_for(defence, 0) if attack is not None else 0
                try:
                    plan = tier.plan(defence, setting, Conditions(where, f, attack, tier.tuning_seed, held_out=True))
                    check_round(plan)
                except ValueError:
                    continue
                runs[setting, number] = plan
        scores = dict(zip(runs, self._scores(list(runs.values())), strict=True))
        means = {
            setting: sum(score.accuracy or 0.0 for (one, _), score in scores.items() if one == setting)
            for setting in defence.settings
        }
        best = max(means, key=lambda setting: means[setting])
        if means[best] > 0:
            return best
        return next((f": {score.error.rstrip('.')}" for score in reversed(scores.values()) if score.error), "")

    # The search

    def _search(self, cells: Sequence[Cell], setting: Setting) -> None:
        """Try attacks on all cells; all of one step are carried out together."""
        first, *others = self.tier.search.seeds
        self._try([(cell, attack, True) for cell in cells for attack in self._named], setting, first)
        stronger = [(cell, attack, False) for cell in cells for attack in self._stronger(cell, setting)]
        self._try(stronger, setting, first)
        for seed in others:
            confirmed = [(cell, *one) for cell in cells for one in self._confirmed(cell)]
            self._try(confirmed, setting, seed)

    def _stronger(self, cell: Cell, setting: Setting) -> Iterator[Attack]:
        """Yield attacks made of the named ones that were worst in a cell."""
        search, worst = self.tier.search, self._worst(cell, named=True)[: self.tier.refined]
        for attack in worst:
            yield from (one for one in search.scaled(attack) if one != attack)
        for attack in worst[:1]:
            plan = self._plan(cell, setting, attack, self.tier.seeds[0])
            scheduled, *sizes = search.varied(attack)
            yield scheduled
            yield from [] if isinstance(preprocess_of(plan.algorithm), Ignore | None) else sizes
            yield from self.tier.timing(attack, plan)
        yield from (search.drawn(number) for number in range(search.budget))

    def _confirmed(self, cell: Cell) -> Iterator[tuple[Attack, bool]]:
        for named in (True, False):
            yield from ((attack, named) for attack in self._worst(cell, named=named)[:CONFIRMED])

    @staticmethod
    def _worst(cell: Cell, *, named: bool) -> list[Attack]:
        """Return the attacks of one sort that have the most seeds, the worst first."""
        of_sort = [(attack, values) for attack, is_named, values in cell.tried.values() if is_named == named and values]
        most = max((len(values) for _, values in of_sort), default=0)
        ranked = sorted((sum(values) / most, k) for k, (_, values) in enumerate(of_sort) if len(values) == most)
        return [of_sort[k][0] for _, k in ranked]

    def _try(self, candidates: Sequence[tuple[Cell, Attack, bool]], setting: Setting, seed: int) -> None:
        """Carry out attacks; one with which a run fails is no candidate."""
        plans = [self._plan(cell, setting, attack, seed) for cell, attack, _ in candidates]
        for (cell, attack, named), score in zip(candidates, self._scores(plans), strict=True):
            _, _, values = cell.tried.setdefault(name_of(attack), (attack, named, []))
            if score.accuracy is not None:
                values.append(score.accuracy)
            else:
                cell.error = score.error or "the accuracy was not measured"

    # The results

    def _results(self, cells: Sequence[Cell], setting: Setting) -> None:
        """Carry out the seeds of the results."""
        chosen = list[tuple[Cell, str, Attack | None]]()
        for cell in cells:
            if not cell.f:
                chosen.append((cell, "found", None))
                continue
            for sort in ("named", "found"):
                if worst := self._worst(cell, named=sort == "named"):
                    chosen.append((cell, sort, worst[0]))
        plans = [[self._plan(cell, setting, attack, seed) for seed in self.tier.seeds] for cell, _, attack in chosen]
        scores = self._scores([plan for runs in plans for plan in runs])
        n = len(self.tier.seeds)
        for k, ((cell, sort, attack), runs) in enumerate(zip(chosen, plans, strict=True)):
            trial = Trial(attack, key_of(runs[0]), runs[0], tuple(scores[k * n : (k + 1) * n]))
            setattr(cell, sort, trial)


def expected(tier: Tier, defence: Defence) -> int:
    """Return the number of runs of a defence, at most."""
    cells, search = len(tier.heterogeneity) * len(tier.attackers), tier.search
    tuning = len(defence.settings) * len(tier.heterogeneity) * len(tier.tuning_attacks)
    stronger = tier.refined * (len(search.factors) - 1) + len(search.schedules) + len(search.sizes) + 3 + search.budget
    confirmed = 2 * CONFIRMED * (len(search.seeds) - 1)
    tried = len(search.attacks) + stronger + confirmed + 2 * len(tier.seeds)
    return tuning + cells * tried + len(tier.heterogeneity) * len(tier.seeds)


def mean_over(trials: Sequence[Trial]) -> Estimate:
    """Return the accuracy of several trials: for each seed the mean over them, with the interval over seeds."""
    by_seed = [mean(scores) for scores in zip(*(trial.scores for trial in trials), strict=True)]
    known = [value for value in by_seed if value is not None]
    return Estimate.of(known, len(by_seed) - len(known))
