"""The worst case: attackers choose their attack, its strength, schedule and reported size against each defence.

A search in three parts, each on the search seeds only.  First every attack with every factor on its update, of both
signs (`Together(attack, Rescale(factor))`); then the best of each attack with a schedule, and with a false size; then,
within a budget, random compositions of two attacks, drawn from a named stream.  Candidates of all defences are carried
out together.  An attack with which a run fails is no candidate: it could not be carried out against that defence.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phalanx.attacks import Attack, ReportTimes, Rescale, Scheduled, Together
from phalanx.core import InfeasibleError
from phalanx.experiments.grid import Labels, Planned, name_of
from phalanx.experiments.results import Results, Row
from phalanx.experiments.trace import Trace
from phalanx.rng import numpy_generator
from phalanx.runs.plan import Run
from phalanx.wording import percent, plural

COMPOSED = "composed"  # the name of the best composition of the random search
TOGETHER = 4  # compositions that are drawn at a time, before their outcomes are known
Carried = Callable[[Sequence[Planned]], Mapping[str, Trace]]  # returns the traces of runs, by identity


@dataclass(frozen=True)
class WorstOf:
    """An axis of attacks of which each defence meets its worst; see `worst_of`.

    Args:
        attacks: by name.
        factors: on the update of an attack; negative ones turn it around.
        schedules: numbers of versions from one attack to the next, for the best of each attack.
        sizes: multiples of their number of examples that attackers report, for the best of each attack.
        budget: number of random compositions.
        seeds: of the search; the study has none of them.
        seed: of the random compositions.
    """

    attacks: Mapping[str, Attack]
    factors: Sequence[float] = (1.0, 0.3, 3.0, -0.3, -1.0, -3.0)
    schedules: Sequence[int] = (2,)
    sizes: Sequence[float] = (10.0,)
    budget: int = 0
    seeds: Sequence[int] = (2000,)
    seed: int = 0

    def __post_init__(self) -> None:
        if (
            not self.attacks
            or COMPOSED in self.attacks
            or not all(isinstance(a, Attack) for a in self.attacks.values())
        ):
            raise InfeasibleError(f"worst_of needs attacks, none of them named {COMPOSED}, got {dict(self.attacks)}.")
        if 1.0 not in self.factors or self.budget < 0 or not self.seeds:
            raise InfeasibleError("worst_of needs the factor 1, a budget of at least 0, and at least one seed.")

    @property
    def runs(self) -> int:
        """The number of runs of the search against one defence, at most."""
        tried = len(self.attacks) * (len(self.factors) + len(self.schedules) + len(self.sizes))
        return (tried + self.budget) * len(self.seeds)

    def scaled(self, attack: Attack) -> list[Attack]:
        """Return an attack with each factor."""
        return [attack if factor == 1 else Together(attack, Rescale(factor)) for factor in self.factors]

    def varied(self, attack: Attack) -> list[Attack]:
        """Return an attack with each schedule, and with each false size."""
        return [
            *(Scheduled(attack, every=every) for every in self.schedules),
            *(Together(attack, ReportTimes(factor)) for factor in self.sizes),
        ]

    def drawn(self, number: int) -> Attack:
        """Return the composition of that number: two of the attacks, a factor, and a schedule or a size at times."""
        rng = numpy_generator(self.seed, "worst", number)
        pool = list(self.attacks.values())
        first, second = (pool[int(k)] for k in rng.choice(len(pool), 2))
        factor = float(np.round(rng.choice([-1, 1]) * 10 ** rng.uniform(-1, 1), 3))
        composed: Attack = Together(Together(first, second), Rescale(factor))
        kinds = [composed, *self.varied(composed)]
        return kinds[int(rng.choice(len(kinds)))]


def worst_of(attacks: Mapping[str, Attack] | Sequence[Attack], **options: Any) -> WorstOf:
    """Return an axis of attacks, each strengthened against each defence; options are those of `WorstOf`."""
    named = attacks if isinstance(attacks, Mapping) else {name_of(attack): attack for attack in attacks}
    return WorstOf(dict(named), **options)


class Found(NamedTuple):
    """An attack with the mean accuracy that it leaves on the search seeds."""

    attack: Attack
    accuracy: float


class Search:
    """The search for the worst attacks on some defences.

    Args:
        worst: the attacks.
        defences: a run of each defence, with its labels, under any attack.
        carried: carries out runs, or finds their records.
    """

    def __init__(self, worst: WorstOf, defences: Sequence[Planned], carried: Carried) -> None:
        self.worst, self.defences, self.carried = worst, defences, carried
        self.best: list[dict[str, Found]] = [{} for _ in defences]  # for each defence, by the name of the attack

    def result(self) -> list[dict[str, Attack]]:
        """Return the worst attack of each name, for each defence; those that could not be carried out are left out."""
        worst, given = self.worst, self.worst.attacks.items()
        self._try([(d, name, a) for d in self._all for name, attack in given for a in worst.scaled(attack)])
        best = [(d, name, found.attack) for d in self._all for name, found in self.best[d].items()]
        self._try([(d, name, a) for d, name, attack in best for a in worst.varied(attack)])
        for start in range(0, worst.budget, TOGETHER):
            drawn = [worst.drawn(k) for k in range(start, min(start + TOGETHER, worst.budget))]
            self._try([(d, COMPOSED, attack) for d in self._all for attack in drawn])
        return [{name: found.attack for name, found in best.items()} for best in self.best]

    @property
    def _all(self) -> range:
        return range(len(self.defences))

    def _try(self, candidates: Sequence[tuple[int, str, Attack]]) -> None:
        """Carry out attacks on defences, and keep those that leave less accuracy than the best until now."""
        planned = [[self._planned(d, attack, seed) for seed in self.worst.seeds] for d, _, attack in candidates]
        known = self.carried([one for runs in planned for one in runs])
        missing = {one.plan.identity for runs in planned for one in runs} - known.keys()
        if missing:
            raise InfeasibleError(f"{plural(len(missing), 'run')} of the search without a record. Carry out the study.")
        for (d, name, attack), runs in zip(candidates, planned, strict=True):
            values = [None if (t := known[one.plan.identity]).failed else t.final() for one in runs]
            finite = [value for value in values if value is not None]
            if len(finite) == len(values):
                mean = sum(finite) / len(finite)
                before = self.best[d].get(name)
                if before is None or mean < before.accuracy:
                    self.best[d][name] = Found(attack, mean)

    def _planned(self, defence: int, attack: Attack, seed: int) -> Planned:
        labels: Labels = {**self.defences[defence].labels, "attack": f"search: {name_of(attack)}"}
        return Planned(labels, replace(self.defences[defence].plan, attack=attack, seed=seed))


def with_worst(results: Results, folder: Path) -> Results:
    """Return the results with a sentence on the worst attack on each defence, and its run as a configuration file.

    Args:
        results: of a study with the axis "attack".
        folder: in which the page is written.
    """
    by_defence = dict[tuple[str, ...], dict[str, list[Row]]]()
    for row in results.rows:
        defence = tuple(value for axis, value in row.labels.items() if axis != "attack")
        by_defence.setdefault(defence, {}).setdefault(row.labels["attack"], []).append(row)
    notes, alone = list(results.notes), dict[str, Run]()
    for number, (defence, attacks) in enumerate(by_defence.items(), 1):
        means = {name: results.estimate(rows).mean for name, rows in attacks.items()}
        known = {name: mean for name, mean in means.items() if mean is not None}
        if not known or (plan := attacks[name := min(known, key=lambda n: known[n])][0].plan) is None:
            continue
        alone[f"{number}.yaml"] = plan
        notes.append(
            f"{', '.join(defence) or 'The defence'}: worst accuracy {percent(known[name])}, under {name}: "
            f"{name_of(plan.attack)}. Alone: phalanx run --config {folder / 'worst' / f'{number}.yaml'}"
        )
    return replace(results, notes=notes, alone=alone)
