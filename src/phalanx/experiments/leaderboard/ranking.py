"""The results of the leaderboard: views on the study of each defence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from phalanx.attacks import Attack
from phalanx.experiments.grid import name_of
from phalanx.experiments.leaderboard.defences import Defence, DefenceSetting
from phalanx.experiments.leaderboard.tiers import Tier
from phalanx.experiments.line_store import key_of
from phalanx.experiments.results import Results, Row
from phalanx.experiments.statistics import Estimate
from phalanx.experiments.study import Study
from phalanx.experiments.trace import Trace
from phalanx.experiments.tuning import NoSettingError
from phalanx.experiments.worst import FOUND, NAMED, NONE, Carried, MissingRunsError
from phalanx.runs.plan import Run


class Trial(NamedTuple):
    """A defence under one attack, on the seeds of the results.

    Args:
        plan: the first run.
        traces: one for each seed.
    """

    plan: Run
    traces: tuple[Trace, ...]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Trial | None":
        """Return the trial of some runs; None if there are none."""
        if not rows or rows[0].plan is None:
            return None
        return cls(rows[0].plan, tuple(row.trace for row in rows))

    @property
    def attack(self) -> Attack | None:
        """The attack; None for none."""
        return self.plan.attack

    @property
    def key(self) -> str:
        """The key of the first run."""
        return key_of(self.plan.identity, self.traces[0].source)

    @property
    def accuracies(self) -> list[float | None]:
        """The accuracy at the end, for each seed; None where there is none."""
        return [trace.final() for trace in self.traces]

    @property
    def accuracy(self) -> Estimate:
        """The mean accuracy over the seeds."""
        known = [value for value in self.accuracies if value is not None]
        return Estimate.of(known, len(self.traces) - len(known))


@dataclass(frozen=True)
class Contest:
    """A defence in one kind of heterogeneity, with one number of attackers.

    Args:
        where: the kind of heterogeneity.
        f: number of attackers.
        refused: why it cannot be carried out; "" if it can.
        named: under the worst of the named attacks; None if it is not known, or without attackers.
        found: under the worst of the others; without attackers, under none.
        error: of the last run of the search that failed; "" if none did.
    """

    where: str
    f: int
    refused: str = ""
    named: Trial | None = None
    found: Trial | None = None
    error: str = ""

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
class RankedDefence:
    """A defence with its results.

    Args:
        defence: the defence.
        setting: chosen for it; None if tuning is not complete.
        cells: its results, by heterogeneity and number of attackers; none if they are not complete.
        synchronous: whether it has rounds; None if it is not known.
        error: why it has no results although all runs are there; "" otherwise.
    """

    defence: Defence
    setting: DefenceSetting | None = None
    cells: Mapping[tuple[str, int], Contest] = field(default_factory=dict)
    synchronous: bool | None = None
    error: str = ""


def ranked(tier: Tier, defence: Defence, carried: Carried) -> RankedDefence:
    """Return the results of a defence, as far as the runs are there.

    Args:
        tier: the tier.
        defence: the defence.
        carried: carries out runs, or finds their records; may leave some out.
    """
    study = tier.study(defence)
    try:
        tuned, _ = study.tuned(study.trial.found(carried))
    except MissingRunsError:
        return RankedDefence(defence)
    except NoSettingError as error:
        return RankedDefence(defence, error=error.why)
    chosen = name_of(tuned.axes["defence"][defence.name]["defence"])
    setting = next(one for one in defence.settings if defence.text(one) == chosen)
    try:
        results = tuned.found(carried)
    except MissingRunsError:
        return RankedDefence(defence, setting)
    if results.missing:
        return RankedDefence(defence, setting)
    first = next((one.plan for one in tuned.planned), None)
    cells = {
        (where, f): _contest(tuned, results, where, f) for where in tier.heterogeneity for f in (0, *tier.attackers)
    }
    return RankedDefence(defence, setting, cells, None if first is None else first.algorithm.traits.synchronous)


def _contest(study: Study, results: Results, where: str, f: int) -> Contest:
    (defence,) = study.axes["defence"]
    labels = {"heterogeneity": where, "attackers": str(f), "defence": defence}
    of = {sort: Trial.of(results.where({**labels, "attack": sort})) for sort in (NAMED, FOUND, NONE)}
    error = next((one.error for one in results.sought if one.labels == labels), "")
    return Contest(where, f, study.infeasible.get((*labels.values(),), ""), of[NAMED], of[FOUND] or of[NONE], error)


def expected(tier: Tier, defence: Defence) -> int:
    """Return the number of runs of a defence, at most."""
    cells = len(tier.heterogeneity) * len(tier.attackers)
    tuning = len(defence.settings) * len(tier.heterogeneity) * len(tier.tuning_attacks)
    return tuning + cells * (tier.search.runs + 2 * len(tier.seeds)) + len(tier.heterogeneity) * len(tier.seeds)


def mean_over(trials: Sequence[Trial]) -> Estimate:
    """Return the accuracy of several trials: for each seed the mean over them, with the interval over seeds."""
    by_seed = list(zip(*(trial.accuracies for trial in trials), strict=True))
    known = [sum(values) / len(values) for values in by_seed if None not in values]
    return Estimate.of(known, len(by_seed) - len(known))
